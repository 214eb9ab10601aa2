"""Which workload of a kind a pull would come to, found without taking it.

A lane may stand open for a while though its key has become full; a pull closes it and goes on to
the next. A look may not write, so here such lanes are passed over. Only reads.
"""

from feltd.clock import Now
from feltd.store.tx import Row, Tx

NEXT = """
SELECT w.workload_id, w.eligible_at_ms, t.at_ms AS timeout_at_ms
  FROM lanes l
  JOIN demands d ON d.demand_id = l.demand_id
  JOIN workloads w ON w.seq = l.head_seq
  LEFT JOIN deadlines t ON t.workload_id = w.workload_id
 WHERE l.demand_id = :demand_id
   AND l.head_rank IS NOT NULL
   AND l.concurrency_open = 1
   AND l.rate_open = 1
   AND d.pool_open = 1
   AND NOT EXISTS (SELECT 1
                     FROM pools p
                    WHERE p.tenant_id = d.tenant_id
                      AND p.pool_id = d.pool_id
                      AND p.active >= p.max_concurrency)
   AND NOT EXISTS (SELECT 1
                     FROM concurrency_keys c
                    WHERE c.key_seq = l.concurrency_key
                      AND c.active >= c.claims_max)
   AND NOT EXISTS (SELECT 1
                     FROM rate_keys r
                     JOIN rate_uses u ON u.key_seq = r.key_seq
                                     AND u.number = r.uses + 1 - r.claims_max
                    WHERE r.key_seq = l.rate_key
                      AND u.at_ms > :now_ms - r.period_ms)
 ORDER BY l.head_rank, l.head_seq
 LIMIT 1
"""


def next_of(tx: Tx, now: Now, demand_id: int) -> Row | None:
    """What comes first of a kind; None where a pool or its keys keep all of it back.

    Gives workload_id, eligible_at_ms and timeout_at_ms. Where that has passed, the kind waits for
    the keeper to end it.
    """
    return tx.row(NEXT, {"demand_id": demand_id, "now_ms": now.lease_ms})


def timed_out(head: Row, now: Now) -> bool:
    """Whether a timeout of such a row has passed."""
    at_ms: int | None = head["timeout_at_ms"]
    return at_ms is not None and at_ms <= now.lease_ms

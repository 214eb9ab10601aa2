"""What time alone does to waiting work: it becomes due, its wall instant moves, its demand is gone.

Only the keeper calls these, each bounded by a limit and harmless to repeat. Whoever else makes a
row READY and due in one statement offers it himself (see demands.offer).
"""

from feltd.clock import Now
from feltd.mesh import demands
from feltd.store.tx import Row, Tx

#: Where in tx.memo stands which demand was looked at last.
PRUNED = "due.pruned"

PROMOTE = """
UPDATE workloads
   SET due = 1
 WHERE state = 'READY'
   AND due = 0
   AND seq IN (SELECT w.seq
                 FROM workloads w
                WHERE w.state = 'READY'
                  AND w.due = 0
                  AND w.eligible_at_ms <= :now_ms
                ORDER BY w.eligible_at_ms, w.seq
                LIMIT :limit)
RETURNING seq, tenant_id, application_id, lane_id, demand_id, rank
"""

NEXT_DUE = """
SELECT w.eligible_at_ms
  FROM workloads w
 WHERE w.state = 'READY'
   AND w.due = 0
 ORDER BY w.eligible_at_ms, w.seq
 LIMIT 1
"""

DEAD = """
SELECT d.demand_id, d.tenant_id, d.application_id,
       EXISTS (SELECT 1 FROM workloads w WHERE w.demand_id = d.demand_id) AS live
  FROM demands d
 WHERE d.demand_id > :after
 ORDER BY d.demand_id
 LIMIT :limit
"""


def promote(tx: Tx, limit: int, now: Now) -> tuple[int, int | None]:
    """Put READY rows whose instant has come into the claim index, `limit` at most, and tell it.

    Gives how many, and the lease time of the next one (in the past when the limit cut).
    """
    promoted = tx.rows(PROMOTE, {"now_ms": now.lease_ms, "limit": limit})
    best: dict[int, Row] = {}
    for row in promoted:
        held = best.get(row["lane_id"])
        if held is None or (row["rank"], row["seq"]) < (held["rank"], held["seq"]):
            best[row["lane_id"]] = row
    for row in best.values():
        demands.offer(tx, row["lane_id"], row["demand_id"], row["rank"], row["seq"])
        tx.tell("ready", f"{row['tenant_id']}/{row['application_id']}")
    coming = tx.row(NEXT_DUE)
    return len(promoted), None if coming is None else int(coming["eligible_at_ms"])


def prune(tx: Tx, limit: int, now: Now) -> int:
    """Delete demands that no live workload names; looks at `limit` of them and goes on next time.

    Gives how many were deleted. Where it stopped is kept in tx.memo: lost, it begins anew.
    """
    looked = tx.rows(DEAD, {"after": tx.memo.get(PRUNED, 0), "limit": limit})
    tx.memo[PRUNED] = looked[-1]["demand_id"] if len(looked) == limit else 0
    return demands.drop(tx, [row for row in looked if not row["live"]])

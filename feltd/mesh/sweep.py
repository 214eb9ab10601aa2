"""Takes back what its holder let lapse: the keeper's bounded pass over ended leases."""

from functools import partial

from feltd.clock import Now
from feltd.mesh.attempts import End, end_claim
from feltd.store.tx import Kept, Tx

# Where a timeout was over before the lease was, it counts: overdue.py ends that in the same round.
LAPSED = """
SELECT w.workload_id, w.fencing_token, w.expires_at_ms
  FROM workloads w
 WHERE w.state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
   AND w.expires_at_ms <= :now_ms
   AND (w.timeouts = '{}'
        OR NOT EXISTS (SELECT 1
                         FROM deadlines d
                        WHERE d.workload_id = w.workload_id
                          AND d.at_ms <= w.expires_at_ms))
 ORDER BY w.expires_at_ms, w.seq
 LIMIT :limit
"""


def recover(tx: Tx, limit: int, now: Now) -> int:
    """End up to `limit` claims whose lease is over, the longest over first; how many it ended.

    The end is written only where the lease is still over and the token is the one found. Each
    claim stands alone: one that cannot be ended stays, the others go on, and INTERNAL is raised
    when all have had their turn, so that the keeper's failure shows. Repeating ends what lapsed
    since.
    """
    lapsed = tx.rows(LAPSED, {"now_ms": now.lease_ms, "limit": limit})
    ended, stuck = 0, list[str]()
    for row in lapsed:
        workload_id = row["workload_id"]
        message = f"the lease ended at {row['expires_at_ms']} without a renewal"
        end = End(
            "lease_expired",
            message=message,
            fencing_token=row["fencing_token"],
            lapsed=True,
        )
        try:
            tx.attempt(partial(end_claim, tx, now, workload_id, end))
            ended += 1
        except Exception as error:
            if tx.lost is not None:
                raise
            stuck.append(f"{workload_id}: {error!r}")
    if stuck:
        raise Kept("INTERNAL", f"{len(stuck)} lapsed claims cannot be ended, first {stuck[0]}")
    return ended

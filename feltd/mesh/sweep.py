"""Takes back what its holder let lapse: the keeper's bounded pass over ended leases."""

from contextlib import suppress
from functools import partial

from feltd.clock import Now
from feltd.mesh.attempts import End, end_claim
from feltd.store.tx import Tx

LAPSED = """
SELECT w.workload_id, w.fencing_token, w.expires_at_ms
  FROM workloads w
 WHERE w.state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
   AND w.expires_at_ms <= :now_ms
 ORDER BY w.expires_at_ms, w.seq
 LIMIT :limit
"""


def recover(tx: Tx, limit: int, now: Now) -> int:
    """End up to `limit` claims whose lease is over, the longest over first; how many it ended.

    The end is written only where the lease is still over and the token is the one found. Each
    claim stands alone: one that cannot be ended stays, and the others go on. Repeating ends
    what lapsed since.
    """
    lapsed = tx.rows(LAPSED, {"now_ms": now.lease_ms, "limit": limit})
    ended = 0
    for row in lapsed:
        workload_id = row["workload_id"]
        message = f"the lease ended at {row['expires_at_ms']} without a renewal"
        end = End(
            "lease_expired",
            message=message,
            fencing_token=row["fencing_token"],
            lapsed=True,
        )
        # What cannot be ended breaks a promise: `feltd check` names it, other leases go on.
        with suppress(Exception):
            tx.attempt(partial(end_claim, tx, now, workload_id, end))
            ended += 1
    return ended

"""Takes back what its holder let lapse: the keeper's bounded pass over ended leases."""

import sqlite3
from functools import partial
from typing import NamedTuple

from feltd.clock import Now
from feltd.errors import Refused
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

#: One pass stays well under 50 ms of the writer's time.
RECOVER_MAX = 200


class Recovered(NamedTuple):
    """What a pass did: claim ids it ended, workloads it could not, whether more may wait."""

    claim_ids: list[str]
    failed: list[str]
    more: bool


def recover(tx: Tx, limit: int, now: Now) -> Recovered:
    """End up to `limit` claims whose lease is over, the longest over first.

    The end is written only where the lease is still over and the token is the one found. Each
    claim stands alone: one that cannot be ended is named, and the others go on. Repeating ends
    what lapsed since.
    """
    lapsed = tx.rows(LAPSED, {"now_ms": now.lease_ms, "limit": limit})
    ended: list[str] = []
    failed: list[str] = []
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
            ended.append(tx.attempt(partial(_end, tx, now, workload_id, end)))
        except (Refused, RuntimeError, sqlite3.IntegrityError):
            failed.append(workload_id)
    return Recovered(ended, failed, len(lapsed) == limit and not failed)


def _end(tx: Tx, now: Now, workload_id: str, end: End) -> str:
    return end_claim(tx, now, workload_id, end).claim_id

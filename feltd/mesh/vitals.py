"""Who still lives: silence makes a worker fail, but never silence the daemon could not hear.

Three passes over all workers, each run by somebody else: the keeper fails the silent ones, the
writer credits an outage before the first operation after it, a start from an older file ends what
that file believes to be held. All judge on lease time.
"""

from msgspec import Struct

from feltd.clock import Now
from feltd.mesh import attempts, deadlines, drain, events, lifecycle, workers
from feltd.store.tx import Row, Tx

#: Claims of silent workers that one round ends, some 50 ms; of the first worker all, be they more.
CLAIMS_AT_ONCE = 500

SILENT = """
SELECT k.worker_id, k.tenant_id, k.application_id, k.lifecycle, k.last_seen_at_ms,
       (SELECT count(*)
          FROM claims c
         WHERE c.worker_id = k.worker_id
           AND c.ended_at_ms IS NULL) AS claims
  FROM workers k
 WHERE k.lifecycle <> 'OFFLINE'
   AND k.last_seen_at_ms + k.heartbeat_timeout_ms <= :now_ms
 ORDER BY k.last_seen_at_ms + k.heartbeat_timeout_ms, k.worker_id
 LIMIT :limit
"""

FAIL = """
UPDATE workers
   SET health = 'UNHEALTHY'
 WHERE worker_id = :worker_id
"""

# The workload's own word on lost workers, else the daemon's.
LOST_CLAIMS = """
SELECT c.fencing_token, c.workload_id
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE c.worker_id = :worker_id
   AND c.ended_at_ms IS NULL
   AND coalesce(w.on_worker_lost, :on_worker_lost) = 'end'
 ORDER BY c.fencing_token
"""

# Extended are leases that lived when the outage began; no lease outlives its worker's grant.
CREDIT_LEASES = """
UPDATE workloads
   SET expires_at_ms = (SELECT CASE WHEN coalesce(k.authority_expires_at_ms + :wall_to_lease_ms,
                                                  :now_ms + k.heartbeat_timeout_ms)
                                         < :now_ms + k.heartbeat_timeout_ms
                                    THEN k.authority_expires_at_ms + :wall_to_lease_ms
                                    ELSE :now_ms + k.heartbeat_timeout_ms END
                          FROM workers k
                         WHERE k.worker_id = workloads.claim_worker_id)
 WHERE state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
   AND expires_at_ms > :since_ms
   AND expires_at_ms < (SELECT CASE WHEN coalesce(k.authority_expires_at_ms + :wall_to_lease_ms,
                                                  :now_ms + k.heartbeat_timeout_ms)
                                         < :now_ms + k.heartbeat_timeout_ms
                                    THEN k.authority_expires_at_ms + :wall_to_lease_ms
                                    ELSE :now_ms + k.heartbeat_timeout_ms END
                          FROM workers k
                         WHERE k.worker_id = workloads.claim_worker_id)
"""

CREDIT_WORKERS = """
UPDATE workers
   SET last_seen_at_ms = :now_ms
 WHERE lifecycle <> 'OFFLINE'
   AND last_seen_at_ms < :now_ms
   AND last_seen_at_ms + heartbeat_timeout_ms > :since_ms
"""

HOLDERS = """
SELECT DISTINCT c.worker_id
  FROM claims c
 WHERE c.ended_at_ms IS NULL
 ORDER BY c.worker_id
"""

PRESENT = """
SELECT k.worker_id, k.tenant_id, k.application_id, k.lifecycle, k.drain_at_ms
  FROM workers k
 WHERE k.lifecycle <> 'OFFLINE'
 ORDER BY k.worker_id
"""


class Restored(Struct, frozen=True):
    """What a start from an older file ended: ids of claims, ids of workers."""

    claims: list[str]
    workers: list[str]


def detect_failures(tx: Tx, limit: int, now: Now, on_worker_lost: str = "end") -> int:
    """`fail_silent` as the keeper runs it: how many workers failed, `limit` where more are left."""
    silent = tx.rows(SILENT, {"now_ms": now.lease_ms, "limit": limit})
    failed = _failed(tx, now, silent, on_worker_lost)
    return limit if len(failed) < len(silent) else len(failed)


def fail_silent(tx: Tx, limit: int, now: Now, on_worker_lost: str = "end") -> list[str]:
    """Workers past their heartbeat timeout become OFFLINE and UNHEALTHY; their ids, ascending.

    Their live claims end worker_lost in the same transaction, unless the workload, or else
    `on_worker_lost`, says "lease": then they run out. At most `limit` workers, the longest silent
    first, and none more once they held CLAIMS_AT_ONCE claims; equality with the timeout fails.
    Repeating fails nobody twice.
    """
    silent = tx.rows(SILENT, {"now_ms": now.lease_ms, "limit": limit})
    return _failed(tx, now, silent, on_worker_lost)


def credit(tx: Tx, now: Now, gap_ms: int, first: bool) -> int:
    """Take time in which the daemon could not hear off nobody: how many workers and leases.

    Live leases end no earlier than one heartbeat timeout from now, present workers count as heard
    now, claims to be started have as long; execution_ms and total_ms run on. What had run out
    before the outage began, `gap_ms` ago, gets nothing; at the first batch of a run nobody knows
    when it began, and everybody is credited. One event, none when nobody is.
    """
    scale = {
        "now_ms": now.lease_ms,
        "since_ms": -1 if first else now.lease_ms - gap_ms,
        "wall_to_lease_ms": now.lease_ms - now.wall_ms,
    }
    credited = tx.change(CREDIT_LEASES, scale) + tx.change(CREDIT_WORKERS, scale)
    credited += deadlines.credit(tx, now, int(scale["since_ms"]))
    if credited:
        events.tell(tx, now, "credit")
    return credited


def restore(tx: Tx, now: Now) -> Restored:
    """End what a file that was rolled back believes to be held; for the start, before any call.

    Every live claim ends `restored`, spending nothing. Workers that were present go through
    OFFLINE to RECOVERING, those under a drain stay OFFLINE. What happens from here on is
    numbered apart from what the other file told. Repeating finds nothing more to end.
    """
    events.skip(tx, now)
    events.tell(tx, now, "restore")
    ended: list[str] = []
    for row in tx.rows(HOLDERS):
        ended += attempts.end_claims_of(tx, now, row["worker_id"], "restored")
    moved: list[str] = []
    for row in tx.rows(PRESENT):
        worker_id = row["worker_id"]
        if not lifecycle.go_offline(tx, worker_id, "restored"):
            lifecycle.lose(tx, worker_id, "restored")
        workers.told(tx, now, "restore", row, from_state=row["lifecycle"], to_state="OFFLINE")
        if row["drain_at_ms"] is None:
            lifecycle.begin_recovery(tx, now, worker_id, "restored")
            workers.told(tx, now, "restore", row, from_state="OFFLINE", to_state="RECOVERING")
        drain.settle(tx, worker_id, now)
        moved.append(worker_id)
    return Restored(ended, moved)


def _failed(tx: Tx, now: Now, silent: list[Row], on_worker_lost: str) -> list[str]:
    """Fail the first of these until they held enough; their ids, ascending."""
    claims, some = 0, list[Row]()
    for row in silent:
        if some and claims + row["claims"] > CLAIMS_AT_ONCE:
            break
        claims += row["claims"]
        some.append(row)
    some.sort(key=lambda row: str(row["worker_id"]))
    for row in some:
        _fail(tx, now, row, on_worker_lost)
    return [row["worker_id"] for row in some]


def _fail(tx: Tx, now: Now, row: Row, on_worker_lost: str) -> None:
    worker_id = row["worker_id"]
    if not lifecycle.go_offline(tx, worker_id, "failed"):
        lifecycle.lose(tx, worker_id, "failed")
    tx.change(FAIL, {"worker_id": worker_id})
    workers.told(tx, now, "detect_failures", row, from_state=row["lifecycle"], to_state="OFFLINE")
    tx.tell("worker_offline", worker_id)
    sought = {"worker_id": worker_id, "on_worker_lost": on_worker_lost}
    for claim in tx.rows(LOST_CLAIMS, sought):
        end = attempts.End("worker_lost", fencing_token=claim["fencing_token"])
        attempts.end_claim(tx, now, claim["workload_id"], end)

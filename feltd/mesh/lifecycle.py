"""Every edge a worker's lifecycle has, and the one statement that walks it.

Nobody else writes `lifecycle`. Each verb names where it may come from and where it goes; one that
finds the worker elsewhere changes nothing and says so, because the caller decides what that means.
BUSY is never stored: it is READY with every slot taken.
"""

from feltd.clock import Now
from feltd.store.tx import Row, Tx

MAKE_READY = """
UPDATE workers
   SET lifecycle = 'READY',
       lifecycle_cause = 'verb',
       offline_reason = NULL
 WHERE worker_id = :worker_id
   AND lifecycle IN ('REGISTERED', 'RECOVERING')
"""

RESUME = """
UPDATE workers
   SET lifecycle = 'READY',
       lifecycle_cause = 'resume',
       offline_reason = NULL
 WHERE worker_id = :worker_id
   AND lifecycle = 'DRAINING'
"""

MAKE_DRAINING = """
UPDATE workers
   SET lifecycle = 'DRAINING',
       lifecycle_cause = 'verb'
 WHERE worker_id = :worker_id
   AND lifecycle = 'READY'
"""

FINISH_DRAIN = """
UPDATE workers
   SET lifecycle = 'OFFLINE',
       lifecycle_cause = 'verb',
       offline_reason = CASE WHEN drain_by = 'worker:' || worker_id THEN 'left'
                             ELSE 'drained' END
 WHERE worker_id = :worker_id
   AND lifecycle IN ('DRAINING', 'RECOVERING')
   AND drain_at_ms IS NOT NULL
   AND NOT EXISTS (SELECT 1
                     FROM claims c
                    WHERE c.worker_id = workers.worker_id
                      AND c.ended_at_ms IS NULL)
"""

GO_OFFLINE = """
UPDATE workers
   SET lifecycle = 'OFFLINE',
       lifecycle_cause = 'verb',
       offline_reason = :reason
 WHERE worker_id = :worker_id
   AND lifecycle IN ('READY', 'DRAINING', 'RECOVERING')
"""

LOSE = """
UPDATE workers
   SET lifecycle = 'OFFLINE',
       lifecycle_cause = 'lost',
       offline_reason = :reason
 WHERE worker_id = :worker_id
   AND lifecycle = 'REGISTERED'
"""

BEGIN_RECOVERY = """
UPDATE workers
   SET lifecycle = 'RECOVERING',
       lifecycle_cause = 'verb',
       offline_reason = :reason,
       last_seen_at_ms = :now_ms
 WHERE worker_id = :worker_id
   AND lifecycle = 'OFFLINE'
"""

REGISTER_AGAIN = """
UPDATE workers
   SET lifecycle = 'REGISTERED',
       lifecycle_cause = 'register',
       offline_reason = NULL
 WHERE worker_id = :worker_id
   AND lifecycle IN ('READY', 'DRAINING', 'OFFLINE', 'RECOVERING')
"""


def make_ready(tx: Tx, worker_id: str) -> bool:
    """REGISTERED or RECOVERING → READY. Whoever polls for the worker looks again."""
    return _walk(tx, MAKE_READY, worker_id)


def resume(tx: Tx, worker_id: str) -> bool:
    """DRAINING → READY, by the end of the drain."""
    return _walk(tx, RESUME, worker_id)


def make_draining(tx: Tx, worker_id: str) -> bool:
    """READY → DRAINING."""
    return _walk(tx, MAKE_DRAINING, worker_id)


def finish_drain(tx: Tx, worker_id: str) -> bool:
    """DRAINING or RECOVERING → OFFLINE under a drain, once no claim is left.

    `offline_reason` tells a worker that left by itself from one that was drained.
    """
    return _walk(tx, FINISH_DRAIN, worker_id)


def go_offline(tx: Tx, worker_id: str, reason: str) -> bool:
    """READY, DRAINING or RECOVERING → OFFLINE."""
    return _walk(tx, GO_OFFLINE, worker_id, reason=reason)


def lose(tx: Tx, worker_id: str, reason: str) -> bool:
    """REGISTERED → OFFLINE: it was never heard as a worker."""
    return _walk(tx, LOSE, worker_id, reason=reason)


def begin_recovery(tx: Tx, now: Now, worker_id: str, reason: str) -> bool:
    """OFFLINE → RECOVERING, with one heartbeat timeout from now to reconcile."""
    return _walk(tx, BEGIN_RECOVERY, worker_id, reason=reason, now_ms=now.lease_ms)


def register_again(tx: Tx, worker_id: str) -> bool:
    """Any → REGISTERED: another process took the name, or the worker comes back."""
    return _walk(tx, REGISTER_AGAIN, worker_id)


def shown(row: Row, live_claims: int) -> str:
    """The lifecycle to tell: BUSY for a READY worker whose every slot is taken."""
    if row["lifecycle"] == "READY" and live_claims >= row["concurrency"]:
        return "BUSY"
    return str(row["lifecycle"])


def _walk(tx: Tx, statement: str, worker_id: str, **params: object) -> bool:
    walked = tx.change(statement, {"worker_id": worker_id, **params}) == 1
    if walked:
        tx.tell("worker", worker_id)
    return walked

"""Quarantine: a worker that gets no new work, while what it holds goes on.

An operator's intent about a worker, whatever process is behind its name: registering, reconciling
and beating go on under it and do not end it. It ends by `unquarantine`, at its instant, or when the
worker is removed. It is no part of the lifecycle.
"""

from msgspec.json import encode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import audit, principals
from feltd.mesh import workers
from feltd.model.base import Ask
from feltd.model.secret_text import covered
from feltd.model.worker import Quarantining, Worker
from feltd.store.tx import Tx

SCOPE = "workers:operate"

STAND = """
UPDATE workers
   SET quarantined_by = :by,
       quarantine_reason = :reason,
       quarantined_at_ms = CASE WHEN quarantined_until_at_ms <= :wall_ms THEN :now_ms
                                ELSE coalesce(quarantined_at_ms, :now_ms) END,
       quarantined_until_at_ms = :until_at_ms
 WHERE worker_id = :worker_id
"""

LIFT = """
UPDATE workers
   SET quarantined_by = NULL,
       quarantine_reason = NULL,
       quarantined_at_ms = NULL,
       quarantined_until_at_ms = NULL
 WHERE worker_id = :worker_id
   AND quarantined_at_ms IS NOT NULL
"""

OVER = """
SELECT k.worker_id, k.tenant_id, k.application_id
  FROM workers k
 WHERE k.quarantined_until_at_ms <= :wall_ms
 ORDER BY k.quarantined_until_at_ms, k.worker_id
 LIMIT :limit
"""


def quarantine(tx: Tx, ask: Ask[Quarantining], now: Now) -> Worker:
    """Give a worker no new work from this commit on; its parked polls end at once.

    `until_at_ms` is wall time. Repeating keeps when it began and takes the newer reason and end.
    Refuses WORKER_NOT_FOUND, WORKER_INVALID for an instant that is past.
    """
    principals.confirm(tx, ask.caller, now)
    principals.require_scope(ask.caller, SCOPE)
    row = workers.lookup(tx, ask.caller, ask.id)
    until_at_ms = ask.body.until_at_ms
    if until_at_ms is not None and until_at_ms <= now.wall_ms:
        raise Refused(
            "WORKER_INVALID",
            "/until_at_ms: is past",
            errors=[{"pointer": "/until_at_ms", "detail": "is past"}],
        )
    actor = str(ask.caller.subject)
    reason = covered(ask.body.reason)
    said = (actor, reason, until_at_ms)
    stands = (row["quarantined_by"], row["quarantine_reason"], row["quarantined_until_at_ms"])
    if said != stands:
        tx.change(
            STAND,
            {
                "worker_id": ask.id,
                "by": actor,
                "reason": reason,
                "until_at_ms": until_at_ms,
                "now_ms": now.lease_ms,
                "wall_ms": now.wall_ms,
            },
        )
        workers.told(tx, now, "quarantine", row, actor=actor)
        body = encode(ask.body)
        audit.act(tx, now, actor, "quarantine", ask.id, reason=reason, body=body)
        tx.tell("worker", ask.id)
    return workers.shown(tx, workers.present(tx, ask.id))


def unquarantine(tx: Tx, ask: Ask[None], now: Now) -> Worker:
    """End a quarantine. Without one nothing changes. Refuses WORKER_NOT_FOUND."""
    principals.confirm(tx, ask.caller, now)
    principals.require_scope(ask.caller, SCOPE)
    row = workers.lookup(tx, ask.caller, ask.id)
    if lift(tx, ask.id):
        actor = str(ask.caller.subject)
        workers.told(tx, now, "unquarantine", row, actor=actor)
        audit.act(tx, now, actor, "unquarantine", ask.id)
    return workers.shown(tx, workers.present(tx, ask.id))


def lift(tx: Tx, worker_id: str) -> bool:
    """Forget the quarantine of a worker; whether there was one. Who polls for it looks again."""
    lifted = tx.change(LIFT, {"worker_id": worker_id}) == 1
    if lifted:
        tx.tell("worker", worker_id)
    return lifted


def end_due(tx: Tx, limit: int, now: Now) -> int:
    """End up to `limit` quarantines whose instant has come; how many.

    They count as over from that instant on; this clears them away and writes it down.
    """
    over = tx.rows(OVER, {"wall_ms": now.wall_ms, "limit": limit})
    for row in over:
        lift(tx, row["worker_id"])
        workers.told(tx, now, "quarantine_end", row)
    return len(over)

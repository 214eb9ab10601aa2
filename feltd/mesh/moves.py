"""What an operator does to a worker by hand: recover, transition, remove.

Each is an edge of the lifecycle and nothing more; READY and BUSY follow from the claims and are
never set. Ending a worker's claims is part of the same transaction.
"""

from msgspec.json import encode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import audit, principals
from feltd.mesh import attempts, drain, lifecycle, membership, quarantine, states, workers
from feltd.model.base import Ask
from feltd.model.worker import Transition, Worker
from feltd.store.tx import Row, Tx

REMOVE = """
UPDATE workers
   SET removed_at_ms = :now_ms,
       content_version = content_version + 1
 WHERE worker_id = :worker_id
   AND lifecycle = 'OFFLINE'
"""


def recover(tx: Tx, ask: Ask[None], now: Now) -> Worker:
    """OFFLINE → RECOVERING, with one heartbeat timeout from now to reconcile.

    Repeating while it recovers changes nothing. Refuses WORKER_NOT_FOUND, and
    WORKER_TRANSITION_DENIED from any other lifecycle.
    """
    row = _row(tx, ask, now)
    if row["lifecycle"] != "RECOVERING":
        if not lifecycle.begin_recovery(tx, now, row["worker_id"], "recover"):
            raise _denied(_from(tx, row), "RECOVERING")
        _tell(tx, ask, now, "recover", row)
        _act(tx, ask, now, "recover")
    return _shown(tx, row)


def transition(tx: Tx, ask: Ask[Transition], now: Now) -> Worker:
    """Walk one edge of the verb by hand.

    To OFFLINE ends the live claims worker_lost; to DRAINING is a drain until it is resumed. The
    lifecycle it has is no edge and passes. Refuses WORKER_TRANSITION_DENIED for every other pair,
    READY and BUSY into each other among them, and WORKER_NOT_FOUND.
    """
    row = _row(tx, ask, now)
    present, to = _from(tx, row), ask.body.to
    if present == to:
        return _shown(tx, row)
    if not states.worker_transition(present, to) or {present, to} == {"READY", "BUSY"}:
        raise _denied(present, to)
    worker_id = row["worker_id"]
    actor = str(ask.caller.subject)
    if to == "DRAINING":
        # Settling walks the edge and tells of it.
        drain.stand(tx, now, worker_id, by=actor, until="resumed")
    else:
        _walk(tx, now, row, to)
        _tell(tx, ask, now, "transition", row)
    _act(tx, ask, now, "transition", encode(ask.body))
    if to != "RECOVERING":
        drain.settle(tx, worker_id, now, actor)
    return _shown(tx, row)


def remove(tx: Tx, ask: Ask[None], now: Now) -> None:
    """Take a worker out of the mesh; its name may register again, as a new incarnation.

    A drain or quarantine of it is forgotten, and it leaves its pools. Refuses WORKER_BUSY while it
    holds live claims, WORKER_NOT_FOUND also when it was removed before.
    """
    row = _row(tx, ask, now)
    worker_id = row["worker_id"]
    held = workers.live_claims(tx, worker_id)
    if held:
        raise Refused("WORKER_BUSY", "worker with active claims cannot be removed", used=len(held))
    drain.lift(tx, worker_id)
    quarantine.lift(tx, worker_id)
    if not lifecycle.go_offline(tx, worker_id, "removed"):
        lifecycle.lose(tx, worker_id, "removed")
    tx.change(REMOVE, {"worker_id": worker_id, "now_ms": now.lease_ms})
    membership.expel(tx, row["tenant_id"], worker_id, now)
    _tell(tx, ask, now, "remove", row)
    _act(tx, ask, now, "remove")
    tx.tell("worker", worker_id)
    tx.tell("worker_offline", worker_id)


def _row(tx: Tx, ask: Ask[None] | Ask[Transition], now: Now) -> Row:
    principals.confirm(tx, ask.caller, now)
    principals.require_scope(ask.caller, drain.SCOPE)
    return workers.lookup(tx, ask.caller, ask.id)


def _from(tx: Tx, row: Row) -> str:
    return lifecycle.shown(row, len(workers.live_claims(tx, row["worker_id"])))


def _walk(tx: Tx, now: Now, row: Row, to: str) -> None:
    worker_id = row["worker_id"]
    if to == "RECOVERING":
        lifecycle.begin_recovery(tx, now, worker_id, "recover")
    elif to == "READY":
        lifecycle.make_ready(tx, worker_id)
    else:
        lifecycle.go_offline(tx, worker_id, "transition")
        attempts.end_claims_of(tx, now, worker_id, "worker_lost")
        tx.tell("worker_offline", worker_id)


def _tell(tx: Tx, ask: Ask[None] | Ask[Transition], now: Now, verb: str, row: Row) -> None:
    after = workers.present(tx, row["worker_id"])
    workers.told(
        tx,
        now,
        verb,
        row,
        from_state=row["lifecycle"],
        to_state=after["lifecycle"],
        actor=str(ask.caller.subject),
    )


def _act(tx: Tx, ask: Ask[None] | Ask[Transition], now: Now, verb: str, body: bytes = b"") -> None:
    audit.act(tx, now, str(ask.caller.subject), verb, ask.id, body=body)


def _shown(tx: Tx, row: Row) -> Worker:
    after = workers.present(tx, row["worker_id"])
    return workers.shown(tx, after)


def _denied(present: str, to: str) -> Refused:
    return Refused(
        "WORKER_TRANSITION_DENIED", f"{present.title()} cannot transition to {to.title()}"
    )

"""Draining: a worker finishes what it holds and gets nothing new.

A drain is an intent that stands beside the lifecycle until it is ended: registering and
reconciling go on under it, and the beat that would make the worker READY leads to DRAINING, then to
OFFLINE once nothing is held. An operator's drain ends by `resume`, a worker's own at its next
registration.
"""

from collections.abc import Sequence

from msgspec.json import encode

from feltd.clock import Now
from feltd.identity import audit, principals
from feltd.mesh import lifecycle, workers
from feltd.model.base import Ask
from feltd.model.secret_text import covered
from feltd.model.worker import Drained, DrainRequest, Outstanding, Worker
from feltd.store.tx import Row, Tx

SCOPE = "workers:operate"

STAND = """
UPDATE workers
   SET drain_by = :by,
       drain_reason = :reason,
       drain_at_ms = coalesce(drain_at_ms, :now_ms),
       drain_until = :until
 WHERE worker_id = :worker_id
   AND (:own = 0 OR drain_by IS NULL OR drain_by = :by)
"""

BOUND = """
UPDATE workers
   SET no_renew_after_at_ms = :no_renew_after_at_ms
 WHERE worker_id = :worker_id
   AND drain_at_ms IS NOT NULL
   AND (:own = 0 OR no_renew_after_at_ms IS NULL OR no_renew_after_at_ms > :no_renew_after_at_ms)
"""

LIFT = """
UPDATE workers
   SET drain_by = NULL,
       drain_reason = NULL,
       drain_at_ms = NULL,
       drain_until = NULL,
       no_renew_after_at_ms = NULL
 WHERE worker_id = :worker_id
"""

MARK_DRAINED = """
UPDATE workers
   SET offline_reason = CASE WHEN drain_by = 'worker:' || worker_id THEN 'left'
                             ELSE 'drained' END
 WHERE worker_id = :worker_id
   AND lifecycle = 'OFFLINE'
   AND drain_at_ms IS NOT NULL
   AND NOT EXISTS (SELECT 1
                     FROM claims c
                    WHERE c.worker_id = workers.worker_id
                      AND c.ended_at_ms IS NULL)
"""

OUTSTANDING = """
SELECT c.fencing_token, c.workload_id, w.expires_at_ms
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE c.worker_id = :worker_id
   AND c.ended_at_ms IS NULL
 ORDER BY c.fencing_token
"""


def drain(tx: Tx, ask: Ask[DrainRequest], now: Now) -> Drained:
    """Let a worker finish and give it nothing new; by workers:operate, or by the worker itself.

    READY goes to DRAINING, and to OFFLINE at once when nothing is held; in any other lifecycle
    the intent stands and takes hold when the worker would become READY. `no_renew_after_ms`: no
    lease of it is moved out past now + that. Repeating keeps when it began and takes the newer
    reason. A worker's own drain never replaces an operator's and only brings a bound nearer.
    Refuses WORKER_NOT_FOUND, FORBIDDEN.
    """
    principals.confirm(tx, ask.caller, now)
    own = _is_own(ask)
    if not own:
        principals.require_scope(ask.caller, SCOPE)
    row = workers.lookup(tx, ask.caller, ask.id)
    worker_id = row["worker_id"]
    begun = row["drain_at_ms"] is None
    after_ms = ask.body.no_renew_after_ms
    stand(
        tx,
        now,
        worker_id,
        by=f"worker:{worker_id}" if own else str(ask.caller.subject),
        until="registered" if own else ask.body.until,
        reason=ask.body.reason or ("left" if own else None),
        no_renew_after_at_ms=None if after_ms is None else now.lease_ms + after_ms,
        own=own,
    )
    if own:
        workers.heard(tx, worker_id, now)
        # Its own call proves that it lives, so a worker that never beat can leave at once too.
        if row["lifecycle"] == "REGISTERED" and lifecycle.make_ready(tx, worker_id):
            workers.told(tx, now, "ready", row, from_state="REGISTERED", to_state="READY")
    actor = str(ask.caller.subject)
    if begun and row["lifecycle"] != "READY":
        # No edge yet: the intent alone is the news.
        workers.told(tx, now, "drain", row, actor=actor)
    if not own:
        _act(tx, ask, now, "drain", ask.body.reason, encode(ask.body))
    settle(tx, worker_id, now, actor)
    tx.tell("worker", worker_id)
    return _drained(tx, worker_id, now)


def resume(tx: Tx, ask: Ask[None], now: Now) -> Worker:
    """End a drain: DRAINING goes to READY, OFFLINE to RECOVERING with one timeout to reconcile.

    Without a drain nothing changes, so a repeat is harmless. Refuses WORKER_NOT_FOUND.
    """
    principals.confirm(tx, ask.caller, now)
    principals.require_scope(ask.caller, SCOPE)
    row = workers.lookup(tx, ask.caller, ask.id)
    if row["drain_at_ms"] is not None:
        worker_id = row["worker_id"]
        lift(tx, worker_id)
        if not lifecycle.resume(tx, worker_id):
            lifecycle.begin_recovery(tx, now, worker_id, "recover")
        before, row = row["lifecycle"], workers.lookup(tx, ask.caller, ask.id)
        actor = str(ask.caller.subject)
        workers.told(
            tx, now, "resume", row, from_state=before, to_state=row["lifecycle"], actor=actor
        )
        _act(tx, ask, now, "resume", None, b"")
    return workers.shown(tx, row)


def stand(
    tx: Tx,
    now: Now,
    worker_id: str,
    *,
    by: str,
    until: str,
    reason: str | None = None,
    no_renew_after_at_ms: int | None = None,
    own: bool = False,
) -> None:
    """Write the intent down. `own`: a worker's, which leaves an operator's as it is.

    When it began stays. A bound on renewals holds in either case: an operator's replaces the
    former one, a worker's own only where it comes sooner.
    """
    params: dict[str, object] = {"worker_id": worker_id, "own": int(own)}
    reason = None if reason is None else covered(reason)
    tx.change(STAND, {**params, "by": by, "reason": reason, "now_ms": now.lease_ms, "until": until})
    if no_renew_after_at_ms is not None:
        tx.change(BOUND, {**params, "no_renew_after_at_ms": no_renew_after_at_ms})


def settle(tx: Tx, worker_id: str, now: Now, actor: str | None = None) -> None:
    """Take a worker under a drain as far towards OFFLINE as its claims let it; else nothing."""
    row = workers.find(tx, worker_id)
    if row is None or row["drain_at_ms"] is None:
        return
    if row["lifecycle"] == "OFFLINE":
        tx.change(MARK_DRAINED, {"worker_id": worker_id})
        return
    if lifecycle.make_draining(tx, worker_id):
        workers.told(tx, now, "drain", row, from_state="READY", to_state="DRAINING", actor=actor)
    workers.idle(tx, worker_id, now)


def safe_at_ms(row: Row, expiries_ms: Sequence[int], now: Now) -> int | None:
    """When nothing is in a worker's hands any more, at the latest; None while leases may go on.

    Lease time. `expiries_ms` are the ends of the leases it holds.
    """
    if not expiries_ms:
        return now.lease_ms
    bound_at_ms: int | None = row["no_renew_after_at_ms"]
    return None if bound_at_ms is None else max(bound_at_ms, *expiries_ms)


def lift(tx: Tx, worker_id: str) -> None:
    """Forget the drain of a worker, whoever asked for it. The lifecycle is the caller's."""
    tx.change(LIFT, {"worker_id": worker_id})


def _is_own(ask: Ask[DrainRequest]) -> bool:
    caller = ask.caller
    # Under --no-auth a worker's own drain looks like anybody's; only a worker says "registered".
    return caller.worker_id == ask.id or (caller.open and ask.body.until == "registered")


def _drained(tx: Tx, worker_id: str, now: Now) -> Drained:
    row = workers.present(tx, worker_id)
    held = [
        Outstanding(
            claim_id=f"claim_{claim['fencing_token']}",
            workload_id=claim["workload_id"],
            expires_at_ms=claim["expires_at_ms"],
        )
        for claim in tx.rows(OUTSTANDING, {"worker_id": worker_id})
    ]
    return Drained(
        worker=workers.show(row, [claim.claim_id for claim in held]),
        outstanding_claims=held,
        safe_to_stop=not held,
        safe_at_ms=safe_at_ms(row, [claim.expires_at_ms for claim in held], now),
    )


def _act(
    tx: Tx, ask: Ask[DrainRequest] | Ask[None], now: Now, verb: str, reason: str | None, body: bytes
) -> None:
    audit.act(tx, now, str(ask.caller.subject), verb, ask.id, reason=reason, body=body)

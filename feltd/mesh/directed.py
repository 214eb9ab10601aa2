"""Work that a person gives to a worker: named, or chosen by the documented order.

The decision is kept with everything it read; the claim that follows is an ordinary one, issued by
the one statement of taking.py. Its worker did not ask for it: it is told of it as assigned until it
has named it. Never gives a worker what it could not have pulled.
"""

from typing import Any

from msgspec.json import encode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import audit, principals
from feltd.mesh import (
    choosing,
    claims,
    decisions,
    holding,
    inputs,
    placement,
    pools,
    refusal,
    taking,
    workers,
)
from feltd.mesh.states import LIVE_STATES
from feltd.model.base import Ask, Caller
from feltd.model.claim import Claim, ClaimById
from feltd.model.placement import Dry
from feltd.model.policy import Placement
from feltd.store.tx import Kept, Row, Tx

SCOPE = "workloads:operate"

GIVEN_BY = """
SELECT d.decided_by
  FROM claims c
  JOIN decisions d ON d.decision_id = c.decision_id
 WHERE c.fencing_token = :fencing_token
   AND c.how = 'directed'
"""

#: A worker that beats as promised hears of the work in time to renew it.
INTERVALS_MIN = 2


def claim(tx: Tx, ask: Ask[ClaimById], now: Now) -> tuple[Claim, bool]:
    """Give the workload `ask.id` to a worker; its claim, and whether it is new.

    The worker is the named one or, without a name, the first in the documented order. `placement`
    narrows the workload's own. The lease is lease_ms, at least two heartbeat intervals of the
    worker. Repeated while that claim lives: it again. Refuses, in this order:
    WORKLOAD_NOT_FOUND, WORKER_NOT_FOUND (WORKER_POOL_NOT_FOUND, WORKLOAD_INVALID for a placement
    that cannot narrow), WORKLOAD_CAPABILITY_DENIED, WORKLOAD_NOT_READY,
    WORKLOAD_NOT_YET_ELIGIBLE, then MESH_PLACEMENT_DENIED with the rules of a named worker, or
    MESH_NO_ELIGIBLE_WORKER with the first rule of each.
    """
    principals.confirm(tx, ask.caller, now)
    principals.require_scope(ask.caller, SCOPE)
    work, named = inputs.workload(tx, ask.caller, ask.id), ask.body.worker_id
    if named is not None:
        _require_worker(tx, ask.caller, work, named, now)
    held = _already(tx, ask.caller, work, named, now)
    if held is not None:
        return held, False
    policy = narrowed(tx, work, ask.body.placement)
    found = decisions.answer(inputs.read(tx, work, policy, now, named))
    _require_given(tx, ask, now, work, found)
    assert found.chosen is not None
    decision_id = decisions.keep(tx, now, ask.caller, found)
    given = _give(tx, ask, now, found, decision_id)
    decisions.followed(tx, decision_id, given.fencing_token)
    actor, worker_id = str(ask.caller.subject), found.chosen.worker_id
    audit.act(tx, now, actor, "claim", ask.id, reason=worker_id, body=encode(ask.body))
    tx.tell("worker", worker_id)
    return given, True


def try_out(tx: Tx, ask: Ask[Placement], now: Now) -> Dry:
    """What a directed claim of the workload `ask.id` would decide now; stores nothing.

    The body narrows the workload's own placement. Refuses WORKLOAD_NOT_FOUND,
    WORKER_POOL_NOT_FOUND, WORKLOAD_INVALID for a placement that cannot narrow.
    """
    work = inputs.workload(tx, ask.caller, ask.id)
    found = decisions.answer(inputs.read(tx, work, narrowed(tx, work, ask.body), now))
    return Dry(
        workload_id=ask.id,
        eligible_workers=[one.worker_id for one in found.judged.eligible],
        selected_worker=None if found.chosen is None else found.chosen.worker_id,
        reason=found.reason,
        refused=list(found.judged.refused),
        evaluated_at_ms=now.lease_ms,
        state=work["state"],
        unread=found.inputs.unread,
    )


def narrowed(tx: Tx, work: Row, by: Placement | None) -> Placement:
    """The placement of a workload with what `by` adds to it; a pool that it names must be there."""
    policy = choosing.narrowed(inputs.policy_of(work), by)
    if by is not None and by.pool_id is not None:
        pools.require(tx, work["tenant_id"], work["application_id"], by.pool_id)
    return policy


def _require_worker(tx: Tx, caller: Caller, work: Row, worker_id: str, now: Now) -> None:
    row = workers.lookup(tx, caller, worker_id)
    if row["tenant_id"] != work["tenant_id"]:
        raise principals.not_found("WORKER_NOT_FOUND")
    refusal.settled(tx, now, worker_id)


def _already(tx: Tx, caller: Caller, work: Row, named: str | None, now: Now) -> Claim | None:
    """The live claim that this call has made before, if it has."""
    if work["state"] not in LIVE_STATES or work["expires_at_ms"] <= now.lease_ms:
        return None
    if work["timeout_at_ms"] is not None and work["timeout_at_ms"] <= now.lease_ms:
        return None
    if named is None:
        given = tx.row(GIVEN_BY, {"fencing_token": work["fencing_token"]})
        same = given is not None and given["decided_by"] == str(caller.subject)
    else:
        same = work["claim_worker_id"] == named
    return holding.live_claim(tx, work["fencing_token"]) if same else None


def _require_given(
    tx: Tx, ask: Ask[ClaimById], now: Now, work: Row, found: decisions.Answer
) -> None:
    """Refuse what cannot be given; a refusal that a decision stands behind is kept with it."""
    named = ask.body.worker_id
    rules = found.judged.refused[0].rules if named and found.judged.refused else ()
    if "capabilities" in rules or "grant" in rules:
        raise _kept(
            tx, ask, now, found, "WORKLOAD_CAPABILITY_DENIED",
            "the worker was not granted every capability of the workload",
        )  # fmt: skip
    require_waiting(work, now)
    if found.chosen is not None:
        return
    if named:
        why = {"rules": list(rules), "reasons": placement.reasons(rules)}
        raise _kept(tx, ask, now, found, "MESH_PLACEMENT_DENIED", "worker is not eligible", **why)
    raise _kept(
        tx, ask, now, found, "MESH_NO_ELIGIBLE_WORKER", choosing.UNMATCHED,
        reasons=choosing.reasons(found.judged),
    )  # fmt: skip


def require_waiting(work: Row, now: Now) -> None:
    """Refuse WORKLOAD_NOT_READY, WORKLOAD_NOT_YET_ELIGIBLE unless the work may run now.

    Takes a row with state, eligible_at_ms and timeout_at_ms.
    """
    if work["state"] != "READY":
        raise Refused("WORKLOAD_NOT_READY", f"the workload is {work['state']}")
    if work["timeout_at_ms"] is not None and work["timeout_at_ms"] <= now.lease_ms:
        raise Refused("WORKLOAD_NOT_READY", "a timeout of the workload has passed")
    if work["eligible_at_ms"] > now.lease_ms:
        raise Refused(
            "WORKLOAD_NOT_YET_ELIGIBLE",
            "the workload may not run yet",
            eligible_at_ms=work["eligible_at_ms"],
            server_time_ms=now.lease_ms,
        )


def _kept(
    tx: Tx, ask: Ask[ClaimById], now: Now, found: decisions.Answer, code: str, detail: str,
    **facts: Any,
) -> Kept:  # fmt: skip
    decision_id = decisions.keep(tx, now, ask.caller, found)
    return Kept(code, detail, **facts, decision_id=decisions.name(decision_id))


def _give(
    tx: Tx, ask: Ask[ClaimById], now: Now, found: decisions.Answer, decision_id: int
) -> Claim:
    assert found.chosen is not None
    worker_id = found.chosen.worker_id
    params = {
        "worker_id": worker_id,
        "request_id": None,
        "key_id": ask.caller.own_key,
        "wall_ms": now.wall_ms,
    }
    row = tx.row(claims.PULLER, params)
    assert row is not None
    interval_ms = workers.present(tx, worker_id)["heartbeat_interval_ms"]
    given = taking.take(
        tx,
        now,
        taking.Taking(
            ask.caller,
            row,
            ask.id,
            max(ask.body.lease_ms, INTERVALS_MIN * interval_ms),
            "directed",
            decision_id=decision_id,
            affinity=found.chosen.affinity,
            assigned=True,
            pool_id=found.inputs.policy.pool_id,
        ),
    )
    if given is None:
        raise RuntimeError(f"{ask.id} could not be given although nothing speaks against it")
    return given

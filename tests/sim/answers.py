"""What each answer adds to the history, and what of it must agree with what was known."""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import structs
from msgspec.json import encode

from feltd.clock import Now
from feltd.errors import TABLE
from feltd.model.claim import Pull
from feltd.model.worker import Worker
from feltd.model.workload import Made, NewWorkload, Refusal, Tombstone
from tests.sim import edits, gifts, waits
from tests.sim.calls import FENCED, Call
from tests.sim.history import History, Hold, Peer, Violation
from tests.sim.standing import (
    beaten,
    drained,
    issued,
    key_made,
    key_revoked,
    lifted,
    moved_out,
    reconciled,
    registered,
    removed,
    replaced,
    require_tenant,
    revoked,
    saw,
    shown,
    stopped,
)

#: An accepted call counts as heard, yet is written down at most once a second.
HEARD_SLACK_MS = 999
#: Calls after which a worker is known to have been heard at that very instant.
BEATS = frozenset({"heartbeat", "reconcile"})
#: A worker's calls that count as heard without being a beat.
HEARD = frozenset({*FENCED, "pull", "claim", "exchange"})


def after(history: History, call: Call) -> None:
    """Take in the answer of a call whose events are told already."""
    learn = LEARN.get(call.verb)
    if learn is not None:
        learn(history, call)
    worker = _worker_of(call.answer)
    if worker is not None:
        saw(history, worker)
        require_tenant(call.caller, worker.tenant_id)
    if call.verb in HEARD:
        peer = history.peers[call.caller.worker_id or ""]
        peer.heard_ms = max(peer.heard_ms, call.now.lease_ms - HEARD_SLACK_MS)


def refused(history: History, call: Call) -> None:
    """A refusal teaches nothing, but for a beat whose clock is wrong: it was heard."""
    gifts.refused(history, call)
    edits.refused(history, call)
    if call.code == "WORKLOAD_IDEMPOTENCY_CONFLICT" and call.verb == "create":
        body = encode(call.cmd.body.body)
        if any(work.body == body for work in history.works.values()):
            raise Violation(f"the same body was refused the second time: {body!r}")
    if call.refusal is not None and call.refusal.code == "WORKER_CLOCK_INVALID":
        peer = history.peers[call.cmd.id]
        if peer.lifecycle not in ("OFFLINE", "RECOVERING"):
            peer.heard_ms = call.now.lease_ms


def held(history: History, hold: Hold, answer: Any, now: Now) -> None:
    """A live claim as a fenced call was told of it; its lease moves out alone, within its grant."""
    end_ms = answer.expires_at_ms
    if end_ms is not None:
        moved_out(history, hold, end_ms, now)


def result_of(call: Call, body: Any, hold: Hold, workload_id: str) -> tuple[str, str]:
    """(result_id, output) as a completion left them."""
    if body is None:
        token = hold.token
        body = next(one for one in call.cmd.body.results if one.fencing_token == token).result
    default = f"result_{workload_id}_{hold.token}"
    if body is None:
        return default, "null"
    return body.result_id or default, encode(body.output, order="deterministic").decode()


def request_id_of(call: Call) -> str | None:
    """The request_id of a call that took work."""
    wanted = _pull_of(call)
    return None if wanted is None else wanted.request_id


def is_about(call: Call, peer: Peer) -> bool:
    """Whether a call that moved a worker moved this one."""
    if call.verb == "register":
        return bool(call.answer.answer.worker.worker_id == peer.worker_id)
    return bool(call.cmd.id == peer.worker_id)


def _pull_of(call: Call) -> Pull | None:
    body = call.cmd.body
    if call.verb == "exchange":
        return body.body.claim  # type: ignore[no-any-return]
    return body if isinstance(body, Pull) else None


def _worker_of(answer: Any) -> Worker | None:
    for candidate in (answer, getattr(answer, "worker", None)):
        if isinstance(candidate, Worker):
            return candidate
    return None


# -- work ------------------------------------------------------------------------------------


def _created(history: History, call: Call) -> None:
    workload = call.answer.workload
    _named(history, call, call.cmd.body.body, workload.workload_id, call.answer.created)
    if isinstance(workload, Tombstone):
        return
    work = history.works[workload.workload_id]
    if workload.state != work.state:
        raise Violation(f"{work.workload_id} was answered {workload.state}, known is {work}")


def _took_key(history: History, call: Call) -> None:
    _named(
        history,
        call,
        call.cmd.body.body,
        call.answer.workload_id,
        getattr(call.answer, "created", False),
    )


def _created_batch(history: History, call: Call) -> None:
    items = zip(call.cmd.body.items, call.answer.items, strict=True)
    for asked, made in items:
        if isinstance(made, Made):
            _named(history, call, asked.body, made.workload_id, made.created)
        elif not isinstance(made, Refusal):
            raise Violation(f"a batch answered {made}")


def _named(
    history: History, call: Call, body: NewWorkload, workload_id: str, created: bool
) -> None:
    """A key names one workload for ever."""
    work = history.works[workload_id]
    name = (work.tenant_id, work.application_id, body.idempotency_key)
    first = history.named.setdefault(name, workload_id)
    if first != workload_id or created != (work.max_attempts == 0):
        raise Violation(f"{name} names {first}, answered was {workload_id}, created {created}")
    require_tenant(call.caller, work.tenant_id)
    if created:
        edits.created(work, body)
        work.body = encode(body)
        waits.created(history, work, body)
        edits.begins(call, work)
        work.definition = f"{body.definition_id}#{body.definition_revision}"
    elif work.body != encode(body):
        raise Violation(f"{name} was asked for otherwise, and answered with {workload_id}")


def _pulled(history: History, call: Call) -> None:
    """New claims are those of the events; a repeated request gets what lives of its first ones."""
    wanted = _pull_of(call)
    fresh = [event["fencing_token"] for event in call.events if event["kind"] == "claim"]
    told = [claim.fencing_token for claim in call.answer.claims]
    worker_id = call.cmd.id
    expected = fresh
    if wanted is not None and wanted.request_id is not None:
        first = [
            hold
            for hold in history.holds.values()
            if hold.worker_id == worker_id
            and hold.incarnation == history.peers[worker_id].incarnation
            and hold.request_id == wanted.request_id
            and hold.token not in fresh
            and hold.workload_id not in history.gone
        ]
        if first:
            expected = [one.token for one in first if history.lasts(one, call.now)]
            if fresh:
                raise Violation(f"the repeat of {wanted.request_id} got others: {fresh}")
    if sorted(told) != sorted(expected):
        raise Violation(f"a pull was answered {told}, known are {expected}")
    for claim in call.answer.claims:
        shown(history, claim)


def _claimed(history: History, call: Call) -> None:
    claim, is_new = call.answer
    fresh = [event["fencing_token"] for event in call.events if event["kind"] == "claim"]
    if is_new != (claim.fencing_token in fresh):
        raise Violation(f"token {claim.fencing_token} was told as new: {is_new}")
    shown(history, claim)


def _exchanged(history: History, call: Call) -> None:
    # Its claim part may have been left out or refused; then it has reasons that are codes.
    if not any(reason.code in TABLE for reason in call.answer.reasons):
        _pulled(history, call)
    frame = call.cmd.body.body
    running = () if frame.heartbeat is None else frame.heartbeat.running_claims
    items = [item.claim_id for verb in FENCED for item in getattr(frame, verb)]
    _assigned(history, call, {*running, *items})
    for claim_id in call.answer.fenced_claims:
        token = claim_id.removeprefix("claim_")
        hold = history.holds.get(int(token)) if token.isdigit() else None
        own = hold is not None and hold.worker_id == call.cmd.id
        if own and history.lasts(hold, call.now):
            raise Violation(f"a live claim was called fenced: {hold}")


def _beaten(history: History, call: Call) -> None:
    beaten(history, call)
    _assigned(history, call, set(call.cmd.body.running_claims))


def _assigned(history: History, call: Call, named: set[str]) -> None:
    told = call.answer.assigned_claims
    for claim in told:
        shown(history, claim)
    tokens = [claim.fencing_token for claim in told]
    gifts.told(history, call.cmd.id, tokens, named, call.now)


def _gave(history: History, call: Call) -> None:
    _claimed(history, call)
    gifts.given(history, call)


def _looked(history: History, call: Call) -> None:
    """Cancel, requeue, evict: the workload is shown as it is known."""
    work = history.works[call.answer.workload_id]
    if call.verb == "requeue" and call.cmd.body.priority is not None:
        work.asked = structs.replace(work.asked, priority=call.cmd.body.priority)
    if call.answer.state != work.state or call.answer.fencing_token != work.token:
        raise Violation(f"{call.verb} was answered {call.answer.state}, known is {work}")
    require_tenant(call.caller, work.tenant_id)


Learn = Callable[[History, Call], None]
_LOOKED: Iterable[str] = ("cancel", "requeue", "evict")

LEARN: dict[str, Learn] = {
    "create": _created,
    "take_key": _took_key,
    "create_batch": _created_batch,
    "pull": _pulled,
    "claim": _claimed,
    "exchange": _exchanged,
    "register": registered,
    "heartbeat": _beaten,
    "give": _gave,
    "look_back": gifts.looked_back,
    "validate": gifts.validated,
    "fence": gifts.fenced,
    "reconcile": reconciled,
    "drain": drained,
    "remove": removed,
    "issue_grant": issued,
    "revoke_grant": revoked,
    "replace_grant": replaced,
    "create_key": key_made,
    "revoke_key": key_revoked,
    "seal_group": waits.sealed,
    "edit": edits.edited,
    "place_hold": stopped,
    "lift_hold": lifted,
    **dict.fromkeys(_LOOKED, _looked),
}

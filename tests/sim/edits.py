"""What waiting work asks for as people changed it, and what an answered change must have done."""

from typing import Any

from msgspec import UNSET, convert, structs, to_builtins
from msgspec.json import decode

from feltd.clock import Now
from feltd.model.base import INTEGER_MAX
from feltd.model.editing import Edit
from feltd.model.policy import Concurrency, Placement, Timeouts
from feltd.model.workload import NewWorkload, RetryPolicy
from feltd.store.tx import Row
from tests.sim.calls import Call
from tests.sim.history import LIVE, Asked, History, Violation, Work

FINAL = frozenset({"COMPLETED", "CANCELLED"})
#: Twice as far as both times may move apart before instants follow.
DRIFT_MS = 2_000


def created(work: Work, body: NewWorkload) -> None:
    """What a creation asked for."""
    work.asked = Asked(
        priority=body.priority,
        not_before_ms=body.not_before_at_ms,
        placement=body.placement or Placement(),
        concurrency=body.concurrency,
        timeouts=body.timeouts or Timeouts(),
        retry=body.retry_policy or RetryPolicy(),
        labels=dict(body.labels),
        on_worker_lost=body.on_worker_lost,
    )
    work.max_attempts = work.asked.retry.max_attempts


def begins(call: Call, work: Work) -> None:
    """Work that became READY otherwise than by the end of a claim may run now, or when it said."""
    wanted_ms, instant_ms = call.now.lease_ms, work.asked.not_before_ms
    if instant_ms is not None:
        wanted_ms = max(wanted_ms, call.now.lease_from_wall(instant_ms))
    if work.state == "READY" and work.eligible_at_ms != min(wanted_ms, INTEGER_MAX):
        raise Violation(f"{work.workload_id} is eligible at {work.eligible_at_ms}: {wanted_ms}")


def told(work: Work, event: Row) -> None:
    """An edit was told of: nobody held the work, and it was not final."""
    if work.state in LIVE or work.state in FINAL:
        raise Violation(f"{event['workload_id']} was changed while it was {work.state}")


def edited(history: History, call: Call) -> None:
    """A change was answered: the work asks for exactly that, and it was told if it is another."""
    work, body = history.works[call.cmd.id], call.cmd.body
    changed = changed_by(work.asked, body)
    eligible_ms = _eligible_ms(call, work, body)
    events = [event for event in call.events if event["kind"] == "edit"]
    moved = (changed, eligible_ms) != (work.asked, work.eligible_at_ms)
    # Of what is not READY the instant is found anew when it becomes so.
    said = bool(events) == moved if work.state == "READY" else events or changed == work.asked
    if not said or len(events) > 1:
        raise Violation(f"{body} was told {len(events)} times, {work} becomes {changed}")
    for event in events:
        if work.state == "READY" and event["eligible_at_ms"] != eligible_ms:
            raise Violation(f"{body} made it eligible at {event['eligible_at_ms']}: {eligible_ms}")
    if body.not_before_at_ms == 0:
        work.backoff_ms = None
    work.asked, work.eligible_at_ms = changed, eligible_ms
    work.max_attempts = changed.retry.max_attempts
    _shown(call.answer, work)


def refused(history: History, call: Call) -> None:
    """Only what is held or final is refused as that."""
    if call.verb == "edit" and call.code == "WORKLOAD_TRANSITION_DENIED":
        work = history.works[call.cmd.id]
        if work.state not in LIVE and work.state not in FINAL:
            raise Violation(f"{work.workload_id} may be changed, it is {work.state}")


def changed_by(asked: Asked, body: Edit) -> Asked:
    """What is asked for after a merge patch."""
    told = {
        name: getattr(body, name)
        for name in body.__struct_fields__
        if getattr(body, name) is not UNSET
    }
    members: dict[str, Any] = {}
    if "priority" in told:
        members["priority"] = told["priority"] or 0
    if "not_before_at_ms" in told:
        members["not_before_ms"] = told["not_before_at_ms"] or None
    for name, stored, shape in (
        ("placement", asked.placement, Placement),
        ("timeouts", asked.timeouts, Timeouts),
        ("concurrency", asked.concurrency, Concurrency),
        ("retry_policy", asked.retry, RetryPolicy),
        ("labels", asked.labels, dict[str, str]),
    ):
        if name in told:
            place = "retry" if name == "retry_policy" else name
            members[place] = _patched(name, stored, told[name], shape)
    return structs.replace(asked, **members)


def compare(work: Work, row: Row) -> None:
    """The row asks for what is known to be asked for."""
    known = work.asked
    concurrency = row["concurrency"]
    found = Asked(
        priority=row["priority"],
        not_before_ms=row["not_before_at_ms"],
        placement=decode(row["placement"], type=Placement),
        concurrency=None if concurrency is None else decode(concurrency, type=Concurrency),
        timeouts=decode(row["timeouts"], type=Timeouts),
        retry=decode(row["retry_policy"], type=RetryPolicy),
        labels=decode(row["labels"]),
        on_worker_lost=known.on_worker_lost,
    )
    if (_sorted(found), row["pool_id"], row["max_attempts"]) != (
        _sorted(known),
        known.placement.pool_id,
        known.retry.max_attempts,
    ):
        raise Violation(f"{work.workload_id} asks for {found}, known is {known}")


def adrift(history: History, now: Now) -> list[str]:
    """Work that waits for another instant than it should, after a whole round of the keeper."""
    found: list[str] = []
    for work in history.works.values():
        instant_ms = work.asked.not_before_ms
        waits = work.state == "READY" and work.eligible_at_ms > now.lease_ms
        if not waits or instant_ms is None:
            continue
        wanted_ms = max(work.ready_ms, work.backoff_ms or 0, now.lease_from_wall(instant_ms))
        low_ms, high_ms = wanted_ms - DRIFT_MS, max(wanted_ms, now.lease_ms) + DRIFT_MS
        if not low_ms <= work.eligible_at_ms <= high_ms:
            found.append(f"{work.workload_id} waits until {work.eligible_at_ms}, not {wanted_ms}")
    return found


def _sorted(asked: Asked) -> Asked:
    policy = structs.replace(asked.retry, retry_on=tuple(sorted(set(asked.retry.retry_on))))
    return structs.replace(asked, retry=policy)


def _patched(name: str, stored: Any, patch: Any, shape: Any) -> Any:
    if patch is None:
        return None if name == "concurrency" else convert({}, shape)
    return convert(_merged(to_builtins(stored), patch), shape)


def _merged(stored: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    kept = {} if not isinstance(stored, dict) else dict(stored)
    kept |= {name: _merged(kept.get(name), value) for name, value in patch.items()}
    return {name: value for name, value in kept.items() if patch.get(name, value) is not None}


def _eligible_ms(call: Call, work: Work, body: Edit) -> int:
    """When the work may run after the change: never before its backoff, but by saying 0."""
    instant, now_ms = body.not_before_at_ms, call.now.lease_ms
    if instant is UNSET:
        return work.eligible_at_ms
    if instant == 0:
        return min(work.eligible_at_ms, now_ms)
    wanted_ms = work.ready_ms
    if work.backoff_ms is not None and work.backoff_ms > now_ms:
        wanted_ms = max(wanted_ms, work.backoff_ms)
    if isinstance(instant, int):
        wanted_ms = max(wanted_ms, call.now.lease_from_wall(instant))
    # What waited until now could not be taken before.
    return min(max(wanted_ms, min(work.eligible_at_ms, now_ms)), INTEGER_MAX)


def _shown(answer: Any, work: Work) -> None:
    asked = work.asked
    said = (answer.priority, answer.not_before_at_ms, answer.placement, answer.timeouts)
    known = (asked.priority, asked.not_before_ms, asked.placement, asked.timeouts)
    if (*said, answer.concurrency, answer.labels) != (*known, asked.concurrency, asked.labels):
        raise Violation(f"an edit was answered {answer}, known is {asked}")

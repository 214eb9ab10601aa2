"""Until when work may wait and run, from what was asked for and what was told alone.

A bound is known to the millisecond, but for the start of a claim: an outage may have given it
longer, and until its row is seen only two instants are known between which it ends.
"""

from typing import TYPE_CHECKING, NamedTuple

from feltd.clock import Now
from feltd.store.tx import Row

if TYPE_CHECKING:
    from tests.sim.history import History, Hold, Work

OPEN = frozenset({"PENDING", "READY", "CLAIMED", "RUNNING", "CHECKPOINTED"})


class Bound(NamedTuple):
    """When the first timeout of a workload ends it, and what its end may be called."""

    low_ms: int
    high_ms: int
    kinds: frozenset[str]


def total_ms(work: "Work") -> int | None:
    """The end of total_ms, counted from the creation or the last requeue."""
    allowed_ms = work.asked.timeouts.total_ms
    return None if allowed_ms is None else work.born_ms + allowed_ms


def first(history: "History", work: "Work") -> Bound | None:
    """What ends the work if nothing happens before; None where nothing does."""
    if work.state not in OPEN:
        return None
    last_ms, own = total_ms(work), _own(history, work)
    if last_ms is None:
        return own
    if own is None:
        return Bound(last_ms, last_ms, frozenset({"total_timeout"}))
    kinds = own.kinds if own.low_ms < last_ms else frozenset()
    if last_ms <= own.high_ms:
        kinds |= {"total_timeout"}
    return Bound(min(last_ms, own.low_ms), min(last_ms, own.high_ms), kinds)


def passed(history: "History", work: "Work", now: Now) -> bool:
    """Whether a timeout has passed for certain."""
    bound = first(history, work)
    return bound is not None and bound.high_ms <= now.lease_ms


def may_have_passed(history: "History", work: "Work", now: Now) -> bool:
    """Whether one may have."""
    bound = first(history, work)
    return bound is not None and bound.low_ms <= now.lease_ms


def gave_up(history: "History", work: "Work", event: Row, now: Now) -> None:
    """Work that nobody held was ended by a timeout."""
    bound = first(history, work)
    known = bound is not None and bound.low_ms <= now.lease_ms and event["end_kind"] in bound.kinds
    if not known or event["to_state"] != "DEAD_LETTERED":
        raise _violation(f"{work.workload_id} timed out at {now}, known is {bound}: {tuple(event)}")


def ends_claim(history: "History", work: "Work", hold: "Hold", kind: str, now: Now) -> bool:
    """Whether a timeout may have ended this claim so, and not its lease before."""
    bound = first(history, work)
    return (
        bound is not None
        and bound.low_ms <= now.lease_ms
        and kind in bound.kinds
        and hold.high_ms >= bound.low_ms
    )


def lapses(history: "History", work: "Work", hold: "Hold", now: Now) -> bool:
    """Whether a lease may have ended this claim, and not a timeout before or with it."""
    bound = first(history, work)
    in_time = bound is None or hold.low_ms < bound.high_ms
    return hold.low_ms <= now.lease_ms and in_time


def credited(history: "History", hold: "Hold", now: Now, since_ms: int) -> None:
    """Whoever could not say that he started has a heartbeat timeout more; its lease is as before.

    Not beyond total_ms, and not where either had run out when nobody was heard any more.
    """
    work = history.works[hold.workload_id]
    if work.state != "CLAIMED" or work.asked.timeouts.start_ms is None:
        return
    until_ms = now.lease_ms + history.peers[hold.worker_id].timeout_ms
    last_ms = total_ms(work)
    if last_ms is not None:
        until_ms = min(until_ms, last_ms)
        if last_ms <= since_ms:
            return
    if hold.high_ms > since_ms and hold.start_high_ms > since_ms:
        hold.start_high_ms = max(hold.start_high_ms, until_ms)
    if hold.low_ms > since_ms and hold.start_low_ms > since_ms:
        hold.start_low_ms = max(hold.start_low_ms, until_ms)


def compare(history: "History", work: "Work", at_ms: int | None) -> None:
    """The stored instant is the known one, and tells more where that was not certain."""
    bound = first(history, work)
    wrong = (at_ms is None) != (bound is None)
    if bound is not None and at_ms is not None:
        wrong = not bound.low_ms <= at_ms <= bound.high_ms
    if wrong:
        raise _violation(f"{work.workload_id} is to end at {at_ms}, known is {bound}: {work}")
    last_ms = total_ms(work)
    if at_ms is not None and work.state == "CLAIMED" and (last_ms is None or at_ms < last_ms):
        hold = history.holds[work.token]
        hold.start_low_ms = hold.start_high_ms = at_ms


def left(history: "History", now: Now) -> list[str]:
    """Work that a whole round of the keeper should have ended."""
    return [work.workload_id for work in history.works.values() if passed(history, work, now)]


def _own(history: "History", work: "Work") -> Bound | None:
    """The end of the timeout that runs in this state beside total_ms."""
    asked, hold = work.asked.timeouts, history.holds.get(work.token)
    if work.state == "READY" and asked.queue_ms is not None:
        at_ms = max(work.ready_ms, work.eligible_at_ms) + asked.queue_ms
        return Bound(at_ms, at_ms, frozenset({"queue_timeout"}))
    if hold is None or work.state in ("READY", "PENDING"):
        return None
    if work.state == "CLAIMED":
        if asked.start_ms is None:
            return None
        return Bound(hold.start_low_ms, hold.start_high_ms, frozenset({"timeout"}))
    if asked.execution_ms is None:
        return None
    at_ms = hold.started_ms + asked.execution_ms
    return Bound(at_ms, at_ms, frozenset({"timeout"}))


def _violation(text: str) -> AssertionError:
    from tests.sim.history import Violation

    return Violation(text)

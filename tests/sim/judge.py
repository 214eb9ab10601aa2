"""Whether a fenced call may have been done, must have been, and was told the same as before.

The law in both directions: nothing is acknowledged under a claim that is known to be ended,
expired, superseded, another's or without authority; and a holder against whom nothing is known is
not turned away. A verb by which a claim ended gives its first answer again, and only that verb.
"""

from typing import Any, NamedTuple

from feltd.clock import Now
from feltd.mesh.refusal import token_of
from feltd.model.base import Caller
from feltd.model.claim import Complete, Fence
from feltd.model.worker import Result
from tests.sim.history import LIVE, History, Hold, Violation

RUNNING = frozenset({"RUNNING", "CHECKPOINTED"})
STATES = {"checkpoint": RUNNING, "complete": RUNNING}


class Item(NamedTuple):
    """A fenced call, alone or in an exchange. `answer` is None when it was refused with `code`."""

    verb: str
    workload_id: str
    body: Fence
    caller: Caller
    sound: bool
    answer: Any
    code: str


def judge(history: History, item: Item, now: Now) -> Hold | None:
    """The claim a call was rightly let through for; None when it was rightly refused or repeated.

    Raises Violation otherwise. Nothing of what it did may have been told to `history` yet.
    """
    hold, wrong = _named(history, item)
    wrong = history.forbids_caller(item.caller, now) or wrong
    done = item.answer is not None
    if done and not item.sound:
        raise Violation(f"{_told(item)} was done, although its body is to be refused")
    if wrong is not None or hold is None:
        if done:
            raise Violation(f"{_told(item)} was done, although {wrong}")
        return None
    why = history.forbids_claim(hold, now)
    if why is None:
        _judge_live(history, item, hold, now)
        return hold if done else None
    _judge_over(history, item, hold, now, why)
    return None


def body_of(body: Any) -> Any:
    """What must be the same in a repeat."""
    if isinstance(body, Complete | Result):
        return repr((body.result_id, body.output, body.artifacts, body.logs, body.resource_usage))
    return None


def _named(history: History, item: Item) -> tuple[Hold | None, str | None]:
    """The claim a call names, and why it is not the caller's to name."""
    body, caller = item.body, item.caller
    hold = history.holds.get(body.fencing_token)
    if hold is None:
        return None, "there is no such claim"
    if token_of(body.claim_id) != hold.token:
        return hold, "its claim id and token differ"
    if hold.workload_id != item.workload_id:
        return hold, f"the claim is of {hold.workload_id}"
    if body.worker_id != hold.worker_id:
        return hold, f"the claim is of {hold.worker_id}"
    if caller.worker_id != hold.worker_id:
        return hold, f"the caller is {caller.subject}"
    return hold, None


def _judge_live(history: History, item: Item, hold: Hold, now: Now) -> None:
    state = history.works[hold.workload_id].state
    starts = state == "CLAIMED" and getattr(item.body, "start", False)
    allowed = starts or state in STATES.get(item.verb, LIVE)
    if item.answer is not None and not allowed:
        raise Violation(f"{_told(item)} was done, although the workload was {state}")
    certain = history.lasts(hold, now) and _is_certain(history, item, now)
    if item.answer is not None or not item.sound or not certain:
        return
    if allowed:
        raise Violation(f"{_told(item)} was refused {item.code} within its lease, {state}")
    if item.code != "WORKLOAD_TRANSITION_DENIED":
        raise Violation(f"{_told(item)} was refused {item.code}: it is only {state}")


def _judge_over(history: History, item: Item, hold: Hold, now: Now, why: str) -> None:
    if item.workload_id in history.gone and item.answer is None:
        return
    repeat = hold.ended_by is not None and hold.ended_by == (item.verb, body_of(item.body))
    if item.answer is None:
        if repeat and item.sound and _is_certain(history, item, now):
            raise Violation(f"{_told(item)} was refused {item.code}, the first time it was done")
        return
    if not repeat:
        raise Violation(f"{_told(item)} was done, although {why}")
    if hold.outcome is None:
        # It was delivered by a reconciliation, which tells no outcome.
        hold.outcome = item.answer
    first, second = _compared(hold.outcome), _compared(item.answer)
    if first != second:
        raise Violation(f"{_told(item)} was answered {first}, and repeated {second}")


def _is_certain(history: History, item: Item, now: Now) -> bool:
    """Whether the key stands without doubt: a worker's dies with the grant it is bound to."""
    bearer = history.bearers.get(item.caller.key_id)
    return bearer is not None and history.chain_lives(bearer.grant_id, now)


def _compared(outcome: Any) -> tuple[Any, ...]:
    # Whether a cancellation is asked for is told as it is now.
    return (outcome.claim_id, outcome.state, outcome.result_id, outcome.eligible_at_ms)


def _told(item: Item) -> str:
    return f"{item.verb} of {item.workload_id} under token {item.body.fencing_token}"

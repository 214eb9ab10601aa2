"""What is known of work that people gave, and of what sinks asked; each answer must agree."""

from feltd.clock import Now
from tests.sim.calls import Call
from tests.sim.history import History, Violation

#: Refusals that a kept decision stands behind: their rows stay.
DECIDED = frozenset(
    {"MESH_NO_ELIGIBLE_WORKER", "MESH_PLACEMENT_DENIED", "WORKLOAD_CAPABILITY_DENIED"}
)


def given(history: History, call: Call) -> None:
    """The claim is told as it is; a new one is assigned until its worker names it."""
    claim, is_new = call.answer
    named = call.cmd.body.worker_id
    if named not in (None, claim.worker_id):
        raise Violation(f"the work for {named} was given to {claim.worker_id}")
    if is_new:
        history.assigned.add(claim.fencing_token)


def told(history: History, worker_id: str, tokens: list[int], named: set[str], now: Now) -> None:
    """A worker is told of exactly what it was given and has not named."""
    # One that is over is named in vain; an outage credited afterwards may bring it back.
    history.assigned -= {
        token
        for token in history.assigned
        if f"claim_{token}" in named and history.lasts(history.holds[token], now)
    }
    waiting = [
        token
        for token in history.live_of(worker_id)
        if token in history.assigned
        and history.works[history.holds[token].workload_id].state == "CLAIMED"
        and history.lasts(history.holds[token], now)
    ]
    if tokens != waiting:
        raise Violation(f"{worker_id} was told of {tokens}, given are {waiting}")


def looked_back(history: History, call: Call) -> None:
    """A decision, decided again, is the same."""
    if call.answer.agrees is not True:
        raise Violation(f"{call.answer.decision_id} is decided otherwise now")


def validated(history: History, call: Call) -> None:
    """A claim that is called valid is."""
    hold = history.holds.get(call.answer.fencing_token)
    why = "it was never issued" if hold is None else history.forbids_claim(hold, call.now)
    if why is not None:
        raise Violation(f"{call.answer.claim_id} was called valid, although {why}")


def fenced(history: History, call: Call) -> None:
    """A token that was let through is the highest that the resource has seen."""
    asked, answer = call.cmd.body, call.answer
    token, place = asked.body.fencing_token, (asked.tenant_id, answer.resource)
    if answer.highest != token or token < history.fences.get(place, 0):
        raise Violation(f"{token} was let through at {place}: {history.fences.get(place)}")
    hold = history.holds.get(token)
    if hold is None or history.works[hold.workload_id].tenant_id != asked.tenant_id:
        raise Violation(f"{token} was let through at {place}, and is no claim of the tenant")
    history.fences[place] = token


def refused(history: History, call: Call) -> None:
    """What is refused deserves it."""
    if call.refusal is None or call.refusal.code != "MESH_STALE_FENCE":
        return
    asked = call.cmd.body
    if call.verb == "fence":
        token, place = asked.body.fencing_token, (asked.tenant_id, call.cmd.id)
        hold = history.holds.get(token)
        known = hold is not None and history.works[hold.workload_id].tenant_id == place[0]
        if known and token >= history.fences.get(place, 0):
            raise Violation(f"{token} was refused at {place}: {history.fences.get(place)}")
    elif call.verb == "validate":
        hold = history.holds.get(asked.fencing_token)
        if hold is None or call.cmd.id != f"claim_{hold.token}":
            return
        if not history.lasts(hold, call.now):
            return
        seen = call.caller.may_see(history.works[hold.workload_id].tenant_id)
        if seen and history.forbids_claim(hold, call.now) is None:
            raise Violation(f"a live claim was called stale: {hold}")

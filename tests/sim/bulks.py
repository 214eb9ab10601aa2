"""One change to all that a filter lets through: what a search must find, what a chunk must do.

Which rows need a change is known from the calls; a chunk is judged against what was known when it
began, row by row in its own order.
"""

from collections.abc import Collection

from msgspec import structs

from feltd.mesh.bulk import Chunk, Plan
from tests.sim.calls import Call
from tests.sim.history import LIVE, History, Violation, Work

STATES = {
    "cancel": LIVE | {"PENDING", "READY", "DEAD_LETTERED"},
    "requeue": frozenset({"DEAD_LETTERED"}),
    "reprioritise": frozenset({"PENDING", "READY", "DEAD_LETTERED"}),
}
#: What the change of a row is told as.
KINDS = {"cancel": "cancel", "requeue": "requeue", "reprioritise": "edit"}


def wanted(history: History, plan: Plan, tenants: Collection[str]) -> list[str]:
    """What needs the change, newest first."""
    found = [
        work.workload_id
        for work in history.works.values()
        if {"*", work.tenant_id} & set(tenants) and _needs(plan, work)
    ]
    return found[::-1]


def before(history: History, call: Call) -> list[str]:
    """What a chunk that is about to be taken in must change, in the order in which it does."""
    chunk: Chunk = call.cmd.body
    plan, tenants = chunk.plan, call.caller.tenants
    needing = set(wanted(history, plan, tenants)) & set(chunk.workload_ids)
    if plan.action != "requeue":
        return [workload_id for workload_id in chunk.workload_ids if workload_id in needing]
    back: list[str] = []
    for workload_id in reversed(chunk.workload_ids):
        if workload_id in needing and not _needs_dead(history, history.works[workload_id], back):
            back.append(workload_id)
    return back


def changed(history: History, call: Call, expected: list[str]) -> None:
    """A chunk was answered, or refused as a whole because nothing of it could be done."""
    chunk: Chunk = call.cmd.body
    if call.refusal is not None and call.refusal.code != "WORKLOAD_TRANSITION_DENIED":
        # The caller may not, whatever there is to do.
        expected = []
    told = [
        event["workload_id"] for event in call.events if event["kind"] == KINDS[chunk.plan.action]
    ]
    if told != expected or (call.refusal is None and call.answer.changed != len(expected)):
        raise Violation(f"{chunk} changed {told}, needed were {expected}: {call.told()}")
    if call.refusal is None and call.answer.remaining < chunk.beyond:
        raise Violation(f"{chunk} left {call.answer}")
    for workload_id in told:
        work, priority = history.works[workload_id], chunk.plan.priority
        if priority is not None:
            work.asked = structs.replace(work.asked, priority=priority)


def _needs(plan: Plan, work: Work) -> bool:
    asked = plan.filter
    if work.state not in STATES[plan.action] or (work.state in LIVE and work.cancel):
        return False
    if plan.action == "reprioritise" and work.asked.priority == plan.priority:
        return False
    return (
        asked.tenant_id in (None, work.tenant_id)
        and asked.application_id in (None, work.application_id)
        and asked.state in (None, work.state)
        and asked.group in (None, work.group)
        and asked.definition_id in (None, work.definition.partition("#")[0])
        and asked.labels.items() <= work.asked.labels.items()
    )


def _needs_dead(history: History, work: Work, back: list[str]) -> bool:
    """Whether work needs a dead letter completed that was not brought back before it."""
    if work.policy != "all_completed":
        return False
    for name in work.names:
        members = [history.works.get(name)]
        if name.startswith("group:"):
            key = (work.tenant_id, name.removeprefix("group:"))
            members = [one for one in history.works.values() if (one.tenant_id, one.group) == key]
            states = {_state(one, back) for one in members if one is not None}
            if states <= {"COMPLETED", "CANCELLED", "DEAD_LETTERED"} and states - {"COMPLETED"}:
                return True
        elif members[0] is not None and _state(members[0], back) == "DEAD_LETTERED":
            return True
    return False


def _state(work: Work, back: list[str]) -> str:
    return "READY" if work.workload_id in back else work.state

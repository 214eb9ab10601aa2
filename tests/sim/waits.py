"""Work that waits for other work, and groups: what is known of them, and when it may go on.

What somebody waits for is known from the bodies of creations; each end is held against it. Where
the daemon must tell in the commit of the end, nothing may be left waiting behind it.
"""

from feltd.model.workload import NewWorkload
from feltd.store.tx import Row
from tests.sim.calls import Call
from tests.sim.history import History, Violation, Work

ENDED = frozenset({"COMPLETED", "DEAD_LETTERED", "CANCELLED"})


def created(history: History, work: Work, body: NewWorkload) -> None:
    """A creation was answered: it begins in the state that its dependencies stand for."""
    work.names, work.policy, work.group = body.dependencies, body.dependency_policy, body.group
    ends = {name: _end_of(history, work, name) for name in work.names}
    failed = any(end not in (None, "COMPLETED") for end in ends.values())
    work.needs = {name for name, end in ends.items() if end is None}
    wanted = "PENDING" if work.needs else "READY"
    if failed and work.policy == "all_completed":
        wanted, work.needs = "DEAD_LETTERED", set()
    if work.state != wanted:
        raise Violation(f"{work.workload_id} began {work.state}, its dependencies are {ends}")


def requeued(history: History, work: Work, to_state: str) -> None:
    """A dead letter came back: it waits for what is unfinished now."""
    work.needs = {name for name in work.names if _end_of(history, work, name) is None}
    if to_state != ("PENDING" if work.needs else "READY"):
        raise Violation(f"{work.workload_id} was requeued to {to_state}, it needs {work.needs}")


def settled(work: Work, event: Row) -> None:
    """Somebody was told of the end it waited for, in time and rightly."""
    wanted = "DEAD_LETTERED" if work.doomed else "READY"
    if event["to_state"] != wanted or (work.needs and not work.doomed):
        raise Violation(f"{work.workload_id} went to {event['to_state']}: {work}")


def moved(history: History, work: Work) -> None:
    """A workload is in another state now: if that is an end, who waits for it has one less."""
    if work.state != "PENDING":
        work.doomed = False
        if work.state in ENDED:
            work.needs = set()
    if work.state not in ENDED:
        return
    _tell(history, work, work.workload_id)
    if work.group is not None:
        _tell(history, work, f"group:{work.group}")


def sealed(history: History, call: Call) -> None:
    """A group takes nothing more."""
    history.sealed.add((call.cmd.body.tenant_id, call.cmd.body.name))


def compare(work: Work) -> None:
    """Nobody waits for nothing, and nobody who does not wait waits."""
    if (work.state == "PENDING") != bool(work.needs) or work.doomed:
        raise Violation(f"{work.workload_id} is {work.state} and needs {work.needs}: {work}")


def _tell(history: History, ended: Work, name: str) -> None:
    end = _end_of(history, ended, name)
    if end is None:
        return
    for child in history.works.values():
        same = child.tenant_id == ended.tenant_id
        if child.state == "PENDING" and name in child.needs and same:
            if end != "COMPLETED" and child.policy == "all_completed":
                child.doomed = True
            else:
                child.needs = child.needs - {name}


def _end_of(history: History, work: Work, name: str) -> str | None:
    """What a dependency of a workload ended as; None while it has not."""
    if not name.startswith("group:"):
        state = history.works[name].state
        return state if state in ENDED else None
    key = (work.tenant_id, name.removeprefix("group:"))
    states = {one.state for one in history.works.values() if (one.tenant_id, one.group) == key}
    if key not in history.sealed or not states <= ENDED:
        return None
    return "COMPLETED" if states <= {"COMPLETED"} else "DEAD_LETTERED"

"""Words of the stories: work that waits for other work, and what becomes of both."""

from typing import Any

from feltd.mesh import cancel, dependencies, due, groups, overdue, sweep
from feltd.mesh import requeue as requeuing
from feltd.model.group import CancelGroup, Group, GroupCancellation, GroupCancelled, GroupId
from feltd.model.workload import Cancel, Requeue
from tests.mesh.world import Mesh


def after(mesh: Mesh, *parents: str, **members: Any) -> str:
    """A workload that waits for these; its id."""
    return mesh.workload(dependencies=list(parents), **members)


def done(mesh: Mesh, job: str, by: str) -> None:
    """A worker takes a workload and completes it."""
    mesh.say("complete", mesh.claims(job, by=by, start=True))


def dies(mesh: Mesh, job: str, by: str) -> None:
    """A worker takes a workload and fails for good."""
    held = mesh.claims(job, by=by, start=True)
    mesh.say("fail", held, kind="execution_error", message="no")


def called_off(mesh: Mesh, job: str, **members: Any) -> None:
    """Somebody cancels a workload."""
    mesh.ask(cancel.cancel, Cancel(**members), job)


def requeued(mesh: Mesh, job: str) -> str:
    """Somebody requeues a dead letter; the state it has then."""
    return mesh.ask(requeuing.requeue, Requeue(), job).state


def settle(mesh: Mesh, limit: int = 200) -> int:
    """One slice of the keeper's; how much it did."""
    return mesh.run(dependencies.settle, limit)


def round_of(mesh: Mesh) -> None:
    """What the keeper does in a round, in its order and to its end."""
    mesh.run(sweep.recover, 200)
    mesh.run(overdue.end_timeouts, 200)
    while settle(mesh) >= 200:
        pass
    mesh.run(due.promote, 500)


def failure(mesh: Mesh, job: str) -> tuple[str, str | None]:
    """State and failure kind of a workload."""
    row = mesh.row("SELECT state, failure_kind FROM workloads WHERE workload_id = :job", job=job)
    return row["state"], row["failure_kind"]


def states(mesh: Mesh, *jobs: str) -> list[str]:
    """The states of some workloads."""
    return [mesh.state(job) for job in jobs]


def waiting(mesh: Mesh) -> int:
    """How many rows say that somebody waits for something."""
    return int(mesh.row("SELECT count(*) AS rows FROM dependency_waits")["rows"])


def group(mesh: Mesh, name: str = "night", tenant_id: str = "acme") -> Group:
    """A group as it is shown."""
    return mesh.ask(groups.get, GroupId(tenant_id, name))


def seal(mesh: Mesh, name: str = "night", tenant_id: str = "acme") -> Group:
    """Somebody seals a group."""
    return mesh.ask(groups.seal, GroupId(tenant_id, name))


def call_off_group(mesh: Mesh, name: str = "night", **members: Any) -> GroupCancelled:
    """Somebody cancels one chunk of a group."""
    body = GroupCancellation("acme", name, CancelGroup(**members))
    return mesh.ask(groups.cancel, body)

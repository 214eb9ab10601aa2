"""Words of the stories: time goes by and the keeper comes round."""

from typing import Any

from feltd.mesh import due, overdue, sweep
from tests.mesh.world import Mesh


def bounded(mesh: Mesh, **timeouts: int) -> str:
    """A READY workload with these timeouts; its id."""
    return mesh.workload(timeouts=timeouts)


def round_of(mesh: Mesh, limit: int = 200) -> tuple[int, int | None]:
    """What the keeper does in a round: leases, timeouts, what became due."""
    mesh.run(sweep.recover, limit)
    ended = mesh.run(overdue.end_timeouts, limit)
    mesh.run(due.promote, limit)
    return ended


def standing(mesh: Mesh, job: str) -> tuple[str, str | None]:
    """State and last failure of a workload."""
    row = mesh.row("SELECT state, failure_kind FROM workloads WHERE workload_id = :job", job=job)
    return row["state"], row["failure_kind"]


def deadline(mesh: Mesh, job: str) -> int | None:
    """The instant written down for a workload, milliseconds from now, None without one."""
    rows = mesh.conn.execute("SELECT at_ms FROM deadlines WHERE workload_id = ?", [job]).fetchall()
    return None if not rows else int(rows[0]["at_ms"]) - mesh.now.lease_ms


def newest_claim(mesh: Mesh, job: str) -> Any:
    """How the newest claim of a workload stands."""
    return mesh.row(
        "SELECT end_kind, end_state, spent, failure_message, ended_at_ms FROM claims"
        " WHERE workload_id = :job ORDER BY fencing_token DESC LIMIT 1",
        job=job,
    )

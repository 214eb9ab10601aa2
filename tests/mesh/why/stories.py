"""What the stories of why ask of a mesh."""

from collections.abc import Callable
from typing import Any

from msgspec import convert

from feltd.identity import principals
from feltd.mesh import backlog, causes, claims, idleness, why
from feltd.model.base import Ask, Caller
from feltd.model.claim import Pull, Pulled
from feltd.model.why import Backlog, BacklogAsk, Cause, WorkerWhy, WorkloadWhy
from feltd.store.tx import Tx
from tests.mesh.world import Mesh


def look(
    mesh: Mesh, rule: Callable[..., Any], body: Any, id: str = "", caller: Caller = principals.OPEN
) -> Any:
    """Ask a rule as a reader does: every write of it is refused."""
    mesh.conn.execute("PRAGMA query_only = 1")
    mesh.conn.execute("BEGIN")
    try:
        return rule(Tx(mesh.conn, {}), Ask(caller=caller, body=body, id=id), mesh.now)
    finally:
        mesh.conn.execute("ROLLBACK")
        mesh.conn.execute("PRAGMA query_only = 0")


def of(mesh: Mesh, job: str, caller: Caller = principals.OPEN) -> WorkloadWhy:
    told: WorkloadWhy = look(mesh, why.of_workload, None, job, caller)
    _well_told(told.reasons)
    return told


def of_worker(mesh: Mesh, worker_id: str, caller: Caller = principals.OPEN) -> WorkerWhy:
    told: WorkerWhy = look(mesh, idleness.of_worker, None, worker_id, caller)
    _well_told(told.reasons)
    return told


def waiting(mesh: Mesh, caller: Caller = principals.OPEN, **asked: Any) -> Backlog:
    told: Backlog = look(mesh, backlog.page, convert(asked, BacklogAsk), "", caller)
    return told


def codes(told: WorkloadWhy | WorkerWhy) -> list[str]:
    return [one.code for one in told.reasons]


def would_pull(mesh: Mesh, worker_id: str) -> Pulled:
    """What a pull gives now, without its having been."""
    mesh.conn.execute("BEGIN IMMEDIATE")
    try:
        body = convert({"max": 1}, Pull)
        ask = Ask(caller=principals.OPEN, body=body, id=worker_id)
        return claims.pull(Tx(mesh.conn, {}), ask, mesh.now)
    finally:
        mesh.conn.execute("ROLLBACK")


def _well_told(reasons: list[Cause]) -> None:
    for one in reasons:
        assert one.code in causes.CODES, one
        assert one.detail, one
        assert one.remedy, one

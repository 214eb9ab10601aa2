"""What the stories of pools, holds and quarantine do in a mesh."""

from collections.abc import Callable
from itertools import count
from typing import Any

from msgspec import convert

from feltd.errors import Refused
from feltd.identity import principals
from feltd.mesh import holds, pools, quarantine
from feltd.model.base import Ask, Caller, Subject
from feltd.model.hold import Hold, NewHold
from feltd.model.pool import NewPool, Pool
from feltd.model.worker import Quarantining, Worker
from tests.mesh.world import Mesh

_numbers = count(1)


def person(*tenants: str) -> Caller:
    """An operator of some tenants on the machine itself: no key of his is looked up."""
    return Caller(
        subject=Subject(kind="human", id="ann"),
        scopes=frozenset(("*",)),
        tenants=tenants,
        local=True,
    )


def body(pool_id: str = "gpu", **members: Any) -> NewPool:
    return convert({"pool_id": pool_id, "name": "the pool", **members}, NewPool)


def make(
    mesh: Mesh,
    pool_id: str = "gpu",
    *,
    tenant: str = "acme",
    by: Caller = principals.OPEN,
    **members: Any,
) -> tuple[Pool, bool]:
    asked = pools.OfTenant(tenant, body(pool_id, **members))
    return mesh.ask(pools.create, asked, "", by)


def change(mesh: Mesh, pool_id: str = "gpu", *, tenant: str = "acme", **members: Any) -> Pool:
    return mesh.ask(pools.replace, pools.OfTenant(tenant, body(pool_id, **members)), pool_id)


def drop(
    mesh: Mesh, pool_id: str = "gpu", *, tenant: str = "acme", by: Caller = principals.OPEN
) -> None:
    mesh.ask(pools.delete, pools.OfTenant(tenant), pool_id, by)


def look(mesh: Mesh, pool_id: str = "gpu", *, tenant: str = "acme") -> Pool:
    return mesh.ask(pools.get, pools.OfTenant(tenant), pool_id)


def hold(
    mesh: Mesh,
    scope: str,
    value: str | None = None,
    *,
    tenant: str = "acme",
    by: Caller = principals.OPEN,
    **members: Any,
) -> Hold:
    told = {"scope": scope, "value": value, "reason": "a new release comes", **members}
    asked = convert(told, NewHold)
    whose = "*" if scope == "all" else tenant
    ask = Ask(caller=by, body=holds.Placing(whose, asked), fresh=f"hold_{next(_numbers):010d}")
    return mesh.run(holds.place, ask)


def lift(mesh: Mesh, hold_id: str, *, tenant: str = "", by: Caller = principals.OPEN) -> None:
    mesh.ask(holds.lift, tenant, hold_id, by)


def confine(mesh: Mesh, worker_id: str, *, by: Caller = principals.OPEN, **members: Any) -> Worker:
    told = convert({"reason": "its disk fails", **members}, Quarantining)
    return mesh.ask(quarantine.quarantine, told, worker_id, by)


def free(mesh: Mesh, worker_id: str, *, by: Caller = principals.OPEN) -> Worker:
    return mesh.ask(quarantine.unquarantine, None, worker_id, by)


def refusal(act: Callable[..., object], *given: Any, **named: Any) -> Refused:
    """What an act is refused with."""
    try:
        act(*given, **named)
    except Refused as refused:
        return refused
    raise AssertionError("it was not refused")


def generation(mesh: Mesh, application: str = "docs", tenant: str = "acme") -> int:
    row = mesh.row(
        "SELECT gate_generation FROM applications WHERE tenant_id = :t AND application_id = :a",
        t=tenant,
        a=application,
    )
    return int(row["gate_generation"])

"""Words of the stories: what somebody asks for, in whose name, and what comes of it."""

from collections.abc import Callable
from typing import Any

from feltd.clock import Now
from feltd.identity import grants
from feltd.identity.principals import LOCAL, OPEN
from feltd.mesh import creation
from feltd.model.base import Caller, Subject
from feltd.model.grant import GrantConstraints, IssueGrant
from feltd.model.workload import Created, Creation, NewWorkload
from feltd.store.tx import Row
from tests.mesh.world import Mesh

KEY = """
INSERT INTO keys (key_id, name, secret_digest, scopes, namespaces, tenants, subject_type,
                  identity_id, grant_id, created_by, created_at_ms)
VALUES (:key_id, :key_id, 'sha256:' || :digest, '["workloads:create"]', '["default"]', '["acme"]',
        'service', :key_id, :grant_id, 'service:local', 1)
"""


def new(key: str, definition_id: str = "extract", **members: Any) -> Creation:
    """What somebody asks for, of tenant acme and application docs unless it says otherwise."""
    owner = {"tenant_id": "acme", "application_id": "docs"}
    return Creation(
        NewWorkload(definition_id=definition_id, idempotency_key=key, **{**owner, **members})
    )


def create(mesh: Mesh, key: str, caller: Caller = OPEN, **members: Any) -> Created:
    """Create a workload and commit it."""
    return mesh.ask(creation.create, new(key, **members), caller=caller)


def creator(
    mesh: Mesh,
    name: str = "submitter",
    capabilities: tuple[str, ...] = (),
    constraints: GrantConstraints | None = None,
) -> Caller:
    """A service of acme with a key bound to a grant for acme/docs, good for an hour."""
    body = IssueGrant(
        subject=Subject(kind="service", id=name),
        tenant_id="acme",
        application_id="docs",
        capabilities=capabilities,
        constraints=constraints or GrantConstraints(),
        expires_at_ms=mesh.now.wall_ms + 3_600_000,
    )
    issued = mesh.ask(grants.issue, body, caller=LOCAL)
    mesh.hand(KEY, key_id=name, digest=name.ljust(64, "0")[:64], grant_id=issued.id)
    return Caller(
        subject=Subject(kind="service", id=name),
        key_id=name,
        scopes=frozenset({"workloads:create"}),
        tenants=("acme",),
        grant_id=issued.id,
    )


def refusal(
    mesh: Mesh, rule: Callable[..., Any], body: Any, id: str = "", caller: Caller = OPEN
) -> str | None:
    """The code a rule refuses with, or None."""
    return mesh.refused(lambda: mesh.ask(rule, body, id, caller))


def value(mesh: Mesh, sql: str, **params: Any) -> Any:
    """The first column of one row."""
    return mesh.row(sql, **params)[0]


def row(mesh: Mesh, workload_id: str) -> Row:
    """A workload's row."""
    return mesh.row("SELECT * FROM workloads WHERE workload_id = :id", id=workload_id)


def step_wall(mesh: Mesh, ms: int) -> None:
    """Step the wall clock alone, as a person or NTP does."""
    mesh.now = Now(mesh.now.lease_ms, mesh.now.wall_ms + ms)

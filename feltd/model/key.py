"""Keys as they cross the wire: what is asked for, what is shown, and who a bearer is.

A secret stands in one answer only, `KeyMade`; nothing else here can carry one. A key is described
by what it may do, never by what it is for.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from feltd.model.base import PRINTABLE, Count, Id, Instant, Name, Subject
from feltd.model.grant import GrantConstraints

SubjectType = Literal["human", "user", "service", "api_key", "agent", "worker"]

Scope = Literal[
    "*",
    "audit:read",
    "backup:admin",
    "capabilities:write",
    "claims:validate",
    "daemon:operate",
    "events:read",
    "grants:issue",
    "keys:admin",
    "metrics:read",
    "pools:write",
    "state:read",
    "state:write",
    "triggers:read",
    "triggers:write",
    "users:admin",
    "workers:operate",
    "workers:read",
    "workers:register",
    "workloads:create",
    "workloads:operate",
    "workloads:read",
]

#: A title for people; printable, so that it can stand in a table.
Title = Annotated[str, Meta(min_length=1, max_length=128, pattern=PRINTABLE)]
#: A tenant, or "*" for every tenant.
Tenant = Annotated[
    str, Meta(min_length=1, max_length=128, pattern=r"\A(\*|(?!\.{1,2}\Z)[A-Za-z0-9._@+\-]+)\Z")
]
Tenants = Annotated[tuple[Tenant, ...], Meta(min_length=1, max_length=256)]
#: Daemons (`--namespace`) a key works on.
Namespaces = Annotated[tuple[Name, ...], Meta(min_length=1, max_length=256)]
Scopes = Annotated[tuple[Scope, ...], Meta(max_length=64)]
#: How long a rotated key goes on beside its successor: at most 30 days.
OverlapMs = Annotated[int, Meta(ge=0, le=30 * 86_400_000)]

OVERLAP_MS_DEFAULT = 86_400_000


class CreateKey(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/keys`. With `worker_id`: no scopes, tenants, subject_type or identity_id."""

    name: Title
    scopes: Scopes | None = None
    namespaces: Namespaces | None = None
    tenants: Tenants | None = None
    subject_type: SubjectType | None = None
    identity_id: Name | None = None
    worker_id: Id | None = None
    grant_id: Id | None = None
    expires_at_ms: Instant | None = None


class RotateKey(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/keys/{id}/rotate`. 0 ends the old key at once."""

    overlap_ms: OverlapMs = OVERLAP_MS_DEFAULT


class Key(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key as it is shown: everything but its secret."""

    key_id: str
    name: str
    scopes: tuple[str, ...]
    namespaces: tuple[str, ...]
    tenants: tuple[str, ...]
    subject_type: str
    created_by: str
    created_at_ms: int
    identity_id: str | None = None
    worker_id: str | None = None
    incarnation: int | None = None
    grant_id: str | None = None
    expires_at_ms: int | None = None
    revoked_at_ms: int | None = None
    revoked_reason: str | None = None
    last_used_at_ms: int | None = None


class KeyMade(Key, frozen=True, kw_only=True, omit_defaults=True):
    """A new key with the whole bearer text, this once."""

    secret: str


class KeyPage(Struct, frozen=True, kw_only=True):
    """`GET /v1/keys`, newest first."""

    items: tuple[Key, ...]
    next_cursor: str | None = None


class Principal(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who a bearer is, as its key says."""

    key_id: str
    scopes: tuple[str, ...]
    subject_type: str
    tenants: tuple[str, ...] = ()
    identity_id: str | None = None
    session_id: str | None = None


class BoundGrant(Struct, frozen=True, kw_only=True):
    """What a key's bound grant allows; `expires_at_ms` is the end of its whole chain."""

    id: str
    tenant_id: str
    application_id: str
    capabilities: tuple[str, ...]
    constraints: GrantConstraints
    expires_at_ms: int
    revision: Count


class Me(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`GET /v1/auth/me`."""

    principal: Principal
    subject: Subject
    worker_id: str | None = None
    incarnation: int | None = None
    #: A person's: {tenant: role}.
    roles: dict[str, str] | None = None
    grant: BoundGrant | None = None

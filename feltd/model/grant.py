"""Grants: signed permissions of a subject in one tenant and application.

The row in the database says what a grant allows; a token only proves that its bearer was given
it. Children are subsets of their parents in every member (identity/subsets.py).
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from feltd.model.base import (
    INTEGER_MAX,
    Concurrency,
    GrantedCapability,
    Id,
    Instant,
    Labels,
    Name,
    Sentence,
    Subject,
    WorkloadKind,
)

#: Ancestors a grant may have.
DEPTH_MAX = 8
#: Live grants below one root: a change of the root rewrites them all in one transaction.
DESCENDANTS_MAX = 1_000

#: register: be a worker; the prefixes stand before a capability: do it and ask for it, or only
#: ask for it.
REGISTER = "worker:register"
DO = "worker:capability:"
ASK = "workload:capability:"

Token = Annotated[str, Meta(min_length=1, max_length=4_096, pattern=r"\A[!-~]+\Z")]
Uri = Annotated[str, Meta(min_length=1, max_length=1_024, pattern=r"\A[!-~]+\Z")]
Runtime = Literal["wasm", "process", "container", "browser", "remote", "hosted", "edge", "customer"]
Positive = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
GrantedCapabilities = Annotated[tuple[GrantedCapability, ...], Meta(max_length=256)]


class ResourceScope(Struct, frozen=True, forbid_unknown_fields=True):
    """One URI, or every URI that begins with the text before its one trailing `*`."""

    kind: Literal["EXACT", "RESOURCE_PREFIX"]
    uri: Uri


Resources = Annotated[tuple[ResourceScope, ...], Meta(max_length=256)]


class RuntimeCaps(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The loosest runtime policy a grant lets work run under; an absent member caps nothing."""

    max_cpu_millis: Positive | None = None
    max_memory_bytes: Positive | None = None
    max_duration_ms: Positive | None = None
    network_policy: Literal["none", "loopback", "inherit"] | None = None
    filesystem_policy: Literal["none", "scratch", "inherit"] | None = None
    secret_policy: Literal["none", "inherit"] | None = None
    artifact_policy: Literal["none", "references"] | None = None


class GrantConstraints(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Bounds on what is done under a grant; an absent member bounds nothing.

    An empty list of workload_kinds or runtimes allows none. `labels` are put on every worker that
    registers with it.
    """

    max_concurrency: Concurrency | None = None
    max_workers: Annotated[int, Meta(ge=0, le=INTEGER_MAX)] | None = None
    labels: Labels | None = None
    workload_kinds: Annotated[tuple[WorkloadKind, ...], Meta(max_length=256)] | None = None
    runtimes: Annotated[tuple[Runtime, ...], Meta(max_length=8)] | None = None
    max_priority: Annotated[int, Meta(ge=-1_000, le=1_000)] | None = None
    heartbeat_timeout_ms: Annotated[int, Meta(ge=2_000, le=3_600_000)] | None = None
    runtime_policy: RuntimeCaps | None = None


class IssueGrant(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/grants`. With `parent_grant` it is a child: a subset, its constraints inherited."""

    subject: Subject
    tenant_id: Name
    application_id: Name
    capabilities: GrantedCapabilities
    resources: Resources = ()
    constraints: GrantConstraints = GrantConstraints()
    expires_at_ms: Instant
    parent_grant: Id | None = None


class ReplaceGrant(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`PUT /v1/grants/{id}`: what it allows from now on, whole.

    Subject, tenant, application and parent never change; they are taken when equal.
    """

    capabilities: GrantedCapabilities
    resources: Resources = ()
    constraints: GrantConstraints = GrantConstraints()
    expires_at_ms: Instant
    subject: Subject | None = None
    tenant_id: Name | None = None
    application_id: Name | None = None
    parent_grant: Id | None = None


class ExtendGrant(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Until when a grant goes on, all else as it is then."""

    expires_at_ms: Instant


class RevokeGrant(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/grants/{id}/revoke`."""

    reason: Sentence | None = None


class Grant(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A grant as its row says it.

    `chain_expires_at_ms` is the earliest end of it and its ancestors; `chain_live` is false when
    it or an ancestor was revoked.
    """

    contract_version: Literal[1]
    id: str
    issuer: Subject
    subject: Subject
    tenant_id: str
    application_id: str
    capabilities: tuple[str, ...]
    resources: tuple[ResourceScope, ...]
    constraints: GrantConstraints
    issued_at_ms: int
    expires_at_ms: int
    revision: int
    status: Literal["ACTIVE", "REVOKED"]
    chain_expires_at_ms: int
    chain_live: bool
    depth: int
    parent_grant: str | None = None


class GrantAnswer(Struct, frozen=True, kw_only=True):
    """A grant and the token that proves it was given."""

    grant: Grant
    token: str


class Affected(Struct, frozen=True, kw_only=True):
    """What a change of a grant touched: it and its live descendants, parents first."""

    grant_id: str
    grant_ids: tuple[str, ...]


class Regranted(Struct, frozen=True, kw_only=True):
    """A grant was changed or revoked; claims that exceed it have ended.

    `remaining` claims are still to be ended, in the next transactions.
    """

    grant_id: str
    fenced_claims: tuple[str, ...]
    remaining: int


class RegrantedAnswer(Struct, frozen=True, kw_only=True):
    """`PUT /v1/grants/{id}` and `POST …/revoke`."""

    grant: Grant
    token: str
    fenced_claims: tuple[str, ...]
    remaining: int


class GrantPage(Struct, frozen=True, kw_only=True):
    """`GET /v1/grants`, newest first; tokens are shown one by one."""

    items: tuple[Grant, ...]
    next_cursor: str | None = None

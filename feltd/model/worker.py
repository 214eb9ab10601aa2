"""Workers on the wire: what a process says of itself, and what the daemon knows of it.

What a worker reports is shown and compared; only its registration, its health and the rows of its
claims decide anything. Instants are milliseconds: `…_at_ms` by the daemon's lease time unless said.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct

from feltd.model.base import (
    ClaimIds,
    Count,
    Id,
    Instant,
    Labels,
    LeaseMs,
    Name,
    Names,
    Sentence,
    Subject,
    Token,
    WorkloadKind,
)
from feltd.model.claim import (
    LOG_LINES_MAX,
    Artifact,
    Claim,
    FailureKind,
    FailureText,
    LogText,
    Progress,
    RetryAfterMs,
    StandingClaim,
)
from feltd.model.grant import Runtime
from feltd.model.grant import Token as GrantToken

#: The shape of the registration contract; 1 since the first.
CONTRACT_VERSION: Literal[1] = 1
HEARTBEAT_TIMEOUT_MS_MAX = 3_600_000
CONCURRENCY_MAX = 1_024
#: Outcomes one reconciliation carries, as many as an exchange has items.
RESULTS_MAX = 256
#: Ended claims that `?recent=` shows.
RECENT_MAX = 100
#: How long a drain may let leases be moved out: a day.
NO_RENEW_AFTER_MS_MAX = 86_400_000

Health = Literal["HEALTHY", "DEGRADED", "UNHEALTHY", "UNKNOWN"]
Lifecycle = Literal["REGISTERED", "READY", "BUSY", "DRAINING", "OFFLINE", "RECOVERING"]
DrainUntil = Literal["resumed", "registered"]
#: How often the worker beats, ms.
IntervalMs = Annotated[int, Meta(ge=1_000, le=300_000)]
#: Silence after which it counts as failed, ms; at least two intervals.
TimeoutMs = Annotated[int, Meta(ge=2_000, le=HEARTBEAT_TIMEOUT_MS_MAX)]
Kinds = Annotated[tuple[WorkloadKind, ...], Meta(max_length=256)]


class ResourceProfile(Struct, frozen=True, forbid_unknown_fields=True):
    """What the machine of a worker has; null: not told, so nothing of it can be asked for."""

    cpu_millis: Count | None = None
    memory_bytes: Count | None = None
    disk_bytes: Count | None = None
    gpu_count: Count | None = None


class Capacity(Struct, frozen=True, forbid_unknown_fields=True):
    """Claims held at once at most, and how many are; the second is counted, never believed."""

    concurrency: Count
    active: Count = 0


class Registration(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/workers`. Absent tenant, application and capabilities are the grant's."""

    name: Name
    runtime: Runtime
    version: Name
    capacity: Capacity
    tenant_id: Name | None = None
    application_id: Name | None = None
    capabilities: Names | None = None
    workload_kinds: Kinds = ()
    resource_profile: ResourceProfile = ResourceProfile()
    labels: Labels = {}
    heartbeat_interval_ms: IntervalMs | None = None
    heartbeat_timeout_ms: TimeoutMs | None = None
    authorization_grant: GrantToken | None = None
    process_id: Id | None = None
    takeover: bool = False
    issue_key: bool = False
    registered_by: Subject | None = None
    registered_at_ms: Instant | None = None


class Drain(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A drain that stands: who asked for it, why, since when, and what ends it."""

    by: str
    reason: str
    at_ms: int
    until: str
    no_renew_after_at_ms: int | None = None


class Quarantine(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A quarantine that stands: by whom, why, since when, and until which wall time."""

    by: str
    reason: str
    at_ms: int
    until_at_ms: int | None = None


class Reported(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the last beat told of the worker; decides nothing."""

    concurrency: int
    active: int
    rss_bytes: int | None = None
    load: float | None = None
    disk_free_bytes: int | None = None
    note: str | None = None


class EndedClaim(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A claim the worker once held, and how it ended."""

    claim_id: str
    workload_id: str
    definition_id: str
    attempt_number: int
    issued_at_ms: int
    ended_at_ms: int
    end: str
    state: str
    started_at_ms: int | None = None
    message: str | None = None


class Worker(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A worker as the daemon knows it.

    `lifecycle` BUSY, `capacity.active` and `claims` are counted from live claims at this instant.
    """

    contract_version: Literal[1]
    worker_id: str
    tenant_id: str
    application_id: str
    name: str
    runtime: str
    version: str
    incarnation: int
    declared_capabilities: Raw
    granted_capabilities: Raw
    workload_kinds: Raw
    resource_profile: Raw
    labels: Raw
    capacity: Capacity
    health: str
    lifecycle: str
    heartbeat_interval_ms: int
    heartbeat_timeout_ms: int
    registered_at_ms: int
    last_seen_at_ms: int
    clock_skew_ms: int
    capability_version: int
    authorization_grant_id: str | None
    claims: list[str]
    offline_reason: str | None = None
    drain: Drain | None = None
    quarantine: Quarantine | None = None
    reported: Raw | None = None
    recent: list[EndedClaim] | None = None


class Registered(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The worker as it stands now; `worker_key` is shown this once."""

    worker: Worker
    server_time_ms: int
    wall_time_ms: int
    worker_key: str | None = None


class WorkerPage(Struct, frozen=True, kw_only=True):
    """Newest registration first."""

    items: list[Worker]
    next_cursor: str | None


class SelfReport(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a process can tell of itself beside its work."""

    rss_bytes: Count | None = None
    load: Annotated[float, Meta(ge=0)] | None = None
    disk_free_bytes: Count | None = None
    note: Sentence | None = None


class Heartbeat(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST …/heartbeat`. `timestamp_at_ms` is the worker's own wall time."""

    worker_id: Id
    version: Name
    capability_version: Count
    capacity: Capacity
    health: Health
    timestamp_at_ms: Instant | None = None
    running_claims: ClaimIds = ()
    renew_leases: bool = False
    lease_ms: LeaseMs | None = None
    process_id: Id | None = None
    progress: Annotated[dict[Id, Progress], Meta(max_length=2048)] | None = None
    reported: SelfReport | None = None


class Differences(Struct, frozen=True, kw_only=True):
    """Where the worker's account of its claims and the rows differ.

    fenced: stop these · unknown: live here, not reported, issued over 5 s ago · cancel: asked to
    be cancelled · assigned: given by a person, not named by the worker yet.
    """

    fenced_claims: list[str]
    unknown_claims: list[str]
    cancel_claims: list[str]
    assigned_claims: list[Claim]


class CapacityMismatch(Struct, frozen=True, kw_only=True):
    """The concurrency that was registered, which counts, and the one a beat named."""

    registered: int
    reported: int


class HeartbeatAnswer(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the daemon knows better than the worker.

    `grant_expires_at_ms` is wall time, null when no grant stands behind the worker;
    `key_expires_at_ms` is when the worker's own key ends by itself, absent when never.
    """

    worker: Worker
    fenced_claims: list[str]
    unknown_claims: list[str]
    cancel_claims: list[str]
    assigned_claims: list[Claim]
    renewed: dict[str, int]
    grant_expires_at_ms: int | None
    server_time_ms: int
    wall_time_ms: int
    capacity_mismatch: CapacityMismatch | None = None
    key_expires_at_ms: int | None = None


class DrainRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST …/drain`. With `no_renew_after_ms` no lease is moved out past now + it."""

    reason: Sentence | None = None
    until: DrainUntil = "resumed"
    no_renew_after_ms: Annotated[int, Meta(ge=0, le=NO_RENEW_AFTER_MS_MAX)] | None = None


class Outstanding(Struct, frozen=True, kw_only=True):
    """A claim a draining worker still holds."""

    claim_id: str
    workload_id: str
    expires_at_ms: int


class Drained(Struct, frozen=True, kw_only=True):
    """`safe_at_ms`: no lease lives past it; null while a holder may renew without end."""

    worker: Worker
    outstanding_claims: list[Outstanding]
    safe_to_stop: bool
    safe_at_ms: int | None


class Quarantining(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST …/quarantine`. `until_at_ms` is wall time; without it the worker waits for a person."""

    reason: Annotated[Sentence, Meta(min_length=1)]
    until_at_ms: Instant | None = None


class Transition(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST …/transition`: along an edge of the verb."""

    to: Lifecycle


class Result(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a finished attempt produced, as in `complete`."""

    result_id: Id | None = None
    output: Any = None
    artifacts: Annotated[tuple[Artifact, ...], Meta(max_length=256)] = ()
    logs: Annotated[tuple[LogText, ...], Meta(max_length=LOG_LINES_MAX)] = ()
    resource_usage: Annotated[dict[Name, Count], Meta(max_length=64)] = {}


class Failure(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a finished attempt failed, as in `fail`."""

    kind: FailureKind
    message: FailureText
    retry_after_ms: RetryAfterMs | None = None


class AttemptResult(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The outcome of one attempt that the worker could not deliver before."""

    attempt_id: Id
    claim_id: Id
    fencing_token: Token
    outcome: Literal["completed", "failed"]
    result: Result | None = None
    failure: Failure | None = None


class Reconciliation(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST …/reconcile`: everything the worker still knows of."""

    worker_id: Id
    worker_version: Name
    capability_version: Count
    known_claims: ClaimIds = ()
    running_attempts: ClaimIds = ()
    completed_attempts: ClaimIds = ()
    failed_attempts: ClaimIds = ()
    timestamp_at_ms: Instant | None = None
    health: Health = "HEALTHY"
    results: Annotated[tuple[AttemptResult, ...], Meta(max_length=RESULTS_MAX)] | None = None


class Reconciled(Struct, frozen=True, kw_only=True):
    """One verdict for each id that was sent; the authoritative claims are all the worker holds.

    All are there, by ascending token; whole while the answer stays within 4 MiB (first those that
    were not sent, as their holder has nothing of them), the others `truncated`.
    """

    authoritative_claims: list[StandingClaim]
    fenced_claims: list[str]
    cancel_attempts: list[str]
    accepted_results: list[str]
    late_results: list[str]
    worker: Worker
    server_time_ms: int

"""Workloads as they are asked for and as they are shown.

`NewWorkload` is the body of a creation; what stands here decodes within bounds and can be stored.
Free JSON (input, output, checkpoint) travels as the bytes that were stored, never decoded again.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct

from feltd.model.base import (
    Count,
    EndKind,
    GrantedCapability,
    Instant,
    Labels,
    Name,
    Names,
    RequestKey,
    Sentence,
    Subject,
)
from feltd.model.grant import Token as GrantToken
from feltd.model.policy import (
    Concurrency,
    Dependencies,
    DependencyPolicy,
    Placement,
    Rate,
    RuntimePolicy,
    Timeouts,
)

#: Stored whole in a row and sent with each claim: larger input belongs elsewhere, by reference.
INPUT_BYTES_MAX = 262_144
#: One creation takes about 40 µs of the writer; a batch stays near its 50 ms.
BATCH_MAX = 1_000
#: A page of full workloads ends early here.
ANSWER_BYTES_MAX = 4 * 1024 * 1024

Priority = Annotated[int, Meta(ge=-1_000, le=1_000)]
OnWorkerLost = Literal["end", "lease"]
State = Literal[
    "PENDING",
    "READY",
    "CLAIMED",
    "RUNNING",
    "CHECKPOINTED",
    "COMPLETED",
    "DEAD_LETTERED",
    "CANCELLED",
]
ConnectionScopes = Annotated[tuple[GrantedCapability, ...], Meta(max_length=256)]

RETRY_ON = ("lease_expired", "timeout", "transient", "worker_lost")


class RetryPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """How often and when a workload is tried again; an absent member is the default here.

    The wait after the n-th spent attempt is min(max_backoff_ms, initial_backoff_ms ×
    multiplier^(n − 1)) and up to `jitter` (0…1) of it more.
    """

    max_attempts: Annotated[int, Meta(ge=1, le=1_000)] = 3
    initial_backoff_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 1_000
    multiplier: Annotated[float, Meta(ge=1, le=10)] = 2.0
    max_backoff_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 60_000
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.2
    retry_on: Annotated[tuple[EndKind, ...], Meta(max_length=256)] = RETRY_ON


class Resources(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What it needs of a worker's resource profile; an absent member needs nothing."""

    cpu_millis: Count | None = None
    memory_bytes: Count | None = None
    disk_bytes: Count | None = None
    gpu_count: Count | None = None


class NewWorkload(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of a creation.

    Tenant and application default to those of the grant. `requested_by` must be the caller when
    it is there; `created_at_ms` is taken and decides nothing: the daemon's clock does.
    """

    definition_id: Name
    idempotency_key: RequestKey
    tenant_id: Name | None = None
    application_id: Name | None = None
    input: Any = None
    environment: Name = "production"
    definition_revision: Name = "1"
    trigger: Name = "manual"
    authorization_grant: GrantToken | None = None
    capability_snapshot: Names = ()
    connection_scopes: ConnectionScopes = ()
    priority: Priority = 0
    retry_policy: RetryPolicy | None = None
    placement: Placement | None = None
    resources: Resources | None = None
    labels: Labels = {}
    not_before_at_ms: Instant | None = None
    on_worker_lost: OnWorkerLost | None = None
    requested_by: Subject | None = None
    created_at_ms: Instant | None = None
    timeouts: Timeouts | None = None
    runtime_policy: RuntimePolicy | None = None
    dependencies: Dependencies = ()
    dependency_policy: DependencyPolicy = "all_completed"
    group: Name | None = None
    concurrency: Concurrency | None = None
    rate: Rate | None = None


class Creation(Struct, frozen=True):
    """A creation as a rule takes it: the body, and what its handler made of it.

    `input` is the body's input as canonical JSON (None: the rule encodes it), `grant_id` what its
    token proved (None: the caller's bound grant).
    """

    body: NewWorkload
    input: bytes | None = None
    grant_id: str | None = None
    traceparent: str | None = None


class Refusal(Struct, frozen=True, omit_defaults=True):
    """What one item of a batch was refused with."""

    code: str
    detail: str
    errors: list[dict[str, str]] | None = None


class Batch(Struct, frozen=True):
    """A batch as a rule takes it: items that could not be read are refusals already."""

    items: tuple[Creation | Refusal, ...]
    atomic: bool = False


class NewBatch(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a batch creation: `atomic` makes all of them or none."""

    workloads: Annotated[tuple[Raw, ...], Meta(min_length=1, max_length=BATCH_MAX)]
    atomic: bool = False


class Made(Struct, frozen=True):
    """One item of a batch that stands; `created` is false where its key named it already."""

    workload_id: str
    state: State
    created: bool


class BatchAnswer(Struct, frozen=True):
    """The outcome of each item, in the order of the batch."""

    items: list[Made | Refusal]


class Cancel(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a cancellation: `force` takes held work from its worker at once."""

    force: bool = False
    reason: Sentence | None = None


class Requeue(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a requeue; an absent member stays as it is. `{"input": null}` sets null."""

    input: Any = UNSET
    priority: Priority | None = None


class Failure(Struct, frozen=True):
    """How an attempt failed: its kind and what was said of it."""

    kind: str
    message: str


class Attempt(Struct, frozen=True, omit_defaults=True):
    """One claim of a workload; `end` is how it ended, absent while it lives."""

    attempt_id: str
    number: int
    spent: bool
    worker_id: str
    claim_id: str
    fencing_token: int
    issued_at_ms: int
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    end: str | None = None
    failure: Failure | None = None


class Holding(Struct, frozen=True, omit_defaults=True):
    """The live claim of a workload, without what it carries."""

    claim_id: str
    lease_id: str
    attempt_id: str
    attempt_number: int
    worker_id: str
    fencing_token: int
    issued_at_ms: int
    expires_at_ms: int
    started_at_ms: int | None = None


class Result(Struct, frozen=True):
    """What the completing attempt stored."""

    result_id: str
    output: Raw
    artifacts: Raw
    logs: Raw
    resource_usage: Raw
    fencing_token: int


class Workload(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A workload as it is shown. Instants are lease time, not_before_at_ms is wall time.

    `attempts` are the newest 1,000, oldest first; `failure` is that of the last one that failed.
    """

    workload_id: str
    tenant_id: str
    application_id: str
    environment: str
    definition_id: str
    definition_revision: str
    trigger: str
    input: Raw
    requested_by: Subject
    authorization_grant_id: str | None
    capability_snapshot: tuple[str, ...]
    connection_scopes: tuple[str, ...]
    priority: int
    idempotency_key: str
    retry_policy: RetryPolicy
    timeouts: Timeouts
    runtime_policy: RuntimePolicy
    dependencies: tuple[str, ...]
    dependency_policy: DependencyPolicy
    placement: Placement
    resources: Resources
    labels: dict[str, str]
    state: State
    eligible_at_ms: int
    fencing_token: int
    attempts: list[Attempt]
    cancel_requested: bool
    created_at_ms: int
    group: str | None = None
    concurrency: Concurrency | None = None
    rate: Rate | None = None
    on_worker_lost: OnWorkerLost | None = None
    not_before_at_ms: int | None = None
    current_claim: Holding | None = None
    checkpoint: Raw | None = None
    progress: Raw | None = None
    result: Result | None = None
    failure: Failure | None = None
    traceparent: str | None = None
    finished_at_ms: int | None = None


class Tombstone(Struct, frozen=True):
    """What is left of a pruned workload for its idempotency key, for 7 days."""

    workload_id: str
    state: State
    result_id: str | None
    pruned: Literal[True] = True


class Created(Struct, frozen=True):
    """A creation's outcome: the workload of the key, and whether it is new."""

    workload: Workload | Tombstone
    created: bool


class Filter(Struct, frozen=True, kw_only=True):
    """Which workloads a list shows: each member that is there must be met.

    `worker_id` is the worker that holds it now; created_after_ms and created_before_ms are
    exclusive lease times; labels are equal.
    """

    tenant_id: str | None = None
    application_id: str | None = None
    state: State | None = None
    definition_id: str | None = None
    worker_id: str | None = None
    trigger: str | None = None
    group: str | None = None
    labels: dict[str, str] = {}
    failure_kind: str | None = None
    created_after_ms: int | None = None
    created_before_ms: int | None = None


class Listing(Struct, frozen=True):
    """One page asked for: newest first, below the sequence number `before` when it is there."""

    filter: Filter
    limit: int = 50
    before: int | None = None


class Page(Struct, frozen=True):
    """One page of workloads; `before` is where the next one begins, None at the end."""

    items: list[Workload]
    before: int | None


class After(Struct, frozen=True):
    """A stretch of something numbered: what comes after `after`, `limit` at most."""

    after: int = 0
    limit: int = 50


class LoggedLine(Struct, frozen=True):
    """One line a worker logged; `at_ms` is wall time."""

    seq: int
    claim_id: str
    fencing_token: int
    at_ms: int
    level: str
    text: str


class Logs(Struct, frozen=True):
    """Lines in order; `final`: the workload has ended, no more come."""

    items: list[LoggedLine]
    final: bool


class LateResult(Struct, frozen=True):
    """What a worker sent after its claim had ended: evidence, never the outcome."""

    claim_id: str
    fencing_token: int
    workload_id: str
    worker_id: str
    at_ms: int
    outcome: Literal["completed", "failed"]
    report: Raw


class LateResults(Struct, frozen=True):
    """Late results in the order of their tokens."""

    items: list[LateResult]

"""Claims on the wire: what a holder sends with its fence, and what it is told.

A claim is one attempt under a lease; `fencing_token` orders all claims for ever. Every body of a
fenced verb names claim, worker and token; none of the three is trusted, all are compared.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from feltd.model.base import (
    LEASE_MS_DEFAULT,
    PRINTABLE,
    Count,
    EndKind,
    Id,
    Instant,
    LeaseMs,
    Name,
    RequestKey,
    Sentence,
    Token,
    WaitMs,
    WorkloadKind,
)
from feltd.model.policy import Placement

#: Most items of an exchange, all lists together.
EXCHANGE_ITEMS_MAX = 256
OUTPUT_BYTES_MAX = 768 * 1024
CHECKPOINT_BYTES_MAX = 256 * 1024
LOG_LINE_BYTES_MAX = 1024
LOG_LINES_MAX = 1_000

#: Longest backoff a worker may ask for: a day.
RetryAfterMs = Annotated[int, Meta(ge=0, le=86_400_000)]
PullMax = Annotated[int, Meta(ge=1, le=256)]
#: How an attempt failed: lower case, a word of the worker's own or one the daemon knows.
FailureKind = EndKind
#: A failure's message; what is longer belongs into the log.
FailureText = Annotated[str, Meta(max_length=8_192)]
#: A log line may be sent longer and is cut to LOG_LINE_BYTES_MAX when it is stored.
LogText = Annotated[str, Meta(max_length=65_536)]
Artifact = Annotated[str, Meta(min_length=1, max_length=2_048, pattern=PRINTABLE)]
OnSecret = Literal["refuse", "redact"]


class Progress(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How far an attempt is, in its own units; shown, decides nothing."""

    done: Count
    total: Count | None = None
    note: Sentence | None = None


class Fence(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who says it holds what: every fenced verb carries it."""

    claim_id: Id
    worker_id: Id
    fencing_token: Token


class Start(Fence, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The attempt begins to run."""


class Renew(Fence, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Move the end of the lease out; without lease_ms by as much as was claimed for."""

    lease_ms: LeaseMs | None = None
    progress: Progress | None = None


class Checkpoint(Fence, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Keep `data` for the next attempt, and renew."""

    data: Any
    lease_ms: LeaseMs | None = None
    progress: Progress | None = None


class Complete(Fence, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The attempt is done, with its one result; `start` starts it first if it is only claimed."""

    result_id: Id | None = None
    output: Any = None
    artifacts: Annotated[tuple[Artifact, ...], Meta(max_length=256)] = ()
    logs: Annotated[tuple[LogText, ...], Meta(max_length=LOG_LINES_MAX)] = ()
    resource_usage: Annotated[dict[Name, Count], Meta(max_length=64)] = {}
    contract_version: Literal[1] = 1
    start: bool = False


class Fail(Fence, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The attempt failed; the retry policy decides what follows."""

    kind: FailureKind
    message: FailureText
    retry_after_ms: RetryAfterMs | None = None
    on_secret: OnSecret = "refuse"
    start: bool = False


class Release(Fence, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Give the workload back, nothing spent."""


class LogLine(Struct, frozen=True, forbid_unknown_fields=True):
    """One line of an attempt's log; `at_ms` is the worker's wall time."""

    text: LogText
    at_ms: Instant | None = None
    level: Name = "info"


class Log(Fence, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Lines for the attempt's log; the newest LOG_LINES_MAX are kept."""

    lines: Annotated[tuple[str | LogLine, ...], Meta(min_length=1, max_length=LOG_LINES_MAX)]
    on_secret: OnSecret = "refuse"


class Outcome(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a fenced verb left behind; `expires_at_ms` while the claim lives."""

    workload_id: str
    state: str
    claim_id: str
    fencing_token: int
    cancel_requested: bool
    expires_at_ms: int | None = None
    result_id: str | None = None
    eligible_at_ms: int | None = None


class Claim(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A live claim with all that running it needs."""

    claim_id: str
    lease_id: str
    workload_id: str
    attempt_id: str
    attempt_number: int
    worker_id: str
    tenant_id: str
    application_id: str
    definition_id: str
    definition_revision: str
    environment: str
    fencing_token: int
    capability_snapshot: Raw
    execution_context_id: str
    issued_at_ms: int
    expires_at_ms: int
    input: Raw
    timeouts: Raw
    runtime_policy: Raw
    connection_scopes: Raw
    state: str
    checkpoint: Raw | None = None
    traceparent: str | None = None


class StandingClaim(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A live claim as a reconciliation answers it: a `claim`, whole while the answer has room.

    Past that it is `truncated`: the members that may be large are left out (input, checkpoint,
    capability_snapshot, connection_scopes, timeouts, runtime_policy). Its fence is there: go on
    with it if it runs, or release it; `GET /v1/workloads/{workload_id}` has the input.
    """

    claim_id: str
    lease_id: str
    workload_id: str
    attempt_id: str
    attempt_number: int
    worker_id: str
    tenant_id: str
    application_id: str
    definition_id: str
    definition_revision: str
    environment: str
    fencing_token: int
    execution_context_id: str
    issued_at_ms: int
    expires_at_ms: int
    state: str
    capability_snapshot: Raw | UnsetType = UNSET
    input: Raw | UnsetType = UNSET
    timeouts: Raw | UnsetType = UNSET
    runtime_policy: Raw | UnsetType = UNSET
    connection_scopes: Raw | UnsetType = UNSET
    checkpoint: Raw | None = None
    traceparent: str | None = None
    truncated: bool = False


class Pull(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Take up to `max` workloads, waiting up to `wait_ms` for the first.

    The same `request_id` gives the still live claims of its first pull, never others.
    """

    max: PullMax = 1
    lease_ms: LeaseMs = LEASE_MS_DEFAULT
    wait_ms: WaitMs = 0
    workload_kinds: Annotated[tuple[WorkloadKind, ...], Meta(max_length=256)] | None = None
    start: bool = False
    request_id: RequestKey | None = None


class Reason(Struct, frozen=True, omit_defaults=True):
    """Why a pull came back empty; `demands` counts kinds of waiting work where that is the why."""

    code: str
    detail: str
    demands: int | None = None


class Pulled(Struct, frozen=True, kw_only=True):
    """The answer of a pull; `reasons` only when `claims` is empty."""

    claims: list[Claim]
    lifecycle: str
    reasons: list[Reason]
    server_time_ms: int


class ClaimById(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Take one named workload, or give it to a worker: the named one, or one that is chosen.

    `placement` narrows the workload's own and is for giving alone.
    """

    worker_id: Id | None = None
    lease_ms: LeaseMs = LEASE_MS_DEFAULT
    placement: Placement | None = None


class Evict(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Take a claim from its worker by hand."""

    reason: Annotated[Sentence, Meta(min_length=1)]
    to: Literal["READY", "DEAD_LETTERED"] = "READY"
    spend_attempt: bool = False


class ListedClaim(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A claim in a list: who held what, until when, and how it ended."""

    claim_id: str
    fencing_token: int
    workload_id: str
    attempt_id: str
    attempt_number: int
    worker_id: str
    tenant_id: str
    application_id: str
    live: bool
    how: str
    issued_at_ms: int
    expires_at_ms: int
    state: str | None = None
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    end: str | None = None
    spent: bool | None = None


class ClaimQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which claims a list shows; `before` is the token it begins under."""

    worker_id: Id | None = None
    workload_id: Id | None = None
    tenant_id: Name | None = None
    live: bool | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    before: int | None = None


class ClaimPage(Struct, frozen=True, kw_only=True):
    """A page of claims, newest first; the next one begins under `next_before`."""

    items: list[ListedClaim]
    next_before: int | None

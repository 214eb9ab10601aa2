"""Why work waits and why workers idle, as the wire says it: each reason with what would change it.

Codes are those of mesh/causes.py. What is counted is counted up to a cap, and says so.
"""

from typing import Annotated

from msgspec import Meta, Struct

from feltd.model.base import Name
from feltd.model.workload import State

#: Kinds of work that one answer shows.
KINDS_MAX = 200
KINDS_DEFAULT = 50


class Cause(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One reason: a code, a sentence, and the step or the command that changes it.

    `worker_id` where the reason is one worker's.
    """

    code: str
    detail: str
    remedy: str
    worker_id: str | None = None


class WorkloadWhy(Struct, frozen=True, kw_only=True):
    """`GET /v1/workloads/{id}/why`: what keeps it as it is comes first, what comes later last."""

    workload_id: str
    state: State
    reasons: list[Cause]
    server_time_ms: int


class WorkerWhy(Struct, frozen=True, kw_only=True):
    """`GET /v1/workers/{id}/why`: why it gets no work, or what it gets next.

    `safe_to_stop`: nothing is in its hands. `safe_at_ms`: when that is so at the latest, null while
    its leases may be renewed.
    """

    worker_id: str
    lifecycle: str
    health: str
    reasons: list[Cause]
    claims: int
    safe_to_stop: bool
    safe_at_ms: int | None
    server_time_ms: int


class Asked(Struct, frozen=True, kw_only=True):
    """What all work of one kind asks of a worker."""

    demand_id: int
    definition_revision: str
    capabilities: list[str]
    resources: dict[str, int | None]
    required_labels: dict[str, str]
    anti_affinity: dict[str, str]


class Waiting(Struct, frozen=True, kw_only=True):
    """Workloads of a kind that are not to be taken yet; `held` would be ready but for a hold."""

    backoff: int = 0
    not_before: int = 0
    dependencies: int = 0
    held: int = 0


class Blocked(Struct, frozen=True, kw_only=True):
    """What keeps so many workloads of a kind back, and what would change it."""

    code: str
    detail: str
    remedy: str
    workloads: int


class Kind(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One kind of unfinished work: one definition with one set of conditions.

    `ready` may be taken but for what `blocked` says. `oldest_ready_at_ms` is since when the oldest
    of those next in turn could be taken. `eligible_workers` could take one now, into `free_slots`.
    `capped`: a count stopped at its cap.
    """

    tenant_id: str
    application_id: str
    definition_id: str
    demand: Asked
    ready: int
    waiting: Waiting
    running: int
    eligible_workers: int
    free_slots: int
    blocked: list[Blocked]
    capped: bool
    pool_id: str | None = None
    oldest_ready_at_ms: int | None = None


class Backlog(Struct, frozen=True, kw_only=True):
    """`GET /v1/backlog`: the kinds of unfinished work, those that wait longest first.

    `left_out` counts kinds beyond the limit, or beyond what one look compares with workers.
    `at_ms` is lease time.
    """

    items: list[Kind]
    left_out: int
    at_ms: int


class BacklogAsk(Struct, frozen=True, kw_only=True):
    """Which kinds; tenant_id '' means all of the caller's."""

    tenant_id: str = ""
    application_id: Name | None = None
    definition_id: Name | None = None
    pool_id: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=KINDS_MAX)] = KINDS_DEFAULT

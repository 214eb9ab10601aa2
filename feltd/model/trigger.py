"""Triggers on the wire: what each waits for, the work it makes, and how it fares.

A trigger of kind state waits for changes of a collection, one of kind schedule for instants. What
it says of a workload is said as in a creation, and kept as `Work`.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from feltd.model.base import Instant, Name, Names, Sentence, Subject
from feltd.model.grant import Token as GrantToken
from feltd.model.page import LIMIT_DEFAULT, Limit
from feltd.model.policy import Placement, RuntimePolicy, Timeouts
from feltd.model.schedule import Cron, EveryMs, Missed, Overlap, Timezone
from feltd.model.schedule import Instant as Coming
from feltd.model.workload import ConnectionScopes, Priority, RetryPolicy

#: A tenant's; each is looked at whenever one of its records changes.
TRIGGERS_MAX = 1_000
#: Firings that led to a change and one: a workload that writes what fires it again ends here.
DEPTH_MAX = 8
#: Failed firings in a row after which a trigger is disabled.
FAILURES_MAX = 5
#: The rule is judged for each change: this much takes some 20 µs, and on values as large as a
#: record may be some milliseconds for each node that looks through all of one.
NODES_MAX = 256
THOROUGH_MAX = 16
LEVELS_MAX = 8
MEMBERS_MAX = 256
PREDICATE_BYTES_MAX = 65_536
#: Ids that are paths of their own.
RESERVED = frozenset({"status", "evaluate"})

TriggerKind = Literal["state", "schedule"]
ChangeKind = Literal["created", "updated", "deleted", "any"]
Operator = Literal[
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "in",
    "exists",
    "prefix",
    "contains",
    "changed",
    "all",
    "any",
    "not",
]
#: Names joined by dots; the first is `before` or `after`, but for `changed`.
Field = Annotated[str, Meta(min_length=1, max_length=512, pattern=r"\A[^\x00.]+(\.[^\x00.]+)*\Z")]


class Predicate(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One node of a condition on a change.

    eq ne lt le gt ge in exists prefix contains take `field` and `value` (exists: true unless
    said), changed takes a `field` without before and after, all any not take `args`.
    """

    op: Operator
    field: Field | UnsetType = UNSET
    value: Any = UNSET
    args: Annotated[tuple["Predicate", ...], Meta(max_length=NODES_MAX)] | UnsetType = UNSET


class Define(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/triggers`.

    Tenant and application default to those of the grant. `start` is where a state trigger begins:
    behind the newest change (head) or behind a seq; a trigger that is there keeps its place when
    it is absent. `requested_by` must be the caller when it is there.
    """

    trigger_id: Name
    target_capability: Name
    kind: TriggerKind = "state"
    source_collection: Name | None = None
    change_kind: ChangeKind | None = None
    predicate: Predicate | None = None
    start: Literal["head"] | Instant | UnsetType = UNSET
    cron: Cron | None = None
    every_ms: EveryMs | None = None
    timezone: Timezone | None = None
    missed: Missed | None = None
    overlap: Overlap | None = None
    input: Any = UNSET
    tenant_id: Name | None = None
    application_id: Name | None = None
    environment: Name = "production"
    definition_revision: Name = "1"
    requested_by: Subject | None = None
    authorization_grant: GrantToken | None = None
    capability_snapshot: Names = ()
    connection_scopes: ConnectionScopes = ()
    priority: Priority = 0
    retry_policy: RetryPolicy | None = None
    timeouts: Timeouts | None = None
    not_before_at_ms: Instant | None = None
    placement: Placement | None = None
    runtime_policy: RuntimePolicy | None = None
    enabled: bool = True


class Work(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What a trigger says of each workload it makes, beside its definition and its input.

    `input` is that of a schedule: a state trigger's is the change.
    """

    environment: Name = "production"
    definition_revision: Name = "1"
    capability_snapshot: Names = ()
    connection_scopes: ConnectionScopes = ()
    priority: Priority = 0
    retry_policy: RetryPolicy | None = None
    timeouts: Timeouts | None = None
    not_before_at_ms: Instant | None = None
    placement: Placement | None = None
    runtime_policy: RuntimePolicy | None = None
    input: Any = None


class Disabled(Struct, frozen=True):
    """Since when a trigger makes nothing, who said so and why. Lease time."""

    at_ms: int
    by: str
    reason: str


class Trigger(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A trigger as it is shown.

    `cursor` is the last change it has judged and `lag` how many are behind that. `passed_over`
    counts changes that eight firings had led to, and instants that were missed or overlapped.
    `failures` are those in a row, `failure` the last of them. next_at_ms is wall time, every other
    instant lease time. `overtaken`: changes it has not judged are gone, so it needs a new `start`.
    """

    trigger_id: str
    kind: TriggerKind
    tenant_id: str
    application_id: str
    target_capability: str
    environment: str
    definition_revision: str
    requested_by: Subject
    authorization_grant_id: str | None
    capability_snapshot: tuple[str, ...]
    connection_scopes: tuple[str, ...]
    priority: int
    enabled: bool
    fired: int
    passed_over: int
    failures: int
    defined_by: str
    created_at_ms: int
    updated_at_ms: int
    source_collection: str | None = None
    change_kind: str | None = None
    predicate: Predicate | None = None
    cursor: int | None = None
    lag: int | None = None
    overtaken: bool = False
    cron: str | None = None
    every_ms: int | None = None
    timezone: str | None = None
    missed: str | None = None
    overlap: str | None = None
    input: Any = UNSET
    next_at_ms: int | None = None
    last_at_ms: int | None = None
    retry_policy: RetryPolicy | None = None
    timeouts: Timeouts | None = None
    not_before_at_ms: int | None = None
    placement: Placement | None = None
    runtime_policy: RuntimePolicy | None = None
    failure: str | None = None
    retry_at_ms: int | None = None
    disabled: Disabled | None = None
    last_workload_id: str | None = None
    last_fired_at_ms: int | None = None


class Disable(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a disabling."""

    reason: Annotated[Sentence, Meta(min_length=1)] | None = None


class OfTenant(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The query of a call on one trigger, and of those about all of a tenant."""

    tenant_id: Name | None = None


class ListTriggers(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The query of a list."""

    limit: Limit = LIMIT_DEFAULT
    cursor: str | None = None
    tenant_id: Name | None = None


class TriggerPage(Struct, frozen=True, kw_only=True):
    """Newest first."""

    items: tuple[Trigger, ...]
    next_cursor: str | None


class TriggerStatus(Struct, frozen=True, kw_only=True):
    """How a tenant's triggers stand; with several tenants an id is written tenant/id.

    `cursors` are those of state triggers, `lag` is the greatest of an enabled one, `head` the
    newest change, `disabled` and `failing` say why each stands still or tries again.
    """

    triggers: int
    cursors: dict[str, int]
    lag: int
    head: int
    disabled: dict[str, str]
    failing: dict[str, str]


class Firing(Struct, frozen=True, kw_only=True):
    """A change that a trigger made a workload of."""

    trigger_id: str
    seq: int
    workload_id: str
    tenant_id: str


class Produced(Struct, frozen=True, kw_only=True):
    """What one evaluation made. `more`: there is more to judge, evaluate again."""

    produced: list[Firing]
    more: bool


class Judged(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A change that a trigger fires for; `workload_id` is what it has made of it already."""

    seq: int
    kind: str
    id: str
    version: int
    workload_id: str | None = None


class Previewed(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What would fire: of a state trigger the newest changes, of a schedule instants to come.

    `looked_at` is how many of the collection's newest changes were judged; `changes` are those
    that would fire, newest first.
    """

    trigger_id: str
    enabled: bool
    looked_at: int | None = None
    changes: list[Judged] | None = None
    instants: list[Coming] | None = None

"""Changes to work that stands already: of one workload, or of all that a filter lets through."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from feltd.model.base import EndKind, Id, Instant, Name
from feltd.model.workload import Priority, State

#: One operation changes so many rows at most; it stays below the writer's 50 ms.
CHUNK_ROWS = 500
#: What is left is counted up to here.
REMAINING_MAX = 10_000

#: `key=value`, as in the query of a list.
LabelPair = Annotated[str, Meta(min_length=2, max_length=400, pattern=r"\A[^=]+=.*\Z")]
#: An object of a JSON merge patch: its members are merged, null takes one back to its default.
Merge = dict[Annotated[str, Meta(max_length=128)], Any] | None | UnsetType


class Edit(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of an edit, a JSON merge patch (RFC 7396): what is absent stays as it is.

    Null takes a member back to its default; of the objects each member is merged likewise.
    not_before_at_ms 0 lets the workload run now, whatever backoff or instant it waits for.
    """

    priority: Priority | UnsetType | None = UNSET
    not_before_at_ms: Instant | UnsetType | None = UNSET
    placement: Merge = UNSET
    timeouts: Merge = UNSET
    retry_policy: Merge = UNSET
    concurrency: Merge = UNSET
    labels: Merge = UNSET


class BulkFilter(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which workloads a bulk change is for: the filter of the list, every member met.

    `label` is key=value, or several of them.
    """

    tenant_id: Name | None = None
    application_id: Name | None = None
    state: State | None = None
    definition_id: Name | None = None
    worker_id: Id | None = None
    trigger: Name | None = None
    group: Name | None = None
    label: LabelPair | Annotated[tuple[LabelPair, ...], Meta(max_length=64)] = ()
    failure_kind: EndKind | None = None
    created_after_ms: Instant | None = None
    created_before_ms: Instant | None = None


Action = Literal["cancel", "requeue", "reprioritise"]


class BulkChange(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of a bulk change; `priority` is for reprioritise, `dry_run` only counts."""

    action: Action
    filter: BulkFilter
    priority: Priority | None = None
    dry_run: bool = False


class BulkAnswer(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one chunk did. `remaining` still needs the change, counted up to 10,000; 0: done.

    `matched`, of a dry run alone, is what would be changed, counted likewise.
    """

    changed: int
    remaining: int
    matched: int | None = None


class DeadKind(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The dead letters of one failure kind; `workloads` of a tenant are counted up to 10,000.

    `newest` is the one that came last; its message stands for the others.
    """

    failure_kind: str
    workloads: int
    newest_workload_id: str
    newest_definition_id: str
    newest_at_ms: int
    newest_message: str | None = None


class DeadLetters(Struct, frozen=True):
    """Dead letters by failure kind, most first. `capped`: there are more than were looked at."""

    items: list[DeadKind]
    capped: bool

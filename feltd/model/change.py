"""Changes of records on the wire, and who reads them outside: consumers with a cursor of theirs."""

from typing import Annotated

from msgspec import Meta, Raw, Struct

from feltd.model.base import Count
from feltd.model.page import LIMIT_DEFAULT
from feltd.model.record import ChangeKind, OfTenant

#: Consumers of a tenant; compaction asks each how far it is.
CONSUMERS_MAX = 100

Ack = Annotated[int, Meta(ge=0, le=2**53 - 1)]


class Change(Struct, frozen=True, kw_only=True):
    """One change: what the record was before and after (null: not there), and who did it.

    `depth` firings of triggers led to it; `cause_workload_id` is the workload named as its cause.
    """

    seq: int
    kind: ChangeKind
    collection: str
    id: str
    version: int
    before: Raw | None
    after: Raw | None
    at_ms: int
    actor: str
    cause_workload_id: str | None
    depth: int


class ChangePage(Struct, frozen=True, kw_only=True):
    """Changes in order. `head` is the newest number, `oldest` the first one still kept.

    `instance_id` changes when an earlier state of the database was put back: then other changes
    follow under numbers that were given out before.
    """

    items: tuple[Change, ...]
    head: int
    oldest: int
    instance_id: str


class Following(OfTenant, frozen=True, kw_only=True):
    """Where a reader of a tenant's changes stands; `after` None: before the oldest kept."""

    after: int | None = None
    collection: str | None = None
    limit: int = LIMIT_DEFAULT
    bytes_max: int = 4 * 1024 * 1024


class StateVersion(Struct, frozen=True, kw_only=True):
    """The number of the tenant's newest change, 0 before the first."""

    sequence: int
    instance_id: str


class Acknowledge(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`PUT /v1/consumers/{name}`: every change up to this one is done with."""

    ack: Ack


class Consumer(Struct, frozen=True, kw_only=True):
    """A consumer as it stands; `dropped_at_ms`: compaction no longer waits for it."""

    name: str
    ack: int
    head: int
    lag: Count
    acked_at_ms: int
    created_at_ms: int
    dropped_at_ms: int | None


class ConsumerPage(Struct, frozen=True, kw_only=True):
    """Every consumer of the tenant, by name: there are never many."""

    items: tuple[Consumer, ...]
    next_cursor: str | None = None

"""Records on the wire: a tenant's JSON values by collection and id, each with a version.

A value travels as the bytes it is stored in: re-encoded once when it was written, members in order,
so that equal values are equal bytes.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from feltd.model.base import Name, RequestKey
from feltd.model.page import Limit

#: Programs of capabilities are records here; writing them takes a scope of its own.
FLOW_CAPABILITIES = "_flow_capabilities"
#: A value as it is stored. A program may carry a module in it.
RECORD_BYTES_MAX = 256 * 1024
PROGRAM_BYTES_MAX = 1024 * 1024
#: Mutations of one transaction: what the writer does in some 45 ms, with the schema's own checks.
MUTATIONS_MAX = 1_000
#: Collections of a tenant that hold something.
COLLECTIONS_MAX = 10_000

QUERY_CHARS_MAX = 256
#: As a cursor in a URL.
CURSOR_CHARS_MAX = 2_048
SEARCH_LIMIT_DEFAULT = 20

Version = Annotated[int, Meta(ge=1, le=2**53 - 1)]
#: The beginning of an id; empty: of every id.
Prefix = Annotated[str, Meta(max_length=128, pattern=r"\A[A-Za-z0-9._@+\-]*\Z")]
ChangeKind = Literal["created", "updated", "deleted"]


def record_bytes_max(collection: str) -> int:
    """The largest value of a collection, bytes as stored."""
    return PROGRAM_BYTES_MAX if collection == FLOW_CAPABILITIES else RECORD_BYTES_MAX


class OfTenant(Struct, frozen=True):
    """A question about what a tenant has; it takes the tenant's turns at the readers."""

    tenant_id: str

    @property
    def tenants(self) -> tuple[str, ...]:
        """Whose turn it is."""
        return (self.tenant_id,)


class Record(Struct, frozen=True, kw_only=True):
    """A record as it stands. `change_seq` is the change that made it so."""

    collection: str
    id: str
    version: int
    value: Raw
    created_at_ms: int
    updated_at_ms: int
    change_seq: int


class RecordPage(Struct, frozen=True, kw_only=True):
    """Newest created first; with a prefix by id."""

    items: tuple[Record, ...]
    next_cursor: str | None


class CollectionInfo(Struct, frozen=True, kw_only=True):
    """A collection: how many records it holds and how many bytes their values take."""

    collection: str
    records: int
    bytes: int


class CollectionPage(Struct, frozen=True, kw_only=True):
    """By name."""

    items: tuple[CollectionInfo, ...]
    next_cursor: str | None


class Expect(Struct, frozen=True, kw_only=True):
    """What must hold of a record before it is written.

    `if_version` a number: it is at that version; None: it is not there; UNSET: nothing. `exists`:
    it is there, at whatever version.
    """

    if_version: int | UnsetType | None = UNSET
    exists: bool = False


ANY = Expect()


class Mutation(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One write of a transaction; a put or patch needs a value, a delete has none.

    `if_version` as in Expect: null means that the record must not be there.
    """

    op: Literal["put", "patch", "delete"]
    collection: Name
    id: Name
    value: Any = UNSET
    if_version: Version | UnsetType | None = UNSET


class Transaction(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/transactions`: all of it or nothing, in this order.

    A repeat with the same request_id within a day is answered alike and does nothing.
    """

    mutations: Annotated[tuple[Mutation, ...], Meta(min_length=1, max_length=MUTATIONS_MAX)]
    request_id: RequestKey | None = None


class Left(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a mutation left: the record, or that it is gone; without value past 4 MiB in all."""

    collection: str
    id: str
    version: int
    value: Raw | UnsetType = UNSET
    created_at_ms: int | UnsetType = UNSET
    updated_at_ms: int | UnsetType = UNSET
    change_seq: int | UnsetType = UNSET
    deleted: bool = False


class Committed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`sequence` is the newest change after the transaction; `records` stand in its order.

    `values_left_out`: they would have taken more than an answer may hold; read them one by one.
    """

    sequence: int
    records: tuple[Left, ...]
    values_left_out: bool = False


class Search(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST …/search`: the needle is looked for, case aside, in the JSON text of each value."""

    query: Annotated[str, Meta(min_length=1, max_length=QUERY_CHARS_MAX)]
    limit: Limit = SEARCH_LIMIT_DEFAULT
    cursor: Annotated[str, Meta(max_length=CURSOR_CHARS_MAX)] | None = None


class Found(Struct, frozen=True, kw_only=True):
    """Newest created first. `scanned` records were looked at; `complete`: to the very last."""

    items: tuple[Record, ...]
    next_cursor: str | None
    scanned: int
    complete: bool


class Deed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of a record, without the values."""

    seq: int
    kind: ChangeKind
    version: int
    at_ms: int
    actor: str
    cause: str | None = None
    depth: int = 0


class Provenance(Struct, frozen=True, kw_only=True):
    """Who made a record what it is; its changes oldest first.

    Changes before `oldest` are no longer kept. A record that was deleted is told of for as long
    as its version is remembered; its last change says so.
    """

    created_by: str
    created_at_ms: int
    updated_by: str
    items: tuple[Deed, ...]
    next_cursor: str | None
    oldest: int

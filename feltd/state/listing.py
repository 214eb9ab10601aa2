"""Records read: one, a page of a collection, and which collections there are. Nothing is written.

A page reads a bounded number of rows and bytes and may be short; records that are made meanwhile
move nothing in it.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec import Raw

from feltd.clock import Now
from feltd.identity import principals
from feltd.model.record import CollectionInfo, OfTenant, Record
from feltd.state.records import Stored, row_of
from feltd.store.tx import Row, Tx

#: Records read at a time: each may hold 256 KiB.
ROWS_AT_ONCE = 16
#: A page by id passes over so many rows that were deleted, then it is short.
ROWS_READ_MAX = 20_000
#: A page ends early here.
ANSWER_BYTES_MAX = 4 * 1024 * 1024
#: Behind every character that an id may hold.
LAST = "\x7f"

NEWEST = """
SELECT r.record_seq, r.collection, r.record_id, r.version, r.value, r.change_seq, r.created_at_ms,
       r.updated_at_ms
  FROM records r
 WHERE r.tenant_id = :tenant_id
   AND r.collection = :collection
   AND r.value IS NOT NULL
   AND r.record_seq < :before
 ORDER BY r.record_seq DESC
 LIMIT :rows
"""

BY_ID = """
SELECT r.record_seq, r.collection, r.record_id, r.version, r.value, r.change_seq, r.created_at_ms,
       r.updated_at_ms
  FROM records r
 WHERE r.tenant_id = :tenant_id
   AND r.collection = :collection
   AND r.record_id >= :prefix
   AND r.record_id < :end
   AND r.record_id > :after
 ORDER BY r.record_id
 LIMIT :rows
"""

COLLECTIONS = """
SELECT c.collection, c.records, c.bytes
  FROM collections c
 WHERE c.tenant_id = :tenant_id
   AND c.collection > :after
 ORDER BY c.collection
 LIMIT :rows
"""


class OfRecord(OfTenant, frozen=True):
    """A record by its name."""

    collection: str
    record_id: str


class PageOf(OfTenant, frozen=True):
    """A page of a collection: the next records before `before`, or after `after` by id.

    With a prefix (also an empty one) the order is that of the ids.
    """

    collection: str
    limit: int
    prefix: str | None = None
    before: int | None = None
    after: str = ""


class Listed(NamedTuple):
    """A page; `last` is the keyset value of its last row where more may follow, else None."""

    items: tuple[Any, ...]
    last: int | str | None


class CollectionsOf(OfTenant, frozen=True):
    """A page of a tenant's collections behind one of them."""

    limit: int
    after: str = ""


def get(tx: Tx, cmd: OfRecord, now: Now) -> Record:
    """One record. Refuses RECORD_NOT_FOUND."""
    row = row_of(tx, cmd.tenant_id, cmd.collection, cmd.record_id)
    if row is None or row["value"] is None:
        raise principals.not_found("RECORD_NOT_FOUND")
    return record(row)


def page(tx: Tx, cmd: PageOf, now: Now) -> Listed:
    """A page of a collection: newest created first, or by id where a prefix is asked for.

    `last` is then a record_seq, or an id. A record that was deleted and made again stands where it
    first stood. A collection that holds nothing is an empty page.
    """
    key = "record_seq" if cmd.prefix is None else "record_id"
    items: list[Record] = []
    size_bytes = 0
    last: int | str | None = None
    for seen, row in enumerate(_rows(tx, cmd)):
        if seen == ROWS_READ_MAX:
            return Listed(tuple(items), last)
        if row["value"] is not None:
            size_bytes += len(row["value"])
            if len(items) == cmd.limit or (items and size_bytes > ANSWER_BYTES_MAX):
                return Listed(tuple(items), last)
            items.append(record(row))
        last = row[key]
    return Listed(tuple(items), None)


def collections(tx: Tx, cmd: CollectionsOf, now: Now) -> Listed:
    """The collections of a tenant that hold something, by name."""
    name = {"tenant_id": cmd.tenant_id, "after": cmd.after, "rows": cmd.limit + 1}
    rows = tx.rows(COLLECTIONS, name)
    shown = rows[: cmd.limit]
    items = tuple(
        CollectionInfo(collection=row["collection"], records=row["records"], bytes=row["bytes"])
        for row in shown
    )
    return Listed(items, shown[-1]["collection"] if len(rows) > cmd.limit else None)


def record(row: Row) -> Record:
    """A record as it is shown, from its row."""
    return Record(
        collection=row["collection"],
        id=row["record_id"],
        version=row["version"],
        value=Raw(row["value"].encode()),
        created_at_ms=row["created_at_ms"],
        updated_at_ms=row["updated_at_ms"],
        change_seq=row["change_seq"],
    )


def shown(stored: Stored) -> Record:
    """A record as it is shown, from what a write left."""
    assert stored.value is not None
    return Record(
        collection=stored.collection,
        id=stored.record_id,
        version=stored.version,
        value=Raw(stored.value.encode()),
        created_at_ms=stored.created_at_ms,
        updated_at_ms=stored.updated_at_ms,
        change_seq=stored.change_seq,
    )


def newest(tx: Tx, tenant_id: str, collection: str, before: int | None) -> Iterator[Row]:
    """The records of a collection, newest created first, a few rows at a time."""
    name: dict[str, object] = {"tenant_id": tenant_id, "collection": collection}
    place = 2**63 - 1 if before is None else before
    while rows := tx.rows(NEWEST, {**name, "before": place, "rows": ROWS_AT_ONCE}):
        yield from rows
        place = rows[-1]["record_seq"]


def _rows(tx: Tx, cmd: PageOf) -> Iterator[Row]:
    if cmd.prefix is None:
        yield from newest(tx, cmd.tenant_id, cmd.collection, cmd.before)
        return
    name: dict[str, object] = {
        "tenant_id": cmd.tenant_id,
        "collection": cmd.collection,
        "prefix": cmd.prefix,
        "end": cmd.prefix + LAST,
    }
    after = cmd.after
    while rows := tx.rows(BY_ID, {**name, "after": after, "rows": ROWS_AT_ONCE}):
        yield from rows
        after = rows[-1]["record_id"]

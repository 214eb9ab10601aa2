"""Records: written one by one, each write with its change, under whatever the writer expects.

A record that is deleted keeps its row, so that its version goes on when it is made again and no
old If-Match ever fits a new record. A write that would leave the value as it is writes nothing.
Checking a caller is the business of `put_record` and its kin; `put`, `patch` and `delete` trust
theirs.
"""

from typing import NamedTuple

from msgspec import UNSET

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import principals
from feltd.model.record import ANY, Expect, record_bytes_max
from feltd.state import merging
from feltd.state.writing import Appending, Writing
from feltd.store.tx import Row, Tx

FIND = """
SELECT r.record_seq, r.collection, r.record_id, r.version, r.value, r.change_seq, r.created_at_ms,
       r.created_by, r.updated_at_ms, r.updated_by, r.updated_key
  FROM records r
 WHERE r.tenant_id = :tenant_id
   AND r.collection = :collection
   AND r.record_id = :record_id
"""

MAKE = """
INSERT INTO records (tenant_id, collection, record_id, version, value, change_seq, created_at_ms,
                     created_by, updated_at_ms, updated_by, updated_key)
VALUES (:tenant_id, :collection, :record_id, :version, :value, :change_seq, :created_at_ms,
        :created_by, :updated_at_ms, :updated_by, :updated_key)
"""

CHANGE = """
UPDATE records
   SET version = :version,
       value = :value,
       change_seq = :change_seq,
       created_at_ms = :created_at_ms,
       created_by = :created_by,
       updated_at_ms = :updated_at_ms,
       updated_by = :updated_by,
       updated_key = :updated_key
 WHERE record_seq = :record_seq
"""


class Written(NamedTuple):
    """What a write did: the change it appended, and the record's version after it."""

    seq: int
    kind: str
    version: int


class Stored(NamedTuple):
    """A record as it stands after a write; `value` None: deleted; `kind` '': nothing changed."""

    collection: str
    record_id: str
    version: int
    value: str | None
    created_at_ms: int
    updated_at_ms: int
    change_seq: int
    kind: str


def row_of(tx: Tx, tenant_id: str, collection: str, record_id: str) -> Row | None:
    """The row of a record, None when there never was one or it is forgotten.

    Its `value` is None when it was deleted.
    """
    key = {"tenant_id": tenant_id, "collection": collection, "record_id": record_id}
    return tx.row(FIND, key)


def put(
    tx: Tx,
    now: Now,
    why: Writing,
    collection: str,
    record_id: str,
    value: bytes,
    expect: Expect = ANY,
) -> Written | None:
    """Make a record, or replace its value; None when it holds that value already.

    `value` is JSON as it is stored. Refuses RECORD_CONFLICT where `expect` does not hold,
    RECORD_INVALID for a value too large, QUOTA_EXCEEDED beyond the tenant's collections.
    """
    log = Appending(tx, now, why)
    stored = put_in(tx, now, log, collection, record_id, value, expect)
    return _written(log, stored)


def patch(
    tx: Tx,
    now: Now,
    why: Writing,
    collection: str,
    record_id: str,
    value: bytes,
    expect: Expect = ANY,
) -> Written | None:
    """Apply a merge patch to a record; None when it changes nothing.

    Refuses RECORD_NOT_FOUND, and as `put`; the value too large is what comes of the patch.
    """
    log = Appending(tx, now, why)
    stored = patch_in(tx, now, log, collection, record_id, value, expect)
    return _written(log, stored)


def delete(
    tx: Tx, now: Now, why: Writing, collection: str, record_id: str, expect: Expect = ANY
) -> Written:
    """Delete a record; its version goes on. Refuses RECORD_NOT_FOUND, RECORD_CONFLICT."""
    log = Appending(tx, now, why)
    stored = delete_in(tx, now, log, collection, record_id, expect)
    log.end()
    return Written(stored.change_seq, stored.kind, stored.version)


def put_in(
    tx: Tx,
    now: Now,
    log: Appending,
    collection: str,
    record_id: str,
    value: bytes,
    expect: Expect,
) -> Stored:
    """As `put`, one of the writes of `log`, whose end is the caller's."""
    row = row_of(tx, log.why.tenant_id, collection, record_id)
    log.weigh(_weight(row) + len(value))
    text = value.decode()
    if _repeats(log.why, row, expect, text):
        assert row is not None
        return _unchanged(row)
    _require(row, expect)
    if row is not None and row["value"] == text:
        return _unchanged(row)
    _require_size(collection, len(value))
    return _store(tx, now, log, collection, record_id, row, text)


def patch_in(
    tx: Tx,
    now: Now,
    log: Appending,
    collection: str,
    record_id: str,
    value: bytes,
    expect: Expect,
) -> Stored:
    """As `patch`, one of the writes of `log`, whose end is the caller's."""
    row = _there(tx, log.why.tenant_id, collection, record_id)
    log.weigh(2 * _weight(row) + len(value))
    text = merging.merged(row["value"], value)
    if _repeats(log.why, row, expect, text):
        return _unchanged(row)
    _require(row, expect)
    if row["value"] == text:
        return _unchanged(row)
    _require_size(collection, len(text.encode()))
    return _store(tx, now, log, collection, record_id, row, text)


def delete_in(
    tx: Tx, now: Now, log: Appending, collection: str, record_id: str, expect: Expect
) -> Stored:
    """As `delete`, one of the writes of `log`, whose end is the caller's."""
    row = _there(tx, log.why.tenant_id, collection, record_id)
    log.weigh(_weight(row))
    _require(row, expect)
    return _store(tx, now, log, collection, record_id, row, None)


def _written(log: Appending, stored: Stored) -> Written | None:
    log.end()
    if not stored.kind:
        return None
    return Written(stored.change_seq, stored.kind, stored.version)


def _there(tx: Tx, tenant_id: str, collection: str, record_id: str) -> Row:
    row = row_of(tx, tenant_id, collection, record_id)
    if row is None or row["value"] is None:
        raise principals.not_found("RECORD_NOT_FOUND")
    return row


def _weight(row: Row | None) -> int:
    return 0 if row is None else len(row["value"] or "")


def _repeats(why: Writing, row: Row | None, expect: Expect, text: str) -> bool:
    """Whether this write was done already, under the version it names, by the same key.

    Its reply was lost; had it changed something else since, the version would be another.
    """
    if row is None or row["value"] != text or not isinstance(expect.if_version, int):
        return False
    if row["version"] != expect.if_version + 1 or row["updated_key"] != why.key_id:
        return False
    # No key tells the local callers apart.
    return bool(why.key_id) or row["updated_by"] == why.actor


def _require(row: Row | None, expect: Expect) -> None:
    wanted = expect.if_version
    if wanted is UNSET and not expect.exists:
        return
    version = None if row is None or row["value"] is None else row["version"]
    if expect.exists and version is None:
        raise _conflict("the record is not there", None)
    if wanted is None and version is not None:
        raise _conflict(f"the record is there, at version {version}", version)
    if isinstance(wanted, int) and version != wanted:
        at = "is not there" if version is None else f"is at version {version}"
        raise _conflict(f"the record {at}, not at version {wanted}", version)


def _conflict(detail: str, version: int | None) -> Refused:
    return Refused("RECORD_CONFLICT", detail, version=version)


def _require_size(collection: str, size_bytes: int) -> None:
    bytes_max = record_bytes_max(collection)
    if size_bytes > bytes_max:
        detail = f"takes {size_bytes} bytes, at most {bytes_max} are allowed"
        raise Refused(
            "RECORD_INVALID",
            f"the value {detail}",
            errors=[{"pointer": "", "detail": detail}],
        )


def _store(
    tx: Tx,
    now: Now,
    log: Appending,
    collection: str,
    record_id: str,
    row: Row | None,
    text: str | None,
) -> Stored:
    why = log.why
    before = None if row is None else row["value"]
    version = 1 if row is None else row["version"] + 1
    kind = "deleted" if text is None else "created" if before is None else "updated"
    seq = log.add(kind, collection, record_id, version, before, text)
    created_at_ms, created_by = now.lease_ms, why.actor
    if row is not None and kind != "created":
        created_at_ms, created_by = row["created_at_ms"], row["created_by"]
    columns: dict[str, object] = {
        "version": version,
        "value": text,
        "change_seq": seq,
        "created_at_ms": created_at_ms,
        "created_by": created_by,
        "updated_at_ms": now.lease_ms,
        "updated_by": why.actor,
        "updated_key": why.key_id,
    }
    if row is None:
        columns |= {
            "tenant_id": why.tenant_id,
            "collection": collection,
            "record_id": record_id,
        }
        tx.change(MAKE, columns)
    else:
        tx.change(CHANGE, {**columns, "record_seq": row["record_seq"]})
    return Stored(collection, record_id, version, text, created_at_ms, now.lease_ms, seq, kind)


def _unchanged(row: Row) -> Stored:
    return Stored(
        row["collection"],
        row["record_id"],
        row["version"],
        row["value"],
        row["created_at_ms"],
        row["updated_at_ms"],
        row["change_seq"],
        "",
    )

"""Provenance: who made a record what it is; a seek by its key, whatever its collection holds."""

from typing import NamedTuple

from feltd.clock import Now
from feltd.identity import principals
from feltd.model.record import Deed, OfTenant, Provenance
from feltd.state.records import row_of
from feltd.state.writing import head
from feltd.store.tx import Tx

DEEDS = """
SELECT c.seq, c.kind, c.version, c.at_ms, c.actor, c.cause_workload_id, c.depth
  FROM changes c
 WHERE c.tenant_id = :tenant_id
   AND c.collection = :collection
   AND c.record_id = :record_id
   AND c.seq > :after
 ORDER BY c.seq
 LIMIT :rows
"""


class History(OfTenant, frozen=True):
    """A page of a record's changes behind one of them."""

    collection: str
    record_id: str
    limit: int
    after: int = 0


class Told(NamedTuple):
    """A page; `last` is the seq of its last change where more follow, else None."""

    provenance: Provenance
    last: int | None


def of_record(tx: Tx, cmd: History, now: Now) -> Told:
    """Who created a record and wrote it last, and its changes that are kept, oldest first.

    Also of one that was deleted, while its version is remembered. Refuses RECORD_NOT_FOUND.
    """
    row = row_of(tx, cmd.tenant_id, cmd.collection, cmd.record_id)
    if row is None:
        raise principals.not_found("RECORD_NOT_FOUND")
    rows = tx.rows(
        DEEDS,
        {
            "tenant_id": cmd.tenant_id,
            "collection": cmd.collection,
            "record_id": cmd.record_id,
            "after": cmd.after,
            "rows": cmd.limit + 1,
        },
    )
    shown = rows[: cmd.limit]
    deeds = tuple(
        Deed(
            seq=one["seq"],
            kind=one["kind"],
            version=one["version"],
            at_ms=one["at_ms"],
            actor=one["actor"],
            cause=one["cause_workload_id"],
            depth=one["depth"],
        )
        for one in shown
    )
    told = Provenance(
        created_by=row["created_by"],
        created_at_ms=row["created_at_ms"],
        updated_by=row["updated_by"],
        items=deeds,
        next_cursor=None,
        oldest=head(tx, cmd.tenant_id).oldest,
    )
    return Told(told, shown[-1]["seq"] if len(rows) > cmd.limit else None)

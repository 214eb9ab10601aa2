"""Reading the log of changes: in order, none missing, from wherever a reader stands.

Changes are numbered by the one writer and seen only once committed, so a reader that goes on behind
the last number it saw misses nothing. Everything here only reads. What compaction has taken lies
below the floor: a reader that stands there is told so, never moved on silently.
"""

from msgspec import Raw

from feltd.clock import Now
from feltd.errors import Refused
from feltd.model.change import Change, ChangePage, Following, StateVersion
from feltd.model.record import OfTenant
from feltd.state.writing import Log, head
from feltd.store.tx import Row, Tx

#: Changes read at a time: each may carry a value of 256 KiB twice.
ROWS_AT_ONCE = 16

OF_TENANT = """
SELECT c.seq, c.at_ms, c.kind, c.collection, c.record_id, c.version, c.before, c.after, c.actor,
       c.cause_workload_id, c.depth
  FROM changes c
 WHERE c.tenant_id = :tenant_id
   AND c.seq > :after
   AND c.seq <= :head
 ORDER BY c.seq
 LIMIT :rows
"""

OF_COLLECTION = """
SELECT c.seq, c.at_ms, c.kind, c.collection, c.record_id, c.version, c.before, c.after, c.actor,
       c.cause_workload_id, c.depth
  FROM changes c
 WHERE c.tenant_id = :tenant_id
   AND c.collection = :collection
   AND c.seq > :after
   AND c.seq <= :head
 ORDER BY c.seq
 LIMIT :rows
"""


def page(tx: Tx, cmd: Following, now: Now) -> ChangePage:
    """The changes of a tenant after one of them, oldest first, with both ends of the log.

    At most `limit`, and no further one once they take `bytes_max`. Without any, the reader may go
    on behind `head`; else behind the last it got. Refuses CHANGES_COMPACTED, with `oldest` and
    `head`, where changes behind `after` are gone, or `after` is above the head: then another
    history gave that number out.
    """
    log = head(tx, cmd.tenant_id)
    after = log.floor_seq if cmd.after is None else cmd.after
    require_kept(log, after)
    return ChangePage(
        items=_read(tx, cmd, after, log.head_seq),
        head=log.head_seq,
        oldest=log.oldest,
        instance_id=log.instance_id,
    )


def version(tx: Tx, cmd: OfTenant, now: Now) -> StateVersion:
    """The number of the tenant's newest change and which history it is of."""
    log = head(tx, cmd.tenant_id)
    return StateVersion(sequence=log.head_seq, instance_id=log.instance_id)


def require_kept(log: Log, after: int, whose: str = "") -> None:
    """Refuse CHANGES_COMPACTED unless every change behind `after` can be read; `whose` leads in."""
    if after < log.floor_seq:
        detail = f"changes up to {log.floor_seq} are no longer kept"
    elif after > log.head_seq:
        detail = (
            f"{after} is no change of this database as it stands: the log ends at {log.head_seq}"
        )
    else:
        return
    raise Refused("CHANGES_COMPACTED", whose + detail, oldest=log.oldest, head=log.head_seq)


def change(row: Row) -> Change:
    """A change as it is shown, from its row."""
    return Change(
        seq=row["seq"],
        kind=row["kind"],
        collection=row["collection"],
        id=row["record_id"],
        version=row["version"],
        before=raw(row["before"]),
        after=raw(row["after"]),
        at_ms=row["at_ms"],
        actor=row["actor"],
        cause_workload_id=row["cause_workload_id"],
        depth=row["depth"],
    )


def raw(text: str | None) -> Raw | None:
    """A stored value, to be shown as it is."""
    return None if text is None else Raw(text.encode())


def _read(tx: Tx, cmd: Following, after: int, head_seq: int) -> tuple[Change, ...]:
    items: list[Change] = []
    size_bytes = 0
    sql = OF_TENANT if cmd.collection is None else OF_COLLECTION
    stretch: dict[str, object] = {
        "tenant_id": cmd.tenant_id,
        "collection": cmd.collection,
        "head": head_seq,
    }
    while len(items) < cmd.limit:
        rows_max = min(ROWS_AT_ONCE, cmd.limit - len(items))
        rows = tx.rows(sql, {**stretch, "after": after, "rows": rows_max})
        for row in rows:
            one = change(row)
            size_bytes += len(bytes(one.before or b"")) + len(bytes(one.after or b""))
            if items and size_bytes > cmd.bytes_max:
                return tuple(items)
            items.append(one)
            after = one.seq
        if len(rows) < rows_max:
            break
    return tuple(items)

"""The audit chain read forwards, as programs and mirrors follow it: rows by number, none missing.

It is the whole daemon's, so who may read it at all is the door's affair. Only reads; the rows come
with everything their hashes cover.
"""

from typing import NamedTuple

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity.audit import HASHED
from feltd.model.audit import AuditPage, AuditRow, Walking
from feltd.store.tx import Row, Tx

#: Rows one page looks at, some 50 ms of a reader; then it is short and the next one goes on.
LOOKED_MAX = 100_000
#: Rows a mirror is given at a time.
AHEAD_ROWS = 1_000

BOUNDS = """
SELECT l.audit_seq AS head, f.seq + 1 AS oldest
  FROM ledger l
  JOIN floors f ON f.name = 'audit'
 WHERE l.id = 1
"""

ROWS = """
SELECT a.seq, a.kind, a.at_ms, a.wall_at_ms, a.first_event_seq, a.last_event_seq, a.actor,
       a.action, a.subject, a.reason, a.digest, a.prev_hash, a.hash
  FROM audit a
 WHERE a.seq > :after
   AND a.seq <= :upto
   AND (:kind IS NULL OR a.kind = :kind)
   AND (:actor IS NULL OR a.actor = :actor)
   AND (:action IS NULL OR a.action = :action)
   AND (:subject IS NULL OR a.subject = :subject)
 ORDER BY a.seq
 LIMIT :limit
"""


# As the rows stand, with no filter whose test would be paid for each of them.
AHEAD = """
SELECT a.seq, a.kind, a.at_ms, a.wall_at_ms, a.first_event_seq, a.last_event_seq, a.actor,
       a.action, a.subject, a.reason, a.digest, a.prev_hash, a.hash
  FROM audit a
 WHERE a.seq > :after
 ORDER BY a.seq
 LIMIT :limit
"""

ENDS = """
SELECT l.audit_seq AS head, f.seq AS floor, f.hash AS floor_hash, a.hash
  FROM ledger l
  JOIN floors f ON f.name = 'audit'
  LEFT JOIN audit a ON a.seq = :seq
 WHERE l.id = 1
"""


class Place(NamedTuple):
    """Where a mirror ends: its last row and that one's hash; 0 and '': it is empty."""

    seq: int
    hash: str


class Ahead(NamedTuple):
    """Rows for a mirror to go on with; or why none of them would follow what it has."""

    rows: list[Row]
    trouble: str | None


def page(tx: Tx, cmd: Walking, now: Now) -> AuditPage:
    """The rows behind `cmd.after` that are asked for, at most `limit`, oldest first.

    What retention has taken is not there: `oldest` says where the chain begins, and the first
    row's `prev_hash` what it goes on from.
    """
    bounds = tx.row(BOUNDS)
    if bounds is None:
        raise Refused("STORAGE_UNAVAILABLE", "the ledger row is missing")
    head, oldest = bounds["head"], bounds["oldest"]
    begin = max(cmd.after, oldest - 1)
    upto = min(head, begin + LOOKED_MAX)
    rows = tx.rows(
        ROWS,
        {
            "after": begin,
            "upto": upto,
            "kind": cmd.kind,
            "actor": cmd.actor,
            "action": cmd.action,
            "subject": cmd.subject,
            "limit": cmd.limit,
        },
    )
    items = [shown(row) for row in rows]
    next_after = items[-1].seq if len(items) == cmd.limit else max(upto, cmd.after)
    return AuditPage(items=items, head=head, oldest=oldest, next_after=next_after)


def ahead(tx: Tx, place: Place, now: Now) -> Ahead:
    """The rows that a mirror which ends at `place` lacks, at most AHEAD_ROWS.

    A mirror of another history is never gone on with: it is what the other one can be known by.
    """
    bounds = tx.row(ENDS, {"seq": place.seq})
    if bounds is None:
        raise Refused("STORAGE_UNAVAILABLE", "the ledger row is missing")
    if place.seq and (trouble := _trouble(bounds, place)) is not None:
        return Ahead([], trouble)
    return Ahead(tx.rows(AHEAD, {"after": place.seq, "limit": AHEAD_ROWS}), None)


def _trouble(bounds: Row, place: Place) -> str | None:
    if place.seq > bounds["head"]:
        return f"it ends at audit {place.seq}, the database at {bounds['head']}"
    if place.seq < bounds["floor"]:
        gone = f"audit {place.seq + 1} to {bounds['floor']}"
        return f"it ends at audit {place.seq}, and {gone} are no longer kept"
    if place.hash != (bounds["hash"] or bounds["floor_hash"]):
        return f"its audit {place.seq} is another than that of the database"
    return None


def shown(row: Row) -> AuditRow:
    """A row as it is shown, from all its columns; also one that somebody has made no row of ours.

    Who reads the chain then must see what stands there, not that it does not fit.
    """
    return AuditRow(**{name: row[name] for name in (*HASHED, "hash")})

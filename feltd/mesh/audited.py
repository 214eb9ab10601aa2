"""The audit chain read forwards, as programs follow it: rows by number, none missing.

It is the whole daemon's, so who may read it at all is the door's affair. Only reads; the rows come
with everything their hashes cover.
"""

from msgspec import convert

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity.audit import HASHED
from feltd.model.audit import AuditPage, AuditRow, Walking
from feltd.store.tx import Row, Tx

#: Rows one page looks at, some 50 ms of a reader; then it is short and the next one goes on.
LOOKED_MAX = 100_000

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


def shown(row: Row) -> AuditRow:
    """A row as it is shown, from all its columns."""
    return convert({name: row[name] for name in (*HASHED, "hash")}, AuditRow)

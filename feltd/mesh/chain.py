"""The audit chain recomputed: every row's hash, what it follows, the events that it seals.

A row that was edited no longer has its hash; who computes the hashes anew breaks with what was
written down elsewhere: the sidecar's mark, and a mirror of the chain in a file. What is wrong is
told by the number of a row. What compaction has taken lies below the floors and is not looked for.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import structs
from msgspec.json import encode

from feltd.clock import Now
from feltd.identity import audit
from feltd.mesh import events
from feltd.mesh.promised import SAYS, SHOWN_MAX, Broken
from feltd.model.audit import AuditRow
from feltd.store.tx import Row, Tx

#: A number of an event: SQLite counts no further.
NUMBER = re.compile(r"[0-9]{1,19}")
#: Rows of the chain read at a time.
PAGE = 1_000
#: The act that tells of rows which retention has taken, and what it is said to be done to.
CLEAR, HISTORY = "clear", "history"
#: Characters shown of a value that differs.
SHOWN_CHARS = 80

AUDIT_PAGE = """
SELECT a.seq, a.kind, a.at_ms, a.wall_at_ms, a.first_event_seq, a.last_event_seq, a.actor,
       a.action, a.subject, a.reason, a.digest, a.prev_hash, a.hash
  FROM audit a
 WHERE a.seq > :after_seq
 ORDER BY a.seq
 LIMIT :page
"""

SEALED_EVENTS = """
SELECT e.seq, e.at_ms, e.kind, e.tenant_id, e.application_id, e.workload_id, e.worker_id,
       e.fencing_token, e.from_state, e.to_state, e.eligible_at_ms, e.expires_at_ms, e.end_kind,
       e.actor
  FROM events e
 WHERE e.seq BETWEEN :first_seq AND :last_seq
 ORDER BY e.seq
"""

LEDGER = """
SELECT l.audit_seq, l.audit_hash, l.sealed_seq
  FROM ledger l
 WHERE l.id = 1
"""

AUDIT_FLOOR = """
SELECT f.seq, f.hash, f.event_seq, e.seq AS events_seq
  FROM floors f
  JOIN floors e ON e.name = 'events'
 WHERE f.name = 'audit'
"""

# Whether nothing was written to the chain since the schema came that tells of clearings.
UPGRADED = """
SELECT a.wall_at_ms < m.applied_at_ms AS upgraded
  FROM schema_migrations m
  JOIN audit a ON a.seq = (SELECT max(newest.seq)
                             FROM audit newest)
 WHERE m.number = 10
"""

HASH = """
SELECT a.hash
  FROM audit a
 WHERE a.seq = :seq
"""

NEWEST_CLEAR = """
SELECT a.digest
  FROM audit a
 WHERE a.kind = 'act'
   AND a.subject = :subject
   AND a.action = :action
 ORDER BY a.seq DESC
 LIMIT 1
"""

UNSEALED = """
SELECT e.seq
  FROM events e
 WHERE e.seq > :sealed_seq
 LIMIT 1
"""


class Link(NamedTuple):
    """Where a walk along the audit chain stands; `START` is before the first row."""

    seq: int
    hash: str
    event_seq: int


START = Link(0, "", 0)


def walk(tx: Tx, since: Link = START) -> tuple[Link, list[Broken]]:
    """Recompute the audit chain after `since`: where it ends, and what is wrong in it.

    Each row's hash, its link to the row before, its digest over the events it seals, that every
    event is sealed once, that no number is left out but where an act says so, and that the ledger
    names the last row. What compaction has taken is below the floors: the walk begins there at the
    earliest, and events below theirs are not looked for.
    """
    wrong: list[str] = []
    link, events_seq = _beginning(tx, since)
    for row in _rows(tx, link.seq):
        wrong += _unlike(row, link)
        skipped = skipped_to(row)
        event_seq = link.event_seq
        if skipped is not None:
            event_seq = skipped
        elif row["kind"] == "commit" and row["last_event_seq"] is not None:
            event_seq = row["last_event_seq"]
            wrong += _unsealed(tx, row, link, events_seq)
        link = Link(row["seq"], row["hash"], event_seq)
    ledger = tx.row(LEDGER)
    if ledger is not None:
        if (ledger["audit_seq"], ledger["audit_hash"]) != (link.seq, link.hash):
            wrong.append(_end(ledger, link))
        unsealed = tx.row(UNSEALED, {"sealed_seq": link.event_seq})
        if ledger["sealed_seq"] != link.event_seq or unsealed is not None:
            wrong.append(f"events after {link.event_seq} are not sealed")
    return link, _broken(wrong + _taken(tx))


def skipped_to(row: Row) -> int | None:
    """The number of the event up to which an act says that none were told; None for another row."""
    if row["action"] != events.SKIP:
        return None
    told = NUMBER.fullmatch(str(row["subject"]))
    return None if told is None else int(told[0])


def tell_cleared(tx: Tx, now: Now) -> None:
    """Write into the chain where the floors stand, after one of them was raised.

    The reason is for people, the digest for `walk`: floors that no row tells of are nobody's.
    """
    floor = tx.row(AUDIT_FLOOR)
    if floor is None:
        raise RuntimeError("the floors are missing: this file was not made by feltd init")
    reason = f"events to {floor['events_seq']}, audit to {floor['seq']}"
    audit.act(tx, now, "service:feltd", CLEAR, HISTORY, reason=reason, body=_floors(floor))


def tell_inherited(tx: Tx, now: Now) -> None:
    """Write down the floors that an earlier feltd raised, which told of none in the chain.

    For the first commit of each run; only that of the first one after the upgrade writes a row.
    """
    row, floor = tx.row(UPGRADED), tx.row(AUDIT_FLOOR)
    raised = floor is not None and (floor["seq"] or floor["events_seq"])
    if row is not None and row["upgraded"] and raised:
        tell_cleared(tx, now)


def marked(tx: Tx, audit_head: str) -> list[Broken]:
    """What the audit row that the sidecar's mark names says against this chain.

    `audit_head` is `seq:hash`. A chain whose hashes were all computed anew holds in itself, and has
    another hash there.
    """
    text, _, digest = audit_head.partition(":")
    if not text.isdecimal():
        return []
    seq, floor = int(text), _beginning(tx, START)[0]
    if seq < floor.seq or not seq:
        return []
    row = tx.row(HASH, {"seq": seq})
    if seq == floor.seq:
        found: str | None = floor.hash
    else:
        found = None if row is None else row["hash"]
    if found is None:
        return _broken([f"audit {seq}, which the sidecar names, is missing"])
    if found != digest:
        told = (
            f"audit {seq} is not the one that the sidecar names: it, or one before, was rewritten"
        )
        return _broken([told])
    return []


def compare(tx: Tx, lines: Iterable[tuple[int, AuditRow]]) -> list[str]:
    """How the database differs from a mirror of the chain, row by row; empty where it does not.

    `lines` are the mirror's with their numbers. It may begin later than the database and end
    earlier; what it has beyond the database's end the database has lost.
    """
    wrong: list[str] = []
    floor, ledger = _beginning(tx, START)[0], tx.row(LEDGER)
    head = 0 if ledger is None else ledger["audit_seq"]
    before: AuditRow | None = None
    lost: list[int] = []
    stored = _Stored(tx)
    for number, line in lines:
        told = f"line {number}: audit {line.seq}"
        if audit.hash_of(structs.asdict(line)) != line.hash:
            wrong.append(f"{told} is not what was hashed")
        if before is not None and line.seq != before.seq + 1:
            wrong.append(f"{told} does not follow audit {before.seq}")
        elif before is not None and line.prev_hash != before.hash:
            wrong.append(f"{told} goes on from another audit {before.seq}")
        if line.seq > head:
            lost.append(line.seq)
        elif line.seq > floor.seq:
            wrong += _differs(stored.at(line.seq), line)
        elif line.seq == floor.seq and line.hash != floor.hash:
            wrong.append(f"audit {line.seq + 1} goes on from another audit {line.seq}")
        before = line
        if len(wrong) > SHOWN_MAX:
            break
    if lost:
        wrong.append(f"{_span(lost[0], lost[-1])} missing in the database, which ends at {head}")
    return wrong[:SHOWN_MAX]


class _Stored:
    """Rows of the database by number, asked for in order: read a page at a time."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._rows: dict[int, Row] = {}

    def at(self, seq: int) -> Row | None:
        """The row of this number; None where there is none."""
        if seq not in self._rows:
            page = self._tx.rows(AUDIT_PAGE, {"after_seq": seq - 1, "page": PAGE})
            self._rows = {row["seq"]: row for row in page}
        return self._rows.get(seq)


def _unlike(row: Row, link: Link) -> Iterator[str]:
    """What is wrong with a row by itself and behind the one before."""
    seq = row["seq"]
    if seq != link.seq + 1:
        yield f"{_span(link.seq + 1, seq - 1)} missing"
    elif row["prev_hash"] != link.hash:
        yield f"audit {seq} does not follow audit {link.seq}: one of them was rewritten"
    if audit.hash_of(row) != row["hash"]:
        yield f"audit {seq} is not what was hashed"


def _unsealed(tx: Tx, row: Row, link: Link, events_seq: int) -> Iterator[str]:
    """What is wrong with the events that a commit's row seals."""
    first_seq, last_seq = row["first_event_seq"], row["last_event_seq"]
    if first_seq != link.event_seq + 1:
        yield f"audit {row['seq']} leaves out or repeats events"
    if last_seq <= events_seq:
        return
    found = tx.rows(SEALED_EVENTS, {"first_seq": first_seq, "last_seq": last_seq})
    if events.digest_of(found) == row["digest"]:
        return
    missing = set(range(first_seq, last_seq + 1)) - {event["seq"] for event in found}
    if missing:
        yield f"audit {row['seq']} seals event {min(missing)}, which is missing"
    else:
        which = (
            f"event {first_seq}" if first_seq == last_seq else f"events {first_seq} to {last_seq}"
        )
        yield f"audit {row['seq']} seals other events than there are: look at {which}"


def _differs(row: Row | None, line: AuditRow) -> Iterator[str]:
    if row is None:
        yield f"audit {line.seq} is missing in the database"
        return
    told = structs.asdict(line)
    columns = [name for name in told if row[name] != told[name]]
    if columns:
        name = columns[0]
        values = f"{_shown(row[name])} in the database, {_shown(told[name])} in the mirror"
        yield f"audit {line.seq} differs in {', '.join(columns)}: {name} is {values}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"


def _taken(tx: Tx) -> list[str]:
    """What is gone below floors that the chain does not tell of: somebody else took it."""
    floor = tx.row(AUDIT_FLOOR)
    if floor is None or not (floor["seq"] or floor["events_seq"]):
        return []
    told = tx.row(NEWEST_CLEAR, {"subject": HISTORY, "action": CLEAR})
    if told is not None and told["digest"] == hashlib.sha256(_floors(floor)).hexdigest():
        return []
    wrong = []
    if floor["seq"]:
        wrong.append(f"{_span(1, floor['seq'])} gone, and not by retention: no row tells of it")
    if floor["events_seq"]:
        below = f"events up to {floor['events_seq']}"
        wrong.append(f"{below} may be gone, and not by retention: no row tells of it")
    return wrong


def _floors(floor: Row) -> bytes:
    """Where the floors stand, as a clearing's digest covers it."""
    return encode([floor["events_seq"], floor["seq"], floor["event_seq"], floor["hash"]])


def _end(ledger: Row, link: Link) -> str:
    if ledger["audit_seq"] > link.seq:
        return f"{_span(link.seq + 1, ledger['audit_seq'])} missing at the end"
    if ledger["audit_seq"] < link.seq:
        return f"the chain ends at audit {link.seq}, the ledger at {ledger['audit_seq']}"
    return f"audit {link.seq} is not the one that the ledger names"


def _span(first: int, last: int) -> str:
    return f"audit {first} is" if first == last else f"audit {first} to {last} are"


def _broken(wrong: list[str]) -> list[Broken]:
    return [Broken("I20", SAYS["I20"], wrong[:SHOWN_MAX])] if wrong else []


def _beginning(tx: Tx, since: Link) -> tuple[Link, int]:
    """Where a walk from `since` begins, and the greatest event that is gone."""
    floor = tx.row(AUDIT_FLOOR)
    if floor is None:
        return since, 0
    kept = since.seq >= floor["seq"]
    link = since if kept else Link(floor["seq"], floor["hash"], floor["event_seq"])
    return link, int(floor["events_seq"])


def _rows(tx: Tx, after_seq: int) -> Iterator[Row]:
    while rows := tx.rows(AUDIT_PAGE, {"after_seq": after_seq, "page": PAGE}):
        yield from rows
        after_seq = rows[-1]["seq"]

"""The ledger's one row: what the whole daemon counts, and what a start writes into it.

A start raises the floor under the fencing tokens before anything is claimed, so that tokens grow
over every restart and every restored file. Deciding what a start found is the daemon's; here are
only the reads and writes it needs.
"""

from datetime import UTC, datetime
from typing import NamedTuple

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import audit
from feltd.mesh import events
from feltd.model.base import Ask
from feltd.store import dialect
from feltd.store.tx import Row, Tx

#: Tokens stay exact in every JSON client, with room for a ceiling above the floor.
TOKEN_MAX = 2**53 - 2**21

READ = """
SELECT l.instance_id, l.commit_seq, l.sealed_seq, l.audit_seq, l.audit_hash, l.lease_ms,
       l.wall_offset_ms, l.token_floor, l.served_at_ms, l.recover_slack_ms
  FROM ledger l
 WHERE l.id = 1
"""

BEGIN = """
INSERT INTO ledger (id, instance_id, lease_ms)
VALUES (1, :instance_id, :lease_ms)
"""

OPEN_RUN = """
UPDATE ledger
   SET token_floor = :token_floor,
       served_at_ms = coalesce(served_at_ms, :now_ms),
       recover_slack_ms = :recover_slack_ms
 WHERE id = 1
"""

RENAME = """
UPDATE ledger
   SET instance_id = :instance_id
 WHERE id = 1
"""

AUDIT_HASH = """
SELECT a.hash
  FROM audit a
 WHERE a.seq = :seq
"""

LAST_FOREIGN = """
SELECT a.at_ms
  FROM audit a
 WHERE a.kind = 'act'
   AND a.subject = 'database'
   AND a.action = 'foreign_write'
 ORDER BY a.seq DESC
 LIMIT 1
"""

#: The act that tells of another program's write, and what it is said to be done to.
FOREIGN_WRITE, DATABASE = "foreign_write", "database"
FOREIGN_EVERY_MS = 1_000


class Opening(NamedTuple):
    """What a start brings: the sidecar's ceiling (0: none) and how late a recovery may be."""

    ceiling: int
    recover_slack_ms: int
    storage: str


def read(tx: Tx, cmd: None = None, now: Now | None = None) -> Row:
    """The ledger. Refuses STORAGE_UNAVAILABLE in a file that was never initialised."""
    row = tx.row(READ)
    if row is None:
        raise Refused("STORAGE_UNAVAILABLE", "the ledger row is missing")
    return row


def begin(tx: Tx, instance_id: str, now: Now) -> None:
    """Give a new database its ledger and its first audit row."""
    tx.change(BEGIN, {"instance_id": instance_id, "lease_ms": now.lease_ms})
    audit.act(tx, now, "service:feltd", "init", instance_id)
    events.seal(tx, now)


def rename(tx: Tx, instance_id: str, now: Now) -> None:
    """Give a database that was put back another name: another history goes on from here.

    Numbers that the history now gone gave out are given out again; whoever read them tells the two
    apart by this name.
    """
    before = read(tx)["instance_id"]
    tx.change(RENAME, {"instance_id": instance_id})
    audit.act(tx, now, "service:feltd", "rename", instance_id, reason=before)


def open_run(tx: Tx, cmd: Opening, now: Now) -> int:
    """Raise the token floor for this run; tokens of it are greater than the floor returned.

    The floor is the greatest of what is stored, the sidecar's ceiling and the wall clock in
    microseconds. Raises ValueError when it leaves no room below 2^53: a clock far in the future.
    """
    ledger = read(tx)
    issued = dialect.sequence(tx, "claims")
    floor: int = max(ledger["token_floor"], issued, cmd.ceiling, now.wall_ms * 1_000)
    if floor > TOKEN_MAX:
        raise ValueError(f"no room for fencing tokens above {floor}")
    dialect.raise_sequence(tx, "claims", floor)
    tx.change(
        OPEN_RUN,
        {
            "token_floor": floor,
            "now_ms": now.lease_ms,
            "recover_slack_ms": cmd.recover_slack_ms,
        },
    )
    audit.act(tx, now, "service:feltd", "start", ledger["instance_id"], reason=cmd.storage)
    return floor


def acknowledge(tx: Tx, ask: Ask[None], now: Now) -> None:
    """Write down that a person has seen what the start found; `ask.id` is the storage label."""
    audit.act(tx, now, str(ask.caller.subject), "acknowledge", ask.id)


def foreign_write(tx: Tx, cmd: None, now: Now) -> bool:
    """Write down that another program has written to the file since the last commit.

    At most once a second: a program that goes on writing would fill the chain. Whether it was
    written; who was told no asks again a second later. The reason tells the span it happened in.
    """
    last = tx.row(LAST_FOREIGN)
    if last is not None and 0 <= now.lease_ms - last["at_ms"] < FOREIGN_EVERY_MS:
        return False
    ledger = read(tx)
    since = _moment(ledger["lease_ms"] + ledger["wall_offset_ms"])
    reason = f"after commit {ledger['commit_seq']} of {since}, before {_moment(now.wall_ms)}"
    audit.act(tx, now, "service:feltd", FOREIGN_WRITE, DATABASE, reason=reason)
    return True


def newest_token(tx: Tx) -> int:
    """The greatest token the counter has given out, committed or not."""
    return dialect.sequence(tx, "claims")


def audit_hash(tx: Tx, seq: int) -> str:
    """Hash of one audit row, '' for none."""
    row = tx.row(AUDIT_HASH, {"seq": seq})
    return str(row["hash"]) if row else ""


def _moment(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1_000, UTC).isoformat(timespec="milliseconds")

"""The audit chain: who did what; each row's hash covers the row before it, so a change shows.

Two kinds of rows stand in it. An `act` is written here, by the rule that does the deed, in the
same transaction; a `commit` seals the events of a commit and is written by mesh/events.py. Neither
is ever changed. Bodies are kept as digests only and what looks like a secret in a reason is
covered, so no secret comes in.
"""

import hashlib

from msgspec.json import encode

from feltd.clock import Now
from feltd.model.secret_text import covered
from feltd.store.tx import Row, Tx

#: What an act is told as, under the key "*"; the seal of a commit is told with its events.
TOPIC = "audit"

LEDGER = """
SELECT commit_seq, sealed_seq, audit_seq, audit_hash
  FROM ledger
 WHERE id = 1
"""

APPEND = """
INSERT INTO audit (seq, kind, at_ms, wall_at_ms, first_event_seq, last_event_seq, actor, action,
                   subject, reason, digest, prev_hash, hash)
VALUES (:seq, :kind, :at_ms, :wall_at_ms, :first_event_seq, :last_event_seq, :actor, :action,
        :subject, :reason, :digest, :prev_hash, :hash)
"""

CHAIN = """
UPDATE ledger
   SET audit_seq = :seq,
       audit_hash = :hash
 WHERE id = 1
"""

#: Columns of an audit row that its hash covers, in this order, the previous hash last.
HASHED = (
    "seq",
    "kind",
    "at_ms",
    "wall_at_ms",
    "first_event_seq",
    "last_event_seq",
    "actor",
    "action",
    "subject",
    "reason",
    "digest",
    "prev_hash",
)


def act(
    tx: Tx,
    now: Now,
    actor: str,
    action: str,
    subject: str,
    *,
    reason: str | None = None,
    body: bytes = b"",
) -> None:
    """Write down a deed of a person or service, the body as a digest."""
    digest = hashlib.sha256(body).hexdigest()
    append(
        tx,
        now,
        ledger(tx),
        "act",
        digest,
        actor=actor,
        action=action,
        subject=subject,
        reason=None if reason is None else covered(reason),
    )
    tx.tell(TOPIC, "*")


def ledger(tx: Tx) -> Row:
    """The one row that counts commits, events and audit rows."""
    found = tx.row(LEDGER)
    if found is None:
        raise RuntimeError("the ledger row is missing: this file was not made by feltd init")
    return found


def append(
    tx: Tx,
    now: Now,
    counts: Row,
    kind: str,
    digest: str,
    *,
    first_event_seq: int | None = None,
    last_event_seq: int | None = None,
    actor: str | None = None,
    action: str | None = None,
    subject: str | None = None,
    reason: str | None = None,
) -> None:
    """Add one row to the chain; `counts` is the ledger row as this transaction sees it."""
    row: dict[str, object] = {
        "seq": counts["audit_seq"] + 1,
        "kind": kind,
        "at_ms": now.lease_ms,
        "wall_at_ms": now.wall_ms,
        "first_event_seq": first_event_seq,
        "last_event_seq": last_event_seq,
        "actor": actor,
        "action": action,
        "subject": subject,
        "reason": reason,
        "digest": digest,
        "prev_hash": counts["audit_hash"],
    }
    row["hash"] = hash_of(row)
    tx.change(APPEND, row)
    tx.change(CHAIN, {"seq": row["seq"], "hash": row["hash"]})


def hash_of(row: dict[str, object] | Row) -> str:
    """SHA-256, hex, of an audit row over HASHED, as a JSON array without spaces.

    Anybody can compute it again, with any tool and for ever.
    """
    return hashlib.sha256(encode([row[name] for name in HASHED])).hexdigest()

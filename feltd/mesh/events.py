"""What happened, and the proof of it: events, and the audit chain that seals them.

An event is written in the transaction of the change it tells of. Each commit that wrote events
ends with one audit row over them; each deed of a person or service outside the hot path is an audit
row of its own. Every audit row's hash covers the row before it, so a change anywhere shows.
"""

import hashlib

from msgspec.json import encode

from feltd.clock import Now
from feltd.identity.audit import act, append, ledger
from feltd.store import dialect
from feltd.store.tx import Row, Tx

#: More than happened since any backup that somebody puts back; 2^53 has room for two million.
SKIPPED = 2**32
#: The act that says so: events go on behind the number it names.
SKIP = "skip_events"

TELL = """
INSERT INTO events (at_ms, kind, tenant_id, application_id, workload_id, worker_id, fencing_token,
                    from_state, to_state, eligible_at_ms, expires_at_ms, end_kind, actor)
VALUES (:at_ms, :kind, :tenant_id, :application_id, :workload_id, :worker_id, :fencing_token,
        :from_state, :to_state, :eligible_at_ms, :expires_at_ms, :end_kind, :actor)
"""

UNSEALED = """
SELECT e.seq, e.at_ms, e.kind, e.tenant_id, e.application_id, e.workload_id, e.worker_id,
       e.fencing_token, e.from_state, e.to_state, e.eligible_at_ms, e.expires_at_ms, e.end_kind,
       e.actor
  FROM events e
 WHERE e.seq > :sealed_seq
 ORDER BY e.seq
"""

COUNT_COMMIT = """
UPDATE ledger
   SET commit_seq = commit_seq + 1,
       sealed_seq = :sealed_seq,
       lease_ms = :lease_ms,
       wall_offset_ms = :wall_offset_ms
 WHERE id = 1
"""


def tell(
    tx: Tx,
    now: Now,
    kind: str,
    *,
    tenant_id: str | None = None,
    application_id: str | None = None,
    workload_id: str | None = None,
    worker_id: str | None = None,
    fencing_token: int | None = None,
    from_state: str | None = None,
    to_state: str | None = None,
    eligible_at_ms: int | None = None,
    expires_at_ms: int | None = None,
    end_kind: str | None = None,
    actor: str | None = None,
) -> None:
    """Write one event; `kind` is the verb. Sealed by the audit row of the same commit."""
    tx.change(
        TELL,
        {
            "at_ms": now.lease_ms,
            "kind": kind,
            "tenant_id": tenant_id,
            "application_id": application_id,
            "workload_id": workload_id,
            "worker_id": worker_id,
            "fencing_token": fencing_token,
            "from_state": from_state,
            "to_state": to_state,
            "eligible_at_ms": eligible_at_ms,
            "expires_at_ms": expires_at_ms,
            "end_kind": end_kind,
            "actor": actor,
        },
    )


def skip(tx: Tx, now: Now) -> None:
    """Leave out the numbers that a file now gone may have given out; the audit names the last one.

    For the start from an earlier file: whoever read of the other history stands at a number that
    no event of this one ever has, and is told so.
    """
    last = dialect.sequence(tx, "events")
    # One earlier file may be put back twice. The tokens' floor is higher each time, and no daemon
    # writes events faster than it rises: a million a second.
    floor = dialect.sequence(tx, "claims")
    last = floor if floor > last else last + SKIPPED
    dialect.raise_sequence(tx, "events", last)
    act(tx, now, "service:feltd", SKIP, str(last))


def seal(tx: Tx, now: Now) -> None:
    """End a commit: one audit row over the events it wrote, and the next commit number.

    The writer runs it last in every commit that changed anything. Readers of the feed are told:
    ("events", tenant) for each tenant that has some, and ("events", "*").
    """
    counts = ledger(tx)
    fresh = tx.rows(UNSEALED, {"sealed_seq": counts["sealed_seq"]})
    sealed_seq = counts["sealed_seq"]
    if fresh:
        sealed_seq = fresh[-1]["seq"]
        append(
            tx,
            now,
            counts,
            "commit",
            digest_of(fresh),
            first_event_seq=fresh[0]["seq"],
            last_event_seq=sealed_seq,
        )
        for tenant_id in dict.fromkeys(row["tenant_id"] for row in fresh):
            tx.tell("events", tenant_id or "")
        tx.tell("events", "*")
    tx.change(
        COUNT_COMMIT,
        {
            "sealed_seq": sealed_seq,
            "lease_ms": now.lease_ms,
            "wall_offset_ms": now.wall_ms - now.lease_ms,
        },
    )


def digest_of(events: list[Row]) -> str:
    """SHA-256, hex, over event rows as UNSEALED gives them: a JSON array a line."""
    digest = hashlib.sha256()
    for event in events:
        digest.update(encode(tuple(event)) + b"\n")
    return digest.hexdigest()

"""What was written down last, newest first: events and audit rows as people look through them.

The feed and the audit chain are read forwards by programs, none missing; a person wants the newest
of one kind, one worker, one actor. A page looks at a bounded number of rows and says where the next
one begins. Only reads.
"""

from collections.abc import Callable, Iterator
from heapq import merge

from msgspec import Struct

from feltd.clock import Now
from feltd.identity import principals
from feltd.mesh import feed
from feltd.model.base import INTEGER_MAX, Ask, Caller
from feltd.model.event import Event
from feltd.store.tx import Row, Tx

#: Events one page looks at, some 40 ms of a reader; then it is short and the next one goes on.
EVENT_ROWS_MAX = 20_000
#: Read at a time: a page without a filter needs one read.
CHUNK_ROWS = 256
#: Audit rows one page looks at: the statement skips what is not asked for, some 50 ms.
AUDIT_ROWS_MAX = 100_000

OF_ALL = """
SELECT e.seq, e.at_ms, e.kind, e.tenant_id, e.application_id, e.workload_id, e.worker_id,
       e.fencing_token, e.from_state, e.to_state, e.eligible_at_ms, e.expires_at_ms, e.end_kind,
       e.actor
  FROM events e
 WHERE e.seq < :before
 ORDER BY e.seq DESC
 LIMIT :rows
"""

OF_TENANT = """
SELECT e.seq, e.at_ms, e.kind, e.tenant_id, e.application_id, e.workload_id, e.worker_id,
       e.fencing_token, e.from_state, e.to_state, e.eligible_at_ms, e.expires_at_ms, e.end_kind,
       e.actor
  FROM events e
 WHERE e.tenant_id = :tenant_id
   AND e.seq < :before
 ORDER BY e.seq DESC
 LIMIT :rows
"""

OF_WORKLOAD = """
SELECT e.seq, e.at_ms, e.kind, e.tenant_id, e.application_id, e.workload_id, e.worker_id,
       e.fencing_token, e.from_state, e.to_state, e.eligible_at_ms, e.expires_at_ms, e.end_kind,
       e.actor
  FROM events e
 WHERE e.workload_id = :workload_id
   AND e.seq < :before
 ORDER BY e.seq DESC
 LIMIT :rows
"""

HEAD = """
SELECT l.sealed_seq AS head, l.audit_seq AS audit_head
  FROM ledger l
 WHERE l.id = 1
"""

#: Audit rows are numbered without a gap, so a range of numbers bounds the rows looked at.
AUDIT = """
SELECT a.seq, a.kind, a.at_ms, a.wall_at_ms, a.first_event_seq, a.last_event_seq, a.actor,
       a.action, a.subject, a.reason, a.digest, a.prev_hash, a.hash
  FROM audit a
 WHERE a.seq < :before
   AND a.seq >= :from_seq
   AND (:kind IS NULL OR a.kind = :kind)
   AND (:actor IS NULL OR a.actor = :actor)
   AND (:action IS NULL OR a.action = :action)
   AND (:subject IS NULL OR a.subject = :subject)
 ORDER BY a.seq DESC
 LIMIT :rows
"""


class EventsSought(Struct, frozen=True, kw_only=True):
    """Which events: each member that is there must be met; `before` is exclusive."""

    tenant_id: str | None = None
    application_id: str | None = None
    kind: str | None = None
    workload_id: str | None = None
    worker_id: str | None = None
    actor: str | None = None
    before: int | None = None
    limit: int = 50


class EventsFound(Struct, frozen=True, kw_only=True):
    """Newest first; `before` is where the next page begins, None at the oldest kept."""

    items: list[Event]
    before: int | None
    head: int


class AuditSought(Struct, frozen=True, kw_only=True):
    """Which audit rows: each member that is there must be met; `before` is exclusive."""

    kind: str | None = None
    actor: str | None = None
    action: str | None = None
    subject: str | None = None
    before: int | None = None
    limit: int = 50


class AuditFound(Struct, frozen=True, kw_only=True):
    """Newest first; `before` is where the next page begins, None at the first row."""

    items: list[Row]
    before: int | None
    head: int


def newest_events(tx: Tx, ask: Ask[EventsSought], now: Now) -> EventsFound:
    """Events of the caller's tenants that are sought, newest first.

    Looks at EVENT_ROWS_MAX rows at most; a page may be short and still have a next one. Callers of
    tenants ("*",) also see what belongs to no tenant. Needs events:read (FORBIDDEN).
    """
    principals.require_scope(ask.caller, "events:read")
    sought = ask.body
    head = _heads(tx)["head"]
    before = head + 1 if sought.before is None else min(sought.before, head + 1)
    found: list[Event] = []
    looked, last = 0, before
    for row in _rows(tx, ask.caller, sought, before):
        if looked == EVENT_ROWS_MAX:
            return EventsFound(items=found, before=last, head=head)
        if _met(ask.caller, sought, row):
            if len(found) == sought.limit:
                return EventsFound(items=found, before=last, head=head)
            found.append(feed.event(row))
        looked, last = looked + 1, row["seq"]
    return EventsFound(items=found, before=None, head=head)


def newest_audit(tx: Tx, ask: Ask[AuditSought], now: Now) -> AuditFound:
    """Audit rows that are sought, newest first; it is the whole daemon's.

    Looks at AUDIT_ROWS_MAX rows at most, as `newest_events`. Needs audit:read and tenants * (both
    FORBIDDEN).
    """
    principals.require_scope(ask.caller, "audit:read")
    sought = ask.body
    head = _heads(tx)["audit_head"]
    before = head + 1 if sought.before is None else min(sought.before, head + 1)
    from_seq = max(before - AUDIT_ROWS_MAX, 0)
    rows = tx.rows(
        AUDIT,
        {
            "before": before,
            "from_seq": from_seq,
            "kind": sought.kind,
            "actor": sought.actor,
            "action": sought.action,
            "subject": sought.subject,
            "rows": sought.limit + 1,
        },
    )
    if len(rows) > sought.limit:
        rows = rows[: sought.limit]
        return AuditFound(items=rows, before=rows[-1]["seq"], head=head)
    return AuditFound(items=rows, before=from_seq if from_seq > 1 else None, head=head)


def _heads(tx: Tx) -> Row:
    return tx.rows(HEAD)[0]


def _met(caller: Caller, sought: EventsSought, row: Row) -> bool:
    tenant_id = row["tenant_id"]
    seen = "*" in caller.tenants or (tenant_id is not None and caller.may_see(tenant_id))
    return (
        seen
        and sought.tenant_id in (None, tenant_id)
        and sought.application_id in (None, row["application_id"])
        and sought.kind in (None, row["kind"])
        and sought.workload_id in (None, row["workload_id"])
        and sought.worker_id in (None, row["worker_id"])
        and sought.actor in (None, row["actor"])
    )


def _rows(tx: Tx, caller: Caller, sought: EventsSought, before: int) -> Iterator[Row]:
    """Rows that may be met, newest first, from the narrowest index there is."""
    if sought.workload_id is not None:
        named: dict[str, object] = {"workload_id": sought.workload_id}
        return _stream(lambda place: tx.rows(OF_WORKLOAD, {**named, **place}), before)
    tenants = caller.tenants if sought.tenant_id is None else (sought.tenant_id,)
    if "*" in tenants:
        return _stream(lambda place: tx.rows(OF_ALL, place), before)
    streams = [_of_tenant(tx, tenant_id, before) for tenant_id in tenants]
    return merge(*streams, key=lambda row: int(row["seq"]), reverse=True)


def _of_tenant(tx: Tx, tenant_id: str, before: int) -> Iterator[Row]:
    return _stream(lambda place: tx.rows(OF_TENANT, {"tenant_id": tenant_id, **place}), before)


def _stream(read: Callable[[dict[str, object]], list[Row]], before: int) -> Iterator[Row]:
    before = min(before, INTEGER_MAX)
    while True:
        rows = read({"before": before, "rows": CHUNK_ROWS})
        yield from rows
        if len(rows) < CHUNK_ROWS:
            return
        before = rows[-1]["seq"]

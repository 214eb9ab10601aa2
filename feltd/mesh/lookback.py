"""What was written down last, newest first: events and audit rows as people look through them.

The feed and the audit chain are read forwards by programs, none missing; a person wants the newest
of one kind, one worker, one actor. A page looks at a bounded number of rows and says where the next
one begins. Only reads.
"""

from collections.abc import Callable, Iterator
from functools import partial
from heapq import merge

from msgspec import Struct

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import principals
from feltd.mesh import feed
from feltd.model.base import INTEGER_MAX, Ask, Caller
from feltd.model.event import Event
from feltd.store.tx import Row, Tx

#: Rows one page looks at, some 40 ms of a reader; then it is short and the next one goes on.
LOOKED_MAX = 10_000
#: Read at a time: a page without a filter needs one read.
CHUNK_ROWS = 256

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

AUDIT = """
SELECT a.seq, a.kind, a.at_ms, a.wall_at_ms, a.first_event_seq, a.last_event_seq, a.actor,
       a.action, a.subject, a.reason, a.digest, a.prev_hash, a.hash
  FROM audit a
 WHERE a.seq < :before
 ORDER BY a.seq DESC
 LIMIT :rows
"""

ACTS = """
SELECT a.seq, a.kind, a.at_ms, a.wall_at_ms, a.first_event_seq, a.last_event_seq, a.actor,
       a.action, a.subject, a.reason, a.digest, a.prev_hash, a.hash
  FROM audit a
 WHERE a.kind = 'act'
   AND a.seq < :before
 ORDER BY a.seq DESC
 LIMIT :rows
"""

ACTS_OF_ACTOR = """
SELECT a.seq, a.kind, a.at_ms, a.wall_at_ms, a.first_event_seq, a.last_event_seq, a.actor,
       a.action, a.subject, a.reason, a.digest, a.prev_hash, a.hash
  FROM audit a
 WHERE a.kind = 'act'
   AND a.actor = :actor
   AND a.seq < :before
 ORDER BY a.seq DESC
 LIMIT :rows
"""

ACTS_OF_SUBJECT = """
SELECT a.seq, a.kind, a.at_ms, a.wall_at_ms, a.first_event_seq, a.last_event_seq, a.actor,
       a.action, a.subject, a.reason, a.digest, a.prev_hash, a.hash
  FROM audit a
 WHERE a.kind = 'act'
   AND a.subject = :subject
   AND a.seq < :before
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

    Looks at LOOKED_MAX rows at most; a page may be short and still have a next one. Callers of
    tenants ("*",) also see what belongs to no tenant. Needs events:read (FORBIDDEN).
    """
    principals.require_scope(ask.caller, "events:read")
    sought, head = ask.body, _heads(tx)["head"]
    before = _begin(sought.before, head)
    rows = _events(tx, ask.caller, sought, before)
    met = partial(_event_met, ask.caller, sought)
    found, next_before = _page(rows, met, sought.limit, before)
    return EventsFound(items=[feed.event(row) for row in found], before=next_before, head=head)


def newest_audit(tx: Tx, ask: Ask[AuditSought], now: Now) -> AuditFound:
    """Audit rows that are sought, newest first; it is the whole daemon's.

    Looks at LOOKED_MAX rows at most, as `newest_events`. Needs audit:read and tenants * (both
    FORBIDDEN).
    """
    principals.require_scope(ask.caller, "audit:read")
    if "*" not in ask.caller.tenants:
        raise Refused("FORBIDDEN", "the audit is the whole daemon's: it needs tenants *")
    sought, head = ask.body, _heads(tx)["audit_head"]
    before = _begin(sought.before, head)
    met = partial(_audit_met, sought)
    found, next_before = _page(_audit(tx, sought, before), met, sought.limit, before)
    return AuditFound(items=found, before=next_before, head=head)


def _begin(before: int | None, head: int) -> int:
    return head + 1 if before is None else min(before, head + 1)


def _page(
    rows: Iterator[Row], met: Callable[[Row], bool], limit: int, before: int
) -> tuple[list[Row], int | None]:
    """Those of the rows that are met, `limit` at most, and where the next page begins."""
    found: list[Row] = []
    for looked, row in enumerate(rows):
        if looked == LOOKED_MAX:
            return found, before
        if met(row):
            if len(found) == limit:
                return found, before
            found.append(row)
        before = row["seq"]
    return found, None


def _heads(tx: Tx) -> Row:
    return tx.rows(HEAD)[0]


def _event_met(caller: Caller, sought: EventsSought, row: Row) -> bool:
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


def _audit_met(sought: AuditSought, row: Row) -> bool:
    return (
        sought.kind in (None, row["kind"])
        and sought.actor in (None, row["actor"])
        and sought.action in (None, row["action"])
        and sought.subject in (None, row["subject"])
    )


def _audit(tx: Tx, sought: AuditSought, before: int) -> Iterator[Row]:
    """Audit rows that may be met, newest first, from the narrowest index; acts alone name these."""
    if sought.subject is not None:
        named: dict[str, object] = {"subject": sought.subject}
        return _stream(lambda place: tx.rows(ACTS_OF_SUBJECT, {**named, **place}), before)
    if sought.actor is not None:
        named = {"actor": sought.actor}
        return _stream(lambda place: tx.rows(ACTS_OF_ACTOR, {**named, **place}), before)
    acts = sought.kind == "act" or sought.action is not None
    return _stream(lambda place: tx.rows(ACTS if acts else AUDIT, place), before)


def _events(tx: Tx, caller: Caller, sought: EventsSought, before: int) -> Iterator[Row]:
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

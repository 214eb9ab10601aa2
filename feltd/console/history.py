"""Events and audit rows as people look through them: the newest first, narrowed by the URL.

The events page follows by itself until it is paused; paused or without JavaScript it is a page like
any other. The audit is the whole daemon's.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from feltd.api.request import Reply, Request
from feltd.api.routes import Route
from feltd.console import asked, frame
from feltd.mesh import lookback
from feltd.model.base import PRINTABLE, Id, Instant, Name

Limit = Annotated[int, Meta(ge=1, le=500)]
Word = Annotated[str, Meta(min_length=1, max_length=400, pattern=PRINTABLE)]


class EventsQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which events; `before` is where a page begins, `paused` keeps it as it is."""

    tenant_id: Name | None = None
    application_id: Name | None = None
    kind: Word | None = None
    workload_id: Id | None = None
    worker_id: Id | None = None
    actor: Word | None = None
    before: Instant | None = None
    limit: Limit = 50
    paused: bool = False


class AuditQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which audit rows; deeds of persons and services unless another kind is asked for."""

    kind: Literal["act", "commit", "all"] = "act"
    actor: Word | None = None
    action: Word | None = None
    subject: Word | None = None
    before: Instant | None = None
    limit: Limit = 50


async def events_page(request: Request) -> Reply:
    """GET /console/events: newest first, by themselves unless paused or further back."""
    query = frame.query(request, EventsQuery)
    sought = lookback.EventsSought(
        tenant_id=frame.tenant_filter(request),
        application_id=query.application_id,
        kind=query.kind,
        workload_id=query.workload_id,
        worker_id=query.worker_id,
        actor=query.actor,
        before=query.before,
        limit=query.limit,
    )
    found = await asked.read(request, lookback.newest_events, sought)
    filters = _filters(query)
    return await frame.page(
        request,
        "events",
        events=found.items,
        names=await asked.names(request, (event.worker_id for event in found.items)),
        head=found.head,
        next_before=found.before,
        asked=query,
        filters=filters,
        follows=not query.paused and query.before is None,
    )


async def audit_page(request: Request) -> Reply:
    """GET /console/audit: newest first."""
    query = frame.query(request, AuditQuery)
    sought = lookback.AuditSought(
        kind=None if query.kind == "all" else query.kind,
        actor=query.actor,
        action=query.action,
        subject=query.subject,
        before=query.before,
        limit=query.limit,
    )
    found = await asked.read(request, lookback.newest_audit, sought)
    return await frame.page(
        request,
        "audit",
        rows=found.items,
        head=found.head,
        next_before=found.before,
        asked=query,
        filters=_filters(query),
    )


def _filters(query: EventsQuery | AuditQuery) -> dict[str, Any]:
    """The filter without the place in the list: what links keep."""
    names = (name for name in query.__struct_fields__ if name not in ("before", "paused"))
    named = {name: getattr(query, name) for name in names}
    return {name: text for name, text in named.items() if text is not None}


ROUTES = (
    Route(
        method="GET",
        path="/console/events",
        operation="events_page",
        tag="console",
        handler=events_page,
        summary="What happened",
        scope="events:read",
        query=EventsQuery,
        page=True,
    ),
    Route(
        method="GET",
        path="/console/audit",
        operation="audit_page",
        tag="console",
        handler=audit_page,
        summary="Who did what",
        scope="audit:read",
        query=AuditQuery,
        page=True,
    ),
)

"""The backlog: every kind of unfinished work, what keeps it back, and who could take it."""

from msgspec import Struct

from feltd.api.request import Reply, Request
from feltd.api.routes import Route
from feltd.console import asked, frame
from feltd.mesh import backlog
from feltd.model.base import Name
from feltd.model.why import KINDS_DEFAULT, BacklogAsk


class BacklogQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which kinds of work are shown."""

    tenant_id: Name | None = None
    application_id: Name | None = None
    definition_id: Name | None = None
    pool_id: Name | None = None


async def backlog_page(request: Request) -> Reply:
    """GET /console/backlog: what has waited longest first."""
    query = frame.query(request, BacklogQuery)
    body = BacklogAsk(
        tenant_id=frame.tenant_filter(request) or "",
        application_id=query.application_id,
        definition_id=query.definition_id,
        pool_id=query.pool_id,
        limit=KINDS_DEFAULT,
    )
    found = await asked.read(request, backlog.page, body)
    return await frame.page(
        request, "backlog", kinds=found.items, left_out=found.left_out, asked=query
    )


ROUTES = (
    Route(
        method="GET",
        path="/console/backlog",
        operation="console_backlog",
        tag="console",
        handler=backlog_page,
        summary="What waits, and why",
        scope="workers:read",
        page=True,
    ),
)

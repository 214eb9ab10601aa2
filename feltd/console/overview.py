"""The overview: what is ready, running, retrying, dead; what waits longest; how the house is."""

from feltd.api.request import Reply, Request
from feltd.api.routes import Route
from feltd.console import frame


async def overview(request: Request) -> Reply:
    """GET /console."""
    app = request.app
    await app.metrics.look()
    return frame.page(request, "overview", health=app.health.look(), looked=app.metrics.looked)


ROUTES = (
    Route(
        method="GET",
        path="/console",
        operation="console_overview",
        tag="console",
        handler=overview,
        summary="The overview",
        scope="workloads:read",
        page=True,
    ),
)

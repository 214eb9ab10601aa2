"""Dead letters by what they died of: each kind and definition, with what the newest one said.

From here it goes on to the list of one kind, to the newest of it, or to a bulk change that brings
all of a kind back and counts them first.
"""

from msgspec import Struct

from feltd.api.request import Reply, Request
from feltd.api.routes import Route
from feltd.console import asked, frame
from feltd.mesh import deadletters
from feltd.model.base import Name

PLACE = "/console/dead-letters"


class DeadQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose dead letters."""

    tenant_id: Name | None = None


async def dead_page(request: Request) -> Reply:
    """GET /console/dead-letters: most first."""
    query = frame.query(request, DeadQuery)
    grouping = deadletters.Grouping(frame.tenant_filter(request))
    found = await asked.read(request, deadletters.by_definition, grouping)
    return await frame.page(
        request,
        "dead",
        kinds=found.items,
        capped=found.capped,
        asked=query,
        total=sum(kind.workloads for kind in found.items),
    )


ROUTES = (
    Route(
        method="GET",
        path=PLACE,
        operation="dead_letters_page",
        tag="console",
        handler=dead_page,
        summary="Dead letters by kind",
        scope="workloads:read",
        query=DeadQuery,
        page=True,
    ),
)

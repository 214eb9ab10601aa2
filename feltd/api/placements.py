"""Placement over HTTP: work given to a worker, tried out without giving, and looked back at.

Giving is the writer's; trying out and looking only read, so they run beside it.
"""

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from feltd.api import wire
from feltd.api.claiming import INVALID, only_tenant
from feltd.api.door import tenant_filter
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.mesh import decisions, directed
from feltd.model.base import Ask, Id, Name
from feltd.model.claim import ClaimById
from feltd.model.placement import Decision, DecisionQuery, Dry
from feltd.model.policy import Placement


class ListQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which decisions a list shows; `worker_id` is the worker that was chosen."""

    workload_id: Id | None = None
    worker_id: Id | None = None
    tenant_id: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: str | None = None


class DecisionList(Struct, frozen=True):
    """Decisions, newest first, without what they read."""

    items: list[Decision]
    next_cursor: str | None


def directs(ask: Ask[ClaimById]) -> bool:
    """Whether a claim is for a worker that does not ask itself.

    With --no-auth everybody is the worker he names, unless a placement shows that he gives.
    Refuses WORKLOAD_INVALID for a placement in a worker's own claim.
    """
    caller, body = ask.caller, ask.body
    if caller.worker_id is not None:
        if body.placement is not None:
            detail = "a worker takes work as it is: placement is for giving it to another"
            raise wire.invalid(INVALID, "/placement", detail)
        return False
    return not caller.open or body.worker_id is None or body.placement is not None


async def give(request: Request, ask: Ask[ClaimById]) -> Reply:
    """The directed half of POST /v1/workloads/{id}/claim."""
    held, new = await request.app.writer.submit(
        directed.claim, ask, tenant=only_tenant(request), deadline_ms=request.deadline_ms
    )
    return reply(201 if new else 200, held)


async def try_placement(request: Request) -> Reply:
    """POST /v1/workloads/{id}/placement."""
    body = request.decode(Placement)
    ask = Ask(caller=request.caller, body=body, id=request.path_params["id"])
    return reply(200, await request.app.readers.read(directed.try_out, ask))


async def list_placements(request: Request) -> Reply:
    """GET /v1/placements."""
    asked = request.query(ListQuery)
    query = DecisionQuery(
        workload_id=asked.workload_id,
        worker_id=asked.worker_id,
        tenant_id=tenant_filter(request),
        limit=asked.limit,
    )
    secret = request.app.keyring.cursor_secret
    bound = ["placements", sorted(request.caller.tenants), replace(query, limit=50)]
    if asked.cursor is not None:
        (before,) = wire.open_cursor(secret, bound, asked.cursor)
        query = replace(query, before=before)
    page = await request.app.readers.read(decisions.page, Ask(caller=request.caller, body=query))
    cursor = None
    if page.next_before is not None:
        cursor = wire.seal_cursor(secret, bound, [page.next_before])
    return reply(200, DecisionList(page.items, cursor))


async def get_placement(request: Request) -> Reply:
    """GET /v1/placements/{id}."""
    ask = Ask(caller=request.caller, body=None, id=request.path_params["id"])
    return reply(200, await request.app.readers.read(decisions.get, ask))


ROUTES = (
    Route(
        method="POST",
        path="/v1/workloads/{id}/placement",
        operation="try_placement",
        tag="placement",
        handler=try_placement,
        summary="Who would get this workload now, and why not the others; stores nothing",
        scope="workloads:read",
        body=Placement,
        answer=Dry,
        invalid_code=INVALID,
        example={"required_labels": {"zone": "east"}},
    ),
    Route(
        method="GET",
        path="/v1/placements",
        operation="list_placements",
        tag="placement",
        handler=list_placements,
        summary="Decisions about work that was given to workers, newest first",
        scope="workers:read",
        query=ListQuery,
        answer=DecisionList,
    ),
    Route(
        method="GET",
        path="/v1/placements/{id}",
        operation="get_placement",
        tag="placement",
        handler=get_placement,
        summary="One decision with everything it read, decided once more",
        scope="workers:read",
        answer=Decision,
    ),
)

"""Why over HTTP: of a workload, of a worker, and the backlog of everything that waits.

All three only read; their answers are bounded, so they are as quick beside a million rows.
"""

from typing import Annotated

from msgspec import Meta, Struct

from feltd.api.door import tenant_filter
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.identity import principals
from feltd.mesh import backlog, idleness, why
from feltd.model.base import Ask, Name
from feltd.model.why import (
    KINDS_DEFAULT,
    KINDS_MAX,
    Backlog,
    BacklogAsk,
    WorkerWhy,
    WorkloadWhy,
)


class BacklogQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which kinds of work are counted, and how many of them are shown."""

    tenant_id: Name | None = None
    application_id: Name | None = None
    definition_id: Name | None = None
    pool_id: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=KINDS_MAX)] = KINDS_DEFAULT


async def why_workload(request: Request) -> Reply:
    """GET /v1/workloads/{id}/why."""
    # A worker's key holds no scope and sees what its worker holds; the rule looks at that.
    if request.caller.worker_id is None:
        principals.require_scope(request.caller, "workloads:read")
    ask = Ask(caller=request.caller, body=None, id=request.path_params["id"])
    return reply(200, await request.app.readers.read(why.of_workload, ask))


async def why_worker(request: Request) -> Reply:
    """GET /v1/workers/{id}/why."""
    ask = Ask(caller=request.caller, body=None, id=request.path_params["id"])
    return reply(200, await request.app.readers.read(idleness.of_worker, ask))


async def get_backlog(request: Request) -> Reply:
    """GET /v1/backlog."""
    asked = request.query(BacklogQuery)
    body = BacklogAsk(
        tenant_id=tenant_filter(request) or "",
        application_id=asked.application_id,
        definition_id=asked.definition_id,
        pool_id=asked.pool_id,
        limit=asked.limit,
    )
    ask = Ask(caller=request.caller, body=body)
    return reply(200, await request.app.readers.read(backlog.page, ask))


ROUTES = (
    Route(
        method="GET",
        path="/v1/workloads/{id}/why",
        operation="why_workload",
        tag="workload",
        handler=why_workload,
        summary="Why a workload stands as it does: each reason with what changes it",
        scope="workloads:read",
        auth="any",
        answer=WorkloadWhy,
        responses={404: "No such workload"},
    ),
    Route(
        method="GET",
        path="/v1/workers/{id}/why",
        operation="why_worker",
        tag="worker",
        handler=why_worker,
        summary="Why a worker gets no work, and whether it may be stopped; also by its own key",
        scope="workers:read",
        auth="any",
        answer=WorkerWhy,
        responses={404: "No such worker"},
    ),
    Route(
        method="GET",
        path="/v1/backlog",
        operation="backlog",
        tag="workload",
        handler=get_backlog,
        summary="What waits, kind by kind, with what keeps it back and who could take it",
        scope="workers:read",
        query=BacklogQuery,
        answer=Backlog,
    ),
)

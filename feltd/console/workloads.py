"""Workloads as a list: a filter that stands in the address, pages by keyset, newest first.

The same filter leads to a bulk change (bulk.py), so that what is changed is what was looked at.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, structs

from feltd.api.request import Reply, Request
from feltd.api.routes import Route
from feltd.console import asked, frame
from feltd.mesh import listing
from feltd.mesh.states import WORKLOAD_STATES
from feltd.model.base import EndKind, Id, Instant, Name
from feltd.model.workload import Filter, Listing, State

PLACE = "/console/workloads"
SIZES = (25, 50, 100, 250)
#: How far back, as it is chosen; an address that is shared means the same span at another time.
WITHIN_MS = {"1h": 3_600_000, "24h": 86_400_000, "7d": 604_800_000}
RUNS_SHOWN = 3


class FilterFields(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a list of workloads, and a bulk change of them, is narrowed to."""

    tenant_id: Name | None = None
    application_id: Name | None = None
    state: State | None = None
    definition_id: Name | None = None
    worker_id: Id | None = None
    trigger: Name | None = None
    group: Name | None = None
    label: Annotated[tuple[Annotated[str, Meta(max_length=400)], ...], Meta(max_length=16)] = ()
    failure_kind: EndKind | None = None
    within: Literal["1h", "24h", "7d"] | None = None
    created_after_ms: Instant | None = None
    created_before_ms: Instant | None = None


class WorkloadsQuery(FilterFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The same, and which page of it."""

    size: Literal[25, 50, 100, 250] = 50
    cursor: str | None = None


def narrowed(request: Request, fields: FilterFields) -> Filter:
    """The filter of the rules. Refuses as the API's list does."""
    tenant_id = fields.tenant_id
    after_ms = fields.created_after_ms
    if fields.within is not None:
        begin_ms = request.app.clock.now().lease_ms - WITHIN_MS[fields.within]
        after_ms = max(begin_ms, after_ms or 0)
    return Filter(
        tenant_id=None if tenant_id is None else asked.tenant_meant(request, tenant_id),
        application_id=fields.application_id,
        state=fields.state,
        definition_id=fields.definition_id,
        worker_id=fields.worker_id,
        trigger=fields.trigger,
        group=fields.group,
        labels=dict(asked.pair("label", text) for text in fields.label),
        failure_kind=fields.failure_kind,
        created_after_ms=after_ms,
        created_before_ms=fields.created_before_ms,
    )


def shown(fields: FilterFields) -> dict[str, Any]:
    """The fields of a filter that say something, as they stand in an address."""
    found = structs.asdict(fields)
    return {
        name: found[name]
        for name in FilterFields.__struct_fields__
        if found[name] not in (None, ())
    }


async def workloads_page(request: Request) -> Reply:
    """GET /console/workloads."""
    query = frame.query(request, WorkloadsQuery)
    filters = shown(query)
    bound = ["workloads", sorted(filters.items())]
    place = asked.opened(request, bound, query.cursor)
    before = None if place is None else place[0]
    wanted = Listing(narrowed(request, query), query.size, before)
    found = await asked.read(request, listing.page, wanted)
    kept = filters | ({} if query.size == 50 else {"size": query.size})
    cursor = asked.sealed(request, bound, None if found.before is None else [found.before])
    return await frame.page(
        request,
        "workloads",
        rows=found.items,
        names=await asked.names(
            request, (row.current_claim and row.current_claim.worker_id for row in found.items)
        ),
        asked=query,
        filters=filters,
        kept=kept,
        next_cursor=cursor,
        states=WORKLOAD_STATES,
        sizes=SIZES,
        several=len(request.caller.tenants) > 1,
        runs=request.app.bulk_runs.newest(request.caller, RUNS_SHOWN),
    )


ROUTES = (
    Route(
        method="GET",
        path=PLACE,
        operation="console_workloads",
        tag="console",
        handler=workloads_page,
        summary="Workloads, narrowed by a filter",
        scope="workloads:read",
        page=True,
    ),
)

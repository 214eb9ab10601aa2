"""Changes to work that stands already, over HTTP: one workload, all of a filter; and dead letters.

A bulk change is searched for on the readers, slice by slice, and only what was found goes to the
writer, a chunk a call. Nothing is decided here.
"""

from typing import Any

from msgspec import Struct

from feltd.api.door import tenant_filter, tenant_of
from feltd.api.repeats import submit_once
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.api.wire import invalid
from feltd.mesh import bulk, deadletters
from feltd.mesh import edit as editing
from feltd.model.base import Ask, Caller, Name
from feltd.model.editing import (
    CHUNK_ROWS,
    REMAINING_MAX,
    BulkAnswer,
    BulkChange,
    BulkFilter,
    DeadLetters,
    Edit,
)
from feltd.model.workload import Filter, Workload
from feltd.store.readers import Readers

INVALID = "WORKLOAD_INVALID"
#: Slices of one search, 20,000 rows each: some 4 s of a reader where next to nothing matches.
SLICES_MAX = 100


class DeadQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose dead letters."""

    tenant_id: Name | None = None
    application_id: Name | None = None


async def edit(request: Request) -> Reply:
    """PATCH /v1/workloads/{id}."""
    ask = Ask(caller=request.caller, body=request.decode(Edit), id=request.path_params["id"])
    shown = await request.app.writer.submit(
        editing.edit, ask, tenant=_only_tenant(request), deadline_ms=request.deadline_ms
    )
    return reply(200, shown)


async def change_workloads(request: Request) -> Reply:
    """POST /v1/workloads/bulk: one chunk, or with dry_run only the count."""
    body = request.decode(BulkChange)
    if (body.priority is None) == (body.action == "reprioritise"):
        needed = body.action == "reprioritise"
        if needed or body.action == "cancel":
            detail = "is required to reprioritise" if needed else "means nothing to a cancel"
            raise invalid(INVALID, "/priority", detail)
    plan = bulk.Plan(body.action, _filter(request, body.filter), body.priority)
    found = await search(request, plan, 0 if body.dry_run else CHUNK_ROWS)
    if body.dry_run:
        counted = min(found.count, REMAINING_MAX)
        return reply(200, BulkAnswer(changed=0, remaining=counted, matched=counted))
    chunk = bulk.Chunk(plan, found.workload_ids, found.count - len(found.workload_ids))
    ask = Ask(caller=request.caller, body=chunk)
    done = await submit_once(request, bulk.change, ask, tenant=_only_tenant(request))
    return reply(done.status, done.answer)


async def list_dead_letters(request: Request) -> Reply:
    """GET /v1/dead-letters."""
    asked = request.query(DeadQuery)
    grouping = deadletters.Grouping(tenant_filter(request), asked.application_id)
    ask = Ask(caller=request.caller, body=grouping)
    return reply(200, await request.app.readers.read(deadletters.by_kind, ask))


async def search(
    request: Request, plan: bulk.Plan, wanted: int, slices_max: int = SLICES_MAX
) -> bulk.Found:
    """What still needs the change of a call; see `seek`."""
    return await seek(request.app.readers, request.caller, plan, wanted, slices_max)


async def seek(
    readers: Readers,
    caller: Caller,
    plan: bulk.Plan,
    wanted: int,
    slices_max: int = SLICES_MAX,
) -> bulk.Found:
    """What still needs the change: `wanted` ids, and how many in all, as far as they count.

    `before` of the answer is None when everything was looked at; else counting stopped at
    REMAINING_MAX, or after `slices_max` slices.
    """
    ids: list[str] = []
    counted, before = 0, None
    for _ in range(slices_max):
        stretch = bulk.Search(
            plan,
            wanted=wanted if plan.action == "requeue" else wanted - len(ids),
            count=REMAINING_MAX + len(ids) - counted,
            before=before,
        )
        found = await readers.read(bulk.find, Ask(caller=caller, body=stretch))
        ids = bulk.kept(plan, ids, found.workload_ids, wanted)
        counted += found.count
        before = found.before
        if before is None or counted - len(ids) >= REMAINING_MAX:
            return bulk.Found(ids, counted, before)
    # Not all was looked at: somebody has to come again.
    return bulk.Found(ids, max(counted, len(ids) + 1), before)


def _filter(request: Request, asked: BulkFilter) -> Filter:
    pairs = (asked.label,) if isinstance(asked.label, str) else asked.label
    named = asked.tenant_id is not None
    return Filter(
        tenant_id=tenant_of(request, asked) if named else tenant_filter(request),
        application_id=asked.application_id,
        state=asked.state,
        definition_id=asked.definition_id,
        worker_id=asked.worker_id,
        trigger=asked.trigger,
        group=asked.group,
        labels=dict(pair.split("=", 1) for pair in pairs),
        failure_kind=asked.failure_kind,
        created_after_ms=asked.created_after_ms,
        created_before_ms=asked.created_before_ms,
    )


def _only_tenant(request: Request) -> str:
    tenants = request.caller.tenants
    return tenants[0] if len(tenants) == 1 else ""


EDIT_EXAMPLE: dict[str, Any] = {
    "priority": 10,
    "not_before_at_ms": 0,
    "timeouts": {"execution_ms": 600_000, "queue_ms": None},
    "placement": {"required_labels": {"zone": "b"}},
}
BULK_EXAMPLE: dict[str, Any] = {
    "action": "requeue",
    "filter": {"state": "DEAD_LETTERED", "failure_kind": "transient", "label": "team=web"},
    "dry_run": True,
}

ROUTES = (
    Route(
        method="PATCH",
        path="/v1/workloads/{id}",
        operation="edit",
        tag="workload",
        handler=edit,
        summary="Change a workload that nobody holds: a JSON merge patch of what it asks for",
        scope="workloads:operate",
        body=Edit,
        answer=Workload,
        invalid_code=INVALID,
        example=EDIT_EXAMPLE,
    ),
    Route(
        method="POST",
        path="/v1/workloads/bulk",
        operation="change_workloads",
        tag="workload",
        handler=change_workloads,
        summary="Cancel, requeue or reprioritise what a filter lets through, 500 a call",
        scope="workloads:operate",
        body=BulkChange,
        answer=BulkAnswer,
        invalid_code=INVALID,
        example=BULK_EXAMPLE,
    ),
    Route(
        method="GET",
        path="/v1/dead-letters",
        operation="list_dead_letters",
        tag="workload",
        handler=list_dead_letters,
        summary="Dead letters by what they died of, most first",
        scope="workloads:read",
        query=DeadQuery,
        answer=DeadLetters,
    ),
)

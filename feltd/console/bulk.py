"""One change to all that a filter lets through: counted first, meant twice, then looped here.

The page counts on the server and says the number; the button then starts a run (api/bulkruns.py),
which goes on by itself, chunk by chunk, while anybody may watch it or stop it.
"""

from typing import Any

from msgspec import structs

from feltd.api import edits, wire
from feltd.api.request import Reply, Request
from feltd.api.routes import Route
from feltd.console import frame, workloads
from feltd.errors import Refused
from feltd.mesh.bulk import Plan
from feltd.model.editing import REMAINING_MAX, Action
from feltd.model.workload import Priority

PLACE = "/console/workloads/bulk"
OPERATE = "workloads:operate"
DONE = {"cancel": "cancelled", "requeue": "requeued", "reprioritise": "given another priority"}


class BulkFields(workloads.FilterFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The filter, and what is to be done with what it lets through."""

    action: Action
    priority: Priority | None = None
    #: To count to the end, however long that takes.
    counted: bool = False


async def bulk_page(request: Request) -> Reply:
    """GET /console/workloads/bulk: how many it would be, and the button.

    What one look does not count is counted after the page is there: it asks for its part `count`.
    """
    query = _fixed(request, frame.query(request, BulkFields))
    count, counting = None, False
    if not _lacks_priority(query):
        found = await edits.search(request, _plan(request, query), 0, slices_max=1)
        counting = found.before is not None and found.count < REMAINING_MAX
        if counting and query.counted:
            found, counting = await edits.search(request, _plan(request, query), 0), False
        count = min(found.count, REMAINING_MAX)
    return await frame.page(
        request,
        "bulk",
        asked=query,
        filters=workloads.shown(query),
        count=count,
        counting=counting,
        counted=frame.link(
            PLACE,
            workloads.shown(query),
            action=query.action,
            priority=query.priority,
            counted="true",
        ),
        many=count == REMAINING_MAX,
        done=DONE[query.action],
    )


async def begin_bulk(request: Request) -> Reply:
    """POST /console/workloads/bulk: a run begins; its page shows how far it is."""
    told = _fixed(request, frame.form(request, BulkFields))
    if _lacks_priority(told):
        raise wire.invalid("WORKLOAD_INVALID", "/priority", "is required to reprioritise")
    plan = _plan(request, told)
    found = await edits.search(request, plan, 0)
    if not found.count:
        to = frame.link(workloads.PLACE, workloads.shown(told))
        return frame.done(request, to, "Nothing needs this change any more.")
    matched = min(found.count, REMAINING_MAX)
    run = request.app.bulk_runs.begin(request.caller, plan, matched, request.deadline_ms)
    return frame.go(f"{PLACE}/{run.run_id}")


async def run_page(request: Request) -> Reply:
    """GET /console/workloads/bulk/{id}: how far a run is. Refuses ROUTE_NOT_FOUND."""
    run = _run(request)
    filters = {
        name: text
        for name, text in structs.asdict(run.plan.filter).items()
        if text not in (None, {})
    }
    return await frame.page(
        request,
        "bulk_run",
        run=run,
        filters=filters,
        done=DONE[run.plan.action],
        many=run.matched == REMAINING_MAX,
    )


async def stop_run(request: Request) -> Reply:
    """POST /console/workloads/bulk/{id}/stop: after the chunk at hand."""
    run = _run(request)
    run.stopping = True
    return frame.done(request, f"{PLACE}/{run.run_id}", "It ends after the chunk at hand.")


def _run(request: Request) -> Any:
    run = request.app.bulk_runs.of(request.caller, request.path_params["id"])
    if run is None:
        raise Refused("ROUTE_NOT_FOUND", "no such bulk change is known since the daemon started")
    return run


def _fixed(request: Request, fields: BulkFields) -> BulkFields:
    """The same with a span turned into an instant: what is counted is what is changed."""
    if fields.within is None:
        return fields
    begin_ms = workloads.narrowed(request, fields).created_after_ms
    return structs.replace(fields, within=None, created_after_ms=begin_ms)


def _lacks_priority(fields: BulkFields) -> bool:
    return fields.action == "reprioritise" and fields.priority is None


def _plan(request: Request, fields: BulkFields) -> Plan:
    priority = None if fields.action == "cancel" else fields.priority
    return Plan(fields.action, workloads.narrowed(request, fields), priority)


def _route(method: str, path: str, operation: str, handler: Any, summary: str) -> Route:
    return Route(
        method=method,
        path=path,
        operation=operation,
        tag="console",
        handler=handler,
        summary=summary,
        scope=OPERATE,
        page=True,
    )


ROUTES = (
    _route("GET", PLACE, "console_bulk", bulk_page, "A bulk change, counted"),
    _route("POST", PLACE, "console_begin_bulk", begin_bulk, "Begin a bulk change"),
    _route("GET", PLACE + "/{id}", "console_bulk_run", run_page, "How far a bulk change is"),
    _route("POST", PLACE + "/{id}/stop", "console_stop_bulk", stop_run, "End a bulk change"),
)

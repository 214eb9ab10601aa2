"""Workloads over HTTP: created alone or in batches, listed, watched, called off, brought back.

Bodies become commands here (input checked and encoded, tokens opened) and nothing is decided:
mutations go to the writer, what only shows is read beside it.
"""

import time
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from feltd.api import fresh, wire
from feltd.api.batches import create_workloads, creation_of
from feltd.api.door import tenant_filter
from feltd.api.repeats import submit_once
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.identity import principals
from feltd.mesh import cancel as cancelling
from feltd.mesh import creation, feed, listing, workloads
from feltd.mesh import requeue as requeuing
from feltd.model.base import Ask, EndKind, Id, Instant, Name, WaitMs
from feltd.model.event import Happenings
from feltd.model.workload import (
    INPUT_BYTES_MAX,
    After,
    BatchAnswer,
    Cancel,
    Filter,
    LateResults,
    Listing,
    Logs,
    NewBatch,
    NewWorkload,
    Requeue,
    State,
    Workload,
)

INVALID = "WORKLOAD_INVALID"
#: Lines and ends are told; a reader whose telling got lost looks again this often.
LOGS_AGAIN_MS = 5_000

Limit = Annotated[int, Meta(ge=1, le=500)]
Label = Annotated[str, Meta(min_length=2, max_length=400, pattern=r"\A[^=]+=.*\Z")]


class ListQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a list of workloads may be narrowed to."""

    tenant_id: Name | None = None
    application_id: Name | None = None
    state: State | None = None
    definition_id: Name | None = None
    worker_id: Id | None = None
    trigger: Name | None = None
    group: Name | None = None
    label: Annotated[list[Label], Meta(max_length=64)] = []
    failure_kind: EndKind | None = None
    created_after_ms: Instant | None = None
    created_before_ms: Instant | None = None
    limit: Limit = 50
    cursor: str | None = None


class GetQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait for a workload's end."""

    wait_ms: WaitMs = 0


class AfterQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a numbered list goes on, exclusive."""

    after: Instant = 0
    limit: Limit = 50


class LogsQuery(AfterQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The same, and how long to wait for more."""

    wait_ms: WaitMs = 0


class ListAnswer(Struct, frozen=True):
    """One page; `next_cursor` is null at the end."""

    items: list[Workload]
    next_cursor: str | None


async def create_workload(request: Request) -> Reply:
    """POST /v1/workloads."""
    command = creation_of(request, request.decode(NewWorkload))
    ask = Ask(caller=request.caller, body=command, fresh=fresh.text())
    made = await request.app.writer.submit(
        creation.create,
        ask,
        tenant=command.body.tenant_id or _only_tenant(request),
        deadline_ms=request.deadline_ms,
    )
    return reply(201 if made.created else 200, made.workload)


async def list_workloads(request: Request) -> Reply:
    """GET /v1/workloads."""
    _may_read(request)
    asked = request.query(ListQuery)
    narrowed = _filter(request, asked)
    secret = request.app.keyring.cursor_secret
    bound = ["workloads", request.caller.tenants, request.caller.worker_id, narrowed]
    before = None
    if asked.cursor is not None:
        (before,) = wire.open_cursor(secret, bound, asked.cursor)
    ask = Ask(caller=request.caller, body=Listing(narrowed, asked.limit, before))
    page = await request.app.readers.read(listing.page, ask)
    cursor = None if page.before is None else wire.seal_cursor(secret, bound, [page.before])
    return reply(200, ListAnswer(page.items, cursor))


async def get_workload(request: Request) -> Reply:
    """GET /v1/workloads/{id}, at once or when it has ended or the wait is over."""
    _may_read(request)
    wait_ms = request.query(GetQuery).wait_ms
    ask = Ask(caller=request.caller, body=None, id=request.path_params["id"])
    found = await request.app.readers.read(workloads.get, ask)

    async def ended() -> bool:
        found = await request.app.readers.read(workloads.get, ask)
        return found.state in workloads.SETTLED_STATES

    if wait_ms and found.state not in workloads.SETTLED_STATES:
        await request.app.polls.until(request, ask.id, wait_ms, ended, "workload")
        found = await request.app.readers.read(workloads.get, ask)
    return reply(200, found)


async def list_workload_events(request: Request) -> Reply:
    """GET /v1/workloads/{id}/events."""
    return await _stretch(request, feed.of_workload)


async def list_late_results(request: Request) -> Reply:
    """GET /v1/workloads/{id}/late-results."""
    return await _stretch(request, workloads.late_results)


async def list_workload_logs(request: Request) -> Reply:
    """GET /v1/workloads/{id}/logs, at once or when there are lines or the wait is over."""
    _may_read(request)
    asked = request.query(LogsQuery)
    ask = Ask(
        caller=request.caller,
        body=After(asked.after, asked.limit),
        id=request.path_params["id"],
    )
    ends_s = time.monotonic() + asked.wait_ms / 1_000
    lines = Logs([], final=False)

    async def there() -> bool:
        nonlocal lines
        lines = await request.app.readers.read(workloads.logs, ask)
        return bool(lines.items or lines.final)

    while (left_ms := int((ends_s - time.monotonic()) * 1_000)) > 0:
        wait_ms = min(left_ms, LOGS_AGAIN_MS)
        why = await request.app.polls.until(request, ask.id, wait_ms, there, "workload", "log")
        if why in ("there", "stop"):
            return reply(200, lines)
    await there()
    return reply(200, lines)


async def cancel(request: Request) -> Reply:
    """POST /v1/workloads/{id}/cancel."""
    ask = Ask(caller=request.caller, body=request.decode(Cancel), id=request.path_params["id"])
    done = await submit_once(request, cancelling.cancel, ask, tenant=_only_tenant(request))
    return reply(done.status, done.answer)


async def requeue(request: Request) -> Reply:
    """POST /v1/workloads/{id}/requeue."""
    body = request.decode(Requeue)
    if body.input is not msgspec.UNSET:
        wire.check_free_json(body.input, INPUT_BYTES_MAX, code=INVALID, pointer="/input")
    ask = Ask(caller=request.caller, body=body, id=request.path_params["id"])
    done = await submit_once(request, requeuing.requeue, ask, tenant=_only_tenant(request))
    return reply(done.status, done.answer)


def _filter(request: Request, asked: ListQuery) -> Filter:
    labels = dict(pair.split("=", 1) for pair in asked.label)
    return Filter(
        tenant_id=tenant_filter(request),
        application_id=asked.application_id,
        state=asked.state,
        definition_id=asked.definition_id,
        worker_id=asked.worker_id,
        trigger=asked.trigger,
        group=asked.group,
        labels=labels,
        failure_kind=asked.failure_kind,
        created_after_ms=asked.created_after_ms,
        created_before_ms=asked.created_before_ms,
    )


async def _stretch(request: Request, rule: Any) -> Reply:
    _may_read(request)
    asked = request.query(AfterQuery)
    body = After(asked.after, asked.limit)
    ask = Ask(caller=request.caller, body=body, id=request.path_params["id"])
    return reply(200, await request.app.readers.read(rule, ask))


def _may_read(request: Request) -> None:
    # A worker's key holds no scope and sees what its worker holds; the rules look at that.
    if request.caller.worker_id is None:
        principals.require_scope(request.caller, "workloads:read")


def _only_tenant(request: Request) -> str:
    tenants = request.caller.tenants
    return tenants[0] if len(tenants) == 1 else ""


EXAMPLE = {
    "definition_id": "extract",
    "idempotency_key": "invoice-17",
    "input": {"file": "s3://bucket/invoice-17.pdf"},
    "capability_snapshot": ["documents.extract"],
}

ROUTES = (
    Route(
        method="POST",
        path="/v1/workloads",
        operation="create_workload",
        tag="workload",
        handler=create_workload,
        summary="Create a workload, once for its idempotency key",
        scope="workloads:create",
        body=NewWorkload,
        answer=Workload,
        status=201,
        invalid_code=INVALID,
        example=EXAMPLE,
        responses={200: "The workload this key named already, whatever became of it"},
    ),
    Route(
        method="POST",
        path="/v1/workloads/batch",
        operation="create_workloads",
        tag="workload",
        handler=create_workloads,
        summary="Create up to 1,000 workloads: item by item in slices, or with atomic all or none",
        scope="workloads:create",
        body=NewBatch,
        answer=BatchAnswer,
        invalid_code=INVALID,
        example={"workloads": [EXAMPLE], "atomic": False},
    ),
    Route(
        method="GET",
        path="/v1/workloads",
        operation="list_workloads",
        tag="workload",
        handler=list_workloads,
        summary="Workloads, newest first",
        scope="workloads:read",
        auth="any",
        query=ListQuery,
        answer=ListAnswer,
    ),
    Route(
        method="GET",
        path="/v1/workloads/{id}",
        operation="get_workload",
        tag="workload",
        handler=get_workload,
        summary="One workload; with wait_ms, when it has ended",
        scope="workloads:read",
        auth="any",
        query=GetQuery,
        answer=Workload,
    ),
    Route(
        method="GET",
        path="/v1/workloads/{id}/events",
        operation="list_workload_events",
        tag="workload",
        handler=list_workload_events,
        summary="What happened to a workload, oldest first",
        scope="workloads:read",
        auth="any",
        query=AfterQuery,
        answer=Happenings,
    ),
    Route(
        method="GET",
        path="/v1/workloads/{id}/logs",
        operation="list_workload_logs",
        tag="workload",
        handler=list_workload_logs,
        summary="What its workers logged, oldest first; with wait_ms, when there is more",
        scope="workloads:read",
        auth="any",
        query=LogsQuery,
        answer=Logs,
    ),
    Route(
        method="GET",
        path="/v1/workloads/{id}/late-results",
        operation="list_late_results",
        tag="workload",
        handler=list_late_results,
        summary="What workers sent after their claims had ended: evidence, never the outcome",
        scope="workloads:read",
        auth="any",
        query=AfterQuery,
        answer=LateResults,
    ),
    Route(
        method="POST",
        path="/v1/workloads/{id}/cancel",
        operation="cancel",
        tag="workload",
        handler=cancel,
        summary="Cancel a workload; its holder is asked, or with force fenced at once",
        auth="any",
        body=Cancel,
        answer=Workload,
        invalid_code=INVALID,
        example={"force": False, "reason": "no longer needed"},
        responses={403: "Another's work needs workloads:operate, one's own workloads:create"},
    ),
    Route(
        method="POST",
        path="/v1/workloads/{id}/requeue",
        operation="requeue",
        tag="workload",
        handler=requeue,
        summary="Bring a dead letter back with its attempts counted anew",
        scope="workloads:operate",
        body=Requeue,
        answer=Workload,
        invalid_code=INVALID,
        example={"priority": 5},
    ),
)

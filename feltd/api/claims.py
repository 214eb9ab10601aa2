"""Claims over HTTP: pulled, waited for, held, ended, evicted, listed.

Handlers decode, submit and reply; nothing is decided here.
"""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import replace

from feltd.api import exchange, placements, wire
from feltd.api.claiming import INVALID, kept, look, only_tenant, stored, submit_claiming
from feltd.api.door import tenant_filter
from feltd.api.repeats import submit_once
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.clock import Now
from feltd.mesh import claims, evict, fence, holding, outcomes
from feltd.model.base import Ask, Id, Name
from feltd.model.claim import (
    Checkpoint,
    Claim,
    ClaimById,
    ClaimQuery,
    Complete,
    Evict,
    Fail,
    ListedClaim,
    Log,
    Outcome,
    Pull,
    Pulled,
    Release,
    Renew,
    Start,
)
from feltd.model.workload import Workload
from feltd.store.tx import Tx

B = TypeVar("B")


class ListQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which claims a list shows."""

    worker_id: Id | None = None
    workload_id: Id | None = None
    tenant_id: Name | None = None
    live: bool | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: str | None = None


class ClaimList(Struct, frozen=True):
    """Claims, newest first."""

    items: list[ListedClaim]
    next_cursor: str | None


async def pull(request: Request) -> Reply:
    """POST /v1/workers/{id}/claims, at once or when there is work or the wait is over."""
    body = request.decode(Pull)
    worker_id = request.path_params["id"]
    if not body.wait_ms:
        return reply(200, (await look(request, worker_id, body))[1])
    answer = await request.app.polls.pull(
        request,
        worker_id,
        body.wait_ms,
        lambda: look(request, worker_id, body),
        lambda pulled: pulled,
        lambda _, pulled: pulled,
    )
    return reply(200, answer)


async def claim(request: Request) -> Reply:
    """POST /v1/workloads/{id}/claim: by a worker for itself, by anybody else for a worker."""
    ask = _ask(request, request.decode(ClaimById))
    if placements.directs(ask):
        return await placements.give(request, ask)
    held, new = await submit_claiming(
        request, claims.claim, ask, lambda answer: [answer[0]] if answer[1] else []
    )
    return reply(201 if new else 200, held)


async def start(request: Request) -> Reply:
    """POST /v1/workloads/{id}/start."""
    return await _fenced(request, fence.start, request.decode(Start))


async def renew(request: Request) -> Reply:
    """POST /v1/workloads/{id}/renew."""
    return await _fenced(request, fence.renew, request.decode(Renew))


async def checkpoint(request: Request) -> Reply:
    """POST /v1/workloads/{id}/checkpoint."""
    return await _fenced(request, fence.checkpoint, kept(request.decode(Checkpoint)))


async def complete(request: Request) -> Reply:
    """POST /v1/workloads/{id}/complete."""
    return await _fenced(request, outcomes.complete, stored(request.decode(Complete)))


async def fail(request: Request) -> Reply:
    """POST /v1/workloads/{id}/fail."""
    return await _fenced(request, outcomes.fail, request.decode(Fail))


async def release(request: Request) -> Reply:
    """POST /v1/workloads/{id}/release."""
    return await _fenced(request, outcomes.release, request.decode(Release))


async def log(request: Request) -> Reply:
    """POST /v1/workloads/{id}/log: the one fenced verb whose repeat does it again."""
    return await _once(request, fence.log, request.decode(Log))


async def evict_claim(request: Request) -> Reply:
    """POST /v1/claims/{id}/evict."""
    return await _once(request, evict.evict, request.decode(Evict))


async def list_claims(request: Request) -> Reply:
    """GET /v1/claims."""
    asked = request.query(ListQuery)
    query = ClaimQuery(
        worker_id=asked.worker_id,
        workload_id=asked.workload_id,
        tenant_id=tenant_filter(request),
        live=asked.live,
        limit=asked.limit,
    )
    secret = request.app.keyring.cursor_secret
    bound = ["claims", sorted(request.caller.tenants), replace(query, limit=50)]
    if asked.cursor is not None:
        (before,) = wire.open_cursor(secret, bound, asked.cursor)
        query = replace(query, before=before)
    ask = Ask(caller=request.caller, body=query)
    page = await request.app.readers.read(holding.list_claims, ask)
    cursor = None
    if page.next_before is not None:
        cursor = wire.seal_cursor(secret, bound, [page.next_before])
    return reply(200, ClaimList(page.items, cursor))


def _ask(request: Request, body: B) -> Ask[B]:
    return Ask(
        caller=request.caller,
        body=body,
        id=request.path_params["id"],
        limits=request.app.config,
    )


async def _once(request: Request, rule: Callable[[Tx, Ask[B], Now], Any], body: B) -> Reply:
    done = await submit_once(request, rule, _ask(request, body), tenant=only_tenant(request))
    return reply(done.status, done.answer)


async def _fenced(request: Request, rule: Callable[[Tx, Ask[B], Now], Outcome], body: B) -> Reply:
    outcome = await request.app.writer.submit(
        rule,
        _ask(request, body),
        keep_alive=True,
        tenant=only_tenant(request),
        deadline_ms=request.deadline_ms,
    )
    return reply(200, outcome)


FENCE = {"claim_id": "claim_17", "worker_id": "worker_7ae616376f57fc43b8a4e5f6"}
EXAMPLE: dict[str, Any] = {**FENCE, "fencing_token": 17}
STALE = {
    409: "WORKLOAD_STALE_FENCE: the claim has ended, stop working; WORKLOAD_TRANSITION_DENIED",
    403: "MESH_CLAIM_SCOPE_DENIED, MESH_CAPABILITY_DENIED",
}


def _verb(operation: str, handler: Any, body: Any, summary: str, **example: Any) -> Route:
    """The route of one fenced verb."""
    return Route(
        method="POST",
        path="/v1/workloads/{id}/" + operation,
        operation=operation,
        tag="claim",
        handler=handler,
        summary=summary,
        auth="worker",
        admission="keep_alive",
        body=body,
        answer=Outcome,
        invalid_code=INVALID,
        example={**EXAMPLE, **example},
        responses=STALE,
    )


ROUTES = (
    Route(
        method="POST",
        path="/v1/workers/{id}/claims",
        operation="pull",
        tag="claim",
        handler=pull,
        summary="Take work that fits, best rank first; with wait_ms, when there is some",
        auth="worker",
        body=Pull,
        answer=Pulled,
        invalid_code=INVALID,
        example={"max": 1, "lease_ms": 30_000, "wait_ms": 20_000, "request_id": "poll-1"},
        responses={409: "WORKER_RECOVERY_REQUIRED: reconcile first"},
    ),
    Route(
        method="POST",
        path="/v1/workloads/{id}/claim",
        operation="claim",
        tag="claim",
        handler=claim,
        summary="Take one named workload; with workloads:operate, give it to a worker",
        scope="workloads:operate",
        auth="any",
        body=ClaimById,
        answer=Claim,
        status=201,
        invalid_code=INVALID,
        example={"lease_ms": 30_000},
        responses={
            200: "It is held so already",
            409: "Why it cannot be taken now, or no worker may take it",
        },
    ),
    _verb("start", start, Start, "Begin to run a claimed workload"),
    _verb("renew", renew, Renew, "Move the end of a lease out, never in", lease_ms=30_000),
    _verb(
        "checkpoint",
        checkpoint,
        Checkpoint,
        "Keep data for the next attempt, and renew",
        data={"page": 12},
    ),
    _verb(
        "complete",
        complete,
        Complete,
        "End a claim with its one result",
        output={"words": 1_280},
        start=True,
    ),
    _verb(
        "fail",
        fail,
        Fail,
        "End a claim as failed; the retry policy decides what follows",
        kind="transient",
        message="the printer is on fire",
    ),
    _verb("release", release, Release, "Give a workload back, nothing spent"),
    _verb("log", log, Log, "Append lines to the attempt's log", lines=["page 12 of 40"]),
    Route(
        method="POST",
        path="/v1/claims/{id}/evict",
        operation="evict",
        tag="claim",
        handler=evict_claim,
        summary="Take a claim from its worker by hand",
        scope="workloads:operate",
        body=Evict,
        answer=Workload,
        invalid_code=INVALID,
        example={"reason": "the host is being replaced"},
    ),
    Route(
        method="GET",
        path="/v1/claims",
        operation="list_claims",
        tag="claim",
        handler=list_claims,
        summary="Claims, newest first: who holds or held what, and how it ended",
        scope="workers:read",
        query=ListQuery,
        answer=ClaimList,
    ),
    *exchange.ROUTES,
)

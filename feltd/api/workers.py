"""Workers over HTTP: register, beat, reconcile, drain, move by hand, look at.

A handler decodes, submits one rule and replies. Calls that keep leases alive go by the writer's
first lane and are shed last; lists and single workers are read on the readers.
"""

from collections.abc import Callable
from typing import Any

from feltd.api import fresh, wire
from feltd.api.door import in_tenant, tenant_filter, tenant_of
from feltd.api.repeats import submit_once
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.clock import Now
from feltd.identity import grants
from feltd.mesh import drain, heartbeat, moves, quarantine, reconcile, register, roster
from feltd.model.base import Ask
from feltd.model.claim import OUTPUT_BYTES_MAX
from feltd.model.worker import (
    Drained,
    DrainRequest,
    Heartbeat,
    HeartbeatAnswer,
    Quarantining,
    Reconciled,
    Reconciliation,
    Registered,
    Registration,
    Transition,
    Worker,
    WorkerPage,
)
from feltd.store.tx import Tx

OPERATE = "workers:operate"
READ = "workers:read"


async def register_worker(request: Request) -> Reply:
    """Registering a worker that exists keeps its work alive; see register.register."""
    told = in_tenant(request, request.decode(Registration))
    token = told.authorization_grant
    grant_id = None
    if token is not None:
        grant_id = grants.open_token(request.app.keyring, token, "WORKER_UNAUTHORIZED")
    body = register.Registering(
        registration=told,
        grant_id=grant_id,
        kid=None if token is None else request.app.keyring.signer(token),
        namespace=request.app.config.namespace,
    )
    ask = _ask(request, body, fresh.key_material())
    known = await request.app.readers.read(register.known, ask)
    request.admit(keep_alive=known)
    admitted = await _submit(request, register.register, ask, keep_alive=known)
    return reply(201 if admitted.created else 200, admitted.answer)


async def beat(request: Request) -> Reply:
    """See heartbeat.heartbeat."""
    ask = _ask(request, request.decode(Heartbeat))
    return reply(200, await _submit(request, heartbeat.heartbeat, ask))


async def reconcile_worker(request: Request) -> Reply:
    """See reconcile.reconcile."""
    told = request.decode(Reconciliation)
    for place, outcome in enumerate(told.results or ()):
        if outcome.result is not None:
            wire.check_free_json(
                outcome.result.output,
                OUTPUT_BYTES_MAX,
                code="WORKER_INVALID",
                pointer=f"/results/{place}/result/output",
            )
    return reply(200, await _submit(request, reconcile.reconcile, _ask(request, told)))


async def drain_worker(request: Request) -> Reply:
    """By an operator, or by the worker itself with its key; see drain.drain."""
    return await _once(request, drain.drain, request.decode(DrainRequest))


async def resume_worker(request: Request) -> Reply:
    """See drain.resume."""
    return await _once(request, drain.resume, None)


async def quarantine_worker(request: Request) -> Reply:
    """See quarantine.quarantine."""
    return await _once(request, quarantine.quarantine, request.decode(Quarantining))


async def unquarantine_worker(request: Request) -> Reply:
    """See quarantine.unquarantine."""
    return await _once(request, quarantine.unquarantine, None)


async def recover_worker(request: Request) -> Reply:
    """See moves.recover."""
    return await _once(request, moves.recover, None)


async def transition_worker(request: Request) -> Reply:
    """See moves.transition."""
    return await _once(request, moves.transition, request.decode(Transition))


async def remove_worker(request: Request) -> Reply:
    """See moves.remove."""
    await _submit(request, moves.remove, _ask(request, None))
    return reply(204)


async def list_workers(request: Request) -> Reply:
    """Newest registration first; see roster.page."""
    query = request.query(roster.Filter)
    # A pool is keyed by its tenant, so one must be known.
    tenant_id = tenant_filter(request) if query.pool_id is None else tenant_of(request)
    labels = dict(_pair(text) for text in query.label)
    secret = request.app.keyring.cursor_secret
    bound = [
        "workers",
        sorted(request.caller.tenants),
        tenant_id,
        query.application_id,
        query.lifecycle,
        query.health,
        query.pool_id,
        labels,
    ]
    after = None
    if query.cursor is not None:
        at_ms, worker_id = wire.open_cursor(secret, bound, query.cursor)
        after = (at_ms, worker_id)
    ask = _ask(
        request, roster.PageAsk(filter=query, tenant_id=tenant_id, labels=labels, after=after)
    )
    page = await request.app.readers.read(roster.page, ask)
    cursor = wire.seal_cursor(secret, bound, page.after) if page.after else None
    return reply(200, WorkerPage(items=page.items, next_cursor=cursor))


async def show_worker(request: Request) -> Reply:
    """Its own row also by a worker's key; see roster.get."""
    ask = _ask(request, request.query(roster.Look))
    return reply(200, await request.app.readers.read(roster.get, ask))


def _ask(request: Request, body: Any, material: str = "") -> Ask[Any]:
    return Ask(
        caller=request.caller,
        body=body,
        id=request.path_params.get("id", ""),
        fresh=material,
        limits=request.app.config,
    )


async def _submit(
    request: Request,
    rule: Callable[[Tx, Ask[Any], Now], Any],
    ask: Ask[Any],
    *,
    keep_alive: bool | None = None,
) -> Any:
    return await request.app.writer.submit(
        rule,
        ask,
        keep_alive=request.keep_alive if keep_alive is None else keep_alive,
        tenant=_tenant(request),
        deadline_ms=request.deadline_ms,
    )


async def _once(request: Request, rule: Callable[[Tx, Ask[Any], Now], Any], body: object) -> Reply:
    done = await submit_once(request, rule, _ask(request, body), tenant=_tenant(request))
    return reply(done.status, done.answer)


def _tenant(request: Request) -> str:
    """Whose turn it is among the tenants that wait for the writer."""
    tenants = request.caller.tenants
    return str(tenants[0]) if tenants else ""


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise wire.invalid("REQUEST_INVALID", "/label", "is key=value")
    return key, value


_EXAMPLE: dict[str, Any] = {
    "name": "edge-1",
    "runtime": "process",
    "version": "1.0.0",
    "capacity": {"concurrency": 4},
    "capabilities": ["documents.extract"],
    "labels": {"zone": "a"},
    "process_id": "p-5f0c2a",
    "issue_key": True,
}

_BEAT: dict[str, Any] = {
    "worker_id": "worker_7ae616376f57fc43b8a4e5f6",
    "version": "1.0.0",
    "capability_version": 1,
    "capacity": {"concurrency": 4, "active": 1},
    "health": "HEALTHY",
    "running_claims": ["claim_1790000000000001"],
    "renew_leases": True,
}

_RECONCILIATION: dict[str, Any] = {
    "worker_id": "worker_7ae616376f57fc43b8a4e5f6",
    "worker_version": "1.0.0",
    "capability_version": 1,
    "known_claims": ["claim_1790000000000001"],
    "running_attempts": ["attempt_1790000000000001"],
}

_RECONCILED = (
    "Every live claim, and a verdict on each id; claims past 4 MiB in all are `truncated`:"
    " without input and checkpoint, go on with them or release them"
)

_GONE = {404: "No such worker"}
_DENIED = {404: "No such worker", 409: "The lifecycle has no such edge"}

ROUTES = (
    Route(
        method="POST",
        path="/v1/workers",
        operation="register_worker",
        tag="worker",
        handler=register_worker,
        summary="Register a process as a worker, or take a name over",
        scope="workers:register",
        admission="handler",
        body=Registration,
        answer=Registered,
        status=201,
        invalid_code="WORKER_INVALID",
        example=_EXAMPLE,
        responses={
            200: "Registered before",
            403: "The grant does not allow this worker",
            409: "Another process has the name, or more claims are held than concurrency",
        },
    ),
    Route(
        method="GET",
        path="/v1/workers",
        operation="list_workers",
        tag="worker",
        handler=list_workers,
        summary="List workers, newest registration first",
        scope=READ,
        query=roster.Filter,
        answer=WorkerPage,
        responses={404: "No such pool"},
    ),
    Route(
        method="GET",
        path="/v1/workers/{id}",
        operation="show_worker",
        tag="worker",
        handler=show_worker,
        summary="Show a worker; also by its own key",
        scope=READ,
        auth="any",
        query=roster.Look,
        answer=Worker,
        responses=_GONE,
    ),
    Route(
        method="DELETE",
        path="/v1/workers/{id}",
        operation="remove_worker",
        tag="worker",
        handler=remove_worker,
        summary="Take a worker out of the mesh",
        scope=OPERATE,
        status=204,
        responses={404: "No such worker", 409: "It holds live claims"},
    ),
    Route(
        method="POST",
        path="/v1/workers/{id}/heartbeat",
        operation="heartbeat",
        tag="worker",
        handler=beat,
        summary="Say that the worker lives, and learn where its claims differ",
        auth="worker",
        admission="keep_alive",
        body=Heartbeat,
        answer=HeartbeatAnswer,
        invalid_code="WORKER_INVALID",
        example=_BEAT,
        responses={404: "No such worker", 409: "Register, correct the clock, or reconcile first"},
    ),
    Route(
        method="POST",
        path="/v1/workers/{id}/reconcile",
        operation="reconcile",
        tag="worker",
        handler=reconcile_worker,
        summary="Compare what the worker holds with what the daemon holds for it",
        auth="worker",
        admission="keep_alive",
        body=Reconciliation,
        answer=Reconciled,
        invalid_code="WORKER_INVALID",
        example=_RECONCILIATION,
        responses={200: _RECONCILED, 404: "No such worker", 409: "Register first"},
    ),
    Route(
        method="POST",
        path="/v1/workers/{id}/drain",
        operation="drain",
        tag="worker",
        handler=drain_worker,
        summary="Let a worker finish and give it nothing new; also by its own key",
        scope=OPERATE,
        auth="any",
        admission="keep_alive",
        body=DrainRequest,
        answer=Drained,
        invalid_code="WORKER_INVALID",
        example={"reason": "upgrade of the host"},
        responses=_GONE,
    ),
    Route(
        method="POST",
        path="/v1/workers/{id}/resume",
        operation="resume",
        tag="worker",
        handler=resume_worker,
        summary="End a drain",
        scope=OPERATE,
        answer=Worker,
        responses=_GONE,
    ),
    Route(
        method="POST",
        path="/v1/workers/{id}/quarantine",
        operation="quarantine",
        tag="worker",
        handler=quarantine_worker,
        summary="Give a worker no new work; what it holds goes on",
        scope=OPERATE,
        body=Quarantining,
        answer=Worker,
        invalid_code="WORKER_INVALID",
        example={"reason": "its disk fails"},
        responses=_GONE,
    ),
    Route(
        method="POST",
        path="/v1/workers/{id}/unquarantine",
        operation="unquarantine",
        tag="worker",
        handler=unquarantine_worker,
        summary="End a quarantine",
        scope=OPERATE,
        answer=Worker,
        responses=_GONE,
    ),
    Route(
        method="POST",
        path="/v1/workers/{id}/recover",
        operation="recover",
        tag="worker",
        handler=recover_worker,
        summary="Give an OFFLINE worker one timeout to reconcile",
        scope=OPERATE,
        answer=Worker,
        responses=_DENIED,
    ),
    Route(
        method="POST",
        path="/v1/workers/{id}/transition",
        operation="transition",
        tag="worker",
        handler=transition_worker,
        summary="Walk one edge of the lifecycle by hand",
        scope=OPERATE,
        body=Transition,
        answer=Worker,
        invalid_code="WORKER_INVALID",
        example={"to": "OFFLINE"},
        responses=_DENIED,
    ),
)

"""Workers: who they are, what each serves and holds, why one idles, and what an operator may do.

'Safe to stop' is said live: nothing is in the worker's hands. Acts are those of the API, one rule
each; a drain by the console lasts until somebody resumes.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.json import decode

from feltd.api import wire
from feltd.api.request import Reply, Request
from feltd.api.routes import Route
from feltd.console import asked, frame
from feltd.mesh import drain, holding, idleness, moves, quarantine, roster
from feltd.model.base import Name, Sentence
from feltd.model.claim import ClaimQuery
from feltd.model.worker import DrainRequest, Health, Lifecycle, Quarantining, Worker

READ = "workers:read"
OPERATE = "workers:operate"
#: Of what a worker holds and has ended, so much is shown; the rest is a link away.
HELD_SHOWN, RECENT_SHOWN = 100, 20
#: How long a quarantine may be chosen to last, ms; "" is until somebody ends it.
LASTS_MS = {"10m": 600_000, "1h": 3_600_000, "1d": 86_400_000, "7d": 604_800_000}

Verb = Literal["drain", "resume", "quarantine", "unquarantine", "recover"]


class WorkersQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the list is narrowed to."""

    tenant_id: Name | None = None
    application_id: Name | None = None
    lifecycle: Lifecycle | None = None
    health: Health | None = None
    pool_id: Name | None = None
    label: Annotated[str, Meta(max_length=400)] | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: str | None = None


class WhyForm(Struct, frozen=True, forbid_unknown_fields=True):
    """Why somebody drains or resumes."""

    reason: Sentence | None = None


class QuarantineForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Why a worker shall get nothing new, and for how long."""

    reason: Annotated[Sentence, Meta(min_length=1)] | None = None
    lasts: Literal["10m", "1h", "1d", "7d"] | None = None


async def workers_page(request: Request) -> Reply:
    """GET /console/workers: newest registration first."""
    query = frame.query(request, WorkersQuery)
    tenant_id = frame.tenant_filter(request)
    if query.pool_id is not None:
        # A pool is keyed by its tenant, so one must be known.
        tenant_id = asked.tenant_meant(request, tenant_id)
    labels = dict([asked.pair("label", query.label)]) if query.label else {}
    bound = _filters(query)
    place = asked.opened(request, bound, query.cursor)
    wanted = roster.PageAsk(
        filter=roster.Filter(
            application_id=query.application_id,
            lifecycle=query.lifecycle,
            health=query.health,
            pool_id=query.pool_id,
            limit=query.limit,
        ),
        tenant_id=tenant_id,
        labels=labels,
        after=None if place is None else (place[0], place[1]),
    )
    found = await asked.read(request, roster.page, wanted)
    return await frame.page(
        request,
        "workers",
        rows=[_row(worker) for worker in found.items],
        next_cursor=asked.sealed(request, bound, found.after),
        asked=query,
        filters=bound,
    )


async def worker_page(request: Request) -> Reply:
    """GET /console/workers/{id}: all of one worker. Refuses WORKER_NOT_FOUND."""
    worker = await asked.read(request, roster.get, roster.Look(recent=RECENT_SHOWN))
    why = await asked.read(request, idleness.of_worker)
    held = ClaimQuery(worker_id=worker.worker_id, live=True, limit=HELD_SHOWN)
    claims = await asked.read(request, holding.list_claims, held)
    return await frame.page(
        request,
        "worker",
        worker=worker,
        row=_row(worker),
        why=why,
        claims=claims.items,
        reported={} if worker.reported is None else decode(worker.reported),
        profile=decode(worker.resource_profile),
        declared=decode(worker.declared_capabilities),
        lasts=LASTS_MS,
    )


async def drain_worker(request: Request) -> Reply:
    """POST …/drain: until somebody resumes."""
    told = frame.form(request, WhyForm)
    done = await asked.act(request, drain.drain, DrainRequest(reason=told.reason))
    left = len(done.outstanding_claims)
    said = "it is safe to stop" if done.safe_to_stop else f"it still holds {left} of its claims"
    return _back(request, f"{done.worker.name} is draining: {said}.")


async def resume_worker(request: Request) -> Reply:
    """POST …/resume."""
    worker = await asked.act(request, drain.resume)
    return _back(request, f"{worker.name} is {worker.lifecycle} and may get work again.")


async def quarantine_worker(request: Request) -> Reply:
    """POST …/quarantine."""
    told = frame.form(request, QuarantineForm)
    if told.reason is None:
        raise wire.invalid("REQUEST_INVALID", "/reason", "is required: others will ask why")
    until_at_ms = None
    if told.lasts is not None:
        until_at_ms = request.app.clock.now().wall_ms + LASTS_MS[told.lasts]
    body = Quarantining(reason=told.reason, until_at_ms=until_at_ms)
    worker = await asked.act(request, quarantine.quarantine, body)
    return _back(request, f"{worker.name} gets no new work.")


async def unquarantine_worker(request: Request) -> Reply:
    """POST …/unquarantine."""
    worker = await asked.act(request, quarantine.unquarantine)
    return _back(request, f"{worker.name} may get work again.")


async def recover_worker(request: Request) -> Reply:
    """POST …/recover."""
    worker = await asked.act(request, moves.recover)
    return _back(request, f"{worker.name} has one heartbeat timeout to reconcile.")


def _back(request: Request, said: str) -> Reply:
    return frame.done(request, f"/console/workers/{request.path_params['id']}", said)


def _filters(query: WorkersQuery) -> dict[str, Any]:
    """The filter without where in the list one stands: what links keep and cursors are bound to."""
    named = {name: getattr(query, name) for name in query.__struct_fields__ if name != "cursor"}
    return {name: text for name, text in named.items() if text not in (None, "")}


def _row(worker: Worker) -> dict[str, Any]:
    """A worker with what the wire keeps as text taken apart."""
    return {
        "it": worker,
        "serves": decode(worker.granted_capabilities),
        "kinds": decode(worker.workload_kinds),
        "labels": decode(worker.labels),
        "free": max(worker.capacity.concurrency - worker.capacity.active, 0),
        "safe": worker.capacity.active == 0,
    }


def _verb(verb: Verb, handler: Any, summary: str) -> Route:
    return Route(
        method="POST",
        path="/console/workers/{id}/" + verb,
        operation=f"console_{verb}",
        tag="console",
        handler=handler,
        summary=summary,
        scope=OPERATE,
        admission="keep_alive" if verb == "drain" else "ordinary",
        page=True,
    )


ROUTES = (
    Route(
        method="GET",
        path="/console/workers",
        operation="workers_page",
        tag="console",
        handler=workers_page,
        summary="Workers",
        scope=READ,
        query=WorkersQuery,
        page=True,
    ),
    Route(
        method="GET",
        path="/console/workers/{id}",
        operation="worker_page",
        tag="console",
        handler=worker_page,
        summary="One worker",
        scope=READ,
        page=True,
    ),
    _verb("drain", drain_worker, "Let a worker finish and give it nothing new"),
    _verb("resume", resume_worker, "End a drain"),
    _verb("quarantine", quarantine_worker, "Give a worker no new work"),
    _verb("unquarantine", unquarantine_worker, "End a quarantine"),
    _verb("recover", recover_worker, "Give an OFFLINE worker one timeout to reconcile"),
)

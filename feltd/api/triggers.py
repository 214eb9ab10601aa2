"""Triggers over HTTP: defined, listed, shown, enabled, disabled, looked at ahead, evaluated.

A handler decodes, checks what is free JSON, finds the tenant, submits one rule and replies. Kinds
state and schedule share every path.
"""

import time
from typing import Any

from msgspec import UNSET, Struct, to_builtins

from feltd.api import wire
from feltd.api.door import in_tenant, tenant_filter, tenant_of
from feltd.api.repeats import submit_once
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.errors import Refused
from feltd.identity import grants
from feltd.model.base import Ask, Name
from feltd.model.page import PageAsk
from feltd.model.schedule import Preview, Ran
from feltd.model.trigger import (
    PREDICATE_BYTES_MAX,
    Define,
    Disable,
    ListTriggers,
    OfTenant,
    Previewed,
    Produced,
    Trigger,
    TriggerPage,
    TriggerStatus,
)
from feltd.model.workload import INPUT_BYTES_MAX
from feltd.state import definitions, evaluation, instants, runs, standing, triggers
from feltd.state.standing import OnTrigger

INVALID = "TRIGGER_INVALID"
UNAUTHORIZED = "TRIGGER_UNAUTHORIZED"
READ = "triggers:read"
#: Firings that one answer tells of; the rest is made by the next call.
PRODUCED_MAX = 1_000


class EvaluateNow(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of an evaluation; without a tenant all of the caller's.

    `retry`: also what failed and waits for its next try, which counts like any other.
    """

    tenant_id: Name | None = None
    retry: bool = True


async def define_trigger(request: Request) -> Reply:
    """See definitions.define; a repeat with the same Idempotency-Key moves no cursor again."""
    request.query(OfTenant)
    body = request.decode(Define)
    if body.predicate is not None:
        wire.check_free_json(
            to_builtins(body.predicate), PREDICATE_BYTES_MAX, code=INVALID, pointer="/predicate"
        )
    if body.input is not UNSET:
        wire.check_free_json(body.input, INPUT_BYTES_MAX, code=INVALID, pointer="/input")
    if body.kind == "schedule":
        spec = instants.Spec(body.cron, body.every_ms, body.timezone or "UTC")
        instants.check(spec, request.app.clock.now().wall_ms)
    grant_id = None
    if body.authorization_grant is not None:
        grant_id = grants.open_token(request.app.keyring, body.authorization_grant, UNAUTHORIZED)
    told = definitions.Defining(in_tenant(request, body), grant_id)
    ask = Ask(caller=request.caller, body=told)
    done = await submit_once(
        request,
        definitions.define,
        ask,
        tenant=told.define.tenant_id or request.tenant,
        public=lambda answer: answer[0],
    )
    if done.repeated:
        return reply(200, done.answer)
    trigger, created = done.answer
    return reply(201 if created else 200, trigger)


async def list_triggers(request: Request) -> Reply:
    """Newest first; see standing.page."""
    query = request.query(ListTriggers)
    tenant_id = tenant_filter(request)
    secret = request.app.keyring.cursor_secret
    bound = ["triggers", sorted(request.caller.tenants), tenant_id]
    after = None
    if query.cursor is not None:
        at_ms, place = wire.open_cursor(secret, bound, query.cursor)
        after = (at_ms, place)
    body = PageAsk(tenant_id=tenant_id, limit=query.limit, after=after)
    page = await request.app.readers.read(standing.page, Ask(caller=request.caller, body=body))
    cursor = wire.seal_cursor(secret, bound, page.after) if page.after else None
    return reply(200, TriggerPage(items=page.items, next_cursor=cursor))


async def trigger_status(request: Request) -> Reply:
    """See standing.status."""
    request.query(OfTenant)
    ask = Ask(caller=request.caller, body=tenant_filter(request))
    return reply(200, await request.app.readers.read(standing.status, ask))


async def evaluate_triggers(request: Request) -> Reply:
    """Operation after operation until nothing is left, the answer is full or half the time is up.

    What a later operation is refused for is not told: `more` says that something is left.
    """
    request.query(OfTenant)
    body = request.decode(EvaluateNow)
    named = tenant_of(request, body) if body.tenant_id else tenant_filter(request)
    tenants = request.caller.tenants if named is None else (named,)
    until_s = time.monotonic() + request.deadline_ms / 2_000
    tenant = named or request.tenant
    done = await _evaluate(request, evaluation.Evaluate(tenants, body.retry), tenant)
    produced, more = done.produced, done.more
    while more and len(produced) < PRODUCED_MAX and time.monotonic() < until_s:
        try:
            done = await _evaluate(request, evaluation.Evaluate(tenants, eager=False), tenant)
        except Refused:
            break
        produced, more = produced + done.produced, done.more
    return reply(200, Produced(produced=produced, more=more))


async def _evaluate(request: Request, told: evaluation.Evaluate, tenant: str) -> Produced:
    done: Produced = await request.app.writer.submit(
        evaluation.evaluate_now,
        Ask(caller=request.caller, body=told),
        tenant=tenant,
        deadline_ms=request.deadline_ms,
    )
    return done


async def show_trigger(request: Request) -> Reply:
    """See standing.get."""
    request.query(OfTenant)
    return reply(200, await request.app.readers.read(standing.get, _ask(request)))


async def delete_trigger(request: Request) -> Reply:
    """See triggers.delete."""
    request.query(OfTenant)
    await _submit(request, triggers.delete, _ask(request))
    return reply(204)


async def enable_trigger(request: Request) -> Reply:
    """See triggers.enable."""
    request.query(OfTenant)
    request.decode(wire.Members)
    return reply(200, await _submit(request, triggers.enable, _ask(request)))


async def disable_trigger(request: Request) -> Reply:
    """See triggers.disable."""
    request.query(OfTenant)
    body = request.decode(Disable)
    return reply(200, await _submit(request, triggers.disable, _ask(request, body)))


async def run_trigger(request: Request) -> Reply:
    """See runs.run_now; a repeat with the same Idempotency-Key makes no other workload."""
    request.query(OfTenant)
    request.decode(wire.Members)
    ask = _ask(request)
    done = await submit_once(request, runs.run_now, ask, tenant=ask.body.tenant_id)
    return reply(done.status, done.answer)


async def preview_trigger(request: Request) -> Reply:
    """See triggers.preview."""
    request.query(OfTenant)
    body = request.decode(Preview)
    return reply(200, await request.app.readers.read(triggers.preview, _ask(request, body)))


async def preview_trigger_as_usual(request: Request) -> Reply:
    """The same, as many as are shown when nobody says how many."""
    request.query(OfTenant)
    return reply(200, await request.app.readers.read(triggers.preview, _ask(request)))


def _ask(request: Request, body: object = None) -> Ask[OnTrigger]:
    return Ask(
        caller=request.caller,
        body=OnTrigger(tenant_of(request), body),
        id=request.path_params["id"],
    )


async def _submit(request: Request, rule: Any, ask: Ask[OnTrigger]) -> Any:
    return await request.app.writer.submit(
        rule, ask, tenant=ask.body.tenant_id, deadline_ms=request.deadline_ms
    )


_EXAMPLE: dict[str, Any] = {
    "trigger_id": "ship-paid-orders",
    "tenant_id": "acme",
    "application_id": "shop",
    "source_collection": "orders",
    "change_kind": "updated",
    "predicate": {
        "op": "all",
        "args": [
            {"op": "eq", "field": "after.status", "value": "paid"},
            {"op": "changed", "field": "status"},
        ],
    },
    "target_capability": "orders.ship",
}
_GONE = {404: "No such trigger"}
_REPLAY = {503: "Changes it has not judged are gone: define it with a new start"}

ROUTES = (
    Route(
        method="POST",
        path="/v1/triggers",
        operation="define_trigger",
        tag="trigger",
        handler=define_trigger,
        summary="Have changes of records, or instants, make workloads",
        scope=evaluation.WRITE,
        body=Define,
        query=OfTenant,
        answer=Trigger,
        status=201,
        invalid_code=INVALID,
        example=_EXAMPLE,
        responses={
            200: "It was there, and is now what was sent",
            400: "It does not fit, or no grant of the caller covers what it makes",
            429: "The tenant has as many triggers as it may have",
            **_REPLAY,
        },
    ),
    Route(
        method="GET",
        path="/v1/triggers",
        operation="list_triggers",
        tag="trigger",
        handler=list_triggers,
        summary="Triggers, newest first",
        scope=READ,
        query=ListTriggers,
        answer=TriggerPage,
        invalid_code=INVALID,
    ),
    Route(
        method="GET",
        path="/v1/triggers/status",
        operation="trigger_status",
        tag="trigger",
        handler=trigger_status,
        summary="How far each trigger has come, and why some stand still",
        scope=READ,
        query=OfTenant,
        answer=TriggerStatus,
        invalid_code=INVALID,
    ),
    Route(
        method="POST",
        path="/v1/triggers/evaluate",
        operation="evaluate_triggers",
        tag="trigger",
        handler=evaluate_triggers,
        summary="Judge changes now, not in the keeper's next round",
        scope=evaluation.WRITE,
        body=EvaluateNow,
        query=OfTenant,
        answer=Produced,
        invalid_code=INVALID,
        example={"tenant_id": "acme"},
    ),
    Route(
        method="GET",
        path="/v1/triggers/{id}",
        operation="show_trigger",
        tag="trigger",
        handler=show_trigger,
        summary="Show a trigger, how far it has come and how it fares",
        scope=READ,
        query=OfTenant,
        answer=Trigger,
        invalid_code=INVALID,
        responses=_GONE,
    ),
    Route(
        method="DELETE",
        path="/v1/triggers/{id}",
        operation="delete_trigger",
        tag="trigger",
        handler=delete_trigger,
        summary="Delete a trigger; what it made stays",
        scope=evaluation.WRITE,
        query=OfTenant,
        status=204,
        invalid_code=INVALID,
        responses=_GONE,
    ),
    Route(
        method="POST",
        path="/v1/triggers/{id}/enable",
        operation="enable_trigger",
        tag="trigger",
        handler=enable_trigger,
        summary="Have a trigger go on where it stood",
        scope=evaluation.WRITE,
        body=wire.Members,
        query=OfTenant,
        answer=Trigger,
        invalid_code=INVALID,
        example={},
        responses={**_GONE, **_REPLAY},
    ),
    Route(
        method="POST",
        path="/v1/triggers/{id}/disable",
        operation="disable_trigger",
        tag="trigger",
        handler=disable_trigger,
        summary="Stop a trigger; the log is held for it for seven days",
        scope=evaluation.WRITE,
        body=Disable,
        query=OfTenant,
        answer=Trigger,
        invalid_code=INVALID,
        example={"reason": "the warehouse is closed"},
        responses=_GONE,
    ),
    Route(
        method="POST",
        path="/v1/triggers/{id}/run",
        operation="run_trigger",
        tag="trigger",
        handler=run_trigger,
        summary="Run a schedule now, out of turn",
        scope=evaluation.WRITE,
        body=wire.Members,
        query=OfTenant,
        answer=Ran,
        status=201,
        invalid_code=INVALID,
        example={},
        responses=_GONE,
    ),
    Route(
        method="POST",
        path="/v1/triggers/{id}/preview",
        operation="preview_trigger",
        tag="trigger",
        handler=preview_trigger,
        summary="See which of the newest changes, or the next instants, would fire",
        scope=READ,
        body=Preview,
        query=OfTenant,
        answer=Previewed,
        invalid_code=INVALID,
        example={"count": 10},
        responses=_GONE,
    ),
    Route(
        method="GET",
        path="/v1/triggers/{id}/preview",
        operation="preview_trigger",
        tag="trigger",
        handler=preview_trigger_as_usual,
        summary="The same, five of them",
        scope=READ,
        query=OfTenant,
        answer=Previewed,
        invalid_code=INVALID,
        responses=_GONE,
    ),
)

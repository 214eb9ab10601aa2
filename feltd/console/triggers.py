"""Triggers and schedules: how far each has come, why one stands still, and what would fire.

A dry run is the preview of the wire: it makes nothing. 'Evaluate now' judges what waits, as the
keeper does by itself; a schedule is run out of turn by hand.
"""

from functools import partial
from typing import Any

from msgspec import UNSET, Struct, structs, to_builtins

from feltd.api.request import Reply, Request
from feltd.api.routes import Route
from feltd.console import asked, frame, words
from feltd.model.base import Name, Sentence
from feltd.model.page import LIMIT_DEFAULT, Limit, PageAsk
from feltd.model.schedule import Preview
from feltd.model.trigger import Disable, Produced, Trigger, TriggerKind
from feltd.state import evaluation, runs, standing, triggers
from feltd.state.standing import OnTrigger

READ = "triggers:read"
PLACES: dict[str, str] = {"state": "/console/triggers", "schedule": "/console/schedules"}
#: What a look ahead shows.
AHEAD = 10
#: Operations of one evaluation by hand, 200 changes each; the keeper does the rest.
OPERATIONS_MAX = 20


class TriggersQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose triggers, and from where on."""

    tenant_id: Name | None = None
    limit: Limit = LIMIT_DEFAULT
    cursor: str | None = None


class OfTenant(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose trigger; a trigger is keyed by its tenant."""

    tenant_id: Name | None = None


class DisableForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose trigger shall stop, and why."""

    tenant_id: Name | None = None
    reason: Sentence | None = None


async def triggers_page(request: Request) -> Reply:
    """GET /console/triggers: those that wait for changes, newest first."""
    return await _list(request, "state")


async def schedules_page(request: Request) -> Reply:
    """GET /console/schedules: those that wait for instants, newest first."""
    return await _list(request, "schedule")


async def trigger_page(request: Request) -> Reply:
    """GET /console/triggers/{id}: one trigger, and what would fire. Refuses TRIGGER_NOT_FOUND."""
    query = frame.query(request, OfTenant)
    meant = OnTrigger(asked.tenant_meant(request, query.tenant_id), Preview(AHEAD))
    trigger = await asked.read(request, standing.get, meant)
    ahead = await asked.read(request, triggers.preview, meant)
    return await frame.page(
        request,
        "trigger",
        trigger=trigger,
        place=PLACES[trigger.kind],
        predicate=None if trigger.predicate is None else to_builtins(trigger.predicate),
        work=_work(trigger),
        ahead=ahead,
        of=[{"name": "tenant_id", "type": "hidden", "value": trigger.tenant_id}],
    )


async def enable_trigger(request: Request) -> Reply:
    """POST …/enable."""
    trigger = await _act(request, triggers.enable, frame.form(request, OfTenant).tenant_id)
    return _back(request, trigger.tenant_id, trigger.kind, "It goes on where it stood.")


async def disable_trigger(request: Request) -> Reply:
    """POST …/disable."""
    told = frame.form(request, DisableForm)
    body = Disable(told.reason or None)
    trigger = await _act(request, triggers.disable, told.tenant_id, body)
    return _back(
        request, trigger.tenant_id, trigger.kind, "It makes nothing until somebody enables it."
    )


async def run_trigger(request: Request) -> Reply:
    """POST …/run: a schedule, now, out of turn."""
    ran = await _act(request, runs.run_now, frame.form(request, OfTenant).tenant_id)
    return _back(request, ran.tenant_id, "schedule", f"It made the workload {ran.workload_id}.")


async def evaluate_triggers(request: Request) -> Reply:
    """POST /console/triggers/evaluate: until nothing is left, OPERATIONS_MAX operations at most."""
    named = frame.form(request, OfTenant).tenant_id
    tenants = (asked.tenant_meant(request, named),) if named else request.caller.tenants
    made, more = 0, True
    for operation in range(OPERATIONS_MAX):
        body = evaluation.Evaluate(tenants, eager=operation == 0)
        done: Produced = await asked.act(request, evaluation.evaluate_now, body, id="")
        made, more = made + len(done.produced), done.more
        if not more:
            break
    left = " There is more to judge: evaluate again, or leave it to the keeper." if more else ""
    workloads = "workload" if made == 1 else "workloads"
    return frame.done(request, PLACES["state"], f"It made {made} {workloads}.{left}")


async def _list(request: Request, kind: TriggerKind) -> Reply:
    query = frame.query(request, TriggersQuery)
    tenant_id = frame.tenant_filter(request)
    place = asked.opened(request, tenant_id, query.cursor)
    after = None if place is None else (place[0], place[1])
    wanted = PageAsk(tenant_id=tenant_id, limit=query.limit, after=after)
    found = await asked.read(request, partial(standing.page, kind=kind), wanted)
    standing_now = await asked.read(request, standing.status, tenant_id, id="")
    return await frame.page(
        request,
        "triggers" if kind == "state" else "schedules",
        triggers=found.items,
        next_cursor=asked.sealed(request, tenant_id, found.after),
        asked=query,
        standing=standing_now,
        every=_every,
    )


async def _act(request: Request, rule: Any, named: str | None, body: object = None) -> Any:
    tenant_id = asked.tenant_meant(request, named)
    return await asked.act(request, rule, OnTrigger(tenant_id, body), tenant=tenant_id)


def _back(request: Request, tenant_id: str, kind: TriggerKind, said: str) -> Reply:
    path = f"{PLACES[kind]}/{request.path_params['id']}"
    return frame.done(request, frame.link(path, {"tenant_id": tenant_id}), said)


def _every(trigger: Trigger) -> str:
    """When a schedule is due, in the words it was defined with."""
    if trigger.cron is not None:
        return f"{trigger.cron} ({trigger.timezone})"
    return f"every {words.span(trigger.every_ms)}"


def _work(trigger: Trigger) -> dict[str, Any]:
    """What it says of the workloads it makes, beside their definition."""
    said = structs.asdict(trigger)
    names = (
        "environment",
        "definition_revision",
        "capability_snapshot",
        "connection_scopes",
        "priority",
        "retry_policy",
        "timeouts",
        "not_before_at_ms",
        "placement",
        "runtime_policy",
        "input",
    )
    kept = {name: said[name] for name in names if said[name] not in (None, UNSET, ())}
    told: dict[str, Any] = to_builtins(kept)
    return told


def _verb(verb: str, handler: Any, summary: str) -> Route:
    return Route(
        method="POST",
        path="/console/triggers/{id}/" + verb,
        operation=f"console_{verb}_trigger",
        tag="console",
        handler=handler,
        summary=summary,
        scope=evaluation.WRITE,
        page=True,
    )


ROUTES = (
    Route(
        method="GET",
        path="/console/triggers",
        operation="triggers_page",
        tag="console",
        handler=triggers_page,
        summary="Triggers",
        scope=READ,
        query=TriggersQuery,
        page=True,
    ),
    Route(
        method="GET",
        path="/console/schedules",
        operation="schedules_page",
        tag="console",
        handler=schedules_page,
        summary="Schedules",
        scope=READ,
        query=TriggersQuery,
        page=True,
    ),
    Route(
        method="GET",
        path="/console/triggers/{id}",
        also=("/console/schedules/{id}",),
        operation="trigger_page",
        tag="console",
        handler=trigger_page,
        summary="One trigger or schedule",
        scope=READ,
        query=OfTenant,
        page=True,
    ),
    Route(
        method="POST",
        path="/console/triggers/evaluate",
        operation="console_evaluate_triggers",
        tag="console",
        handler=evaluate_triggers,
        summary="Judge changes now",
        scope=evaluation.WRITE,
        page=True,
    ),
    _verb("enable", enable_trigger, "Have a trigger go on where it stood"),
    _verb("disable", disable_trigger, "Stop a trigger"),
    _verb("run", run_trigger, "Run a schedule now"),
)

"""One workload: how it stands and why, what happened to it, who held it, and what may be done."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, structs

from feltd.api import wire
from feltd.api.request import Reply, Request
from feltd.api.routes import Route
from feltd.console import asked, frame
from feltd.mesh import cancel, edit, evict, feed, requeue, why, workloads
from feltd.mesh.states import FINAL_STATES, LIVE_STATES
from feltd.model.base import Instant, Name, Sentence
from feltd.model.claim import LOG_LINES_MAX, Evict
from feltd.model.editing import Edit
from feltd.model.workload import INPUT_BYTES_MAX, After, Cancel, Priority, Requeue, Workload

PLACE = "/console/workloads/"
READ, OPERATE = "workloads:read", "workloads:operate"
INVALID = "WORKLOAD_INVALID"
#: Shown of each; the rest is a link or an API call away.
EVENTS_SHOWN, ATTEMPTS_SHOWN, LINES_SHOWN, LATE_SHOWN = 500, 50, 200, 20

JsonText = Annotated[str, Meta(max_length=INPUT_BYTES_MAX)]


class WorkloadQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where events and lines go on: without `lines_after` the newest lines are shown.

    The tenant only tells in which role the page is asked for.
    """

    events_after: Instant = 0
    lines_after: Instant | None = None
    tenant_id: Name | None = None


class CancelForm(Struct, frozen=True, forbid_unknown_fields=True):
    """Why, and whether its holder is waited for."""

    reason: Sentence | None = None
    force: bool = False


class RequeueForm(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be different this time."""

    priority: Priority | None = None
    input: JsonText | None = None


class EditForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is to change; objects are JSON merge patches."""

    priority: Priority | None = None
    concurrency: JsonText | None = None
    labels: JsonText | None = None
    timeouts: JsonText | None = None
    retry_policy: JsonText | None = None
    placement: JsonText | None = None


class EvictForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Why the claim is taken away, and what becomes of the work."""

    reason: Annotated[Sentence, Meta(min_length=1)]
    to: Literal["READY", "DEAD_LETTERED"] = "READY"
    spend_attempt: bool = False


class NoFields(Struct, frozen=True, forbid_unknown_fields=True):
    """A form of a button alone."""


async def workload_page(request: Request) -> Reply:
    """GET /console/workloads/{id}. Refuses WORKLOAD_NOT_FOUND."""
    query = frame.query(request, WorkloadQuery)
    values: dict[str, Any] = {"asked": query, "w": await asked.read(request, workloads.get)}
    part = frame.part(request)
    if part in (None, "now"):
        values["why"] = await asked.read(request, why.of_workload)
        happened = After(query.events_after, EVENTS_SHOWN)
        values["events"] = (await asked.read(request, feed.of_workload, happened)).items
        late = await asked.read(request, workloads.late_results, After(0, LATE_SHOWN))
        values["late"] = late.items
        values["names"] = await asked.names(request, _workers(values))
    if part in (None, "logs"):
        many = LOG_LINES_MAX if query.lines_after is None else LINES_SHOWN
        found = await asked.read(request, workloads.logs, After(query.lines_after or 0, many))
        values["logs"] = structs.replace(found, items=found.items[-LINES_SHOWN:])
        values["lines_before"] = len(found.items) - len(values["logs"].items)
    return await frame.page(
        request,
        "workload",
        decoded=_decoded,
        live=values["w"].state in LIVE_STATES,
        final=values["w"].state in FINAL_STATES,
        attempts_shown=ATTEMPTS_SHOWN,
        events_shown=EVENTS_SHOWN,
        lines_shown=LINES_SHOWN,
        **values,
    )


async def cancel_workload(request: Request) -> Reply:
    """POST …/cancel: its holder is asked, or with force fenced at once."""
    told = frame.form(request, CancelForm)
    done = await asked.act(request, cancel.cancel, Cancel(force=told.force, reason=told.reason))
    asked_for = "Its holder is asked to stop." if done.cancel_requested else ""
    return _back(request, done, "It is cancelled." if done.state == "CANCELLED" else asked_for)


async def requeue_workload(request: Request) -> Reply:
    """POST …/requeue: a dead letter again, its attempts counted anew."""
    told = frame.form(request, RequeueForm)
    given: Any = UNSET
    if told.input is not None:
        given = wire.decode(told.input.encode(), object, INVALID)
        wire.check_free_json(given, INPUT_BYTES_MAX, code=INVALID, pointer="/input")
    body = Requeue(input=given, priority=told.priority)
    done = await asked.act(request, requeue.requeue, body)
    return _back(request, done, "It is ready again, its attempts counted anew.")


async def edit_workload(request: Request) -> Reply:
    """POST …/edit: what it asks for, while nobody holds it."""
    told = frame.form(request, EditForm)
    members: dict[str, Any] = {} if told.priority is None else {"priority": told.priority}
    for name in ("concurrency", "labels", "timeouts", "retry_policy", "placement"):
        text = getattr(told, name)
        if text is not None:
            members[name] = wire.decode(text.encode(), object, INVALID)
    body = wire.decode(wire.encode(members), Edit, INVALID)
    done = await asked.act(request, edit.edit, body)
    return _back(request, done, "It is changed.")


async def run_now(request: Request) -> Reply:
    """POST …/run-now: past its backoff or its instant."""
    frame.form(request, NoFields)
    done = await asked.act(request, edit.edit, Edit(not_before_at_ms=0))
    return _back(request, done, "It may be taken at once.")


async def evict_claim(request: Request) -> Reply:
    """POST /console/claims/{id}/evict: its worker's next call is refused."""
    told = frame.form(request, EvictForm)
    body = Evict(reason=told.reason, to=told.to, spend_attempt=told.spend_attempt)
    done = await asked.act(request, evict.evict, body)
    return _back(request, done, "The claim is taken away; its worker's next call is refused.")


def _workers(values: dict[str, Any]) -> list[str | None]:
    """Whoever is named on the page: who holds or held it, and of whom its causes tell."""
    told = [attempt.worker_id for attempt in values["w"].attempts[-ATTEMPTS_SHOWN:]]
    told += [event.worker_id for event in values["events"]]
    return [*told, *(reason.worker_id for reason in values["why"].reasons)]


def _back(request: Request, workload: Workload, said: str) -> Reply:
    return frame.done(request, PLACE + workload.workload_id, said or "It stands as it did.")


def _decoded(stored: Raw | None) -> Any:
    return None if stored is None else msgspec.json.decode(stored)


def _act(noun: str, verb: str, operation: str, handler: Any, summary: str) -> Route:
    return Route(
        method="POST",
        path=f"/console/{noun}/{{id}}/{verb}",
        operation=operation,
        tag="console",
        handler=handler,
        summary=summary,
        scope=OPERATE,
        page=True,
    )


ROUTES = (
    Route(
        method="GET",
        path=PLACE + "{id}",
        operation="console_workload",
        tag="console",
        handler=workload_page,
        summary="One workload",
        scope=READ,
        page=True,
    ),
    _act("workloads", "cancel", "console_cancel", cancel_workload, "Cancel a workload"),
    _act("workloads", "requeue", "console_requeue", requeue_workload, "Requeue a dead letter"),
    _act("workloads", "edit", "console_edit", edit_workload, "Change what a workload asks for"),
    _act("workloads", "run-now", "console_run_now", run_now, "Let a workload run at once"),
    _act("claims", "evict", "console_evict", evict_claim, "Take a claim away"),
)

"""Dead letters by what they died of: each kind and definition, with what the newest one said.

Bringing back all of a kind goes through the same search and chunks as a bulk change of the API, and
is counted first; as much is done as half the deadline allows, the rest is a click away.
"""

import time

from msgspec import Struct

from feltd.api import edits
from feltd.api.request import Reply, Request
from feltd.api.routes import Route
from feltd.console import asked, frame
from feltd.errors import Refused
from feltd.mesh import bulk, deadletters, requeue
from feltd.model.base import EndKind, Id, Name
from feltd.model.editing import CHUNK_ROWS, REMAINING_MAX
from feltd.model.workload import Filter, Requeue

READ = "workloads:read"
OPERATE = "workloads:operate"
PLACE = "/console/dead-letters"


class DeadQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose dead letters."""

    tenant_id: Name | None = None


class OfKind(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters: of one failure kind, and of one definition if that is named."""

    failure_kind: EndKind
    definition_id: Name | None = None
    tenant_id: Name | None = None


class OneForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The one dead letter that is brought back."""

    workload_id: Id


async def dead_page(request: Request) -> Reply:
    """GET /console/dead-letters: most first."""
    query = frame.query(request, DeadQuery)
    grouping = deadletters.Grouping(frame.tenant_filter(request))
    found = await asked.read(request, deadletters.by_definition, grouping)
    return frame.page(
        request,
        "dead",
        kinds=found.items,
        capped=found.capped,
        asked=query,
        total=sum(kind.workloads for kind in found.items),
    )


async def requeue_page(request: Request) -> Reply:
    """GET /console/dead-letters/requeue: how many would be brought back, and the button."""
    query = frame.query(request, OfKind)
    found = await edits.search(request, _plan(request, query), 0)
    count = min(found.count, REMAINING_MAX)
    return frame.page(
        request, "dead_requeue", asked=query, count=count, capped=found.count >= REMAINING_MAX
    )


async def requeue_kind(request: Request) -> Reply:
    """POST /console/dead-letters/requeue: all of a kind, chunk by chunk."""
    told = frame.form(request, OfKind)
    plan = _plan(request, told)
    until_s = time.monotonic() + request.deadline_ms / 2_000
    changed, remaining = 0, 1
    while remaining and time.monotonic() < until_s:
        found = await edits.search(request, plan, CHUNK_ROWS)
        if not found.workload_ids:
            remaining = 0
            break
        chunk = bulk.Chunk(plan, found.workload_ids, found.count - len(found.workload_ids))
        try:
            done = await asked.act(request, bulk.change, chunk, id="")
        except Refused:
            # What cannot be brought back is left when the others are; nothing else: say why.
            if not changed:
                raise
            break
        changed, remaining = changed + done.changed, done.remaining
    left = f", {remaining:,} are left: once more" if remaining else ""
    workloads = "workload is" if changed == 1 else "workloads are"
    return frame.done(request, _back(told), f"{changed:,} {workloads} ready again{left}.")


async def requeue_one(request: Request) -> Reply:
    """POST /console/dead-letters/requeue-one: a dead letter, its attempts counted anew."""
    told = frame.form(request, OneForm)
    done = await asked.act(request, requeue.requeue, Requeue(), id=told.workload_id)
    to = f"/console/workloads/{done.workload_id}"
    return frame.done(request, to, "It is ready again, its attempts counted anew.")


def _plan(request: Request, told: OfKind) -> bulk.Plan:
    tenant_id = None if not told.tenant_id else asked.tenant_meant(request, told.tenant_id)
    wanted = Filter(
        tenant_id=tenant_id,
        state="DEAD_LETTERED",
        failure_kind=told.failure_kind,
        definition_id=told.definition_id,
    )
    return bulk.Plan("requeue", wanted)


def _back(told: OfKind) -> str:
    return frame.link(PLACE, {"tenant_id": told.tenant_id})


ROUTES = (
    Route(
        method="GET",
        path=PLACE,
        operation="dead_letters_page",
        tag="console",
        handler=dead_page,
        summary="Dead letters by kind",
        scope=READ,
        query=DeadQuery,
        page=True,
    ),
    Route(
        method="GET",
        path=PLACE + "/requeue",
        operation="requeue_kind_page",
        tag="console",
        handler=requeue_page,
        summary="How many of a kind would be brought back",
        scope=OPERATE,
        query=OfKind,
        page=True,
    ),
    Route(
        method="POST",
        path=PLACE + "/requeue",
        operation="console_requeue_kind",
        tag="console",
        handler=requeue_kind,
        summary="Bring back all dead letters of a kind",
        scope=OPERATE,
        page=True,
    ),
    Route(
        method="POST",
        path=PLACE + "/requeue-one",
        operation="console_requeue_one",
        tag="console",
        handler=requeue_one,
        summary="Bring back one dead letter",
        scope=OPERATE,
        page=True,
    ),
)

"""The overview: what is ready, running, retrying, dead; what waits longest; how the house is.

Who sees all tenants also sees the daemon's own numbers: rates, latencies, sheds, fence refusals,
the files. Everybody else sees the work of his tenants, counted as far as counting is cheap.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from feltd.api.metrics import free_bytes
from feltd.api.request import Reply, Request
from feltd.api.routes import Route
from feltd.console import asked, frame
from feltd.errors import Refused
from feltd.mesh import backlog, pulse
from feltd.mesh.states import LIVE_STATES
from feltd.model.base import Caller
from feltd.model.why import BacklogAsk
from feltd.state import notable

#: Kinds of work that are shown as waiting longest.
WAITING_SHOWN = 5
#: Parts that tell of everybody's work.
HOUSE_PARTS = frozenset({"sampled", "fences", "sheds", "house"})
#: What a page waits for fresh counts, seconds.
LOOK_S = 0.1
EVERYBODY = "*"


class _Looking:
    """Looks that nobody waits for; the loop alone would let go of them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, look: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(look)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


_LOOKING = _Looking()


async def overview(request: Request) -> Reply:
    """GET /console."""
    caller: Caller = request.caller
    whole = EVERYBODY in caller.tenants and caller.holds("metrics:read")
    part = frame.part(request)
    if part in HOUSE_PARTS and not whole:
        raise Refused("FORBIDDEN", "this is the whole daemon's: it needs a role in tenants *")
    values: dict[str, Any] = {"whole": whole, "health": request.app.health.look()}
    if part in (None, "counts"):
        values["counts"] = await _counts(request, caller)
    if part in (None, "notable"):
        values["notable"] = await asked.read(request, notable.count)
    if part in (None, "waiting"):
        oldest = await asked.read(request, backlog.page, BacklogAsk(limit=WAITING_SHOWN))
        values["oldest"] = [kind for kind in oldest.items if kind.ready or kind.blocked]
        values["left_out"] = oldest.left_out
    if whole:
        values |= _house(request)
    return await frame.page(request, "overview", **values)


async def _counts(request: Request, caller: Caller) -> dict[str, Any]:
    """Ready, running, retrying, pending, dead; `limit` is where counting stopped, None: nowhere.

    Not `known` before the first look of the metrics came back.
    """
    if EVERYBODY in caller.tenants:
        looked = await _looked(request)
        known = looked is not None
        states = {} if looked is None else looked.workloads
        again = await asked.read(request, pulse.retrying, EVERYBODY)
        limit = None
    else:
        found = await asked.read(request, pulse.tally, caller.tenants)
        states, again, limit, known = found.states, found.retrying, found.limit, True
    return {
        "ready": max(states.get("READY", 0) - again, 0),
        "running": sum(states.get(state, 0) for state in LIVE_STATES),
        "retrying": again,
        "pending": states.get("PENDING", 0),
        "dead": states.get("DEAD_LETTERED", 0),
        "limit": limit,
        "known": known,
    }


async def _looked(request: Request) -> Any:
    """The last look of the metrics, None before the first; a page waits LOOK_S at most."""
    metrics = request.app.metrics
    looking = _LOOKING.begin(metrics.look())
    # On a million rows a look takes longer: then the next refresh shows what it found.
    await asyncio.wait([looking], timeout=LOOK_S)
    return metrics.looked


def _house(request: Request) -> dict[str, Any]:
    app = request.app
    path = app.config.path
    looked = app.metrics.looked
    return {
        "refusals": sorted(app.metrics.fence_refusals.items()),
        "sheds": sorted(app.metrics.sheds.items()),
        "wal_bytes": app.writer.wal_bytes,
        "database_bytes": path.stat().st_size,
        "free_bytes": free_bytes(path),
        "backup_age_s": app.backup_age_s(),
        "grants_expiring": 0 if looked is None else looked.grants_expiring,
        "keys_expiring": 0 if looked is None else looked.keys_expiring,
        "workers": {} if looked is None else looked.workers,
        "streams": app.streams.open,
        "connections": app.connections(),
        "sampled": app.samples.newest(),
    }


ROUTES = (
    Route(
        method="GET",
        path="/console",
        also=("/console/",),
        operation="console_overview",
        tag="console",
        handler=overview,
        summary="The overview",
        scope="workloads:read",
        page=True,
    ),
)

"""Compaction by hand over HTTP: a while of it at a time, or what it would do."""

from typing import Any, Protocol

from feltd.api.repeats import submit_once
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.model.base import Ask
from feltd.model.compaction import Compact, Outcome, Policy
from feltd.state import compaction, forecast

#: A forecast reads what it counts, beside everything else.
FORECAST_MS_MAX = 8_000


class Compactor(Protocol):
    """What clears; the daemon's."""

    policy: Policy

    async def some(self) -> Outcome:
        """Clear for about a second."""


async def compact(request: Request) -> Reply:
    """POST /v1/compactions: clear for about a second, or tell what would be cleared."""
    compactor: Compactor = request.app.compactor
    if request.decode(Compact).dry_run:
        read = request.app.readers.read
        return reply(200, await read(forecast.forecast, compactor.policy, FORECAST_MS_MAX))
    ask = Ask(caller=request.caller, body=None)
    await request.app.writer.submit(compaction.permit, ask, deadline_ms=request.deadline_ms)
    outcome = await compactor.some()
    done = await submit_once(request, compaction.by_hand, Ask(caller=request.caller, body=outcome))
    return reply(done.status, done.answer)


_EXAMPLE: dict[str, Any] = {"dry_run": True}

ROUTES = (
    Route(
        method="POST",
        path="/v1/compactions",
        operation="compact",
        tag="state",
        handler=compact,
        summary="Clear for about a second what is past its time, or tell what that would be",
        scope="daemon:operate",
        body=Compact,
        answer=Outcome,
        example=_EXAMPLE,
    ),
)

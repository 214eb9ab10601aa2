"""The layers put together: a Starlette application whose middleware stack is ours.

Starlette gives lifespan, datatypes and responses; its router and its exception middlewares are
not used, because a linear route list and three wrapped layers cost a third of the throughput.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.types import ASGIApp

from feltd.api.admission import Admission, Observer, Unobserved
from feltd.api.bodies import Bodies
from feltd.api.dispatch import Authenticate, Dispatch, RefusedPage
from feltd.api.forwarded import Proxies
from feltd.api.gate import Gate
from feltd.api.request import Polls
from feltd.api.routes import Route, Routes

BODY_BYTES_MAX = 1024 * 1024
#: All bodies being read at once; 64 calls of the largest body.
READING_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSettings:
    """The bounds of the layers; the defaults are the daemon's."""

    max_in_flight: int = 64
    request_deadline_ms: int = 10_000
    body_deadline_ms: int = 10_000
    body_bytes_max: int = BODY_BYTES_MAX
    reading_bytes_max: int = READING_BYTES_MAX
    allowed_origins: tuple[str, ...] = ()
    #: --no-auth: only loopback names as Host, only allowed origins as Origin.
    loopback_only: bool = False
    #: Networks of trusted proxies, and the calls open at once from one address behind them.
    trust_proxy: tuple[str, ...] = ()
    calls_per_address_max: int = 512


class Stack(Starlette):
    """The daemon's ASGI application. `admission`, `bodies`, `polls`, `table` are for gauges."""

    def __init__(
        self,
        table: Routes,
        *,
        app: Any,
        settings: StackSettings,
        authenticate: Authenticate,
        stop: asyncio.Event,
        observer: Observer,
        lifespan: Any = None,
        refused_page: RefusedPage | None = None,
    ) -> None:
        super().__init__(lifespan=lifespan)
        self.table = table
        self.admission = Admission(settings.max_in_flight, observer)
        self.polls = Polls(stop)
        self.bodies = Bodies(
            self.admission,
            body_bytes_max=settings.body_bytes_max,
            body_deadline_ms=settings.body_deadline_ms,
            reading_bytes_max=settings.reading_bytes_max,
        )
        dispatch = Dispatch(
            table,
            app=app,
            admission=self.admission,
            bodies=self.bodies,
            polls=self.polls,
            authenticate=authenticate,
            request_deadline_ms=settings.request_deadline_ms,
            lifespan=self.router,
            refused_page=refused_page,
        )
        self._gate = Gate(
            dispatch,
            observer,
            settings.allowed_origins,
            loopback_only=settings.loopback_only,
            proxies=Proxies(settings.trust_proxy, settings.calls_per_address_max),
        )
        self.calls = self._gate.calls

    def build_middleware_stack(self) -> ASGIApp:
        """Ours alone: the gate is the last resort, so Starlette's catchers have nothing to do."""
        return self._gate


def build(
    routes: Iterable[Route],
    *,
    app: Any,
    authenticate: Authenticate,
    stop: asyncio.Event,
    settings: StackSettings | None = None,
    observer: Observer | None = None,
    lifespan: Any = None,
    refused_page: RefusedPage | None = None,
) -> Stack:
    """The application of a daemon.

    `app` is handed to handlers as `request.app`; `authenticate` is the door; `stop` ends every
    parked poll; `lifespan` is Starlette's; `refused_page` writes refusals for people.
    """
    return Stack(
        Routes(routes),
        app=app,
        settings=settings or StackSettings(),
        authenticate=authenticate,
        stop=stop,
        observer=observer or Unobserved(),
        lifespan=lifespan,
        refused_page=refused_page,
    )

"""`Worker`: the handlers of one process under one name, and the process that runs them.

This is what a worker author writes against. It knows its handlers and its settings; everything
that is said to the daemon is said by the loop.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from feltd import __version__
from feltd.model.grant import RuntimeCaps
from feltd.worker.client import AsyncClient
from feltd.worker.desk import ANY
from feltd.worker.loop import Loop
from feltd.worker.runner import Handler
from feltd.worker.session import Session, Settings, Stopped, host_name

log = logging.getLogger("feltd.worker")

H = TypeVar("H", bound=Callable[..., Any])
OnDrain = Literal["exit", "park"]
LEASE_MS_BOUNDS = (1_000, 3_600_000)


class Worker:
    """A worker process: handlers by the definition they run, and how it presents itself.

    Everything may be left out: FELTD_URL and FELTD_KEY say where and as whom, the key's grant what
    it may do. `name` is this machine's name by default; a second process of one name takes it over
    and the first ends with exit code 3. `lease_ms` (1,000 to 3,600,000) is how long work stays
    held without a renewal; `grace_ms` how long handlers may finish after SIGTERM. With `channel`
    work comes over a WebSocket, by HTTP where there is none. `caps`, set later, bounds the policy
    of each claim; `runtime` is the kind that it registers as.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        name: str | None = None,
        concurrency: int | None = None,
        capabilities: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
        version: str = __version__,
        lease_ms: int = 30_000,
        heartbeat_interval_ms: int | None = None,
        heartbeat_timeout_ms: int | None = None,
        on_drain: OnDrain = "exit",
        grace_ms: int = 25_000,
        channel: bool = False,
    ) -> None:
        self.url = url
        self.key = key
        self.name = name
        self.concurrency = concurrency
        self.capabilities = capabilities
        self.labels = labels
        self.version = version
        self.lease_ms = lease_ms
        self.heartbeat_interval_ms = heartbeat_interval_ms
        self.heartbeat_timeout_ms = heartbeat_timeout_ms
        self.on_drain: OnDrain = on_drain
        self.grace_ms = grace_ms
        self.channel = channel
        self.caps: RuntimeCaps | None = None
        self.runtime = "process"
        self.handlers: dict[str, Handler] = {}
        self._loop: Loop | None = None
        self.check()

    def check(self) -> None:
        """Raise ValueError where a setting is out of its bounds."""
        least, most = LEASE_MS_BOUNDS
        if not least <= self.lease_ms <= most:
            raise ValueError(f"a lease is {least} to {most} ms long, not {self.lease_ms}")

    def handles(self, definition: str) -> Callable[[H], H]:
        """Decorate the handler of a definition; "*" handles whatever has no handler of its own.

        The handler takes a Context (an AsyncContext if it is `async def`) and returns the output.
        """

        def take(handler: H) -> H:
            if definition in self.handlers:
                raise ValueError(f"{definition!r} has a handler already")
            self.handlers[definition] = handler
            return handler

        return take

    def run(self) -> int:
        """Run until told to stop, and answer the exit code: 0, 1, or 3 when the name was taken."""
        return asyncio.run(self.serve())

    async def serve(self) -> int:
        """Run on the present event loop; SIGTERM and SIGINT end it gracefully, twice at once."""
        if not self.handlers:
            raise ValueError("the worker has no handlers: decorate some with @worker.handles(…)")
        if not (self.url or os.environ.get("FELTD_URL")):
            raise ValueError("no address: set FELTD_URL, or give the Worker its url")
        async with AsyncClient(self.url, self.key) as client:
            with self._signals():
                stopped = await self._live(client)
        (log.info if stopped.code == 0 else log.error)("stopped: %s", stopped.reason)
        return stopped.code

    def stop(self) -> None:
        """What SIGTERM does: drain, finish or release within the grace, end."""
        if self._loop is not None:
            self._loop.leave()
        elif self._beginning is not None:
            self._beginning.cancel()

    _beginning: "asyncio.Task[None] | None" = None

    async def _live(self, client: AsyncClient) -> Stopped:
        session = Session(client, self._settings())
        self._beginning = asyncio.create_task(session.begin())
        try:
            await self._beginning
        except Stopped as stopped:
            return stopped
        except asyncio.CancelledError:
            if not self._beginning.cancelled():
                raise
            return Stopped(0, "told to stop before it began")
        self._loop = Loop(
            session,
            self.handlers,
            on_drain=self.on_drain,
            grace_ms=self.grace_ms,
            caps=self.caps,
            channel=self.channel,
        )
        try:
            return await self._loop.run()
        finally:
            self._loop = None

    def _settings(self) -> Settings:
        kinds = () if ANY in self.handlers else tuple(self.handlers)
        return Settings(
            name=self.name or host_name(),
            concurrency=self.concurrency,
            capabilities=None if self.capabilities is None else tuple(self.capabilities),
            kinds=kinds,
            labels=None if self.labels is None else dict(self.labels),
            version=self.version,
            runtime=self.runtime,
            lease_ms=self.lease_ms,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            heartbeat_timeout_ms=self.heartbeat_timeout_ms,
        )

    @contextlib.contextmanager
    def _signals(self) -> Any:
        """Stop on SIGTERM and SIGINT; outside the main thread signals are somebody else's."""
        loop = asyncio.get_running_loop()
        taken = []
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(ValueError, RuntimeError):
                loop.add_signal_handler(number, self.stop)
                taken.append(number)
        try:
            yield
        finally:
            for number in taken:
                loop.remove_signal_handler(number)

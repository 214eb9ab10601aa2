"""Serving by hypercorn: the listeners, the caps on connections, the start and the end.

It alone puts connection.Connection in the place of `hypercorn.asyncio.run.TCPServer`; it knows no
route and no noun.
"""

import asyncio
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from wsgiref.handlers import format_date_time

import hypercorn.asyncio.run
from hypercorn.asyncio import serve
from hypercorn.config import Config

from feltd.api.connection import ACCEPT, HEAD, HEAD_BYTES_MAX, IDLE, Connection
from feltd.api.listen import BACKLOG, Listener, adopt, listen_local, listen_tcp, raise_file_limit

#: The operator's socket has room of its own: a flood on the network must not lock him out.
LOCAL_CONNECTIONS_MAX = 128
KEEP_ALIVE_REQUESTS_MAX = 2**62


log = logging.getLogger("feltd.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Where to listen and what a connection may cost. `fd` comes before host and port."""

    host: str = "127.0.0.1"
    port: int = 7610
    fd: int | None = None
    #: The operator's own socket (listen.local_socket_path); None: none.
    local_path: str | None = None
    max_connections: int = 2_048
    max_connections_per_address: int = 512
    graceful_ms: int = 10_000
    #: Above a worker's heartbeat interval and the longest poll, or each beat opens a connection.
    keep_alive_ms: int = 75_000
    #: From the first byte (the first time: from the accept) to the end of a request's head.
    head_deadline_ms: int = 10_000
    #: A client that takes nothing of its answer for this long is cut.
    drain_deadline_ms: int = 10_000
    tls_cert: str | None = None
    tls_key: str | None = None


class Server:
    """One daemon's listeners and their connections."""

    def __init__(
        self,
        app: Any,
        settings: ServerSettings,
        *,
        stop: asyncio.Event,
        hard_exit: Callable[[], None] | None = None,
    ) -> None:
        """`stop` ends serving; `hard_exit` (default: leave the process with code 1) is called from
        another thread when that takes longer than graceful_ms."""
        self.settings = settings
        self.stopping = False
        self.open: set[Connection] = set()
        self._app = app
        self._stop = stop
        self._hard_exit = hard_exit or _leave
        self._addresses: Counter[str] = Counter()
        self._local = 0
        self._unready = 0

    @property
    def connections(self) -> int:
        """Gauge: open connections, the operator's own socket included."""
        return len(self.open)

    async def serve(self, on_ready: Callable[[str], None]) -> None:
        """Listen, call `on_ready(url)` once connections are taken, return after the stop.

        Raises ListenProblem before anything listens. Within graceful_ms of the stop everything is
        closed: idle connections at once, calls at work when they are answered or by force.
        """
        settings = self.settings
        raise_file_limit(settings.max_connections)
        tls = settings.tls_cert is not None
        if settings.fd is not None:
            main = adopt(settings.fd, tls=tls)
        else:
            main = listen_tcp(settings.host, settings.port, tls=tls)
        vars(hypercorn.asyncio.run)["TCPServer"] = Connection
        served = [(self._app, HouseConfig(self, main, local=False))]
        if settings.local_path is not None:
            local = listen_local(settings.local_path)
            served.append((_without_lifespan(self._app), HouseConfig(self, local, local=True)))
        self._unready = len(served)

        async def trigger() -> None:
            self._unready -= 1
            if self._unready == 0:
                on_ready(main.url)
            await self._stop.wait()
            self._begin_stop()

        loop = asyncio.get_running_loop()
        running = [
            loop.create_task(serve(app, config, shutdown_trigger=trigger, mode="asgi"))
            for app, config in served
        ]
        try:
            await self._until_stopped(running)
        finally:
            if settings.local_path is not None:
                _unlink(settings.local_path)

    async def _until_stopped(self, running: list[asyncio.Task[None]]) -> None:
        loop = asyncio.get_running_loop()
        sweeper = loop.create_task(self._sweep())
        stopped = loop.create_task(self._wait_for_stop())
        timer: threading.Timer | None = None
        try:
            await asyncio.wait([stopped, sweeper, *running], return_when=asyncio.FIRST_COMPLETED)
            graceful_s = self.settings.graceful_ms / 1000
            timer = threading.Timer(graceful_s, self._hard_exit)
            timer.daemon = True
            timer.start()
            self._stop.set()
            _, late = await asyncio.wait(running, timeout=graceful_s * 0.9)
            for task in late:
                log.warning("serving did not end in time; leaving it")
                task.cancel()
            for task in running:
                if task not in late:
                    task.result()
        finally:
            if timer is not None:
                timer.cancel()
            for task in (sweeper, stopped, *running):
                task.cancel()
            self._abort_all()

    async def _wait_for_stop(self) -> None:
        await self._stop.wait()

    def _begin_stop(self) -> None:
        self.stopping = True
        for connection in tuple(self.open):
            if connection.stage in (ACCEPT, HEAD, IDLE):
                connection.begin_close()

    def _abort_all(self) -> None:
        for connection in tuple(self.open):
            connection.writer.transport.abort()

    async def _sweep(self) -> None:
        """One task judges every connection's deadline: cheaper than a timer for each request."""
        settings = self.settings
        shortest_ms = min(
            settings.keep_alive_ms, settings.head_deadline_ms, settings.drain_deadline_ms
        )
        while True:
            await asyncio.sleep(min(1.0, shortest_ms / 4000))
            now_s = asyncio.get_running_loop().time()
            for connection in tuple(self.open):
                if connection.deadline_s <= now_s:
                    connection.expire()

    def enter(self, connection: "Connection", address: str, *, local: bool) -> bool:
        """Count a new connection; False when it is one too many."""
        if self.stopping:
            return False
        if local:
            if self._local >= LOCAL_CONNECTIONS_MAX:
                return False
            self._local += 1
        else:
            if len(self.open) - self._local >= self.settings.max_connections:
                return False
            if address and self._addresses[address] >= self.settings.max_connections_per_address:
                return False
            self._addresses[address] += 1
        self.open.add(connection)
        return True

    def leave(self, connection: "Connection", address: str, *, local: bool) -> None:
        """A counted connection ended."""
        self.open.discard(connection)
        if local:
            self._local -= 1
        else:
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]


class HouseConfig(Config):
    """hypercorn's settings for one listener, and the way from a connection to its Server."""

    def __init__(self, house: Server, listener: Listener, *, local: bool) -> None:
        settings = house.settings
        self.house = house
        #: Told by the listener alone: another Unix socket is no operator's.
        self.local = local
        self.bind = [f"fd://{listener.fd}"]
        self.alpn_protocols = ["http/1.1"]
        self.backlog = BACKLOG
        self.errorlog = log
        self.accesslog = None
        self.include_server_header = False
        self.graceful_timeout = settings.graceful_ms / 1000 * 0.6
        self.h11_max_incomplete_size = HEAD_BYTES_MAX
        self.keep_alive_timeout = settings.keep_alive_ms / 1000
        self.ssl_handshake_timeout = settings.head_deadline_ms / 1000
        self.websocket_ping_interval = 20
        self.websocket_max_message_size = 1024 * 1024
        if not local and settings.tls_cert is not None:
            self.certfile, self.keyfile = settings.tls_cert, settings.tls_key
        self._date = (0, b"")

    @property
    def keep_alive_max_requests(self) -> int:  # type: ignore[override]
        """No end of a connection while serving; every answer is the last one while stopping."""
        return 0 if self.house.stopping else KEEP_ALIVE_REQUESTS_MAX

    def response_headers(self, protocol: str) -> list[tuple[bytes, bytes]]:
        """The date, made once a second."""
        now_s = int(time.time())
        if self._date[0] != now_s:
            self._date = (now_s, format_date_time(now_s).encode("ascii"))
        return [(b"date", self._date[1])]


def _without_lifespan(app: Any) -> Any:
    """The application again for a second listener: it starts and stops with the first."""

    async def listener(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        for step in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{step}.complete"})

    return listener


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _leave() -> None:
    log.critical("stopping took longer than graceful_ms; leaving")
    os._exit(1)

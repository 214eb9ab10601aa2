"""Serving by hypercorn, with the bounds that hypercorn has no setting for.

The only file beside protocol.py that reaches into hypercorn: it puts its own connection class in
the place of `hypercorn.asyncio.run.TCPServer`. Every point has a canary test on asyncio and uvloop,
so that an upgrade of the library that breaks one is seen. It knows no route and no noun.
"""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from ssl import SSLContext, SSLError
from typing import Any
from wsgiref.handlers import format_date_time

import hypercorn.asyncio.run
from hypercorn.asyncio import serve
from hypercorn.asyncio.task_group import TaskGroup, _handle
from hypercorn.asyncio.tcp_server import MAX_RECV, TCPServer
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from feltd.api.early import (
    HEAD_BYTES_MAX,
    late_head,
)
from feltd.api.forwarded import plain
from feltd.api.house import ACCEPT, LINGER, House, Line, log, started_elsewhere
from feltd.api.inbox import Inbox
from feltd.api.listen import (
    BACKLOG,
    Listener,
    ListenProblem,
    ServerSettings,
    listen,
    listen_local,
)
from feltd.api.protocol import Protocol
from feltd.api.request import CUT, HELD, LOCAL, ON_GONE
from feltd.api.tls import Tls, TlsProblem, shake_hands

__all__ = ["Server", "ServerSettings"]

#: Of a refused body, at most this much is taken before the connection is cut.
LINGER_BYTES = 1024 * 1024
KEEP_ALIVE_REQUESTS_MAX = 2**62


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
        self._app = app
        self._tls: Tls | None = None
        self._house = House(settings, stop=stop, late_head=late_head(), hard_exit=hard_exit)

    @property
    def connections(self) -> int:
        """Gauge: open connections, those of the operator's own socket included."""
        return self._house.connections

    def renew_tls(self) -> bool:
        """Read certificate and key again; whether there are any. Raises TlsProblem: as before."""
        if self._tls is None:
            return False
        self._tls.renew()
        return True

    async def serve(self, on_ready: Callable[[str], None]) -> None:
        """Listen, call `on_ready(urls)` once connections are taken, return after the stop.

        Several addresses stand side by side, with a space between. Raises ListenProblem before
        anything listens. Within graceful_ms of the stop everything is closed: idle connections at
        once, calls at work when they are answered or by force.
        """
        settings = self._house.settings
        mains = listen(settings, self._context(settings))
        path = settings.local_path
        local = (listen_local(path),) if path is not None else ()
        vars(hypercorn.asyncio.run)["TCPServer"] = Connection
        url = " ".join(one.url for one in mains)
        started, unready = asyncio.Event(), [*mains, *local]

        def trigger(listener: Listener) -> Callable[[], Coroutine[Any, Any, None]]:
            async def begun() -> None:
                started.set()
                unready.remove(listener)
                if not unready:
                    on_ready(url)
                await self._house.end_accepting(listener.fd)
                self._house.begin_stop()

            return begun

        loop = asyncio.get_running_loop()
        listeners = []
        for listener in (*mains, *local):
            config = HouseConfig(self._house, listener, local=listener in local)
            app = self._app if listener is mains[0] else started_elsewhere(self._app, started)
            serving = serve(app, config, shutdown_trigger=trigger(listener), mode="asgi")
            listeners.append(loop.create_task(serving))
        try:
            await self._house.keep(listeners)
        finally:
            if path is not None:
                with suppress(FileNotFoundError):
                    os.unlink(path)

    def _context(self, settings: ServerSettings) -> SSLContext | None:
        if settings.tls_cert is None:
            return None
        try:
            self._tls = Tls(settings.tls_cert, settings.tls_key)
        except TlsProblem as problem:
            raise ListenProblem(str(problem)) from None
        return self._tls.context


class HouseConfig(Config):
    """hypercorn's settings for one listener, and the way from a connection to its house."""

    def __init__(self, house: House, listener: Listener, *, local: bool) -> None:
        settings = house.settings
        self.house = house
        #: Told by the listener alone: another Unix socket is no operator's.
        self.local = local
        self.bind = [f"fd://{listener.fd}"]
        self.backlog = BACKLOG
        self.errorlog = log
        self.accesslog = None
        self.include_server_header = False
        self.graceful_timeout = settings.graceful_ms / 1000 * 0.6
        self.h11_max_incomplete_size = HEAD_BYTES_MAX
        self.keep_alive_timeout = settings.keep_alive_ms / 1000
        self.websocket_ping_interval = None  # hypercorn's takes a task; see websocket.py
        self.ping_s = settings.ping_ms / 1000
        self.websocket_max_message_size = 1024 * 1024
        #: None: clear text. Its files were tried before anything listened.
        self.tls = listener.tls
        self._date = (0, b"")

    @property
    def ssl_enabled(self) -> bool:
        """Never hypercorn's business: it would shake hands before a connection is counted."""
        return False

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


class Connection(TCPServer):
    """One client, from accept to close, under a deadline at every stage but its call's own."""

    config: HouseConfig
    protocol: Protocol  # type: ignore[assignment]
    #: The peer's, '' on a Unix socket.
    address: str

    async def run(self) -> None:
        """Serve until either side ends it. One connection too many is cut at once, unanswered."""
        house, local = self.config.house, self.config.local
        self.line = Line(self.writer, house.settings)
        sock = self.writer.get_extra_info("socket")
        try:
            client = _written_plain(parse_socket_addr(sock.family, sock.getpeername()))
            server = _written_plain(parse_socket_addr(sock.family, sock.getsockname()))
        except OSError:
            self.line.abort()
            return
        self.address = address = client[0] if client else ""
        if not house.enter(self.line, address, local=local):
            self.line.abort()
            return
        tls = self.config.tls
        tasks = _Tasks(self)
        try:
            if tls is not None:
                head_ms = house.settings.head_deadline_ms
                await shake_hands(self.reader, self.writer, tls, head_ms / 1000)
                self.line.stay(ACCEPT, head_ms)
            async with tasks:
                state = ConnectionState(self.state)
                about = (self.context, tasks, state, tls is not None, client, server)
                self.protocol = Protocol(
                    self.reader, self.app, self.config, *about, self.protocol_send
                )
                await self._read_data()
        except OSError:
            pass
        except asyncio.CancelledError:
            # Swallowed: asyncio's streams log a traceback for a connection that ends cancelled.
            self.line.close()
        finally:
            try:
                await self.line.closed()
            finally:
                house.leave(self.line)

    async def protocol_send(self, event: Event) -> None:
        """What the protocol has for the client, or says of itself."""
        if isinstance(event, RawData):
            await self._send(event.data)
        elif isinstance(event, Closed):
            self.protocol.over = True
            if self.protocol.unread:
                self.line.linger()
            else:
                self.line.close()
        elif isinstance(event, Updated):
            if not event.idle:
                self.line.works()
            elif self.config.house.stopping or self.reader.at_eof():
                self.line.close()
            else:
                self.line.rests()

    async def _send(self, message: bytes) -> None:
        if not await self.line.send(message):
            await self.protocol.handle(Closed())

    async def _read_data(self) -> None:
        house, thrown_away = self.config.house, 0
        while not self.reader.at_eof():
            try:
                received = await self.reader.read(MAX_RECV)
            except (OSError, SSLError):
                break
            if self.protocol.over:
                thrown_away += len(received)
                if self.line.stage != LINGER or thrown_away > LINGER_BYTES:
                    break
            elif received:
                self.line.receives()
                await house.turn(self.line, self.address, len(received))
                await self.protocol.handle(RawData(received))
                house.judge(self.line)
        await self.protocol.handle(Closed())


def _written_plain(place: tuple[str, int] | None) -> tuple[str, int] | None:
    return None if place is None else (plain(place[0]), place[1])


class _Tasks(TaskGroup):
    """The tasks of one connection; a call gets an Inbox and the marks of its listener."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.loop)
        self._connection = connection

    async def spawn_app(self, app: Any, config: Any, scope: Any, send: Any) -> Any:
        """Start the application on one call."""
        inbox = Inbox(self._connection.protocol.send_continue)
        scope["extensions"][ON_GONE] = inbox.gone.when
        scope["extensions"][CUT] = self._connection.line.abort
        scope["extensions"][HELD] = self._connection.line.held_s
        if self._connection.config.local:
            scope["extensions"][LOCAL] = True
        self.spawn(_handle, app, config, scope, inbox.get, send, None, None)
        return inbox.put

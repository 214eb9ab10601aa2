"""Serving by hypercorn, with the bounds that hypercorn has no setting for.

The only file that reaches into hypercorn: it puts its own connection class in the place of
`hypercorn.asyncio.run.TCPServer`. Every point has a canary test on asyncio and uvloop, so that an
upgrade of the library that breaks one is seen. It knows no route and no noun.
"""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from ssl import SSLContext, SSLError
from typing import Any
from wsgiref.handlers import format_date_time

import h11
import hypercorn.asyncio.run
from hypercorn.asyncio import serve
from hypercorn.asyncio.task_group import TaskGroup, _handle
from hypercorn.asyncio.tcp_server import MAX_RECV, TCPServer
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol import events as streams
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.protocol.ws_stream import WSStream
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from feltd.api.early import (
    HEAD_BYTES_MAX,
    closing,
    early_answer,
    is_websocket,
    late_head,
    opens_websocket,
)
from feltd.api.house import LINGER, PIECE_BYTES, House, Line, log, overhear, started_elsewhere
from feltd.api.inbox import Inbox
from feltd.api.listen import BACKLOG, Listener, ServerSettings, listen, listen_local
from feltd.api.request import CUT, LOCAL, ON_GONE

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
        self._house = House(settings, stop=stop, late_head=late_head(), hard_exit=hard_exit)

    @property
    def connections(self) -> int:
        """Gauge: open connections, those of the operator's own socket included."""
        return self._house.connections

    async def serve(self, on_ready: Callable[[str], None]) -> None:
        """Listen, call `on_ready(url)` once connections are taken, return after the stop.

        Raises ListenProblem before anything listens. Within graceful_ms of the stop everything is
        closed: idle connections at once, calls at work when they are answered or by force.
        """
        settings = self._house.settings
        main = listen(settings)
        path = settings.local_path
        local = listen_local(path) if path is not None else None
        vars(hypercorn.asyncio.run)["TCPServer"] = Connection
        started = asyncio.Event()

        async def main_trigger() -> None:
            started.set()
            if local is None:
                on_ready(main.url)
            await self._house.end_accepting(main.fd)
            self._house.begin_stop()

        async def local_trigger() -> None:
            on_ready(main.url)
            await self._house.end_accepting(None if local is None else local.fd)

        loop = asyncio.get_running_loop()
        config = HouseConfig(self._house, main, local=False)
        serving = serve(self._app, config, shutdown_trigger=main_trigger, mode="asgi")
        listeners = [loop.create_task(serving)]
        if local is not None:
            config = HouseConfig(self._house, local, local=True)
            app = started_elsewhere(self._app, started)
            serving = serve(app, config, shutdown_trigger=local_trigger, mode="asgi")
            listeners.append(loop.create_task(serving))
        try:
            await self._house.keep(listeners)
        finally:
            if path is not None:
                with suppress(FileNotFoundError):
                    os.unlink(path)


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
        self.ssl_handshake_timeout = settings.head_deadline_ms / 1000
        self.websocket_ping_interval = 20
        self.websocket_max_message_size = 1024 * 1024
        self._tls = listener.tls
        self._date = (0, b"")

    @property
    def ssl_enabled(self) -> bool:
        """Whether this listener speaks TLS."""
        return self._tls is not None

    def create_ssl_context(self) -> SSLContext | None:
        """Ours: its files were tried before anything listened."""
        return self._tls

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
    protocol: "Protocol"  # type: ignore[assignment]

    async def run(self) -> None:
        """Serve until either side ends it. One connection too many is cut at once, unanswered."""
        house, local = self.config.house, self.config.local
        self.line = Line(self.writer, house.settings)
        sock = self.writer.get_extra_info("socket")
        try:
            client = parse_socket_addr(sock.family, sock.getpeername())
            server = parse_socket_addr(sock.family, sock.getsockname())
        except OSError:
            self.line.abort()
            return
        address = client[0] if client else ""
        if not house.enter(self.line, address, local=local):
            self.line.abort()
            return
        tls = self.writer.get_extra_info("ssl_object") is not None
        tasks = _Tasks(self)
        try:
            async with tasks:
                about = (self.context, tasks, ConnectionState(self.state), tls, client, server)
                self.protocol = Protocol(
                    self.reader, self.app, self.config, *about, self.protocol_send
                )
                await self._read_data()
                tasks.end_pings()
        except OSError:
            pass
        except asyncio.CancelledError:
            # Swallowed: asyncio's streams log a traceback for a connection that ends cancelled.
            self.line.close()
        finally:
            try:
                await self.line.closed()
            finally:
                house.leave(self.line, address, local=local)

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
        thrown_away = 0
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
                await self.protocol.handle(RawData(received))
        await self.protocol.handle(Closed())


class Protocol(H11Protocol):
    """HTTP/1.1 and nothing else; an answer of known length leaves in one piece."""

    def __init__(self, reader: asyncio.StreamReader, *args: Any) -> None:
        super().__init__(*args)
        self.reader = reader
        #: The connection is to be closed: nothing that follows on it is looked at.
        self.over = False
        self._held: list[bytes] | None = None

    @property
    def unread(self) -> bool:
        """Whether the client may still be sending what nobody will read."""
        return self.connection.their_state in (h11.SEND_BODY, h11.ERROR)

    async def handle(self, event: Event) -> None:
        """Bytes from the client, or its end."""
        if isinstance(event, Closed):
            self.over = True
            await self.can_read.set()
        elif self.connection.their_state is h11.MUST_CLOSE:
            return  # sent after its own "Connection: close": nobody will look at it
        await super().handle(event)

    async def send_continue(self) -> None:
        """Tell a client that waits for it to send its body: only now somebody wants it."""
        if not self.over and self.connection.they_are_waiting_for_100_continue:
            await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))

    async def _handle_events(self) -> None:
        while not self.over and self.connection.their_state is not h11.MUST_CLOSE:
            try:
                event = self.connection.next_event()
            except h11.RemoteProtocolError as error:
                await self._refuse(error.error_status_hint)
                return
            if isinstance(event, h11.Request):
                await self.send(Updated(idle=False))
                if event.http_version != b"1.1":
                    await self._refuse(505)
                    return
                await self._create_stream(event)
            elif event is h11.PAUSED:
                await self.can_read.clear()
                if not await overhear(self.reader, self.can_read.wait, self._hear):
                    await self.handle(Closed())
            elif event is h11.NEED_DATA or type(event) is h11.ConnectionClosed or not self.stream:
                return
            elif isinstance(event, h11.Data):
                await self.stream.handle(streams.Body(STREAM_ID, bytes(event.data)))
            elif isinstance(event, h11.EndOfMessage):
                await self.stream.handle(streams.EndBody(STREAM_ID))
            elif isinstance(event, streams.Data):
                await self.stream.handle(event)
                if isinstance(self.stream, WSStream) and self.stream.closed:
                    # It spoke before it was let in: refused by hypercorn, to be ended by us.
                    await self.send(Closed())

    def _hear(self, ahead: bytes) -> None:
        if ahead:
            self.connection.receive_data(ahead)

    async def _refuse(self, status_code: int) -> None:
        """Answer what is no request, unless an answer has begun, and end the connection."""
        if self.connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._send_error_response(status_code)
        await self.send(Closed())

    async def _create_stream(self, request: h11.Request) -> None:
        headers = list(request.headers)
        if is_websocket(request.method, headers):
            if not opens_websocket(headers):
                # hypercorn would answer it and never end the connection, or fail to read it.
                await self._refuse(400)
                return
            # Compression over WebSocket lets 62 kB become 61 MB: it is never negotiated.
            kept = [pair for pair in headers if pair[0] != b"sec-websocket-extensions"]
            await super()._create_stream(
                h11.Request(method=request.method, target=request.target, headers=kept)
            )
            return
        ours = (self.app, self.config, self.context, self.task_group)
        theirs = (self.ssl, self.client, self.server)
        self.stream = HTTPStream(*ours, *theirs, self.stream_send, STREAM_ID)
        await self.stream.handle(
            streams.Request(
                stream_id=STREAM_ID,
                headers=headers,
                http_version="1.1",
                method=request.method.decode("ascii"),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1

    async def stream_send(self, event: streams.Event) -> None:
        """What a stream answers."""
        if isinstance(event, streams.Response) and self.unread:
            # Nobody waits for the rest of the body, so nothing can follow on this connection.
            event = streams.Response(STREAM_ID, closing(event.headers), event.status_code)
        if isinstance(event, streams.Response) and b"content-length" in dict(event.headers):
            self._held = []
        elif isinstance(event, streams.StreamClosed):
            await self._let_go()
        await super().stream_send(event)
        large = isinstance(event, streams.Body) and len(event.data) > PIECE_BYTES
        if large or isinstance(event, streams.EndBody):
            await self._let_go()

    async def _let_go(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            await self.send(RawData(b"".join(held)))

    async def _send_h11_event(self, event: Any) -> None:
        try:
            message = self.connection.send(event)
        except h11.LocalProtocolError:
            if self.connection.their_state is not h11.ERROR and not self.over:
                raise
            return
        if self._held is not None:
            self._held.append(message)
        elif message:
            await self.send(RawData(message))

    async def _send_error_response(self, status_code: int) -> None:
        status, body, headers = early_answer(status_code)
        headers = [*closing(headers), *self.config.response_headers("h11")]
        await self._send_h11_event(h11.Response(status_code=status, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


class _Tasks(TaskGroup):
    """The tasks of one connection; a call gets an Inbox and the marks of its listener."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.loop)
        self._connection = connection
        self._pings: list[asyncio.Task[None]] = []

    def spawn(self, func: Any, *args: Any) -> None:
        """Start the application, or the pings of a WebSocket, which nothing else would end."""
        task = self._task_group.create_task(func(*args))
        if func is not _handle:
            self._pings.append(task)

    def end_pings(self) -> None:
        """The client is gone: nobody is left to be pinged."""
        for task in self._pings:
            task.cancel()

    async def spawn_app(self, app: Any, config: Any, scope: Any, send: Any) -> Any:
        """Start the application on one call."""
        inbox = Inbox(self._connection.protocol.send_continue)
        scope["extensions"][ON_GONE] = inbox.gone.when
        scope["extensions"][CUT] = self._connection.line.abort
        if self._connection.config.local:
            scope["extensions"][LOCAL] = True
        self.spawn(_handle, app, config, scope, inbox.get, send, None, None)
        return inbox.put

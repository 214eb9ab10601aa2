"""One client's connection: hypercorn's own, with the bounds that hypercorn has no setting for.

Together with server.py the only code that reaches into hypercorn; every point has a canary test on
asyncio and uvloop, so that an upgrade of the library that breaks one is seen. HTTP/1.1 only, a
deadline at every stage but the call's own, and no byte held for a client that takes nothing.
"""

import asyncio
import os
from ssl import SSLError
from typing import TYPE_CHECKING, Any

import h11
from hypercorn.asyncio.task_group import TaskGroup, _handle
from hypercorn.asyncio.tcp_server import MAX_RECV, TCPServer
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol import events as streams
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from feltd.api import problems
from feltd.api.inbox import Inbox
from feltd.api.request import LOCAL, ON_GONE
from feltd.errors import Refused

if TYPE_CHECKING:
    from feltd.api.server import HouseConfig

#: hypercorn must not be the first to refuse a long head: the gate's answer says what was too long.
HEAD_BYTES_MAX = 32 * 1024
#: Written at once; a client has the drain deadline for each such piece, so a slow line suffices.
PIECE_BYTES = 64 * 1024
#: Below this nothing needs draining: it is asyncio's own low-water mark.
UNSENT_BYTES = 16 * 1024
#: After a refused body: how long and how much is read and thrown away, so that the answer arrives
#: before the reset that closing an unread connection sends.
LINGER_S = 2.0
LINGER_BYTES = 1024 * 1024

_NEVER = float("inf")
ACCEPT, HEAD, IDLE, BUSY, CLOSING, LINGER = range(6)


class Connection(TCPServer):
    """One client, from accept to close, under a deadline at every stage but its own call's."""

    config: "HouseConfig"
    protocol: "Protocol"  # type: ignore[assignment]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.house = self.config.house
        self.stage = ACCEPT
        self.deadline_s = self.loop.time() + self.house.settings.head_deadline_ms / 1000
        self._drain_s = self.house.settings.drain_deadline_ms / 1000

    async def run(self) -> None:
        """Serve until either side ends it. Too many connections: cut at once, unanswered."""
        sock = self.writer.get_extra_info("socket")
        local = self.config.local
        try:
            client = parse_socket_addr(sock.family, sock.getpeername())
            server = parse_socket_addr(sock.family, sock.getsockname())
        except OSError:
            self.writer.transport.abort()
            return
        address = client[0] if client else ""
        if not self.house.enter(self, address, local=local):
            self.writer.transport.abort()
            return
        tls = self.writer.get_extra_info("ssl_object") is not None
        try:
            async with _Tasks(self) as tasks:
                self.protocol = Protocol(
                    self.app,
                    self.config,
                    self.context,
                    tasks,
                    ConnectionState(self.state),
                    tls,
                    client,
                    server,
                    self.protocol_send,
                )
                await self._read_data()
        except OSError:
            pass
        except asyncio.CancelledError:
            self.writer.transport.abort()
            raise
        finally:
            try:
                await self._close()
            finally:
                self.house.leave(self, address, local=local)

    async def protocol_send(self, event: Event) -> None:
        """What the protocol has for the client, or says of itself."""
        if isinstance(event, RawData):
            await self._send(event.data)
        elif isinstance(event, Closed):
            self.protocol.over = True
            if self.protocol.unread:
                self._begin_linger()
            else:
                self.begin_close()
        elif isinstance(event, Updated):
            if not event.idle:
                self.stage, self.deadline_s = BUSY, _NEVER
            elif self.house.stopping or self.reader.at_eof():
                self.begin_close()
            elif self.stage == BUSY:
                self.stage = IDLE
                self.deadline_s = self.loop.time() + self.config.keep_alive_timeout

    def begin_close(self) -> None:
        """Close once everything written is sent, by force when it is not taken in time."""
        self._stay(CLOSING, self._drain_s)
        self.writer.transport.close()

    def expire(self) -> None:
        """The stage lasted too long."""
        if self.stage == HEAD:
            self.writer.write(_LATE_HEAD)
        if self.stage in (ACCEPT, HEAD, IDLE):
            self.begin_close()
        else:
            self.writer.transport.abort()

    def _stay(self, stage: int, at_most_s: float) -> None:
        self.stage, self.deadline_s = stage, self.loop.time() + at_most_s

    def _begin_linger(self) -> None:
        self._stay(LINGER, LINGER_S)
        try:
            self.writer.write_eof()
        except (NotImplementedError, OSError, RuntimeError):
            self.begin_close()  # TLS has no half-close

    async def _send(self, message: bytes) -> None:
        transport = self.writer.transport
        for start in range(0, len(message), PIECE_BYTES):
            try:
                if transport.is_closing():
                    raise ConnectionResetError
                piece = message if len(message) <= PIECE_BYTES else message[start:][:PIECE_BYTES]
                self.writer.write(piece)
                if transport.get_write_buffer_size() > UNSENT_BYTES:
                    async with asyncio.timeout(self._drain_s):
                        await self.writer.drain()
            except TimeoutError:
                transport.abort()
                await self.protocol.handle(Closed())
                return
            except (ConnectionError, RuntimeError):
                await self.protocol.handle(Closed())
                return

    async def _read_data(self) -> None:
        thrown_away = 0
        while not self.reader.at_eof():
            try:
                received = await self.reader.read(MAX_RECV)
            except (OSError, SSLError):
                break
            if self.protocol.over:
                thrown_away += len(received)
                if self.stage != LINGER or thrown_away > LINGER_BYTES:
                    break
            elif received:
                if self.stage in (ACCEPT, IDLE):
                    first_s = self.house.settings.head_deadline_ms / 1000
                    if self.stage == IDLE:
                        self.deadline_s = self.loop.time() + first_s
                    self.stage = HEAD
                await self.protocol.handle(RawData(received))
        await self.protocol.handle(Closed())

    async def _close(self) -> None:
        if self.stage not in (CLOSING, LINGER):
            self.begin_close()
        self.writer.transport.close()
        try:
            async with asyncio.timeout(self._drain_s):
                await self.writer.wait_closed()
        except (OSError, RuntimeError, TimeoutError):
            self.writer.transport.abort()


class Protocol(H11Protocol):
    """HTTP/1.1 and nothing else; an answer of known length leaves in one piece."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
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
        await super().handle(event)

    async def send_continue(self) -> None:
        """Tell a client that waits for it to send its body: only now somebody wants it."""
        if not self.over and self.connection.they_are_waiting_for_100_continue:
            await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))

    async def _handle_events(self) -> None:
        while not self.over:
            try:
                event = self.connection.next_event()
            except h11.RemoteProtocolError as error:
                if self.connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    await self._send_error_response(error.error_status_hint)
                await self.send(Closed())
                return
            if isinstance(event, h11.Request):
                await self.send(Updated(idle=False))
                if event.http_version != b"1.1":
                    await self._send_error_response(505)
                    await self.send(Closed())
                    return
                await self._create_stream(event)
            elif event is h11.PAUSED:
                await self.can_read.clear()
                await self.can_read.wait()
            elif self.stream is None or event is h11.NEED_DATA or _is_end(event):
                return
            elif isinstance(event, h11.Data):
                await self.stream.handle(streams.Body(STREAM_ID, bytes(event.data)))
            elif isinstance(event, h11.EndOfMessage):
                await self.stream.handle(streams.EndBody(STREAM_ID))
            elif isinstance(event, streams.Data):
                await self.stream.handle(event)

    async def _create_stream(self, request: h11.Request) -> None:
        headers = list(request.headers)
        if any(name == b"upgrade" for name, _ in headers):
            # Compression over WebSocket lets 62 kB become 61 MB: it is never negotiated.
            kept = [pair for pair in headers if pair[0] != b"sec-websocket-extensions"]
            await super()._create_stream(
                h11.Request(method=request.method, target=request.target, headers=kept)
            )
            return
        self.stream = HTTPStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
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
        if isinstance(event, streams.Response) and _says_length(event):
            self._held = []
            await super().stream_send(event)
        elif isinstance(event, streams.Body):
            await super().stream_send(event)
            if self._held is not None and len(event.data) > PIECE_BYTES:
                await self._let_go()
        elif isinstance(event, streams.EndBody | streams.StreamClosed):
            if isinstance(event, streams.EndBody):
                await super().stream_send(event)
            await self._let_go()
            if isinstance(event, streams.StreamClosed):
                await super().stream_send(event)
        else:
            await super().stream_send(event)

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
        status, body, headers = _early_answer(status_code)
        headers = [*headers, (b"connection", b"close"), *self.config.response_headers("h11")]
        await self._send_h11_event(h11.Response(status_code=status, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


class _Tasks(TaskGroup):
    """The tasks of one connection; a call gets an Inbox and the marks of its listener."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.loop)
        self._connection = connection

    async def spawn_app(self, app: Any, config: Any, scope: Any, send: Any) -> Any:
        """Start the application on one call."""
        inbox = Inbox(self._connection.protocol.send_continue)
        scope["extensions"][ON_GONE] = inbox.gone.when
        if self._connection.config.local:
            scope["extensions"][LOCAL] = True
        self.spawn(_handle, app, config, scope, inbox.get, send, None, None)
        return inbox.put


def _is_end(event: object) -> bool:
    return isinstance(event, h11.ConnectionClosed)


def _says_length(answer: streams.Response) -> bool:
    return any(name == b"content-length" for name, _ in answer.headers)


def _early_answer(status_code: int) -> tuple[int, bytes, problems.Headers]:
    """The answer to a request that never became one: hypercorn's status in feltd's words."""
    if status_code == 505:
        refused = Refused("PROTOCOL_UNSUPPORTED", "this daemon speaks HTTP/1.1 only")
    elif status_code == 431:
        refused = Refused("REQUEST_TOO_LARGE", f"the head is longer than {HEAD_BYTES_MAX} bytes")
    elif status_code == 408:
        refused = Refused("REQUEST_TIMEOUT", "the head did not arrive in time")
    else:
        refused = Refused("REQUEST_MALFORMED", "this is not a request of HTTP/1.1")
    name = os.urandom(6).hex()
    status, body, headers = problems.render(refused, name, status=505 if status_code == 505 else 0)
    return status, body, [*headers, (b"x-request-id", name.encode()), (b"feltd-protocol", b"1")]


def _late_head() -> bytes:
    status, body, headers = _early_answer(408)
    lines = [b"HTTP/1.1 %d Request Timeout" % status, b"connection: close"]
    lines += [name + b": " + text for name, text in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


_LATE_HEAD = _late_head()

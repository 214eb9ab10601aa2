"""HTTP/1.1 as one connection speaks it: hypercorn's protocol with an end to everything it begins.

Reaches into hypercorn as server.py does; it knows no route, no noun and no socket.
"""

import asyncio
from typing import Any, cast

import h11
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol import events as streams
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol, H11WSConnection
from hypercorn.protocol.http_stream import HTTPStream

from feltd.api.early import closing, early_answer, is_websocket, opens_websocket
from feltd.api.house import PIECE_BYTES, overhear
from feltd.api.websocket import Socket


class Protocol(H11Protocol):
    """HTTP/1.1 and nothing else; an answer of known length leaves in one piece."""

    config: Any  # a HouseConfig of server.py

    def __init__(self, reader: asyncio.StreamReader, *args: Any) -> None:
        super().__init__(*args)
        self.reader = reader
        #: The connection is to be closed: nothing that follows on it is looked at.
        self.over = False
        self._held: list[bytes] | None = None
        self._socket_cut = False

    @property
    def unread(self) -> bool:
        """Whether the client may still be sending what nobody will read."""
        return self._socket_cut or self.connection.their_state in (h11.SEND_BODY, h11.ERROR)

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
                if isinstance(self.stream, Socket) and self.stream.closed:
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
        wants_socket = is_websocket(request.method, headers)
        if wants_socket and not opens_websocket(headers):
            # hypercorn would answer it and never end the connection, or fail to read it.
            await self._refuse(400)
            return
        ours = (self.app, self.config, self.context, self.task_group)
        theirs = (self.ssl, self.client, self.server)
        if wants_socket:
            # Compression over WebSocket lets 62 kB become 61 MB: it is never negotiated.
            headers = [pair for pair in headers if pair[0] != b"sec-websocket-extensions"]
            self.stream = Socket(*ours, *theirs, self.stream_send, STREAM_ID)
            self.connection = H11WSConnection(cast(h11.Connection, self.connection))
        else:
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
            if isinstance(self.stream, Socket) and self.stream.closes_first:
                # Closing at once what the client still sends to would tear the close frame away.
                self._socket_cut = not self.config.house.stop.is_set()
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

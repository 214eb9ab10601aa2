"""A WebSocket as one connection speaks it: hypercorn's stream with an end to everything it begins.

Reaches into hypercorn as server.py does; it knows no route, no noun and no socket. Frames leave
one after another, whole; what a client sends is bounded before it is one; a client that is silent,
not even answering pings, is closed.
"""

import asyncio
from typing import Any

from hypercorn.protocol import events as streams
from hypercorn.protocol.ws_stream import ASGIWebsocketState, WSStream
from wsproto.connection import ConnectionState
from wsproto.events import CloseConnection, Event, Message, Ping

#: The codes of our own that this layer closes with.
SILENT = 4408
TOO_LARGE = 4413
#: A client may be silent for so many pings.
SILENT_PINGS = 3
#: One message in more pieces than this is nobody's honest message: each costs as much as a frame.
PIECES_MAX = 1_024
#: In an accept: the client is not known yet, and its first message has to say who it is.
STRANGER = "feltd.stranger"
#: What that message may hold: strangers are not given memory.
FIRST_BYTES_MAX = 4_096
#: So many frames are looked at before the loop looks at others.
FRAMES_A_TURN = 64


class Socket(WSStream):
    """One WebSocket, from its handshake to its close."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        #: It was ended by us: the client may still be sending what nobody will read.
        self.closes_first = False
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()
        self._pieces: list[bytes] = []
        self._message_bytes = 0
        self._message_bytes_max: int = self.config.websocket_max_message_size
        self._ping_s: float = self.config.ping_s  # type: ignore[attr-defined]
        self._heard_s = self._loop.time()
        #: When the timer was to come.
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    async def handle(self, event: streams.Event) -> None:
        """What the client sends, or that it is gone."""
        if isinstance(event, streams.StreamClosed) and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await super().handle(event)

    async def app_send(self, message: Any) -> None:
        """What the application says."""
        if message is not None and message["type"] == "websocket.close":
            self.closes_first = True
        await super().app_send(message)

    async def _accept(self, message: Any) -> None:
        if message.get(STRANGER):
            self._message_bytes_max = FIRST_BYTES_MAX
        await super()._accept(message)
        self._heard_s = self._loop.time()
        self._wait(self._ping_s)

    async def _handle_events(self) -> None:
        for number, event in enumerate(self.connection.events(), 1):
            self._heard_s = self._loop.time()
            if number % FRAMES_A_TURN == 0:
                await asyncio.sleep(0)
            if self.closed or self.closes_first:
                return
            if isinstance(event, Message):
                await self._take(event)
            elif isinstance(event, Ping):
                await self._send_wsproto_event(event.response())
            elif isinstance(event, CloseConnection):
                await self._end(event)

    async def _take(self, event: Message[Any]) -> None:
        """One piece of a message; the application gets it whole, as bytes."""
        data = event.data
        piece = data.encode() if isinstance(data, str) else bytes(data)
        self._pieces.append(piece)
        self._message_bytes += len(piece)
        if self._message_bytes > self._message_bytes_max:
            await self._refuse(TOO_LARGE, f"a frame is at most {self._message_bytes_max} bytes")
        elif len(self._pieces) > PIECES_MAX:
            await self._refuse(TOO_LARGE, f"a frame comes in at most {PIECES_MAX} pieces")
        elif event.message_finished:
            pieces, self._pieces, self._message_bytes = self._pieces, [], 0
            self._message_bytes_max = self.config.websocket_max_message_size
            whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            assert self.app_put is not None
            await self.app_put({"type": "websocket.receive", "bytes": whole, "text": None})

    async def _end(self, event: CloseConnection) -> None:
        """The client ends it, or sent what is no WebSocket: then it is told so."""
        self.closes_first = self.connection.state is not ConnectionState.REMOTE_CLOSING
        await self._send_wsproto_event(CloseConnection(code=event.code, reason=event.reason))
        await self.send(streams.StreamClosed(self.stream_id))

    async def _refuse(self, code: int, reason: str) -> None:
        if self.closed:
            return
        self.closes_first = True
        self.state = ASGIWebsocketState.CLOSED
        self._pieces.clear()
        await self._send_wsproto_event(CloseConnection(code=code, reason=reason))
        await self.send(streams.StreamClosed(self.stream_id))

    async def _send_wsproto_event(self, event: Event) -> None:
        # A large frame leaves in pieces: nothing may come between them, no ping either.
        async with self._sending:
            await super()._send_wsproto_event(event)

    def _beat(self) -> None:
        """Ping, or end what has been silent. A timer, no task: most channels are idle for hours."""
        now_s = self._loop.time()
        # A process that was stopped, or late, could hear nobody: that time is not the client's.
        self._heard_s = min(now_s, self._heard_s + max(0.0, now_s - self._due_s))
        silent_s = now_s - self._heard_s
        left_s = SILENT_PINGS * self._ping_s - silent_s
        if left_s <= self._ping_s / 50:  # a timer may come a little early
            seconds = round(SILENT_PINGS * self._ping_s)
            self._task = self._loop.create_task(self._refuse(SILENT, f"silent for {seconds} s"))
            return
        if not self._sending.locked():
            self._task = self._loop.create_task(self._send_wsproto_event(Ping()))
        self._wait(min(self._ping_s, left_s))

    def _wait(self, seconds: float) -> None:
        self._due_s = self._loop.time() + seconds
        self._timer = self._loop.call_later(seconds, self._beat)

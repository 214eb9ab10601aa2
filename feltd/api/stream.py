"""Streams of events to clients that listen on and on (server-sent events), for any numbered feed.

A stream holds no permit, one task (its call's own) and at most one page in memory: it reads on
only when its client has taken what was sent, so a slow one falls behind in the feed, not in here,
and one that takes nothing is cut by the line. It ends at once when the daemon stops or the key
ends; the number in each `id:` is where the client goes on.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NamedTuple, Protocol

from feltd.api import problems, wire
from feltd.api.request import CUT, Receive, Request, Scope, Send
from feltd.errors import Refused

MEDIA_TYPE = "text/event-stream"

#: Open at once, and of one key or one person: one costs 21 kB, and nobody shall take every seat.
STREAMS_MAX = 512
STREAMS_OF_KEY_MAX = 64
#: Before a proxy thinks that nobody is there; most wait for 60 s.
BEAT_S = 15.0
#: How often keys are looked at: one that ran out ends its streams within this and CUT_S.
LOOK_S = 0.4
#: An end that its client does not take within this is cut.
CUT_S = 0.4
#: Under load a stream reads once in so long and finds many; what comes after rest is read at once.
#: With each stream open it is longer: all together they send some 2,500 pieces a second at most.
PAUSE_S = 0.01
PAUSE_A_STREAM_S = 0.0004
#: When a browser comes back after an end, drawn between the two so that they do not come at once.
RETRY_MS = (1_000, 5_000)

_HEADERS = (
    (b"content-type", MEDIA_TYPE.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)


class Piece(NamedTuple):
    """What a source has next: `frames` to send, where the reader stands then, if more waits."""

    frames: bytes
    after: int
    more: bool


class Source(Protocol):
    """A numbered feed, as one reader sees it."""

    @property
    def topics(self) -> tuple[tuple[str, str], ...]:
        """What a commit tells when there may be more."""

    async def read(self, after: int | None) -> Piece:
        """What comes behind `after` (None: from the oldest kept). Refuses what the feed refuses."""


def frame(number: int, answer: object) -> bytes:
    """One event: its number and its JSON."""
    return b"id: %d\ndata: %s\n\n" % (number, wire.encode(answer))


def wanted(request: Request) -> bool:
    """Whether the client asks for a stream: by Accept, where it is named before JSON."""
    accepted = (request.header(b"accept") or "").lower()
    named = [part.split(";")[0].strip() for part in accepted.split(",")]
    places = [named.index(one) for one in (MEDIA_TYPE, "application/json") if one in named]
    first = bool(places) and named[min(places)] == MEDIA_TYPE
    return first and request.scope["method"] == "GET"


def resumed(request: Request, after: int | None) -> int | None:
    """Where a stream goes on: Last-Event-ID, else `after`. Refuses REQUEST_INVALID."""
    text = request.header(b"last-event-id")
    if not text:
        return after
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise wire.invalid("REQUEST_INVALID", "/Last-Event-ID", "is no number of an event")
    return int(text)


class Streams:
    """Every open stream of one daemon. Used on the event loop alone."""

    def __init__(self, stop: asyncio.Event) -> None:
        """`stop` is the daemon's: it ends every stream at once."""
        self._stop = stop
        self._open: set[Stream] = set()
        #: Open ones by whose seats they take.
        self._seats: Counter[str] = Counter()
        self._tasks: list[asyncio.Task[None]] = []
        self._look = asyncio.Event()

    @property
    def open(self) -> int:
        """Gauge: streams open now."""
        return len(self._open)

    def enter(self, stream: "Stream") -> None:
        """Take a seat. Refuses SERVICE_OVERLOADED where there is none, or the daemon stops."""
        if self._stop.is_set():
            raise stopping()
        seat = stream.seat
        crowded = seat != "" and self._seats[seat] >= STREAMS_OF_KEY_MAX
        if crowded or len(self._open) >= STREAMS_MAX:
            whose = "of yours " if crowded else ""
            raise Refused(
                "SERVICE_OVERLOADED",
                f"no more streams {whose}can be opened; ask with wait_ms instead",
                committed=False,
                retry_after_s=RETRY_MS[1] // 1_000,
            )
        self._open.add(stream)
        self._seats[seat] += 1
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._end_all()), loop.create_task(self._keep())]

    def leave(self, stream: "Stream") -> None:
        """Give the seat back; harmless for one that has none."""
        if stream not in self._open:
            return
        self._open.discard(stream)
        self._seats[stream.seat] -= 1
        if not self._seats[stream.seat]:
            del self._seats[stream.seat]
        if not self._open:
            for task in self._tasks:
                task.cancel()
            self._tasks = []

    def look(self) -> None:
        """A key changed: look at all of them now."""
        self._look.set()

    async def _end_all(self) -> None:
        await self._stop.wait()
        for stream in tuple(self._open):
            stream.end(stopping())

    async def _keep(self) -> None:
        """Test each stream's key as the door does, and let the quiet ones be heard."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._look.wait()
            self._look.clear()
            now_s = asyncio.get_running_loop().time()
            for stream in tuple(self._open):
                await stream.look()
                if stream.sent_at_s + BEAT_S <= now_s:
                    stream.beat()


class Stream:
    """The answer to one call, for as long as both sides want it."""

    def __init__(self, request: Request, source: Source, after: int | None) -> None:
        self._request = request
        self._source = source
        self._after = after
        self._streams: Streams = request.app.streams
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._over: Refused | None = None
        self._gone = False
        self._news = False
        self._beat = False
        self._read_at_s = 0.0
        self.key_id: str = request.caller.key_id
        #: A person may have many sessions, and takes the seats of one key with all of them.
        known = request.caller.session_id is not None
        self.seat: str = str(request.caller.subject) if known else self.key_id
        self.sent_at_s = self._loop.time()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what there is and what comes. Nothing is begun where the first read is refused."""
        self._streams.enter(self)
        # Hours of listening are no time to an answer: they are counted under a name of their own.
        scope["feltd.operation"] += "_stream"
        try:
            with ExitStack() as watch:
                self._watch(watch)
                self._request.gone.when(self._client_gone)
                piece = await self._read()
                await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS]})
                opening = b"retry: %d\n\n" % random.randint(*RETRY_MS)
                await self._send(send, opening + piece.frames)
                await self._go_on(send, piece)
                if not self._gone:
                    await send({"type": "http.response.body", "body": self._farewell()})
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._streams.leave(self)
            self._request.finish()

    def wake(self) -> None:
        """There may be more."""
        if not self._news:
            self._news = True
            self._release_in_time()

    def beat(self) -> None:
        """Be heard, so that nobody between thinks the line is dead."""
        self._beat = True
        self._release()

    def end(self, why: Refused) -> None:
        """Tell the client why and end. A client that does not take even that is cut."""
        if self._over is None:
            self._over = why
            self._release()
            cut = self._request.scope.get("extensions", {}).get(CUT)
            if cut is not None:
                self._set_timer(CUT_S, cut)

    async def look(self) -> None:
        """End unless the key would be let in again at this moment."""
        try:
            await self._request.app.door.authenticate(self._request)
        except Refused as refused:
            self.end(refused)
        except Exception:
            # Whoever cannot be tested is not listened on for.
            self.end(problems.internal())

    def _watch(self, watch: ExitStack) -> None:
        polls = self._request.app.polls
        for topic, key in self._source.topics:
            watch.enter_context(polls.watching(topic, key, self.wake))
        if self.key_id:
            watch.enter_context(polls.watching("key", self.key_id, self._streams.look))

    async def _go_on(self, send: Send, piece: Piece) -> None:
        while self._over is None and not self._gone:
            if not piece.more:
                await self._rest()
                if self._over is not None or self._gone:
                    return
            heard, self._beat = self._beat, False
            try:
                piece = await self._read()
            except Refused as refused:
                self.end(refused)
                return
            if piece.frames:
                await self._send(send, piece.frames)
            elif heard:
                # The number moves on, so that a quiet reader is not left below what is kept.
                await self._send(send, b": quiet\nid: %d\n\n" % piece.after)

    async def _read(self) -> Piece:
        self._news = False
        piece = await self._source.read(self._after)
        self._after = piece.after
        self._read_at_s = self._loop.time()
        return piece

    async def _send(self, send: Send, text: bytes) -> None:
        await send({"type": "http.response.body", "body": text, "more_body": True})
        self.sent_at_s = self._loop.time()

    async def _rest(self) -> None:
        """Until there is news, a beat is due, or it is over."""
        self._waiter = self._loop.create_future()
        if self._beat or self._gone or self._over is not None:
            self._release()
        elif self._news:
            self._release_in_time()
        await self._waiter
        self._waiter = None

    def _release_in_time(self) -> None:
        if self._waiter is None or self._timer is not None:
            return
        pause_s = PAUSE_S + PAUSE_A_STREAM_S * self._streams.open
        wait_s = self._read_at_s + pause_s - self._loop.time()
        if wait_s <= 0:
            self._release()
        else:
            self._set_timer(wait_s, self._release)

    def _release(self) -> None:
        if self._over is None and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _set_timer(self, wait_s: float, then: Callable[[], object]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(wait_s, then)

    def _client_gone(self) -> None:
        self._gone = True
        self._release()

    def _farewell(self) -> bytes:
        assert self._over is not None
        said = problems.document(self._over, self._request.request_id)
        return b"event: end\ndata: %s\n\n" % wire.encode(said)


def stopping() -> Refused:
    """What a stopping daemon tells those who listen."""
    return Refused("SERVICE_OVERLOADED", "the daemon is stopping", committed=False)

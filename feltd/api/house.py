"""The connections of one daemon: how many there may be, and how long each may stay as it is.

It knows asyncio's streams and nothing of HTTP; server.py tells it what stage a connection is in.
"""

import asyncio
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from feltd.api.forwarded import Proxies, bounded_by
from feltd.api.listen import ServerSettings
from feltd.api.turns import SMALL_PIECE_BYTES, Turns

#: The operator's socket has room of its own: a flood on the network must not lock him out.
LOCAL_CONNECTIONS_MAX = 128
#: Written at once; a client has the drain deadline for each such piece, so a slow line suffices.
PIECE_BYTES = 64 * 1024
#: Below this nothing needs draining: it is asyncio's own low-water mark.
UNSENT_BYTES = 16 * 1024
#: After a refused body: how long it is read and thrown away, so that the answer arrives before
#: the reset that closing an unread connection sends.
LINGER_S = 2.0

#: Sent ahead of an answer, at most this much is taken in before it comes; then the client waits.
AHEAD_BYTES_MAX = 64 * 1024

#: The stages of a connection. ACCEPT: nothing came yet · HEAD: a head began · BUSY: a call is at
#: work, no deadline · IDLE: between calls · CLOSING: what is written is still being sent · LINGER:
#: answered, the rest of the body is thrown away.
ACCEPT, HEAD, BUSY, IDLE, CLOSING, LINGER = range(6)

#: For one that comes to a full house, connections of so many addresses are looked through.
CROWDS_LOOKED_AT = 4

_NEVER = float("inf")

log = logging.getLogger("feltd.server")


class Line:
    """One connection as the house sees it: its stage, and when that stage has lasted too long."""

    __slots__ = ("_held_s", "_held_since_s", "_settings", "bounded", "deadline_s", "stage", "whose",
                 "writer")  # fmt: skip

    def __init__(self, writer: asyncio.StreamWriter, settings: ServerSettings) -> None:
        self.writer = writer
        #: Whom it counts for, None on the operator's socket.
        self.whose: str | None = None
        #: One of an address that may have only so many, and may have to give way.
        self.bounded = False
        self._settings = settings
        self._held_s = 0.0
        self._held_since_s: float | None = None
        self.stay(ACCEPT, settings.head_deadline_ms)

    def stay(self, stage: int, at_most_ms: float) -> None:
        """Enter a stage that may last `at_most_ms`."""
        self.stage = stage
        self.deadline_s = _now_s() + at_most_ms / 1000

    def receives(self) -> None:
        """Bytes came: outside a call they begin a head."""
        if self.stage == ACCEPT:
            self.stage = HEAD  # its deadline runs since the accept
        elif self.stage == IDLE:
            self.stay(HEAD, self._settings.head_deadline_ms)

    def works(self) -> None:
        """A call began; the application bounds it."""
        self.stage, self.deadline_s = BUSY, _NEVER

    def rests(self) -> None:
        """A call ended and another may follow."""
        if self.stage == BUSY:
            self.stay(IDLE, self._settings.keep_alive_ms)

    @property
    def is_held(self) -> bool:
        """Whether something the client sent waits for its turn."""
        return self._held_since_s is not None

    def held_s(self) -> float:
        """For how long it has waited in all; none of it is the client's delay."""
        since_s = self._held_since_s
        return self._held_s + (0.0 if since_s is None else _now_s() - since_s)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within, what came waits for its turn: the deadline of a head moves on by as much."""
        before_s = self._held_s
        self._held_since_s = _now_s()
        try:
            yield
        finally:
            self._held_s, self._held_since_s = self.held_s(), None
            if self.stage in (ACCEPT, HEAD):
                self.deadline_s += self._held_s - before_s

    async def send(self, message: bytes) -> bool:
        """Write it as fast as the client takes it; False when it is gone or takes nothing."""
        transport = self.writer.transport
        try:
            for start in range(0, len(message), PIECE_BYTES):
                if transport.is_closing():
                    return False
                self.writer.write(message[start : start + PIECE_BYTES])
                if transport.get_write_buffer_size() > UNSENT_BYTES:
                    async with asyncio.timeout(self._settings.drain_deadline_ms / 1000):
                        await self.writer.drain()
        except TimeoutError:
            self.abort()
            return False
        except (ConnectionError, RuntimeError):
            return False
        return True

    def close(self) -> None:
        """Close once everything written is sent, by force when it is not taken in time."""
        self.stay(CLOSING, self._settings.drain_deadline_ms)
        self.writer.transport.close()

    def linger(self) -> None:
        """Say that nothing more is sent, and take what still comes for a moment."""
        if not self.writer.can_write_eof() or self.writer.is_closing():
            self.close()  # TLS has no half-close
            return
        self.stay(LINGER, LINGER_S * 1000)
        try:
            self.writer.write_eof()
        except (OSError, RuntimeError):
            self.close()

    def abort(self) -> None:
        """Cut it at once."""
        self.writer.transport.abort()

    def expire(self, late_head: bytes) -> None:
        """The stage lasted too long; `late_head` is what a half-sent head is answered with."""
        if self.stage == HEAD:
            self.writer.write(late_head)
        if self.stage in (ACCEPT, HEAD, IDLE):
            self.close()
        else:
            self.abort()

    async def closed(self) -> None:
        """Return when the connection is really gone, however its client behaves."""
        if self.stage not in (CLOSING, LINGER):
            self.close()
        self.writer.transport.close()
        try:
            async with asyncio.timeout(self._settings.drain_deadline_ms / 1000):
                await self.writer.wait_closed()
        except (OSError, RuntimeError, TimeoutError):
            self.abort()


class House:
    """All lines of one daemon."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        stop: asyncio.Event,
        late_head: bytes,
        hard_exit: Callable[[], None] | None = None,
    ) -> None:
        self.settings = settings
        self.stop = stop
        self.stopping = False
        self._late_head = late_head
        self._hard_exit = hard_exit or _leave
        self._lines: set[Line] = set()
        self._addresses: Counter[str] = Counter()
        self._local = 0
        self._turns = Turns()
        self._proxies = Proxies(settings.trust_proxy)

    @property
    def connections(self) -> int:
        """Open connections, those of the operator's own socket included."""
        return len(self._lines)

    def enter(self, line: Line, address: str, *, local: bool) -> bool:
        """Count a new connection; False when it is one too many and must be cut at once.

        When there are as many as may be, one that is at rest gives way, of the address that has
        the most, to an address that has clearly fewer: few cannot keep all others out.
        """
        if self.stopping:
            return False
        if local:
            if self._local >= LOCAL_CONNECTIONS_MAX:
                return False
            self._local += 1
        else:
            line.whose = bounded_by(address)
            line.bounded = bool(address) and not self._proxies.trusts(address)
            held = self._addresses[line.whose]
            if line.bounded and held >= self.settings.max_connections_per_address:
                return False
            full = len(self._lines) - self._local >= self.settings.max_connections
            if full and not self._make_room(held):
                return False
            self._addresses[line.whose] += 1
        self._lines.add(line)
        return True

    def leave(self, line: Line) -> None:
        """A counted connection ended. Repeating changes nothing."""
        if line not in self._lines:
            return
        self._lines.discard(line)
        if line.whose is None:
            self._local -= 1
            return
        self._addresses[line.whose] -= 1
        if not self._addresses[line.whose]:
            del self._addresses[line.whose]

    def _make_room(self, held: int) -> bool:
        """Cut a connection at rest for an address that holds so many; whether there was one."""
        crowds = ((many, whose) for whose, many in self._addresses.items() if many > held + 1)
        for _, crowd in sorted(crowds, reverse=True)[:CROWDS_LOOKED_AT]:
            resting = (
                line
                for line in self._lines
                if line.whose == crowd and line.bounded
                if line.stage in (ACCEPT, HEAD, IDLE) and not line.is_held
            )
            if (longest := min(resting, key=_by_deadline, default=None)) is not None:
                self.leave(longest)
                longest.abort()
                return True
        return False

    async def turn(self, line: Line, address: str, received_bytes: int) -> None:
        """Return when what a line has received may be looked at; see Turns."""
        if received_bytes > SMALL_PIECE_BYTES:
            with line.held():
                await self._turns.take(bounded_by(address), received_bytes)

    async def end_accepting(self, fd: int | None) -> None:
        """After the stop: begin what asyncio has accepted, before the listener `fd` is closed.

        A connection accepted but not yet begun when its listener closes would be left open and
        unanswered (asyncio 3.11 fails to attach it, silently).
        """
        await self.stop.wait()
        if fd is not None:
            with suppress(RuntimeError):  # uvloop accepts by itself and has no such gap
                asyncio.get_running_loop().remove_reader(fd)
        for _ in range(3):
            await asyncio.sleep(0)

    def begin_stop(self) -> None:
        """Take nobody in any more, and close every connection that is not at work."""
        self.stopping = True
        self._turns.end_rests()
        for line in tuple(self._lines):
            self.judge(line)

    def judge(self, line: Line) -> None:
        """While stopping: close it unless it is at work, or has sent what is not yet looked at."""
        if self.stopping and line.stage in (ACCEPT, HEAD, IDLE) and not line.is_held:
            line.close()

    async def keep(self, listeners: Sequence[asyncio.Task[None]]) -> None:
        """Judge deadlines until the stop, or until a listener fails; then end all of them.

        Within 9/10 of graceful_ms after the stop it returns, whatever still runs; a thread leaves
        the process when even that does not happen. Raises what a listener raised.
        """
        loop = asyncio.get_running_loop()
        sweeper = loop.create_task(self._sweep())
        stopped = loop.create_task(self._stopped())
        graceful_s = self.settings.graceful_ms / 1000
        timer = threading.Timer(graceful_s, self._hard_exit)
        timer.daemon = True
        try:
            await asyncio.wait([stopped, sweeper, *listeners], return_when=asyncio.FIRST_COMPLETED)
            timer.start()
            if not self.stop.is_set():
                self.stop.set()
                for task in listeners:
                    task.cancel()
            _, late = await asyncio.wait(listeners, timeout=graceful_s * 0.9)
            if late:
                log.warning("some calls did not end in time; they are left")
            for task in listeners:
                if task not in late and not task.cancelled():
                    task.result()
        finally:
            timer.cancel()
            for task in (sweeper, stopped, *listeners):
                task.add_done_callback(_look_at)
                task.cancel()
            for line in tuple(self._lines):
                line.abort()

    async def _stopped(self) -> None:
        await self.stop.wait()

    async def _sweep(self) -> None:
        """One task judges every deadline: cheaper than a timer for each request."""
        settings = self.settings
        shortest_ms = min(
            settings.keep_alive_ms, settings.head_deadline_ms, settings.drain_deadline_ms
        )
        while True:
            await asyncio.sleep(min(1.0, shortest_ms / 4000))
            now_s = _now_s()
            for line in tuple(self._lines):
                if line.deadline_s <= now_s and not line.is_held:
                    line.expire(self._late_head)


async def overhear(
    reader: asyncio.StreamReader,
    ended: Callable[[], Coroutine[Any, Any, Any]],
    take: Callable[[bytes], object],
) -> bool:
    """Until `ended()` returns: give `take` what the client sends ahead; False when it goes away.

    Without it nobody would see that a client is gone which has sent the next call already.
    """
    waiting, heard_bytes, here = asyncio.ensure_future(ended()), 0, True
    try:
        while here and heard_bytes < AHEAD_BYTES_MAX and not waiting.done():
            reading = asyncio.ensure_future(reader.read(AHEAD_BYTES_MAX))
            try:
                await asyncio.wait((waiting, reading), return_when=asyncio.FIRST_COMPLETED)
            finally:
                # Ended before anybody else reads on; what it had read already is not lost.
                reading.cancel()
                await asyncio.wait((reading,))
            if not reading.cancelled():
                received = b"" if reading.exception() else reading.result()
                here = bool(received)
                heard_bytes += len(received)
                take(received)
        if here:
            await waiting
    finally:
        waiting.cancel()
    return here


def started_elsewhere(app: Any, started: asyncio.Event) -> Any:
    """The application again for a second listener: it starts and stops with the first."""

    async def listener(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        await receive()
        await started.wait()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    return listener


def _by_deadline(line: Line) -> float:
    return line.deadline_s


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _look_at(task: asyncio.Task[None]) -> None:
    # hypercorn cancelled in the middle of its own ending raises what nobody needs to read.
    if not task.cancelled():
        task.exception()


def _leave() -> None:
    log.critical("stopping took longer than graceful_ms; leaving")
    os._exit(1)

"""The channel of a worker: one WebSocket that carries its exchanges, and what it is told unasked.

Each frame is an exchange and goes the exchange's own way: admission, deadline, rule. They begin in
the order in which they came, several are at work at once, and each is answered when it is done.
A channel that ends, for whatever reason, ends nothing else: leases decide.
"""

import asyncio
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any

import structlog

from feltd.api import frames, problems
from feltd.api.channels import AUTH, FORBIDDEN, OVERLOADED, STOPPING, TOO_LARGE
from feltd.api.dispatch import Authenticate
from feltd.api.exchange import ROUTES as EXCHANGE
from feltd.api.exchange import keeps_alive, perform
from feltd.api.pushing import Pusher
from feltd.api.request import CUT, ON_GONE, Gone, Message, Request, Send
from feltd.errors import Refused
from feltd.model.channel import Credit
from feltd.model.exchange import Exchange

OPERATION = "channel"
#: For the key of a client that sent none in the handshake.
AUTH_S = 5.0
#: Frames of one channel at work or parked; further ones are left unread until one is answered.
FRAMES_MAX = 64
#: And so many bytes of them: frames as large as they may be do not add up.
FRAME_BYTES = 4 * 1024 * 1024
#: Answers that wait for their client to take them, bytes; above, no further frame is begun.
UNSENT_BYTES = 256 * 1024
#: And above this the client is cut: it asks and never reads.
UNSENT_BYTES_MAX = 16 * 1024 * 1024
#: What a stopping daemon gives frames at work, and how long a client may take its close frame.
STOP_S = 1.0
CLOSE_S = 0.5

log = structlog.get_logger("feltd.channel")


class Channel:
    """One open channel, from its upgrade to its close."""

    def __init__(self, request: Request, send: Send, authenticate: Authenticate) -> None:
        self.app = request.app
        self.worker_id: str = request.path_params["id"]
        self.key_id = ""
        #: Frames whose items are not on disk yet.
        self.at_work = 0
        self._request = request
        self._send = send
        self._authenticate = authenticate
        self._numbers = 0
        self._lane = False
        self._frames: set[asyncio.Task[None]] = set()
        self._sending: set[asyncio.Task[Any] | None] = set()
        self._frame_bytes = 0
        self._unsent_bytes = 0
        self._over: tuple[int, str] | None = None
        self._gone = False
        self._stopping = False
        self._task = asyncio.current_task()
        self._listening = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether anything more may be said."""
        return self._over is None and not self._gone and not self._stopping

    @property
    def crowded(self) -> bool:
        """Whether ordinary work would be shed now."""
        return self._request.crowded

    async def run(self, *, known: bool) -> None:
        """Serve until either side ends it, then say why."""
        channels = self.app.open_channels
        channels.enter(self)
        self._request.gone.when(self._client_gone)
        try:
            if known or await self._let_in():
                self.key_id = self._request.caller.key_id
                channels.let_in(self)
                await self._serve()
        except Exception:
            log.error("channel failed", request_id=self._request.request_id, exc_info=True)
            self._over = self._over or (1011, "the daemon met a fault of its own")
        finally:
            channels.leave(self)
            await self._close()

    async def test_key(self) -> None:
        """End unless the key would be let in again at this moment."""
        try:
            await self._authenticate(self._request)
        except Refused as refused:
            self.end_by(refused)
        except Exception:
            # Whoever cannot be tested is not listened to any longer.
            self.end_by(problems.internal())

    def end(self, code: int, reason: str) -> None:
        """Close it with this code; the first one counts."""
        if self._over is None:
            self._over = (code, reason)
            self._wake()

    def end_by(self, refused: Refused) -> None:
        """Close it for what a call of its worker would be refused with."""
        self.end(_code_of(refused), _reason_of(refused))

    def stop(self) -> None:
        """The daemon stops: frames at work are answered, nothing more is taken in."""
        self._stopping = True
        self._wake()

    def request(self) -> Request:
        """A call of this channel's worker, as its exchange would be one."""
        self._numbers += 1
        ours = self._request.scope
        scope = {
            "type": "http",
            "method": "POST",
            "headers": ours["headers"],
            "query_string": b"",
            "client": ours.get("client"),
            "feltd.request_id": f"{self._request.request_id}-{self._numbers}",
            # A channel that ends cancels its frames: none of them has to listen for it.
            "extensions": {ON_GONE: Gone().when},
        }
        made = self._request.again(scope, EXCHANGE[0])
        made.caller = self._request.caller
        return made

    async def send(self, message: str | bytes) -> None:
        """One message, whole; a client that takes nothing of many is cut."""
        if self._over is not None or self._gone:
            return
        text = message if isinstance(message, str) else message.decode()
        self._unsent_bytes += len(text)
        if self._unsent_bytes > UNSENT_BYTES_MAX:
            self.end(OVERLOADED, "answers are not taken")
            return
        task = asyncio.current_task()
        self._sending.add(task)
        try:
            await self._send({"type": "websocket.send", "text": text})
        finally:
            self._sending.discard(task)
            self._unsent_bytes -= len(text)
            self._release()

    def cancel(self, task: "asyncio.Task[None]") -> None:
        """Drop a piece of work, unless it is in the middle of a message: half a one is none."""
        if task not in self._sending:
            task.cancel()

    # The client

    async def _let_in(self) -> bool:
        """Whether the first frame brought a key that is good here."""
        try:
            async with asyncio.timeout(AUTH_S):
                message = await self._receive()
        except TimeoutError:
            self.end(AUTH, f"no key came within {AUTH_S:g} s")
            return False
        if message is None:
            return False
        try:
            bearer = frames.read_auth(message)
            self._request.scope["headers"].append(
                (b"authorization", b"Bearer " + bearer.encode("ascii", "replace"))
            )
            await self._authenticate(self._request)
        except Refused as refused:
            self.end_by(refused)
            return False
        return True

    async def _serve(self) -> None:
        self.pusher = Pusher(self)
        with (
            self.pusher,
            self.app.polls.watching("key", self.key_id, self.app.open_channels.look),
        ):
            self.pusher.poke()
            try:
                while (message := await self._receive()) is not None:
                    await self._begin(message)
                if self._stopping and self._over is None and not self._gone and self._frames:
                    await asyncio.wait(tuple(self._frames), timeout=STOP_S)
            finally:
                self.pusher.close()
                for task in tuple(self._frames):
                    self.cancel(task)

    async def _receive(self) -> bytes | None:
        """The next message; None once it is over."""
        if not self.is_open:
            return None
        self._listening = True
        try:
            message: Message = await self._request.receive()
        except asyncio.CancelledError:
            if self._task is None or self.is_open or self._task.uncancel():
                raise
            return None
        finally:
            self._listening = False
        if message["type"] != "websocket.receive" or not self.is_open:
            return None
        return message["bytes"] or b""

    async def _begin(self, message: bytes) -> None:
        """Begin a frame once there is room, and once none that came before could come behind it.

        The writer takes keep-alive calls before others, so a frame of the other kind waits until
        those before it are on disk.
        """
        while self.is_open and self._is_full:
            await self._rest()
        try:
            frame_id, exchange, credit = frames.read(message)
        except frames.Unreadable as unfit:
            self._observe(unfit.refused.status, time.perf_counter())
            self._start(self._refuse(unfit.frame_id, unfit.refused), len(message))
            return
        keep_alive = keeps_alive(exchange)
        while self.is_open and self.at_work and self._lane is not keep_alive:
            await self._rest()
        if self.is_open:
            self._lane = keep_alive
            self.at_work += 1
            self._start(self._answer(frame_id, exchange, credit), len(message))

    @property
    def _is_full(self) -> bool:
        """Whether nothing more is begun before something is answered and taken."""
        frames = len(self._frames) >= FRAMES_MAX or self._frame_bytes > FRAME_BYTES
        return frames or self._unsent_bytes > UNSENT_BYTES

    def _start(self, work: Coroutine[Any, Any, None], frame_bytes: int) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._frames.add(task)
        self._frame_bytes += frame_bytes
        task.add_done_callback(partial(self._ended, frame_bytes))

    def _ended(self, frame_bytes: int, task: "asyncio.Task[None]") -> None:
        self._frames.discard(task)
        self._frame_bytes -= frame_bytes
        self._release()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("frame failed", request_id=self._request.request_id, exc_info=error)

    async def _answer(self, frame_id: object, exchange: Exchange, credit: Credit | None) -> None:
        started_s = time.perf_counter()
        request = self.request()
        number, before = self._numbers, self.pusher.begins(credit)
        committed = _Once(self._committed)
        try:
            post, done = await perform(request, exchange, credit, committed)
        except Refused as refused:
            why = problems.of_noun(refused, EXCHANGE[0].tag)
        except Exception:
            log.error("frame failed", request_id=request.request_id, exc_info=True)
            why = problems.internal()
        else:
            request.finish()
            self._observe(200, started_s)
            text = frames.answer(frame_id, done)
            self.pusher.answered(number, before, credit, post, done, len(text))
            await self.send(text)
            return
        finally:
            committed()
            request.finish()
        self._observe(why.status, started_s)
        self.pusher.refused(credit)
        await self._refuse(frame_id, why)

    async def _refuse(self, frame_id: object, refused: Refused) -> None:
        self.app.metrics.refused(OPERATION, refused)
        await self.send(frames.refusal(frame_id, refused, self._request.request_id))

    def _observe(self, status: int, started_s: float) -> None:
        self.app.metrics.answered(OPERATION, status, time.perf_counter() - started_s)

    def _committed(self) -> None:
        self.at_work -= 1
        self._release()

    # The end

    def _client_gone(self) -> None:
        self._gone = True
        self._wake()

    def _wake(self) -> None:
        """Have the serving task look at what became of the channel."""
        self._release()
        if self._listening and self._task is not None:
            self._listening = False
            self._task.cancel()

    async def _rest(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _release(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _close(self) -> None:
        """Say why it is over; a client that does not take even that is cut."""
        if self._gone:
            return
        code, reason = self._over or (STOPPING, "the daemon is stopping")
        cut = self._request.scope.get("extensions", {}).get(CUT)
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._send({"type": "websocket.close", "code": code, "reason": reason})
        except TimeoutError:
            if cut is not None:
                cut()


class _Once:
    """Calls something the first time it is called itself."""

    __slots__ = ("_then",)

    def __init__(self, then: Any) -> None:
        self._then: Any = then

    def __call__(self) -> None:
        then, self._then = self._then, None
        if then is not None:
            then()


def _code_of(refused: Refused) -> int:
    known = {401: AUTH, 413: TOO_LARGE, 503: OVERLOADED, 500: 1011}
    return known.get(refused.status, FORBIDDEN)


def _reason_of(refused: Refused) -> str:
    """A word for programs and a sentence for people; the library cuts it to 123 bytes."""
    for one in refused.facts.get("reasons", ()):
        return f"{refused.code} {one['code']}: {one['detail']}"
    return f"{refused.code}: {refused.detail}"

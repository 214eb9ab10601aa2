"""Who waits for what, on the event loop: parked pulls in the order they came, and other long polls.

A commit that makes work due tells "ready"; one waiter of that application is woken, takes what
fits and passes the wake on while there may be more, so that one piece of work costs about one
look, not one a waiter. Nothing is decided here: a woken waiter asks the database again. Lost wakes
are harmless, because one waiter of each application looks again every few seconds.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self, TypeVar

from msgspec.structs import replace

from feltd.api.request import Request
from feltd.errors import Refused
from feltd.mesh.claims import Post
from feltd.model.claim import Pulled, Reason

T = TypeVar("T")

#: A wake that got lost costs at most this long.
LOOK_AGAIN_S = 5.0
#: Reasons of an empty answer that may pass while a poll waits; any other ends it at once.
PASSING = frozenset(
    {
        "NO_WORK",
        "NO_MATCH",
        "HELD",
        "POOL_FULL",
        "KEY_FULL",
        "WORKER_FULL",
        "WORKER_NOT_READY",
        "WORKER_UNHEALTHY",
    }
)
#: Reasons after which nobody else in the application can find anything either.
EXHAUSTED = frozenset({"NO_WORK"})
#: Reasons after which nobody with the same offer can.
MISMATCH = frozenset({"NO_MATCH", "HELD", "POOL_FULL", "KEY_FULL"})
#: A parked poll whose worker lost its standing ends empty, with the reason, and is no error.
STANDING = frozenset(
    {"WORKER_RECOVERY_REQUIRED", "UNAUTHENTICATED", "WORKER_NOT_FOUND", "WORKER_UNAUTHORIZED"}
)


NOWHERE = Post("", ())


class Waiter:
    """One pull that may have to wait. `poke` makes it look again, now or once it parks."""

    __slots__ = ("_polls", "_wake", "key_id", "looking", "pending", "post", "round", "worker_id")

    def __init__(self, polls: "Polls", worker_id: str, key_id: str) -> None:
        self._polls = polls
        self._wake: Callable[[str], None] | None = None
        self.worker_id = worker_id
        self.key_id = key_id
        #: Where it waits, once known.
        self.post = NOWHERE
        #: It was woken and has not looked since.
        self.pending = False
        #: It looks this moment: what it was woken for is not yet used.
        self.looking = False
        #: The newest wake of its application it has had.
        self.round = 0

    def poke(self) -> None:
        """Look again."""
        self.pending = True
        if self._wake is not None:
            self._wake("ready")

    def freed(self) -> None:
        """Its worker has ended a claim itself and may have room again."""
        self.poke()

    async def park(self, request: Request, wait_ms: int) -> str:
        """Wait to be poked: "ready", "timeout" or "stop". Raises ClientGone."""
        if self.pending:
            return "ready"
        with request.parked() as poll:
            self._wake = poll.wake
            try:
                return await poll.wait(wait_ms)
            finally:
                self._wake = None

    def __enter__(self) -> Self:
        self._polls.enter(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._polls.leave(self)


class Polls:
    """Every waiter of the daemon. Used on the event loop alone."""

    def __init__(self) -> None:
        # Dictionaries for their order: first come, first woken.
        self._queues: defaultdict[str, dict[Waiter, None]] = defaultdict(dict)
        self._of_worker: defaultdict[str, dict[Waiter, None]] = defaultdict(dict)
        self._of_key: defaultdict[str, dict[Waiter, None]] = defaultdict(dict)
        self._listeners: defaultdict[tuple[str, str], dict[object, Callable[[], object]]] = (
            defaultdict(dict)
        )
        self._round = 0
        self._newest: dict[str, int] = {}
        self._looking: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Pulls that are parked or about to be."""
        return sum(len(waiters) for waiters in self._of_worker.values())

    def told(self, topic: str, key: str) -> None:
        """Hear of a commit, as rules tell it with `tx.tell`."""
        if topic == "ready":
            self._round += 1
            self._newest[key] = self._round
            self._wake(key, self._round)
        elif topic == "worker":
            _poke(self._of_worker, key)
        elif topic == "room":
            for waiter in tuple(self._of_worker.get(key, ())):
                waiter.freed()
        elif topic == "key":
            _poke(self._of_key, key)
        for listener in tuple(self._listeners.get((topic, key), {}).values()):
            listener()

    async def pull(
        self,
        request: Request,
        worker_id: str,
        wait_ms: int,
        look: Callable[[], Awaitable[tuple[Post, T]]],
        found: Callable[[T], Pulled],
        merged: Callable[[T, Pulled], T],
    ) -> T:
        """Look until there is work, the wait is over, or the worker has no business to wait.

        `look` asks the database: (where the worker waits, answer); `found` is the pull's part of an
        answer and `merged` puts another into it. A worker that drains, was taken over or lost its
        key ends empty at once with the reason, as does a stopping daemon. Passes ClientGone on.
        """
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + wait_ms / 1_000
        with Waiter(self, worker_id, request.caller.key_id) as waiter:
            before, waiter.looking = self._round, True
            waiter.post, answer = await look()
            while True:
                waiter.looking = False
                pulled = found(answer)
                if self._ends(waiter, pulled):
                    return answer
                self._join(waiter, before)
                left_ms = max(0, int((ends_at_s - loop.time()) * 1_000))
                # What it left for others may be its own before the wait is over.
                park_ms = min(left_ms, waiter.post.again_ms or left_ms)
                why = await waiter.park(request, park_ms)
                if why == "timeout" and park_ms < left_ms:
                    why = "ready"
                if why != "ready":
                    return merged(answer, _over(request, pulled, why))
                before, waiter.pending, waiter.looking = self._round, False, True
                try:
                    waiter.post, answer = await look()
                except Refused as refused:
                    if refused.code not in STANDING:
                        raise
                    return merged(answer, _without_standing(request, pulled, refused))

    async def until(
        self,
        request: Request,
        workload_id: str,
        wait_ms: int,
        there: Callable[[], Awaitable[bool]],
        *topics: str,
    ) -> str:
        """Wait, without a permit, until a topic of a workload is told; why it is over.

        What was told before the watching began is found by `there`, asked once within it: "there",
        "told", "timeout" or "stop". A key that ends meanwhile is refused as at the door. Passes
        ClientGone on.
        """
        with ExitStack() as watch:
            poll = watch.enter_context(request.parked())
            for topic in topics:
                watch.enter_context(self.watching(topic, workload_id, lambda: poll.wake("told")))
            key_ended = self.watching("key", request.caller.key_id, lambda: poll.wake("key"))
            watch.enter_context(key_ended)
            why = "there" if await there() else await poll.wait(wait_ms)
        if why == "key":
            await request.app.door.authenticate(request)
        return why

    @contextmanager
    def watching(self, topic: str, key: str, listener: Callable[[], object]) -> Iterator[None]:
        """Within the block `listener` is called at every (topic, key) that is told."""
        mark = object()
        self._listeners[topic, key][mark] = listener
        try:
            yield
        finally:
            listeners = self._listeners[topic, key]
            del listeners[mark]
            if not listeners:
                del self._listeners[topic, key]

    def enter(self, waiter: Waiter) -> None:
        """A pull begins that may have to wait."""
        self._of_worker[waiter.worker_id][waiter] = None
        if waiter.key_id:
            self._of_key[waiter.key_id][waiter] = None
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look_again())

    def leave(self, waiter: Waiter) -> None:
        """It ended. A wake it did not use goes to the next one."""
        for index, key in (
            (self._of_worker, waiter.worker_id),
            (self._of_key, waiter.key_id),
            (self._queues, waiter.post.queue),
        ):
            _take_out(index, key, waiter)
        if waiter.pending or waiter.looking:
            self._wake(waiter.post.queue, waiter.round)
        if not self._of_worker and self._looking is not None:
            self._looking.cancel()
            self._looking = None
            self._newest.clear()

    @property
    def round(self) -> int:
        """The newest wake; what one that stays for good has to note before it looks."""
        return self._round

    def stays(self, waiter: Waiter, before: int, pulled: Pulled | None) -> None:
        """One that stays for good has looked, at wake `before`: it goes back into its queue.

        To the end of it after it was given work; out of it where it wants none (`pulled` is None)
        or would be given none. The wake goes on as far as it may be of use.
        """
        waiter.looking = False
        ends = pulled is None or self._ends(waiter, pulled)
        if pulled is None:
            self._wake(waiter.post.queue, waiter.round)
        if ends:
            _take_out(self._queues, waiter.post.queue, waiter)
        if pulled is not None and (pulled.claims or not ends):
            self._join(waiter, before)

    def _ends(self, waiter: Waiter, pulled: Pulled) -> bool:
        """Whether this answer ends the poll; passes the wake on as far as it may be of use."""
        codes = {reason.code for reason in pulled.reasons}
        if not codes & EXHAUSTED:
            # Nothing fits this offer: who offers the same need not look at all.
            vain = waiter.post.offer if codes & MISMATCH else None
            self._wake(waiter.post.queue, waiter.round, vain)
        return bool(pulled.claims) or not codes <= PASSING

    def _join(self, waiter: Waiter, before: int) -> None:
        """Stand in the queue of the application; what was told since `before` is not lost."""
        self._queues[waiter.post.queue].setdefault(waiter, None)
        newest = self._newest.get(waiter.post.queue, 0)
        if newest > before and newest > waiter.round:
            waiter.round = newest
            waiter.pending = True

    def _wake(self, queue: str, round_: int, vain: tuple[str, ...] | None = None) -> None:
        """Poke the first waiter that has not had this wake and whose offer is not `vain`.

        One that is looking this moment looks once more; if it leaves, it passes the wake on.
        """
        for waiter in self._queues.get(queue, ()):
            if waiter.round < round_:
                waiter.round = round_
                if waiter.post.offer != vain:
                    waiter.poke()
                    return

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            self._round += 1
            for queue in tuple(self._queues):
                self._wake(queue, self._round)


def _poke(index: dict[str, dict[Waiter, None]], key: str) -> None:
    for waiter in tuple(index.get(key, ())):
        waiter.poke()


def _take_out(index: dict[str, dict[Waiter, None]], key: str, waiter: Waiter) -> None:
    waiters = index.get(key)
    if waiters is not None:
        waiters.pop(waiter, None)
        if not waiters:
            del index[key]


def _over(request: Request, pulled: Pulled, why: str) -> Pulled:
    """The last answer again, at the present time; a stopping daemon says so."""
    reasons = pulled.reasons
    if why == "stop":
        reasons = [Reason("SERVICE_OVERLOADED", "the daemon is stopping")]
    now = request.app.clock.now()
    return replace(pulled, reasons=reasons, server_time_ms=now.lease_ms)


def _without_standing(request: Request, pulled: Pulled, refused: Refused) -> Pulled:
    """What a parked poll is told whose worker may not wait any longer."""
    reasons = [Reason(one["code"], one["detail"]) for one in refused.facts.get("reasons", ())]
    lifecycle = pulled.lifecycle
    if refused.code == "WORKER_RECOVERY_REQUIRED":
        lifecycle = "OFFLINE"
        if refused.facts.get("offline_reason") in ("drained", "left"):
            reasons = [Reason("WORKER_DRAINING", "the worker was drained and holds nothing")]
    now = request.app.clock.now()
    return replace(
        pulled,
        lifecycle=lifecycle,
        reasons=reasons or [Reason(refused.code, refused.detail)],
        server_time_ms=now.lease_ms,
    )

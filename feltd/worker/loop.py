"""One life of a worker process: beat, take, deliver, and obey whatever the daemon says is `next`.

Four tasks share one desk. None of them decides about a claim: they carry words to the daemon and
back. The life ends by `Stopped` (an exit code and a reason), whichever task meets it first.
"""

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Coroutine, Mapping
from typing import Any

from feltd.clock import wall_ms
from feltd.model.grant import RuntimeCaps
from feltd.worker.courier import Parcel, items
from feltd.worker.desk import Desk
from feltd.worker.leases import Held
from feltd.worker.reconciling import reconcile
from feltd.worker.refusal import Refusal, Unreachable
from feltd.worker.runner import Handler
from feltd.worker.session import DONE, FAILED, Session, Stopped
from feltd.worker.transport import pause_s
from feltd.worker.upgraded import SHORT_POLL_MS, Upgraded
from feltd.worker.verbs.calls import Json

log = logging.getLogger("feltd.worker")

#: A poll waits that long for work; below the daemon's bound of 30 s.
POLL_MS = 25_000
#: What is left of the grace to hand back what did not finish.
LAST_WORDS_S = 5.0
#: Between looks at leases by the own clock.
WATCH_S = 0.2
#: Why a whole poll may have waited in vain: it is asked again at once.
WAITED = frozenset({"NO_WORK", "NO_MATCH", "HELD", "POOL_FULL", "KEY_FULL"})
#: Empty answers that came at once are not asked for again in a circle.
EMPTY_PAUSE_S = 0.5
#: A finished outcome waits that long for the next claim to travel with it.
TOGETHER_S = 0.005
#: After a refusal that nobody here can mend.
HELPLESS_PAUSE_S = 5.0


class Loop:
    """Runs a registered session until it is told to stop, is drained, or loses its name.

    `on_drain` is exit or park: what to do once an operator's drain is complete. `grace_ms` is how
    long running handlers may go on after `leave`.
    """

    def __init__(
        self,
        session: Session,
        handlers: Mapping[str, Handler],
        *,
        on_drain: str = "exit",
        grace_ms: int = 25_000,
        caps: RuntimeCaps | None = None,
        channel: bool = False,
    ) -> None:
        self.session = session
        self.on_drain = on_drain
        self.grace_ms = grace_ms
        self.desk = Desk(session, handlers, self._end, caps)
        self._over: asyncio.Future[Stopped] = asyncio.get_running_loop().create_future()
        self._told = asyncio.Event()
        self._hurry = asyncio.Event()
        self.kick = asyncio.Event()
        self._open = asyncio.Event()
        self._mending = asyncio.Lock()
        self._polling = False
        #: A call that may bring claims is under way.
        self._asking = False
        self._parked = False
        self._upgraded = Upgraded(self) if channel else None

    def leave(self) -> None:
        """Take no more work, finish what runs within the grace, end. Twice: end at once."""
        if self._told.is_set():
            self._hurry.set()
        self._told.set()

    async def run(self) -> Stopped:
        """Live until the end, and say which."""
        tasks = [
            asyncio.create_task(self._guarded(life))
            for life in (self._beats(), self._watch(), self._deliver(), self._leave())
        ]
        if self._upgraded is not None:
            tasks.append(asyncio.create_task(self._guarded(self._upgraded.live())))
        self._taking = asyncio.create_task(self._guarded(self._take()))
        try:
            return await self._over
        finally:
            for task in (*tasks, self._taking, *self.desk.slots):
                task.cancel()
            await asyncio.gather(*tasks, self._taking, return_exceptions=True)

    def _end(self, stopped: Stopped) -> None:
        if not self._over.done():
            self._over.set_result(stopped)

    async def _guarded(self, life: Coroutine[Any, Any, None]) -> None:
        try:
            await life
        except Stopped as stopped:
            self._end(stopped)
        except Exception as error:
            log.exception("a fault of the worker itself")
            self._end(Stopped(FAILED, f"a fault of the worker itself: {error!r}"))

    # -- beat

    async def _beats(self) -> None:
        silent = 0
        while True:
            self.kick.clear()
            pause = self.session.every_ms / 1000 * random.uniform(0.85, 1.0)
            key = self.session.key
            try:
                await self._beat()
                if silent:
                    log.info("the daemon answers again")
                silent = 0
            except Unreachable as silence:
                silent += 1
                if silent == 1:
                    log.warning("%s; trying on", silence)
                pause = min(pause, pause_s(silent + 1, None, random.random()))
            except Refusal as refused:
                await self._obey(refused, key)
                pause = 0.1
            await _either(self.kick, pause)

    async def _beat(self) -> None:
        if self._parked:
            await self.session.look()
            if self.session.lifecycle == "OFFLINE":
                return
            log.info("resumed")
            self._parked = False
        if self.session.left:
            await self._drained()
            return
        if self.session.lifecycle in ("OFFLINE", "RECOVERING"):
            await self._reconcile()
        answer = await self.session.beat(self.desk.reported(), len(self.desk.slots))
        self.desk.hear(answer)
        for claim in self.desk.newly_given(answer):
            self.given(claim)
        self._lifecycle_is(self.session.lifecycle)
        if self.session.left:
            # The beat that makes ready goes on to the end of a drain that stands.
            await self._drained()
            return
        unknown = answer.get("unknown_claims") or ()
        if self.desk.courier.late or any(not self.desk.knows(one) for one in unknown):
            await self._reconcile(anyway=True)

    def _lifecycle_is(self, lifecycle: str) -> None:
        if lifecycle in ("READY", "BUSY") and not self._told.is_set():
            self._open.set()
        elif lifecycle in ("DRAINING", "OFFLINE", "RECOVERING"):
            self._open.clear()

    async def _watch(self) -> None:
        """Stop what has outlived its renewals, however silent the daemon is."""
        while True:
            self.desk.give_up()
            for held in list(self.desk.held.values()):
                if held.lines and not held.leaving and not held.sending:
                    held.sending = asyncio.create_task(self._lines(held))
            await asyncio.sleep(WATCH_S)

    async def _lines(self, held: Held) -> None:
        try:
            await self.desk.send_lines(held, patience_ms=1_000)
        finally:
            held.sending = None

    # -- take

    async def _take(self) -> None:
        while True:
            await self._open.wait()
            if self._upgraded is not None and await self._upgraded.take():
                continue
            self.desk.freed.clear()
            free = min(self.desk.free, 256)
            if free <= 0:
                await self.desk.freed.wait()
                continue
            parcels = self.desk.courier.load()
            wanted: Json = {
                "max": free,
                "lease_ms": self.session.settings.lease_ms,
                "wait_ms": 0 if parcels else SHORT_POLL_MS if self._upgraded else POLL_MS,
                "start": True,
                "request_id": secrets.token_hex(16),
            }
            self._polling, self._asking = not parcels, True
            try:
                answer = await self.exchange(parcels, {"claim": wanted}, patience_ms=None)
            finally:
                self._polling = self._asking = False
            if answer is not None and not self.received(answer) and not parcels:
                await self.nothing(answer)

    def received(self, answer: Json) -> bool:
        claims = [*(answer.get("claims") or ()), *self.desk.newly_given(answer)]
        for claim in claims:
            self.given(claim)
        return bool(claims)

    def given(self, claim: Any) -> None:
        if self._told.is_set():
            self.desk.give_back(claim)
        else:
            self.desk.begin(claim)

    async def nothing(self, answer: Json) -> None:
        """An empty answer: after a whole poll ask again, else find out what keeps work away."""
        lifecycle = str(answer.get("lifecycle") or "")
        reasons = {one.get("code") for one in answer.get("reasons") or () if isinstance(one, dict)}
        if lifecycle not in ("", "READY", "BUSY"):
            self._lifecycle_is(lifecycle)
            if lifecycle == "RECOVERING":
                self.session.lifecycle = lifecycle
            self.kick.set()
            await asyncio.sleep(0.1)
        elif not reasons or reasons <= WAITED:
            await asyncio.sleep(0.01)
        else:
            await asyncio.sleep(EMPTY_PAUSE_S * random.uniform(0.5, 1.0))

    async def exchange(self, parcels: list[Parcel], wanted: Json, **how: Any) -> Json | None:
        """One exchange; None where it was refused or not answered, its parcels then go again."""
        body = {**items(parcels, self.session.worker_id), **wanted}
        key = self.session.key
        try:
            answer = await self.session.exchange(body, **how)
        except Unreachable as silence:
            self.desk.courier.put_back(parcels, pause_ms=200)
            log.debug("exchange: %s", silence)
            return None
        except asyncio.CancelledError:
            self.desk.courier.put_back(parcels)
            raise
        except Refusal as refused:
            if refused.next == "fix_request" and parcels:
                self._one_by_one(parcels, refused)
            else:
                self.desk.courier.put_back(parcels)
                await self._obey(refused, key)
            return None
        self.desk.hear({**answer, "renewed": None})
        self.desk.courier.settle(parcels, answer.get("outcomes") or [])
        if answer.get("lifecycle") == "OFFLINE":
            # Drained or lost: the refusal of a beat says which, and now rather than in its turn.
            self._open.clear()
            self.kick.set()
        return answer

    def _one_by_one(self, parcels: list[Parcel], refused: Refusal) -> None:
        """The whole exchange does not fit: find the item that does not, then change it."""
        if len(parcels) == 1:
            said = (refused.code, refused.next, refused.detail)
            self.desk.courier.refused(parcels[0], *said)
        else:
            self.desk.courier.put_back(parcels, alone=True)

    # -- deliver

    async def _deliver(self) -> None:
        """Send outcomes that no claim takes along: while a poll is parked, or none is wanted."""
        courier = self.desk.courier
        while True:
            await courier.arrived.wait()
            for _ in range(4):
                if self._polling or self.session.channel or not self._open.is_set():
                    break
                await asyncio.sleep(TOGETHER_S)
            parcels = courier.load(hurry=self._told.is_set())
            if parcels:
                answer = await self.exchange(parcels, {}, patience_ms=2_000)
                self.received(answer or {})
            else:
                await asyncio.sleep(0.05)

    # -- obey

    async def _obey(self, refused: Refusal, key: str | None) -> None:
        """Do what a refusal of a call with this key says comes next, for the whole worker."""
        if refused.status == 401 and await self.session.has_new_key(key):
            return
        newer = refused.facts.get("incarnation")
        if isinstance(newer, int) and newer > self.session.incarnation:
            raise self.session.stopped_by(refused)
        if refused.next == "stop" and refused.code == "WORKER_RECOVERY_REQUIRED":
            await self._drained()
        elif refused.next == "stop":
            raise self.session.stopped_by(refused)
        elif refused.next == "reconcile":
            self.session.lifecycle = "OFFLINE"
            # Not answered, the next beat reconciles.
            with contextlib.suppress(Unreachable):
                await self._reconcile()
        elif refused.next == "register":
            await self.session.register_again()
            self.kick.set()
        elif refused.next == "fix_clock":
            self.session.set_clock(refused)
        elif refused.next == "wait":
            at_ms = refused.facts.get("eligible_at_ms")
            wait_s = (at_ms - wall_ms()) / 1000 if isinstance(at_ms, int) else 1.0
            await asyncio.sleep(min(max(wait_s, 0.1), 30.0))
        elif refused.next == "repeat":
            await asyncio.sleep(pause_s(1, refused.retry_after_s, random.random()))
        elif refused.next not in ("pull", "drop_claim"):
            log.error("refused, and nothing here can mend it: %s", refused)
            await asyncio.sleep(HELPLESS_PAUSE_S)

    async def _drained(self) -> None:
        """An operator's drain, or our own, is complete: end, or wait, and say whose it was."""
        self._open.clear()
        if not self.session.left:
            try:
                await self.session.look()
            except (Refusal, Unreachable) as error:
                log.debug("who drained it is not known: %s", error)
            else:
                if not self.session.left:
                    return  # resumed meanwhile: the next beat finds out what to do
        self.session.lifecycle = "OFFLINE"
        if self.on_drain == "exit" or self._told.is_set():
            self._end(Stopped(DONE, self.session.drained_by))
        elif not self._parked:
            self._parked = True
            log.info("%s: waiting to be resumed", self.session.drained_by)

    async def _reconcile(self, *, anyway: bool = False) -> None:
        """Make both sides hold the same claims; the daemon's rows decide."""
        async with self._mending:
            if self.session.lifecycle not in ("OFFLINE", "RECOVERING") and not anyway:
                return  # another task has done it meanwhile
            key = self.session.key
            try:
                await reconcile(self.session, self.desk)
            except Refusal as refused:
                if refused.next == "reconcile":
                    raise Stopped(FAILED, str(refused)) from refused
                await self._obey(refused, key)
                return
            log.info("reconciled: %s", self.session.lifecycle)
            if self.session.lifecycle in ("READY", "BUSY"):
                self.kick.set()

    # -- leave

    async def _leave(self) -> None:
        """Drain, finish or release within the grace, end with 0."""
        await self._told.wait()
        self._open.clear()
        log.info("told to stop: finishing %d within %d ms", len(self.desk.slots), self.grace_ms)
        try:
            patience_ms = min(5_000, self.grace_ms // 4)
            await self.session.drain("the process was told to stop", patience_ms=patience_ms)
        except Refusal as refused:
            if refused.status == 401:
                raise self.session.stopped_by(refused) from refused
            log.warning("could not drain: %s", refused)
        except Unreachable as silence:
            log.warning("could not drain: %s", silence)
        # The daemon ended the poll; what it gave in the same instant is given back, not lost.
        await self._until(lambda: not self._asking, 1.0, self._hurry)
        self._taking.cancel()
        await self._until(lambda: not self.desk.slots, self.grace_ms / 1000, self._hurry)
        if self.desk.slots:
            self.desk.stop_all("shutdown")
            await self._until(lambda: not self.desk.slots, 2.0, self._hurry)
            self.desk.release_all()
        await self._until(lambda: not len(self.desk.courier), LAST_WORDS_S, None)
        self._end(Stopped(DONE, "told to stop"))

    async def _until(self, done: Any, seconds: float, hurry: asyncio.Event | None) -> None:
        ends = asyncio.get_running_loop().time() + seconds
        while not done() and asyncio.get_running_loop().time() < ends:
            if hurry is not None and hurry.is_set():
                return
            await asyncio.sleep(0.02)


async def _either(event: asyncio.Event, seconds: float) -> None:
    """Until the event or the time, whichever comes first."""
    # Not wait_for: it may swallow a cancellation that comes in the instant of the event.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()

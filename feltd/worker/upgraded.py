"""How a worker lives on a channel: opened and opened again, work by credit, news as they come.

An addition to the loop, never a condition of it: where there is no channel, or it is lost, the loop
goes on over HTTP as if there had never been one.
"""

import asyncio
import contextlib
import logging
import random
from typing import TYPE_CHECKING

from feltd.worker.channel import Channel
from feltd.worker.refusal import Refusal, Unreachable
from feltd.worker.transport import pause_s
from feltd.worker.verbs.calls import Json

if TYPE_CHECKING:
    from feltd.worker.loop import Loop

log = logging.getLogger("feltd.worker")

#: Work is not polled for before it is known whether there is a channel, for so long.
DECIDE_S = 5.0
#: After an upgrade was refused, or another channel took the place of this one.
REFUSED_PAUSE_S = 60.0
#: Between looks at how many claims this process can hold.
CREDIT_S = 0.5
#: A poll over HTTP ends after this, so that a channel that came back is used.
SHORT_POLL_MS = 5_000
REPLACED = "4409"


class Upgraded:
    """The channel of a loop, while there is one."""

    def __init__(self, loop: "Loop") -> None:
        self._loop = loop
        self._session = loop.session
        self._session.by_channel = self.exchange
        self._ordered: int | None = None
        self._decided = asyncio.Event()

    async def live(self) -> None:
        """Keep a channel open for as long as the loop lives."""
        failed = 0
        try:
            while True:
                pause, opened = await self._once(failed)
                failed = 0 if opened else failed + 1
                self._decided.set()
                await asyncio.sleep(pause)
        finally:
            if self._session.channel is not None:
                await self._session.channel.close()

    async def take(self) -> bool:
        """Order as much as this process can hold, or wait; False where there is no channel."""
        if not self._decided.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DECIDE_S):
                    await self._decided.wait()
            self._decided.set()
        channel = self._session.channel
        if channel is None:
            return False
        credit = self._loop.desk.credit
        if credit == self._ordered:
            self._loop.desk.freed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CREDIT_S):
                    await self._loop.desk.freed.wait()
            return True
        parcels = self._loop.desk.courier.load()
        answer = await self._loop.exchange(parcels, {})
        if answer is None:
            await asyncio.sleep(0.2)
        elif not self._loop.received(answer) and answer.get("lifecycle") not in ("READY", "BUSY"):
            self._ordered = None
            await self._loop.nothing(answer)
        return True

    async def exchange(self, channel: Channel, body: Json) -> Json:
        """One exchange by the channel; each orders as much as this process can hold by then."""
        credit, lease_ms = self._loop.desk.credit, self._session.settings.lease_ms
        order = {"credit": credit, "lease_ms": lease_ms, "start": True}
        self._ordered = credit
        try:
            return await channel.call({**body, "claim": order})
        except (Refusal, Unreachable):
            self._ordered = None
            raise

    async def _once(self, failed: int) -> tuple[float, bool]:
        """One channel from its opening to its end; how long to wait before the next."""
        session = self._session
        url = session.client.transport.url
        key = session.key or session.client.transport.key
        try:
            channel = await Channel.open(url, session.worker_id, key, self._news)
        except Refusal as refused:
            log.warning("no channel, work is polled for: %s", refused)
            self._loop.kick.set()
            return REFUSED_PAUSE_S * random.uniform(0.8, 1.2), False
        except Unreachable as silence:
            log.debug("%s", silence)
            return pause_s(failed + 1, None, random.random()), False
        log.info("channel open")
        session.channel, self._ordered = channel, None
        self._decided.set()
        await channel.closed.wait()
        session.channel = None
        self._loop.desk.freed.set()
        log.info("channel closed: %s", channel.why)
        self._loop.kick.set()
        if channel.why.startswith(REPLACED):
            return REFUSED_PAUSE_S * random.uniform(0.8, 1.2), True
        return pause_s(1, None, random.random()), True

    def _news(self, news: Json) -> None:
        """What the daemon says unasked."""
        self._loop.desk.hear(news)
        # Told twice, on two ways, it is begun once.
        for claim in self._loop.desk.newly_given({"assigned_claims": news.get("claims")}):
            if self._loop.desk.free > 0:
                self._loop.given(claim)
            else:
                # Pushed into the place of a claim that is over, whose handler does not listen.
                self._loop.desk.give_back(claim)
        self._loop.desk.freed.set()
        if "drain" in news:
            self._loop.kick.set()

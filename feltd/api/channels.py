"""Every open channel of one daemon: one a worker, ended when the key ends or the daemon stops.

A channel holds no permit. Whoever is in here is looked at every moment as the door would look at
him; nothing else is decided.
"""

import asyncio
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feltd.api.channel import Channel

#: Close codes of the protocol feltd.v1.
AUTH, FORBIDDEN, REPLACED, TOO_LARGE, OVERLOADED = 4401, 4403, 4409, 4413, 4503
STOPPING = 1012

#: How often keys are looked at: one that ran out ends its channel within this, where they are few.
LOOK_S = 0.4
#: Keys looked at in one go; of more channels than this each is looked at a little less often.
LOOKS_MAX = 512


class Channels:
    """The channels of one daemon. Used on the event loop alone."""

    def __init__(self, stop: asyncio.Event) -> None:
        """`stop` is the daemon's: it ends every channel at once."""
        self.stop = stop
        self._all: dict[Channel, None] = {}
        self._of_worker: dict[str, Channel] = {}
        self._turns: OrderedDict[Channel, None] = OrderedDict()
        self._tasks: list[asyncio.Task[None]] = []
        self._look = asyncio.Event()

    @property
    def open(self) -> int:
        """Gauge: channels of workers open now."""
        return len(self._of_worker)

    def enter(self, channel: "Channel") -> None:
        """A connection has been upgraded; nobody may be known yet."""
        self._all[channel] = None
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._end_all()), loop.create_task(self._keep())]
        if self.stop.is_set():
            channel.stop()

    def let_in(self, channel: "Channel") -> None:
        """Its worker is known: from now on this is its channel, and an older one is closed."""
        older = self._of_worker.get(channel.worker_id)
        self._of_worker[channel.worker_id] = channel
        self._turns[channel] = None
        if older is not None:
            older.end(REPLACED, "a newer channel of this worker took its place")

    def leave(self, channel: "Channel") -> None:
        """It is over; harmless when repeated."""
        self._all.pop(channel, None)
        if self._of_worker.get(channel.worker_id) is channel:
            del self._of_worker[channel.worker_id]
        self._turns.pop(channel, None)
        if not self._all:
            for task in self._tasks:
                task.cancel()
            self._tasks = []

    def look(self) -> None:
        """Some key changed: look at them now."""
        self._look.set()

    async def _end_all(self) -> None:
        await self.stop.wait()
        for channel in tuple(self._all):
            channel.stop()

    async def _keep(self) -> None:
        """Test keys as the door does, in turn, and have what waits for calmer times look again."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._look.wait()
            self._look.clear()
            for _ in range(min(len(self._turns), LOOKS_MAX)):
                if not self._turns:
                    break
                channel = next(iter(self._turns))
                self._turns.move_to_end(channel)
                await channel.test_key()
            for channel in tuple(self._of_worker.values()):
                channel.pusher.look_later()

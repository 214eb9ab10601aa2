"""The worker `feltd` of one tenant and application: it lives as the loop of the SDK has it live.

What it adds to that loop: it is registered by the daemon instead of with a key of its own, offers
the definitions it can run at this moment, and runs their programs. It holds nothing while one runs
but the claim.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from feltd.clock import boot_ms
from feltd.executor.capability import Capability
from feltd.executor.places import Share
from feltd.executor.programs import BUILTINS, Catalogue
from feltd.executor.records import Records
from feltd.worker.client import AsyncClient
from feltd.worker.desk import ANY
from feltd.worker.loop import Loop
from feltd.worker.session import FAILED, Session, Settings, Stopped
from feltd.worker.verbs.calls import Json

log = logging.getLogger("feltd.executor")

NAME = "feltd"
RUNTIME = "hosted"
LEASE_MS = 30_000
#: Kinds of work a worker may name.
KINDS_MAX = 256
#: Programs of a room that run at once, each a process.
CONCURRENCY_MAX = 4
#: Many programs written in a row are taken in together.
GATHER_S = 0.05
#: With more programs than may be named, what waits is looked at this often.
CROWDED_EVERY_S = 1.0
AGAIN_S = 1.0

#: Registers the worker; answers what `POST /v1/workers` does. Raises Stopped.
Enlist = Callable[[Json], Awaitable[Json]]
#: Definitions of the application that work is due for, the first in turn first.
Due = Callable[[], Awaitable[list[str]]]


class Terms(NamedTuple):
    """What the grant allows: how much at once, and which kinds of work (None: any)."""

    concurrency: int | None = None
    kinds: tuple[str, ...] | None = None


class Room:
    """One executor: `live` until it has to end; `look` when a program was written."""

    def __init__(
        self,
        client: AsyncClient,
        records: Records,
        enlist: Enlist,
        due: Due,
        terms: Terms,
        places: Share,
    ) -> None:
        self._client = client
        self._due = due
        self._allowed = terms.kinds
        self._places = places
        self.catalogue = Catalogue(records)
        self._records = records
        settings = Settings(
            name=NAME, concurrency=_concurrency(terms), runtime=RUNTIME, lease_ms=LEASE_MS
        )
        self._session = Enlisted(client, settings, enlist)
        self._loop: Loop | None = None
        self._written = asyncio.Event()
        self._crowded = False

    def look(self, *, due: bool = False) -> None:
        """Something was written; `due`: only that work has become due."""
        if self._crowded or not due:
            self._written.set()

    def regrant(self, terms: Terms) -> None:
        """The grant allows something else from here on."""
        self._allowed = terms.kinds
        self._session.resize(_concurrency(terms))
        self._written.set()

    def leave(self) -> None:
        """Take no more work, finish what runs, end. Twice: end at once."""
        if self._loop is not None:
            self._loop.leave()

    async def live(self, grace_ms: int) -> Stopped:
        """Until the end, and which it was; `grace_ms` is what running programs get at the end."""
        try:
            await self.catalogue.follow()
            await self._session.begin_with(await self._kinds())
        except Stopped as stopped:
            return stopped
        capability = Capability(
            self._session, self.catalogue, self._records, self._places, self._offer
        )
        loop = self._loop = Loop(
            self._session, {ANY: capability}, on_drain="park", grace_ms=grace_ms
        )
        keeping = asyncio.create_task(self._keep_up())
        keeping.add_done_callback(lambda _: loop.leave())
        try:
            return await loop.run()
        finally:
            self._loop = None
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError, Stopped):
                await keeping

    async def _keep_up(self) -> None:
        """Offer what can be run, whenever that changes."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CROWDED_EVERY_S if self._crowded else None):
                    await self._written.wait()
            await asyncio.sleep(GATHER_S)
            self._written.clear()
            try:
                await self._offer()
            except Stopped:
                raise
            except Exception as error:
                log.warning("the programs could not be read: %s", error)
                self._written.set()
                await asyncio.sleep(AGAIN_S)

    async def _offer(self) -> None:
        await self.catalogue.follow()
        await self._session.offer(await self._kinds())

    async def _kinds(self) -> tuple[str, ...]:
        """The kinds of work to be offered: all that can be run, or of too many those that wait."""
        runnable = self.catalogue.definitions
        kinds: Iterable[str] = runnable
        if self._allowed is not None:
            kinds = [kind for kind in self._allowed if kind.split("#")[0] in runnable]
        kinds = sorted(kinds)
        self._crowded = len(kinds) > KINDS_MAX
        if self._crowded:
            # In order: what is always there, what waits, what was offered before, the rest.
            waiting = [one for one in await self._due() if one in runnable]
            order = dict.fromkeys([*sorted(BUILTINS), *waiting, *self._session.offered, *kinds])
            kinds = sorted([one for one in order if one in runnable][:KINDS_MAX])
        if not kinds:
            # No kinds at all would mean every kind.
            raise Stopped(FAILED, "the grant allows nothing that can be run here")
        return tuple(kinds)


class Enlisted(Session):
    """A session whose registration is the daemon's own business."""

    def __init__(self, client: AsyncClient, settings: Settings, enlist: Enlist) -> None:
        super().__init__(client, settings)
        self._enlist = enlist
        self.offered: tuple[str, ...] = ()

    async def begin_with(self, kinds: tuple[str, ...]) -> None:
        """Register, in place of whoever had the name."""
        self._asked = self._registration({})
        self._asked["workload_kinds"] = self.offered = kinds
        await self._register(takeover=True, new_key=True)
        self._say_drain()

    def resize(self, concurrency: int) -> None:
        """Ask for another concurrency, from the next registration on."""
        if self._asked and self._asked["capacity"] != {"concurrency": concurrency}:
            self._asked["capacity"] = {"concurrency": concurrency}
            self.offered = ()

    async def offer(self, kinds: tuple[str, ...]) -> None:
        """Offer other kinds of work; the same ones cost nothing."""
        if kinds != self.offered:
            async with self.mending:
                self._asked["workload_kinds"] = self.offered = kinds
                await self._register(takeover=False)

    async def _register(self, *, takeover: bool, new_key: bool = False) -> Json:
        body = {**self._asked, "takeover": takeover, "issue_key": new_key}
        sent_ms = boot_ms()
        answer = await self._enlist(body)
        self.leases.saw(sent_ms, answer.get("server_time_ms"))
        self.key = answer.get("worker_key") or self.key
        self._is(answer["worker"])
        worker: dict[str, Any] = answer["worker"]
        return worker


def _concurrency(terms: Terms) -> int:
    return min(terms.concurrency or CONCURRENCY_MAX, CONCURRENCY_MAX)

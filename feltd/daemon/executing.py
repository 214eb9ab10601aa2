"""The daemon's own workers: begun where a grant names the executor, ended where none does any more.

Each is a worker as any other, whose calls go into the application from inside. What is done here
for them is what an operator does for others: watch the grants, register, start, stop.
"""

import asyncio
import random
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from feltd.api import fresh
from feltd.daemon.inside import Inside
from feltd.daemon.programs import TenantRecords
from feltd.errors import Refused
from feltd.executor.places import Places
from feltd.executor.room import Room, Terms
from feltd.executor.steps import PROGRAMS
from feltd.identity import executors
from feltd.identity.executors import EXECUTOR
from feltd.mesh import register, turns
from feltd.model.base import Ask, Caller
from feltd.model.grant import Grant
from feltd.model.worker import Registration
from feltd.worker.client import AsyncClient
from feltd.worker.session import FAILED, NAME_TAKEN, Stopped

if TYPE_CHECKING:
    from feltd.daemon.run import Daemon

#: Grants also begin and end by the clock alone: then nobody says so.
LOOK_EVERY_S = 30.0
#: A worker that ended begins again after the first, later after up to the second.
AGAIN_S = (1.0, 30.0)
#: Programs that run at once, each a process: beyond that they only wait for the processors.
PROCESSES_MAX = 8
#: Of these, what the applications of one tenant have together.
PROCESSES_OF_ONE_MAX = 4
#: Of graceful_ms, what running programs get to finish, and what giving back the rest takes then.
GRACE_SHARE = 0.25
GIVING_BACK_SHARE = 0.15
#: Nothing listens there; the calls go into the application.
URL = "http://localhost"

log = structlog.get_logger("feltd.executor")

Place = tuple[str, str]


class Executing:
    """Every executor of one daemon. `run` until the daemon stops."""

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon = daemon
        self._transport = Inside(daemon.context.stack)
        self._places = Places(PROCESSES_MAX, PROCESSES_OF_ONE_MAX)
        self._rooms: dict[Place, _Tenure] = {}
        self._look = asyncio.Event()

    def told(self, topic: str, key: str) -> None:
        """Hear of a commit: a program was written, work is due, a grant has changed."""
        if topic == "grant" or topic == "foreign_write":
            self._look.set()
        elif topic == "record":
            for (tenant_id, _), tenure in self._rooms.items():
                if key == f"{tenant_id}/{PROGRAMS}":
                    tenure.look()
        elif topic == "ready":
            tenant_id, _, application_id = key.partition("/")
            if (tenant_id, application_id) in self._rooms:
                self._rooms[tenant_id, application_id].look(due=True)

    async def run(self) -> None:
        """Have a worker wherever a grant says so; end all of them in order at the stop."""
        stop = asyncio.ensure_future(self._daemon.stop.wait())
        try:
            while not stop.done():
                self._look.clear()
                await self._compare()
                look = asyncio.ensure_future(self._look.wait())
                await asyncio.wait(
                    (stop, look), timeout=LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED
                )
                look.cancel()
            await asyncio.gather(*(tenure.leave() for tenure in self._rooms.values()))
        finally:
            stop.cancel()
            for tenure in self._rooms.values():
                tenure.cut()

    async def _compare(self) -> None:
        """Begin and end what the grants of this moment say."""
        try:
            grants = await self._daemon.readers.read(executors.standing, None)
        except Exception as error:
            log.warning("the executor's grants could not be read", error=repr(error))
            return
        standing: dict[Place, list[Grant]] = {}
        for grant in grants:
            standing.setdefault((grant.tenant_id, grant.application_id), []).append(grant)
        for place in [place for place in self._rooms if place not in standing]:
            log.info("no grant names the executor any more", tenant=place[0], application=place[1])
            self._rooms.pop(place).cut()
        for place, live in standing.items():
            known = self._rooms.get(place)
            if known is not None:
                same = [grant for grant in live if grant.id == known.grant.id]
                live = [grant for grant in live if grant.id != known.grant.id]
                if same and (not known.over or not live):
                    known.regrant(same[0])
                    continue
                known.cut()
            self._rooms[place] = _Tenure(self._daemon, live[0], self._transport, self._places)


class _Tenure:
    """The executor of one tenant and application under one grant: begun again and again until it
    is cut, or another process took its name.
    """

    def __init__(self, daemon: "Daemon", grant: Grant, transport: Inside, places: Places) -> None:
        self.grant = grant
        self._daemon = daemon
        self._transport = transport
        self._places = places.share(grant.tenant_id)
        self._room: Room | None = None
        self._leaving = False
        self._task = asyncio.get_running_loop().create_task(self._live())

    @property
    def over(self) -> bool:
        """Whether another process took the name: it does not begin again under this grant."""
        return self._task.done()

    def look(self, *, due: bool = False) -> None:
        """A program was written; `due`: work has become due."""
        if self._room is not None:
            self._room.look(due=due)

    def regrant(self, grant: Grant) -> None:
        """The grant as it stands now; work that it still covers goes on."""
        if grant != self.grant:
            self.grant = grant
            if self._room is not None:
                self._room.regrant(_terms(grant))

    async def leave(self) -> None:
        """Finish in order what runs, within the grace."""
        self._leaving = True
        if self._room is not None:
            self._room.leave()
            giving_back_ms = self._daemon.config.graceful_ms * GIVING_BACK_SHARE
            await asyncio.wait([self._task], timeout=(self._grace_ms + giving_back_ms) / 1_000)

    def cut(self) -> None:
        """End it now, and the programs with it: it may do nothing more anyway."""
        self._task.cancel()

    @property
    def _grace_ms(self) -> int:
        return int(self._daemon.config.graceful_ms * GRACE_SHARE)

    async def _live(self) -> None:
        pause_s = AGAIN_S[0]
        where = {"tenant": self.grant.tenant_id, "application": self.grant.application_id}
        loop = asyncio.get_running_loop()
        while not self._leaving:
            began_s = loop.time()
            try:
                stopped = await self._one_life()
            except Exception as error:
                log.exception("a fault of the executor", **where)
                stopped = Stopped(FAILED, repr(error))
            tell = log.info if self._leaving else log.warning
            tell("the executor stopped", code=stopped.code, reason=stopped.reason, **where)
            if stopped.code == NAME_TAKEN:
                # It never fights back: a new grant or a new start of the daemon begins again.
                return
            if loop.time() - began_s > AGAIN_S[1]:
                pause_s = AGAIN_S[0]
            if not self._leaving:
                await asyncio.sleep(pause_s * random.uniform(0.75, 1.0))
                pause_s = min(2 * pause_s, AGAIN_S[1])

    async def _one_life(self) -> Stopped:
        async with AsyncClient(URL, inside=self._transport) as client:
            self._room = Room(
                client,
                self._records(),
                self._enlist,
                self._due,
                _terms(self.grant),
                self._places,
            )
            try:
                return await self._room.live(self._grace_ms)
            finally:
                self._room = None

    def _records(self) -> TenantRecords:
        daemon = self._daemon
        secret = daemon.context.keyring.cursor_secret
        return TenantRecords(daemon.writer, daemon.readers, secret, self.grant.tenant_id)

    async def _enlist(self, body: dict[str, Any]) -> dict[str, Any]:
        """Register the worker as its grant's subject; raises Stopped where it is refused."""
        told = msgspec.convert(body, Registration)
        caller = Caller(
            subject=EXECUTOR,
            tenants=(self.grant.tenant_id,),
            grant_id=self.grant.id,
            local=True,
        )
        asked = register.Registering(
            registration=told,
            grant_id=self.grant.id,
            namespace=self._daemon.config.namespace,
        )
        while True:
            ask = Ask(
                caller=caller, body=asked, fresh=fresh.key_material(), limits=self._daemon.config
            )
            try:
                admitted = await self._daemon.writer.submit(register.register, ask)
            except Refused as refused:
                if refused.next != "repeat":
                    raise Stopped(FAILED, f"{refused.code}: {refused.detail}") from refused
                await asyncio.sleep(AGAIN_S[0])
                continue
            answer: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(admitted.answer))
            return answer

    async def _due(self) -> list[str]:
        wanted = self.grant.tenant_id, self.grant.application_id
        return await self._daemon.readers.read(turns.due_definitions, wanted)


def _terms(grant: Grant) -> Terms:
    return Terms(grant.constraints.max_concurrency, grant.constraints.workload_kinds)

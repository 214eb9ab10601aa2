"""Writes of other programs to the file of a running daemon: noticed, audited, and looked into.

The writer notices one in the batch that comes next, so that none of its rules trusts what it
remembered. What the other program did is found out beside everything else: on a connection of its
own, within a time, and after a rest so long that a program which writes all day costs a tenth of a
core at most.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from feltd.api.health import Health
from feltd.clock import Now
from feltd.errors import Refused
from feltd.mesh import ledger
from feltd.state import promises
from feltd.store.connect import open_reader
from feltd.store.tx import Tx
from feltd.store.writer import Writer

#: Every promise asked of a million workloads takes half a minute.
LOOK_S_MAX = 120.0
#: After a look comes a rest of so many times as long.
REST_TIMES = 10
#: A look that shall end is told so this often: between two statements nobody hears it.
INTERRUPT_AGAIN_S = 0.05

log = structlog.get_logger("feltd.keeper")


class ForeignWrites:
    """What one daemon knows of them. `note` is the writer's hook, on its thread."""

    def __init__(
        self,
        path: Path,
        writer: Callable[[], Writer],
        health: Health,
        stop: asyncio.Event,
        audit_head: Callable[[], str],
    ) -> None:
        """`audit_head` is the newest audit row that the mark beside the database names."""
        self._path = path
        self._writer = writer
        self._health = health
        self._stop = stop
        self._audit_head = audit_head
        self._look: asyncio.Task[None] | None = None
        self._rests_until_s = 0.0
        #: There was one since the last look; and one that no audit row tells of.
        self._seen = self._untold = False

    def note(self, tx: Tx, now: Now) -> None:
        """Write down that there was one since the last batch, at most once a second."""
        if not ledger.foreign_write(tx, None, now):
            self._untold = True
        tx.tell("foreign_write", "")
        self._seen = True

    async def begin(self) -> None:
        """The keeper's chore: begin a look where there is something to look into.

        Repeating while one is at work, or rests, begins none.
        """
        if self._untold:
            self._untold = False
            if not await self._writer().submit(ledger.foreign_write, None, keep_alive=True):
                self._untold = True
        working = self._look is not None and not self._look.done()
        if self._seen and not working and time.monotonic() >= self._rests_until_s:
            self._seen = False
            self._look = asyncio.get_running_loop().create_task(self._whole_look())

    async def close(self) -> None:
        """After the stop was told: wait for the look at work, which ends at once."""
        if self._look is not None:
            await asyncio.wait((self._look,))

    async def _whole_look(self) -> None:
        began_s = time.monotonic()
        try:
            told = await self._broken()
        except (Refused, sqlite3.Error, OSError) as error:
            told = f"what it did cannot be told: {error}"
        self._rests_until_s = time.monotonic() + REST_TIMES * (time.monotonic() - began_s)
        if self._stop.is_set():
            return
        if told:
            log.error("a foreign write broke promises", broken=told)
        self._health.note("FOREIGN_WRITE", told or None)

    async def _broken(self) -> str:
        """What is broken, as a sentence; '' where all holds."""
        head = self._audit_head()
        conn = await open_reader(self._path)
        stopping = asyncio.ensure_future(self._stop.wait())
        looking = asyncio.ensure_future(conn.run(lambda one: _look(one, head)))
        try:
            await asyncio.wait(
                (looking, stopping), timeout=LOOK_S_MAX, return_when=asyncio.FIRST_COMPLETED
            )
            if not looking.done():
                while not looking.done():
                    await conn.interrupt()
                    await asyncio.wait((looking,), timeout=INTERRUPT_AGAIN_S)
                with suppress(sqlite3.Error):
                    looking.result()
                return f"not every promise could be asked within {LOOK_S_MAX:.0f} s: feltd check"
            broken = looking.result()
        finally:
            stopping.cancel()
            await conn.close()
        return "; ".join(f"{one.id} {one.says}: {one.rows[0]}" for one in broken)


def _look(conn: sqlite3.Connection, audit_head: str) -> list[promises.Broken]:
    conn.execute("BEGIN")
    tx = Tx(conn)
    return promises.ask(tx) + promises.marked(tx, audit_head)

"""Read-only connections beside the writer: they show things and never decide.

A read runs whole on a reader's thread, inside one transaction, so it sees one state of the
database. Unlike a write it may be ended: past its time, or when nobody waits for it any more, the
statement is interrupted and the reader goes back to the others.
"""

import asyncio
import contextlib
import sqlite3
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from feltd.clock import Now
from feltd.errors import Refused
from feltd.store.connect import Connection, open_reader
from feltd.store.trouble import FAILURES, is_storage, primary_code, refusal
from feltd.store.tx import Tx

C = TypeVar("C")
R = TypeVar("R")

#: More would only share the same two cores; every reader also holds back the WAL's restart.
READERS = 2
#: A page of 500 rows takes milliseconds; far below the request deadline of 10 s.
TIMEOUT_MS = 5_000
#: A read ends at its own limit, so by then every reader is back.
CLOSE_MS = 60_000

BEGIN = "BEGIN"
ROLLBACK = "ROLLBACK"


class Readers:
    """Two readers of one database. `clock` stamps each read.

    Who waits for one is served in turn with those of other tenants, so that a flood of one delays
    another by one read of it; what the daemon itself looks at goes first.
    """

    def __init__(self, connections: list[Connection], clock: Callable[[], Now]) -> None:
        self._all = list(connections)
        self._free = list(connections)
        #: Who waits, by whose read it is, and whose turn comes.
        self._waiting: dict[str, deque[asyncio.Future[Connection]]] = {}
        self._turns: deque[str] = deque()
        self._clock = clock
        self._closed = False

    @classmethod
    async def open(cls, path: Path, clock: Callable[[], Now], readers: int = READERS) -> "Readers":
        """Open the connections; the writer's must be open already."""
        connections: list[Connection] = []
        try:
            for _ in range(readers):
                connections.append(await open_reader(path))
        except BaseException:
            for connection in connections:
                await connection.close()
            raise
        return cls(connections, clock)

    async def read(self, fn: Callable[[Tx, C, Now], R], cmd: C, timeout_ms: int = TIMEOUT_MS) -> R:
        """`fn(tx, cmd, now)` on one state of the database, its writes refused.

        `timeout_ms` covers the wait for a free reader (then SERVICE_OVERLOADED) and the read
        (then STORAGE_STALLED; it is interrupted). A failing storage refuses STORAGE_UNAVAILABLE
        or STORAGE_BUSY. Cancelling the wait ends the read.
        """
        if self._closed:
            raise Refused("SERVICE_OVERLOADED", "the daemon is stopping", committed=False)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_ms / 1_000
        connection = (
            self._free.pop() if self._free else await self._next_free(timeout_ms, whose(cmd))
        )
        reading = _Reading(fn, cmd, self._clock)
        job = loop.create_task(connection.run(reading.run))
        # The reader is free when its thread is, however this wait ends.
        job.add_done_callback(partial(self._done, connection))
        try:
            # wait, not timeout: it cancels nothing, so the two cannot be mixed up.
            await asyncio.wait([job], timeout=max(until_s - loop.time(), 0))
        except asyncio.CancelledError:
            reading.end()
            raise
        if not job.done():
            reading.end()
            raise Refused(
                "STORAGE_STALLED", "the read was ended at its time limit", committed=False
            )
        return job.result()

    async def close(self) -> None:
        """Refuse what comes, let running reads end, close the connections; before the writer's."""
        self._closed = True
        while self._all:
            connection = self._free.pop() if self._free else await self._next_free(CLOSE_MS)
            self._all.remove(connection)
            await connection.close()

    async def _next_free(self, timeout_ms: int, tenant: str = "") -> Connection:
        waiter: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self._queue(tenant).append(waiter)
        try:
            await asyncio.wait([waiter], timeout=timeout_ms / 1_000)
        except asyncio.CancelledError:
            if waiter.done():
                self._give_back(waiter.result())
            waiter.cancel()
            raise
        if waiter.done():
            return waiter.result()
        waiter.cancel()
        raise Refused("SERVICE_OVERLOADED", "every reader is at work", committed=False)

    def _done(self, connection: Connection, job: "asyncio.Task[object]") -> None:
        if not job.cancelled():
            # Looked at here too, so that a read nobody waits for leaves no warning behind.
            job.exception()
        self._give_back(connection)

    def _give_back(self, connection: Connection) -> None:
        while self._turns:
            tenant = self._turns.popleft()
            queue = self._waiting[tenant]
            waiter = queue.popleft()
            if queue:
                self._turn(tenant)
            else:
                del self._waiting[tenant]
            if not waiter.done():
                waiter.set_result(connection)
                return
        self._free.append(connection)

    def _queue(self, tenant: str) -> deque[asyncio.Future[Connection]]:
        if tenant not in self._waiting:
            self._waiting[tenant] = deque()
            self._turn(tenant)
        return self._waiting[tenant]

    def _turn(self, tenant: str) -> None:
        if tenant:
            self._turns.append(tenant)
        else:
            self._turns.appendleft(tenant)


class _Reading(Generic[C, R]):
    """One read on its thread, which `end` may cut short from the loop."""

    def __init__(self, fn: Callable[[Tx, C, Now], R], cmd: C, clock: Callable[[], Now]) -> None:
        self._fn = fn
        self._cmd = cmd
        self._clock = clock
        self._tx: Tx | None = None
        self._conn: sqlite3.Connection | None = None
        self._ended = False

    def run(self, conn: sqlite3.Connection) -> R:
        """The whole read, on the reader's thread."""
        try:
            conn.execute(BEGIN)
            self._conn, self._tx = conn, Tx(conn)
            if self._ended:
                raise sqlite3.OperationalError("the read was ended before it began")
            return self._fn(self._tx, self._cmd, self._clock())
        except FAILURES as error:
            # READONLY is a rule that wanted to write: a bug, not the storage's fault.
            if is_storage(error) and primary_code(error) != sqlite3.SQLITE_READONLY:
                raise refusal(error) from error
            raise
        finally:
            _leave(conn)

    def end(self) -> None:
        """Stop it at the running statement, or before the next one."""
        self._ended = True
        if self._conn is not None and self._tx is not None:
            self._tx.end(sqlite3.OperationalError("the read was ended"))
            self._conn.interrupt()


def whose(cmd: object) -> str:
    """Whose read a command is, as far as it says who asks; '': the daemon's own."""
    tenants = getattr(getattr(cmd, "caller", cmd), "tenants", ())
    return "\n".join(tenants)


def _leave(conn: sqlite3.Connection) -> None:
    # An interrupt that comes late can hit the ROLLBACK itself; the next one then goes through.
    for _ in range(3):
        if not conn.in_transaction:
            return
        with contextlib.suppress(sqlite3.OperationalError):
            conn.execute(ROLLBACK)

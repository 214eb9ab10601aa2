"""The one writer: takes operations from the loop, commits them in groups, answers after COMMIT.

All of a batch runs on the connection's own thread in one go, and nothing ever cancels or
interrupts it. Whoever gives up before his operation started takes its turn away, so it never runs;
after that he can only wait. The loop and the thread share no lock.
"""

import asyncio
import math
import sqlite3
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Protocol, TypeVar

from feltd.clock import Now
from feltd.errors import Refused
from feltd.store.batch import Batch
from feltd.store.checkpoint import Checkpoint, Checkpointer
from feltd.store.connect import Connection
from feltd.store.deadlines import Deadlines
from feltd.store.guard import Guard
from feltd.store.lanes import Lanes, Operation
from feltd.store.trouble import FAILURES, halted, is_over, never_begun, not_over, refusal
from feltd.store.tx import Tx
from feltd.store.vacuum import Bite, bite

C = TypeVar("C")
R = TypeVar("R")

#: Wait for the next commit's company, only when the last one had some: +58 % throughput and
#: -39 % latency where an fsync takes 0.2 ms.
LINGER_S = 0.0005
#: How long a caller past its deadline waits on for an operation that has started.
UNKNOWN_AFTER_S = 5.0
#: Time without a good commit that counts as an outage, at least.
OUTAGE_MS_MIN = 3_000

Signals = list[tuple[str, str]]
Chore = tuple["asyncio.Future[Any]", Callable[[sqlite3.Connection], Any]]


class Observer(Protocol):
    """Told on the event loop what the writer did."""

    def operation(self, name: str, outcome: str, wait_s: float, run_s: float) -> None:
        """One operation: `outcome` is ok, a refusal's code, or error."""

    def batch(self, size: int, commit_s: float) -> None:
        """One transaction and how long its COMMIT took."""


class Writer:
    """Group commit over one connection. Made on the event loop, used from it alone.

    `clock` stamps each batch once. The hooks run on the writer thread inside the transaction:
    `before_batch(tx, now, gap_ms, first)` before the first operation of the first batch, and of
    one that comes more than max(3 x tick_ms, 3,000) ms after the last good commit, after the
    first of commits that kept failing, or after the first of keep-alive calls that kept being
    shed (the keeper submits something every tick, so an idle daemon has no gap; only a keep-alive
    call of a tenant ends the shedding);
    `on_foreign_write(tx, now)` when another connection committed since the last batch;
    `before_commit(tx, now)` last in a batch that changed a row. A hook that raises takes the
    batch back. On the event loop: `after_commit(signals)` and `on_fatal(error)`, after the
    callers are answered; the daemon ends itself then.
    """

    def __init__(
        self,
        conn: Connection,
        path: Path,
        clock: Callable[[], Now],
        *,
        tick_ms: int = 1_000,
        before_batch: Callable[[Tx, Now, int, bool], None] | None = None,
        before_commit: Callable[[Tx, Now], None] | None = None,
        after_commit: Callable[[Signals], None] | None = None,
        on_foreign_write: Callable[[Tx, Now], None] | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._conn = conn
        self._loop = asyncio.get_running_loop()
        self._lanes = Lanes()
        self._deadlines = Deadlines(self._loop, self._late)
        self._wal = Checkpointer()
        self._wal_file = path.with_name(path.name + "-wal")
        self._chores: deque[Chore] = deque()
        self._guard = Guard(
            path,
            clock,
            max(3 * tick_ms, OUTAGE_MS_MIN),
            before_batch,
            before_commit,
            on_foreign_write,
        )
        self._after_commit = after_commit
        self._on_fatal = on_fatal
        self._observer = observer
        self._working: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._gathered = Event()
        self._gather = sys.maxsize
        #: Operations submitted and not yet answered.
        self.waiting = 0
        #: Why nothing is written any more; None while all is well.
        self.broken: BaseException | None = None
        #: Why batches fail; None once one went through that shows it has passed.
        self.trouble: BaseException | None = None
        #: Seconds on time.monotonic() of the last commit that changed a row.
        self.changed_at_s = -math.inf
        self._halted: BaseException | None = None
        #: What rules remember between transactions: of committed rows only.
        self._memo: dict[Any, Any] = {}
        #: For tests: hold every commit this long, asleep on the writer thread.
        self.slow_commit_ms = 0

    async def submit(
        self,
        op: Callable[[Tx, C, Now], R],
        cmd: C,
        *,
        keep_alive: bool = False,
        bulk: bool = False,
        tenant: str = "",
        deadline_ms: int | None = None,
    ) -> R:
        """Run `op(tx, cmd, now)` in the next batch; its answer, once that is on disk.

        `keep_alive` goes before other operations, `bulk` after them and first in its batch.

        `deadline_ms` counts from now. Not started by then: the operation is removed and
        SERVICE_OVERLOADED refused; started: OUTCOME_UNKNOWN five seconds later, while it runs on.
        Cancelling the wait removes an operation that has not started. What `op` raises is raised
        here. Refuses STORAGE_FULL, STORAGE_BUSY or STORAGE_UNAVAILABLE (committed: false) when
        the batch was taken back, OUTCOME_UNKNOWN when nobody can say whether it was committed.
        """
        if self._closing is not None:
            raise Refused("SERVICE_OVERLOADED", "the daemon is stopping", committed=False)
        if self.broken is not None:
            raise halted(self.broken)
        loop = self._loop
        operation = Operation(
            op, cmd, loop.create_future(), keep_alive, tenant, time.perf_counter(), bulk
        )
        self.waiting += 1
        self._lanes.add(operation)
        if self._working is None:
            self._work_on()
        elif len(self._lanes.inbox) >= self._gather:
            self._gather = sys.maxsize
            self._gathered.set()
        if deadline_ms is not None:
            self._deadlines.add(operation, deadline_ms)
        try:
            answer: R = await operation.future
        except asyncio.CancelledError:
            self._give_up(operation)
            raise
        return answer

    async def checkpoint(self, truncate: bool = False) -> Checkpoint:
        """Move committed pages into the file, between two batches.

        PASSIVE never waits; `truncate` also empties the WAL file, waiting up to the busy timeout
        for readers.
        """
        return await self._between(lambda conn: self._wal.run(conn, truncate))

    def leave_checkpoints(self, left: bool) -> None:
        """Whether another program moves the pages: then nothing here does, a close neither."""
        self._wal.left = left

    async def vacuum(self, pages: int) -> Bite:
        """Give up to `pages` free pages (one of BITES) back, between two batches.

        A commit of its own, the file and nothing else being changed; refuses as `submit` does.
        """
        if self.broken is not None:
            raise halted(self.broken)
        try:
            return await self._between(partial(self._bite, pages))
        except FAILURES as error:
            raise refusal(error) from error

    @property
    def wal_pages(self) -> int:
        """About how many pages the WAL holds: counted at checkpoints, estimated in between."""
        return self._wal.wal_pages

    @property
    def wal_bytes(self) -> int:
        """Size of the -wal file; it stays up to 4 MiB when the pages are moved."""
        try:
            return self._wal_file.stat().st_size
        except FileNotFoundError:
            return 0

    def note_shed_keep_alive(self) -> None:
        """Count a keep-alive call that was turned away as time the daemon could not hear."""
        self._guard.note_shed()

    async def close(self) -> None:
        """Refuse what comes, commit what waits, checkpoint, close the connection.

        Close the readers first. A connection whose -wal was replaced is left open instead:
        closing it would write into or remove what is another program's now. Repeating waits for
        the same end; cancelling the wait stops nothing.
        """
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        while self._working is not None:
            await asyncio.wait([self._working])
        if self._guard.has_foreign_wal():
            self._conn.leave_open()
            return
        try:
            await self._conn.run(lambda conn: self._wal.run(conn, truncate=True))
        except (*FAILURES, ValueError) as error:
            # The commits are in the WAL; the next start reads them from there.
            self.trouble = error
        finally:
            await self._conn.close()

    # Loop side

    def _work_on(self) -> None:
        self._working = self._loop.create_task(self._conn.run(self._work))
        self._working.add_done_callback(self._rest)

    def _rest(self, work: "asyncio.Task[None]") -> None:
        self._working = None
        error = None if work.cancelled() else work.exception()
        if error is not None:
            self._give_out(error)
        if len(self._lanes) or self._chores:
            self._work_on()

    def _give_out(self, error: BaseException) -> None:
        """The thread itself failed: nobody may wait for it any longer."""
        self._halted = error
        batch = Batch()
        batch.refuse(self._lanes, error)
        batch.fatal, batch.stop = error, True
        self._settle(batch)
        while self._chores:
            _set(self._chores.popleft()[0], None, halted(error))

    async def _between(self, chore: Callable[[sqlite3.Connection], R]) -> R:
        if self._closing is not None:
            raise Refused("SERVICE_OVERLOADED", "the daemon is stopping", committed=False)
        done: asyncio.Future[R] = self._loop.create_future()
        self._chores.append((done, chore))
        if self._working is None:
            self._work_on()
        return await done

    def _late(self, operation: Operation) -> None:
        if operation.future.done():
            return
        if operation.start():
            self.waiting -= 1
            operation.future.set_exception(never_begun())
        else:
            self._loop.call_later(UNKNOWN_AFTER_S, _set, operation.future, None, not_over())

    def _give_up(self, operation: Operation) -> None:
        if operation.start():
            self.waiting -= 1

    def _settle(self, batch: Batch) -> None:
        self.waiting -= len(batch.operations)
        if batch.error is not None:
            self.trouble = batch.error
        elif is_over(self.trouble, batch.changes):
            self.trouble = None
        if batch.committed and batch.changes:
            self.changed_at_s = time.monotonic()
        for operation in batch.operations:
            _set(operation.future, operation.answer, operation.refusal)
        if batch.fatal is not None:
            self._break(batch.fatal, batch.stop)
        if self._observer is not None:
            _report(self._observer, batch)
        if batch.signals and self._after_commit is not None:
            self._after_commit(batch.signals)

    def _break(self, error: BaseException, stop: bool) -> None:
        if self.broken is None:
            self.broken = error
            if stop and self._on_fatal is not None:
                self._on_fatal(error)

    # Thread side

    def _work(self, conn: sqlite3.Connection) -> None:
        """Batches until nothing waits. Whatever comes while one commits goes into the next."""
        lanes, guard = self._lanes, self._guard
        while True:
            guard.measure(conn)
            while self._chores:
                _do(conn, *self._chores.popleft())
                guard.note_wal()
            if not len(lanes):
                return
            batch = Batch(self._memo)
            try:
                if self._halted is None:
                    batch.run(conn, lanes, lambda tx: guard.open(conn, tx), self._close_batch)
                else:
                    batch.refuse(lanes, self._halted)
                guard.settle(batch)
            except BaseException as error:
                batch.abandon(error)
            if not batch.committed:
                self._memo.clear()
            self._halted = self._halted or batch.fatal
            self._loop.call_soon_threadsafe(self._settle, batch)
            if batch.committed:
                self._wal.count(batch.changes)
                if self._wal.due:
                    self._checkpoint(conn)
                if len(batch.operations) > 1:
                    self._linger(len(batch.operations))

    def _close_batch(self, tx: Tx, now: Now, changes: int) -> None:
        self._guard.close(tx, now, changes)
        if self.slow_commit_ms:
            time.sleep(self.slow_commit_ms / 1_000)

    def _bite(self, pages: int, conn: sqlite3.Connection) -> Bite:
        given = bite(conn, pages)
        # A page that is given back has another moved into its place.
        self._wal.grew(2 * given.given)
        if self._wal.due:
            self._checkpoint(conn)
        return given

    def _checkpoint(self, conn: sqlite3.Connection) -> None:
        try:
            self._wal.run(conn)
        except FAILURES as error:
            # A full disk stops checkpoints first, while small commits still work.
            self._wal.failed = error

    def _linger(self, company: int) -> None:
        """Wait for as many operations as the last batch had, at most LINGER_S."""
        missing = company - self._lanes.sorted
        if missing > len(self._lanes.inbox):
            self._gathered.clear()
            self._gather = missing
            self._gathered.wait(LINGER_S)
            self._gather = sys.maxsize


def _report(observer: Observer, batch: Batch) -> None:
    for operation in batch.operations:
        refused = operation.refusal
        outcome = "ok" if refused is None else getattr(refused, "code", "error")
        observer.operation(operation.name, outcome, operation.wait_s, operation.run_s)
    observer.batch(len(batch.operations), batch.commit_s)


def _do(
    conn: sqlite3.Connection,
    done: "asyncio.Future[Any]",
    chore: Callable[[sqlite3.Connection], Any],
) -> None:
    """Run one thing between two batches and answer on the loop."""
    try:
        result = chore(conn)
    except BaseException as error:
        done.get_loop().call_soon_threadsafe(_set, done, None, error)
    else:
        done.get_loop().call_soon_threadsafe(_set, done, result, None)


def _set(future: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)

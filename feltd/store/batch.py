"""One group commit: many operations, one transaction, one fsync.

Runs on the writer thread only. Each operation stands in its own savepoint, so a refusal takes back
its own writes alone; an error of the storage takes back the whole batch, and then nobody of it is
told that anything was done. Nothing here is ever interrupted.
"""

import sqlite3
from collections.abc import Callable
from time import perf_counter
from typing import Any

from feltd.clock import Now
from feltd.store.lanes import Lanes, Operation
from feltd.store.trouble import (
    DAMAGED,
    FAILURES,
    FileReplaced,
    halted,
    is_storage,
    primary_code,
    refusal,
    unknown,
)
from feltd.store.tx import Kept, Tx

#: Bounds of one batch: the wait of whoever comes next, and what one lost batch costs.
OPERATIONS_MAX = 256
BATCH_S_MAX = 0.020
#: The part of BATCH_S_MAX that a batch of several tenants gets: nobody is answered before the
#: COMMIT, so what a flood puts behind another tenant's operation delays that as if it came before.
SHARED_PART = 0.2

BEGIN = "BEGIN IMMEDIATE"
COMMIT = "COMMIT"
ROLLBACK = "ROLLBACK"
SAVE = "SAVEPOINT operation"
UNDO = "ROLLBACK TO operation"
KEEP = "RELEASE operation"


class Lost(Exception):
    """The transaction is gone, or must go; the cause says why."""


class Batch:
    """The operations of one transaction and how it ended.

    `committed` says COMMIT returned; `changes` how many rows the kept operations changed.
    `fatal` is set when the file cannot be trusted any more: the daemon stops (`stop`) or only
    writes no further.
    """

    def __init__(self, memo: dict[Any, Any] | None = None) -> None:
        """`memo` is what rules remember between transactions; whoever owns it clears it."""
        self.memo: dict[Any, Any] = {} if memo is None else memo
        self.operations: list[Operation] = []
        self.signals: list[tuple[str, str]] = []
        self.committed = False
        self.changes = 0
        self.commit_s = 0.0
        self.error: BaseException | None = None
        self.fatal: BaseException | None = None
        self.stop = False

    def run(
        self,
        conn: sqlite3.Connection,
        lanes: Lanes,
        open_with: Callable[[Tx], Now],
        close_with: Callable[[Tx, Now, int], None],
    ) -> None:
        """Take what waits, run it, commit it.

        `open_with` stamps the time and runs what comes before the first operation; `close_with`
        what comes before COMMIT. If either raises, the batch is rolled back.
        """
        try:
            conn.execute(BEGIN)
        except FAILURES as error:
            self._take_all(lanes)
            self._fail(conn, error)
            return
        tx = Tx(conn, self.memo)
        before = conn.total_changes
        try:
            now = open_with(tx)
            self.changes = conn.total_changes - before
            self._fill(conn, lanes, tx, now)
            close_with(tx, now, self.changes)
            if tx.lost is not None or not conn.in_transaction:
                raise Lost from tx.lost
        except BaseException as error:
            if not self.operations:
                self._take_all(lanes)
            self._fail(conn, (error.__cause__ or error) if isinstance(error, Lost) else error)
            return
        self._commit(conn)
        self.signals = list(dict.fromkeys(tx.signals)) if self.committed else []

    def refuse(self, lanes: Lanes, error: BaseException) -> None:
        """Run nothing: tell everybody who waits that nothing is written any more."""
        self._take_all(lanes)
        self.error = error
        for operation in self.operations:
            operation.refusal = halted(error)

    def abandon(self, error: BaseException) -> None:
        """The writer itself failed: stop, and let nobody of this batch believe anything."""
        self.committed, self.signals = False, []
        self.error = self.fatal = error
        self.stop = True
        for operation in self.operations:
            operation.refusal = unknown(error)

    def _fill(self, conn: sqlite3.Connection, lanes: Lanes, tx: Tx, now: Now) -> None:
        started_s = perf_counter()
        until_s = started_s + BATCH_S_MAX
        shared_until_s = started_s + BATCH_S_MAX * SHARED_PART
        while len(self.operations) < OPERATIONS_MAX and started_s < until_s:
            operation = lanes.take(opening=not self.operations)
            if operation is None:
                return
            if not operation.start():
                continue
            if not self.operations:
                lanes.opened(operation)
            self.operations.append(operation)
            if operation.tenant != self.operations[0].tenant:
                until_s = shared_until_s
            operation.wait_s = started_s - operation.submitted_s
            self.changes += _run(conn, operation, tx, now)
            ended_s = perf_counter()
            operation.run_s = ended_s - started_s
            started_s = ended_s

    def _take_all(self, lanes: Lanes) -> None:
        # What fails before the first operation fails for everybody who waits for it.
        while (operation := lanes.take()) is not None:
            if operation.start():
                self.operations.append(operation)

    def _commit(self, conn: sqlite3.Connection) -> None:
        started_s = perf_counter()
        try:
            conn.execute(COMMIT)
        except sqlite3.IntegrityError as error:
            self._fail(conn, error)
        except FAILURES as error:
            # A full disk and a held lock stop a commit before its last frame. Any other error may
            # come after it: the row can be on disk, and recovery would bring it back.
            if primary_code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY):
                self._fail(conn, error)
            else:
                self._fail(conn, error, told=unknown)
                self.fatal, self.stop = error, True
        else:
            self.committed = True
        self.commit_s = perf_counter() - started_s

    def _fail(
        self,
        conn: sqlite3.Connection,
        error: BaseException,
        told: Callable[[BaseException], BaseException] = refusal,
    ) -> None:
        self.error = error
        if primary_code(error) in DAMAGED:
            self.fatal = error
        if isinstance(error, FileReplaced):
            self.fatal, self.stop = error, True
        if conn.in_transaction:
            try:
                conn.execute(ROLLBACK)
            except FAILURES as second:
                # Left open it would take every later operation in and never commit.
                self.fatal, self.stop = second, True
        for operation in self.operations:
            operation.answer = None
            operation.refusal = told(error)


def _run(conn: sqlite3.Connection, operation: Operation, tx: Tx, now: Now) -> int:
    """Run one operation in its savepoint; how many rows it changed for good."""
    told = len(tx.signals)
    before = conn.total_changes
    conn.execute(SAVE)
    try:
        operation.answer = operation.rule(tx, operation.cmd, now)
    except Kept as kept:
        operation.refusal = kept
    except BaseException as error:
        if tx.lost is not None or is_storage(error) or not conn.in_transaction:
            raise Lost from tx.lost or error
        conn.execute(UNDO)
        conn.execute(KEEP)
        del tx.signals[told:]
        operation.refusal = _carried(error)
        return 0
    if tx.lost is not None or not conn.in_transaction:
        raise Lost from tx.lost
    conn.execute(KEEP)
    return conn.total_changes - before


def _carried(error: BaseException) -> BaseException:
    # A future refuses StopIteration, and SystemExit would end the event loop.
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    carried = RuntimeError(f"an operation raised {error!r}")
    carried.__cause__ = error
    return carried

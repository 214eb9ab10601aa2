"""What the writer watches around each batch: outages, foreign commits, files replaced or cut short.

Runs on the writer thread. It decides nothing about nouns: it calls the hooks the daemon gave.
"""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from feltd.clock import Now
from feltd.store.batch import Batch
from feltd.store.lanes import Operation
from feltd.store.trouble import FileReplaced, is_over, primary_code
from feltd.store.tx import Tx

DATA_VERSION = "PRAGMA data_version"
#: Answers how many frames SQLite counts in the -wal. It moves them, where there are any to read.
COUNT_FRAMES = "PRAGMA wal_checkpoint(PASSIVE)"

Identity = tuple[int, int] | None


class Guard:
    """The state behind the writer's hooks; see `Writer` for what each hook is told."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], Now],
        outage_ms: int,
        before_batch: Callable[[Tx, Now, int, bool], None] | None,
        before_commit: Callable[[Tx, Now], None] | None,
        on_foreign_write: Callable[[Tx, Now], None] | None,
    ) -> None:
        self._clock = clock
        self._outage_ms = outage_ms
        self._before_batch = before_batch
        self._before_commit = before_commit
        self._on_foreign_write = on_foreign_write
        self._files = tuple(str(path) + end for end in ("", "-wal"))
        self._opened = [_identity(file) for file in self._files]
        #: Bytes of the -wal that were seen last; and whether it was cut short since.
        self._wal_bytes = 0
        self._cut = False
        self._first = True
        self._good_ms = 0
        self._failing_ms: int | None = None
        self._failure: BaseException | None = None
        self._shed_ms: int | None = None
        self._version: int | None = None
        self._version_now: int | None = None
        self._now = Now(0, 0)

    def measure(self, conn: sqlite3.Connection) -> None:
        """Between two batches: look whether somebody made the -wal shorter who may not.

        A shell may empty it by a checkpoint, and write into it anew. Cut short by anything else it
        lacks commits that were answered, and what SQLite would write behind the gap could never be
        read again. Raises FileReplaced then, once.
        """
        wal_bytes = _size(self._files[-1])
        if wal_bytes < self._wal_bytes and not self._cut:
            try:
                if wal_bytes:
                    version = int(conn.execute(DATA_VERSION).fetchone()[0])
                    self._cut = version == self._version
                else:
                    self._cut = int(conn.execute(COUNT_FRAMES).fetchone()[1]) > 0
            except sqlite3.OperationalError as error:
                self._cut = primary_code(error) == sqlite3.SQLITE_IOERR
            if self._cut:
                raise self._cut_short()
        self.note_wal()

    def note_wal(self) -> None:
        """Remember how long the -wal is: what comes between two batches may have emptied it."""
        self._wal_bytes = _size(self._files[-1])

    def open(self, conn: sqlite3.Connection, tx: Tx) -> Now:
        """Stamp the batch; run the hooks that come before its first operation when due."""
        self._now = now = self._clock()
        if self._on_foreign_write is not None:
            # Asked inside the transaction: nobody else can commit until it ends.
            self._version_now = int(conn.execute(DATA_VERSION).fetchone()[0])
            if self._version is not None and self._version_now != self._version:
                # What rules remember is of rows that somebody else may have changed.
                tx.memo.clear()
                self._on_foreign_write(tx, now)
        if self._before_batch is not None:
            gap_ms = self._gap_ms(now.lease_ms)
            if self._first or gap_ms > self._outage_ms:
                self._before_batch(tx, now, gap_ms, self._first)
        return now

    def close(self, tx: Tx, now: Now, changes: int) -> None:
        """The last things before COMMIT."""
        if changes and self._before_commit is not None:
            self._before_commit(tx, now)
        # A write into an unlinked or replaced file succeeds and is lost: look once a batch.
        for place, file in enumerate(self._files):
            opened, found = self._opened[place], _identity(file)
            if opened is None:
                self._opened[place] = found
            elif found != opened:
                raise FileReplaced(f"{file} is not the file that was opened")
        # While this transaction is open nobody checkpoints: it can only have grown.
        if _size(self._files[-1]) < self._wal_bytes:
            self._cut = True
            raise self._cut_short()

    def settle(self, batch: Batch) -> None:
        """Remember how the batch ended."""
        self.note_wal()
        if batch.committed:
            self._first = False
            self._good_ms = self._now.lease_ms
            self._version = self._version_now
            if is_over(self._failure, batch.changes):
                self._failing_ms = None
            if any(_is_heard(one) for one in batch.operations):
                self._shed_ms = None
        else:
            self._failure = batch.error
            if self._failing_ms is None:
                self._failing_ms = self._clock().lease_ms

    def has_foreign_wal(self) -> bool:
        """Whether another file lies where this connection's -wal was, or a part of it."""
        if self._cut:
            return True
        opened, found = self._opened[-1], _identity(self._files[-1])
        return opened is not None and found is not None and found != opened

    def note_shed(self) -> None:
        """A keep-alive call was turned away: until one is heard, that is an outage too."""
        if self._shed_ms is None:
            self._shed_ms = self._clock().lease_ms

    def _cut_short(self) -> FileReplaced:
        return FileReplaced(f"{self._files[-1]} was cut short by another program")

    def _gap_ms(self, lease_ms: int) -> int:
        """For how long the daemon could not hear; 0 before the first commit of this run."""
        if self._first:
            return 0
        since = [self._good_ms, self._failing_ms, self._shed_ms]
        return lease_ms - min(instant for instant in since if instant is not None)


def _is_heard(operation: Operation) -> bool:
    # The daemon's own keep-alive operations have no tenant: they show nothing about the callers.
    return operation.keep_alive and operation.tenant != "" and operation.refusal is None


def _size(file: str) -> int:
    try:
        return os.stat(file).st_size
    except FileNotFoundError:
        return 0


def _identity(file: str) -> Identity:
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino

"""Moves committed pages from the WAL into the file, before the WAL grows past what is safe.

Only the writer's thread does this, between two batches, so that no commit carries the two fsyncs
of it. SQLite tells the WAL's length at a checkpoint only; in between it is estimated from the rows
changed since.
"""

import sqlite3
from typing import NamedTuple

#: Below the 1,000 pages at which a foreign shell that writes checkpoints by itself, which SQLite
#: before 3.51.3 may not survive.
PAGES_DUE = 500

PASSIVE = "PRAGMA wal_checkpoint(PASSIVE)"
TRUNCATE = "PRAGMA wal_checkpoint(TRUNCATE)"


class Checkpoint(NamedTuple):
    """What a checkpoint found: `busy` when a reader or a foreign lock stood in its way."""

    busy: bool
    wal_pages: int
    moved_pages: int


class Checkpointer:
    """Counts what goes into the WAL and says when it is due."""

    def __init__(self) -> None:
        self._per_change = 1.0
        self._pages = 0.0
        self._since = 0.0
        self._changes = 0
        #: Another program checkpoints: here nothing is moved any more.
        self.left = False
        #: Why the writer's own last checkpoint failed; None after a good one.
        self.failed: BaseException | None = None

    @property
    def wal_pages(self) -> int:
        """About how many pages the WAL holds now."""
        return int(self._pages + self._since)

    @property
    def due(self) -> bool:
        """Whether 500 pages came since the last checkpoint, moved or not."""
        return self._since >= PAGES_DUE and not self.left

    def count(self, changes: int) -> None:
        """A commit changed so many rows."""
        self._changes += changes
        self._since += changes * self._per_change

    def grew(self, pages: int) -> None:
        """A commit that changed no row wrote so many pages."""
        self._since += pages

    def run(self, conn: sqlite3.Connection, truncate: bool = False) -> Checkpoint:
        """Checkpoint now, unless that is `left` to another program.

        PASSIVE waits for nobody; TRUNCATE up to the busy timeout.
        """
        if self.left:
            return Checkpoint(False, self.wal_pages, 0)
        row = conn.execute(TRUNCATE if truncate else PASSIVE).fetchone()
        self.failed = None
        found = Checkpoint(bool(row[0]), max(int(row[1]), 0), max(int(row[2]), 0))
        if self._changes and found.wal_pages:
            # The WAL starts anew once all of it is moved and nobody reads it; where it did not,
            # its old pages count again and the guess errs towards checkpointing sooner.
            came = found.wal_pages - self._pages if self._pages else found.wal_pages
            seen = min(max(came / self._changes, 0.02), 8.0)
            self._per_change = (self._per_change + seen) / 2
        self._pages = 0.0 if found.moved_pages >= found.wal_pages else float(found.wal_pages)
        self._since, self._changes = 0.0, 0
        return found

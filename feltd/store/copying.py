"""One whole copy of a live database, made beside it while everybody goes on working.

`VACUUM INTO` reads one state of the database in one transaction, so the copy is of one commit. For
as long as it reads, the write-ahead log cannot begin anew: a second thread watches what it grows
to, what the disk has left, and syncs the copy as it comes, so that no commit of the daemon ever
waits for a gigabyte of somebody else's pages. For a process of its own; nothing here blocks a loop.
"""

import hashlib
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from feltd.errors import Refused
from feltd.store.backup import HASH_BYTES, RESERVE_BYTES
from feltd.store.connect import open_copier, sync_folder
from feltd.store.trouble import primary_code

#: The log may grow to this behind a copy: moving it into the file afterwards stops the writer for
#: a second or two, and reading behind more of it gets slower.
WAL_BYTES_MAX = 1024 * 1024 * 1024
#: How often the watch looks, seconds.
LOOK_S = 0.05

PAGES = "PRAGMA page_count"
FREE = "PRAGMA freelist_count"
PAGE_BYTES = "PRAGMA page_size"
COPY = "VACUUM INTO :draft"
CHECK = "PRAGMA integrity_check(10)"
REFERENCES = "PRAGMA foreign_key_check"


class Progress(NamedTuple):
    """Where a backup stands: `phase` copy, verify or digest; bytes of the copy so far, and of all.

    `wal_bytes` is what the write-ahead log has grown to.
    """

    phase: str
    bytes: int
    total_bytes: int
    wal_bytes: int = 0


Tell = Callable[[Progress], None]


def copy(path: Path, draft: Path, tell: Tell, *, wal_bytes_max: int = WAL_BYTES_MAX) -> None:
    """Copy the database at `path` into the empty file `draft`, whole and on disk on return.

    Refuses STORAGE_FULL before anything is written where it will not fit, and where the disk runs
    low meanwhile; STORAGE_BUSY when the log grows past `wal_bytes_max`; STORAGE_UNAVAILABLE for a
    database that cannot be read. What is in the draft then is nobody's.
    """
    refuse_full((path.parent, RESERVE_BYTES), (draft.parent, RESERVE_BYTES))
    conn = open_copier(path)
    try:
        total = _number(conn, PAGE_BYTES) * (_number(conn, PAGES) - _number(conn, FREE))
        watch = _Watch(conn, path, draft, total, wal_bytes_max, tell)
        watch.look()
        if watch.refusal is not None:
            raise watch.refusal
        with watch:
            try:
                conn.execute(COPY, {"draft": str(draft)})
            except sqlite3.Error as error:
                raise watch.refusal or _failed(draft, error) from error
    finally:
        conn.close()
    sync(draft)


def refuse_full(*needs: tuple[Path, int]) -> None:
    """Refuse STORAGE_FULL where a folder has fewer bytes free than are needed in it."""
    for folder, needed in needs:
        found = os.statvfs(folder)
        free = found.f_bavail * found.f_frsize
        if free < needed:
            raise Refused(
                "STORAGE_FULL",
                f"{free} bytes are free in {folder}, and a backup needs {needed}, "
                f"{RESERVE_BYTES} of them to be left over",
                committed=False,
            )


def sync(file: Path) -> None:
    """Have a file and its name on disk. Refuses STORAGE_FULL or STORAGE_UNAVAILABLE."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        sync_folder(file)
    except OSError as error:
        told = f"the copy cannot be written: {error.strerror}"
        code = "STORAGE_FULL" if error.errno in (28, 122) else "STORAGE_UNAVAILABLE"
        raise Refused(code, told, committed=False) from error


def damage(conn: sqlite3.Connection) -> list[str]:
    """What SQLite finds wrong in any page, index or reference; empty when all is sound."""
    try:
        found = [str(row[0]) for row in conn.execute(CHECK).fetchall()]
        if found != ["ok"]:
            return found
        broken = conn.execute(REFERENCES).fetchmany(10)
    except sqlite3.DatabaseError as error:
        if primary_code(error) not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise
        return [str(error)]
    return [f"a row of {row[0]} refers to a missing row of {row[2]}" for row in broken]


def digest(file: Path, tell: Tell | None = None, into: int | None = None) -> tuple[str, int]:
    """SHA-256, hex, and length of a file; with `into` its bytes are written to that handle too.

    Raises OSError.
    """
    total = file.stat().st_size
    found, read = hashlib.sha256(), 0
    with file.open("rb", buffering=0) as source:
        while part := source.read(HASH_BYTES):
            found.update(part)
            left = memoryview(part)
            while into is not None and left:
                left = left[os.write(into, left) :]
            read += len(part)
            if tell is not None:
                tell(Progress("digest", read, total))
    return found.hexdigest(), read


def step_back() -> None:
    """From here on this process has the processor and the disk only when nobody else wants them.

    What is read now is the copy: no transaction of the live database waits for it.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 19)


class _Watch:
    """The thread beside a copy. `refusal` says why it ended the copy; None: it did not."""

    def __init__(
        self,
        conn: sqlite3.Connection,
        path: Path,
        draft: Path,
        total: int,
        wal_bytes_max: int,
        tell: Tell,
    ) -> None:
        self.refusal: Refused | None = None
        self._conn = conn
        self._path = path
        self._wal = path.with_name(path.name + "-wal")
        self._draft = draft
        self._total = total
        self._wal_bytes_max = wal_bytes_max
        self._tell = tell
        self._synced = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feltd-backup-watch", daemon=True)

    def look(self) -> None:
        """Judge once; sets `refusal` where the copy must not go on."""
        have, wal_bytes = _size(self._draft), _size(self._wal)
        missing = max(0, self._total - have)
        needs = ((self._path.parent, RESERVE_BYTES), (self._draft.parent, RESERVE_BYTES + missing))
        try:
            refuse_full(*needs)
        except Refused as refused:
            self.refusal = refused
        if wal_bytes > self._wal_bytes_max:
            self.refusal = Refused(
                "STORAGE_BUSY",
                f"the write-ahead log grew to {wal_bytes} bytes while the database was copied: "
                "the backup was given up, so that the daemon can shorten it",
                committed=False,
            )
        self._tell(Progress("copy", have, self._total, wal_bytes))

    def _run(self) -> None:
        handle = os.open(self._draft, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while not self._ended.wait(LOOK_S):
                have = _size(self._draft)
                if have != self._synced:
                    self._synced = have
                    with suppress(OSError):  # the copy itself meets it and says so
                        os.fdatasync(handle)
                self.look()
                if self.refusal is not None:
                    # Again and again: between two statements nobody hears it.
                    self._conn.interrupt()
        finally:
            os.close(handle)

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def _failed(draft: Path, error: sqlite3.Error) -> Refused:
    code = primary_code(error)
    if code == sqlite3.SQLITE_FULL:
        told = f"no room for a backup in {draft.parent}"
        return Refused("STORAGE_FULL", told, committed=False)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        told = "another program holds the database's locks"
        return Refused("STORAGE_BUSY", told, committed=False)
    return Refused("STORAGE_UNAVAILABLE", f"the copy failed: {error}", committed=False)


def _number(conn: sqlite3.Connection, pragma: str) -> int:
    return int(conn.execute(pragma).fetchone()[0])


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0

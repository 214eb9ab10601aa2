"""One daemon a database: `<data>.lock`, held by flock for as long as the process lives.

The lock is a file of its own, never the database, whose locks are SQLite's. The file stays when
the lock goes: removing it would let two daemons hold one name each.
"""

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from feltd.clock import wall_ms

#: A command that looks whether a daemon runs holds the lock for an instant; a start waits it out.
TRIES = 10
TRY_EVERY_S = 0.02


class Held(NamedTuple):
    """Who holds a lock: the process and the wall time since when, milliseconds."""

    pid: int
    since: int


class LockHeld(Exception):
    """Another process holds the database: `pid` (0: it does not say) since `since` (wall ms)."""

    def __init__(self, path: Path, held: Held) -> None:
        super().__init__(
            f"{path} is in use by process {held.pid or 'unknown'}. "
            "End that process first, or name another file with --data."
        )
        self.pid = held.pid
        self.since = held.since


class DataLock:
    """The lock in hand; leaving the `with` block or `release()` gives it up. So does any exit."""

    def __init__(self, path: Path, handle: int) -> None:
        self._path = path
        self._handle: int | None = handle

    def renew(self) -> None:
        """Take the lock anew where somebody removed or replaced its file; else do nothing.

        Blocks for up to a fifth of a second. Raises LockHeld when another process was faster: two
        daemons then have the database, and this one must end.
        """
        if self._handle is None or _is_file(_lock_path(self._path), self._handle):
            return
        fresh = take(self._path)
        self.release()
        self._handle, fresh._handle = fresh._handle, None

    def release(self) -> None:
        """Give the lock up; repeating does nothing."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> "DataLock":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def take(path: Path) -> DataLock:
    """Take the lock of the database at `path`.

    Raises LockHeld naming the holder after a fifth of a second, OSError where the folder cannot
    be written to.
    """
    lock = _lock_path(path)
    handle = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        for tried in range(TRIES):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if tried == TRIES - 1:
                    raise LockHeld(path, _read(handle)) from None
                time.sleep(TRY_EVERY_S)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} {wall_ms()}\n".encode(), 0)
    except BaseException:
        os.close(handle)
        raise
    return DataLock(path, handle)


def holder(path: Path) -> Held | None:
    """Who holds the lock of the database at `path`, or None when nobody does."""
    try:
        handle = os.open(_lock_path(path), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(handle)
    finally:
        os.close(handle)
    return None


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _is_file(lock: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(lock), os.fstat(handle))
    except FileNotFoundError:
        return False


def _read(handle: int) -> Held:
    words = os.pread(handle, 64, 0).split()
    if len(words) == 2 and all(word.isdigit() for word in words):
        return Held(int(words[0]), int(words[1]))
    return Held(0, 0)

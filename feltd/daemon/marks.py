"""Keeps the mark beside the database ahead of the tokens and close behind the commits.

No token above the mark's ceiling is ever committed: the writer asks before each commit, and at half
of the room the ceiling goes up on disk first. The mark is written by the keeper and, for the
ceiling, by the writer thread, hence the lock.
"""

import errno
import threading
from pathlib import Path

from msgspec.structs import replace

from feltd.clock import Now
from feltd.errors import Refused
from feltd.mesh import ledger
from feltd.store import sidecar
from feltd.store.sidecar import Mark
from feltd.store.tx import Row, Tx

#: Tokens one ceiling gives: far more than a batch can take (256 operations of 1,024 claims).
CEILING_ROOM = 2**20
#: A mark that tells nothing new is still written this often, for its lease time.
IDLE_MS = 10_000


class Marker:
    """The mark of one run. Made with the floor of its tokens; writes at once."""

    def __init__(self, path: Path, found: Row, floor: int, lease_ms: int) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._mark = Mark(
            boot=sidecar.boot_id(),
            commit_seq=found["commit_seq"],
            audit_head=_head(found),
            lease_ms=lease_ms,
            ceiling=floor + CEILING_ROOM,
            clean=False,
            database=found["instance_id"],
        )
        self._write(self._mark)

    def audit_head(self) -> str:
        """The newest audit row that the mark names, as `seq:hash`."""
        return self._mark.audit_head

    def before_commit(self, tx: Tx, now: Now) -> None:
        """Raise the ceiling on disk before tokens reach it.

        Where that fails there is no commit: refuses STORAGE_FULL or STORAGE_UNAVAILABLE.
        """
        newest = ledger.newest_token(tx)
        if newest + CEILING_ROOM // 2 < self._mark.ceiling:
            return
        try:
            with self._lock:
                self._write(replace(self._mark, ceiling=newest + CEILING_ROOM))
        except OSError as error:
            code = "STORAGE_FULL" if error.errno == errno.ENOSPC else "STORAGE_UNAVAILABLE"
            told = f"the mark beside the database cannot be written: {error.strerror}"
            raise Refused(code, told, committed=False) from error

    def follow(self, found: Row, lease_ms: int, *, clean: bool = False) -> bool:
        """Write what was committed by now; whether there was anything to write.

        Blocks for two fsyncs: not for the event loop.
        """
        with self._lock:
            last = self._mark
            if (
                not clean
                and found["commit_seq"] == last.commit_seq
                and lease_ms - last.lease_ms < IDLE_MS
            ):
                return False
            self._write(
                replace(
                    last,
                    commit_seq=found["commit_seq"],
                    audit_head=_head(found),
                    lease_ms=lease_ms,
                    clean=clean,
                )
            )
        return True

    def _write(self, mark: Mark) -> None:
        sidecar.write(self._path, mark)
        self._mark = mark


def _head(found: Row) -> str:
    """The newest audit row as the mark names it: `seq:hash`."""
    return f"{found['audit_seq']}:{found['audit_hash']}"

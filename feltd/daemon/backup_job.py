"""One backup, from the order to the manifest, in a process of its own beside everybody's work.

`python -m feltd.daemon.backup_job` reads an order, one line of JSON, and says how it goes in lines
of JSON; it ends, and takes what it had begun with it, as soon as nobody holds its stdin any more.
The live database is read in one go; everything after that reads the copy, when nobody else wants
the processor. Whoever starts it lives in another process, so nothing here slows a commit.
"""

import os
import signal
import sqlite3
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from feltd import __version__
from feltd.clock import wall_ms
from feltd.daemon.examining import examine
from feltd.errors import Refused
from feltd.store import backup, copying
from feltd.store.backup import Manifest
from feltd.store.connect import StoreProblem

#: Lines of progress are not closer together than this, seconds.
TELL_S = 0.25
#: What this process gives way by while it reads the live database: the log grows meanwhile, so it
#: may not starve either.
NICE = 5
#: Several databases may share a folder, and a timer: they take turns in it.
FOLDER_S = 600.0


class Order(Struct, frozen=True):
    """What is to be backed up, whereto, and how many are kept."""

    database: str
    folder: str
    keep: int
    wal_bytes_max: int = copying.WAL_BYTES_MAX


class Said(Struct, frozen=True, omit_defaults=True):
    """One line of the job: how far it is, or how it ended.

    `draft` is the unfinished copy; `removed` are older backups that went.
    """

    phase: str = ""
    bytes: int = 0
    total_bytes: int = 0
    wal_bytes: int = 0
    draft: str = ""
    made: Manifest | None = None
    removed: tuple[str, ...] = ()
    code: str = ""
    detail: str = ""


class Job:
    """One backup. `say` hears how it goes."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._draft: Path | None = None
        self._said_s = 0.0
        self._phase = ""
        self._lock = threading.Lock()

    def run(self) -> Said:
        """The whole of it; nothing is left behind where it raises."""
        folder, database = Path(self._order.folder), Path(self._order.database)
        backup.prepare(folder)
        with backup.held(folder, FOLDER_S):
            created_at_ms = wall_ms()
            self._draft = backup.draft_in(folder, created_at_ms)
            try:
                made = self._make(self._draft, database, created_at_ms)
            except BaseException:
                backup.drop(self._draft)
                raise
            return Said(
                made=made,
                removed=tuple(backup.rotate(folder, self._order.keep, made)),
            )

    def abandon(self) -> None:
        """Take the unfinished copy along, from any thread, and end the process."""
        if self._draft is not None:
            with suppress(OSError):
                backup.drop(self._draft)
        os._exit(1)

    def _make(self, draft: Path, database: Path, created_at_ms: int) -> Manifest:
        copying.copy(database, draft, self._tell, wal_bytes_max=self._order.wal_bytes_max)
        copying.step_back()
        size = draft.stat().st_size
        self._tell(copying.Progress("verify", 0, size))
        examined = examine(draft)
        sha256, size = copying.digest(draft, self._tell)
        found = examined.found
        return backup.publish(
            draft,
            Manifest(
                path="",
                bytes=size,
                sha256=sha256,
                sequence=found["commit_seq"],
                created_at_ms=created_at_ms,
                version=__version__,
                schema=examined.schema,
                audit_seq=found["audit_seq"],
                audit_hash=found["audit_hash"],
                instance_id=found["instance_id"],
                database=str(database),
                verified_at_ms=None if examined.broken else wall_ms(),
                broken=examined.broken,
            ),
        )

    def _tell(self, at: copying.Progress) -> None:
        now_s = time.monotonic()
        if at.phase == self._phase and now_s - self._said_s < TELL_S:
            return
        self._phase, self._said_s = at.phase, now_s
        try:
            say(Said(**at._asdict(), draft=str(self._draft)))
        except OSError:
            # Nobody hears it any more.
            self.abandon()


def say(said: Said) -> None:
    """One line to whoever started the process. Raises OSError where nobody hears it any more."""
    line = msgspec.json.encode(said) + b"\n"
    while line:
        line = line[os.write(1, line) :]


def main() -> None:
    """Do what the first line of stdin orders."""
    # Whoever started it is told to stop as well, and lets go of stdin when it does.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):  # a service manager may forbid it
        os.nice(NICE)
    job = Job(msgspec.json.decode(sys.stdin.buffer.readline(), type=Order))

    def follow() -> None:
        while os.read(0, 1):
            pass
        job.abandon()

    threading.Thread(target=follow, name="feltd-backup-follow", daemon=True).start()
    ended = _ended(job)
    with suppress(OSError):
        say(ended)


def _ended(job: Job) -> Said:
    try:
        return job.run()
    except Refused as refused:
        return Said(code=refused.code, detail=refused.detail)
    except StoreProblem as problem:
        return Said(code="STORAGE_UNAVAILABLE", detail=problem.detail)
    except OSError as error:
        found = backup.unusable(Path(error.filename or "."), error)
        return Said(code=found.code, detail=found.detail)
    except sqlite3.Error as error:
        return Said(code="STORAGE_UNAVAILABLE", detail=f"the copy cannot be read: {error}")


def order_line(order: Order) -> bytes:
    """The first line of a job's stdin."""
    return msgspec.json.encode(order) + b"\n"


def heard(line: bytes) -> Said:
    """One line a job said. Raises msgspec.DecodeError for what is none."""
    return msgspec.json.decode(line, type=Said)


def arguments() -> tuple[Any, ...]:
    """The command that starts a job."""
    return (sys.executable, "-m", "feltd.daemon.backup_job")


if __name__ == "__main__":
    main()

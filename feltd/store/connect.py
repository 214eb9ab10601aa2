"""Every way feltd opens its database file, and nobody else does.

One connection writes and checkpoints (SQLite before 3.51.3 can lose commits otherwise), the others
are `mode=ro`. The file is opened through SQLite alone: a plain open and close of it inside the
daemon would drop SQLite's locks. It is born whole: made under another name with its page settings,
then linked to its own, so a zero-length file is always somebody's accident and is refused.
"""

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import TypeVar

import aiosqlite

T = TypeVar("T")

#: "FELT" in the header: the file is feltd's.
APPLICATION_ID = 0x46454C54
#: Behind its name while it is made, and while a backup is put there: linked to its own when whole.
MAKING = ".new"
RESTORING = ".restoring"
#: How long a statement waits for a foreign lock; far below the request deadline of 10 s.
BUSY_TIMEOUT_MS = 2_000
#: Statements of all rules together stay under this, so none is prepared twice.
CACHED_STATEMENTS = 512

# Both only take effect before journal_mode=WAL and the first table. PRAGMA takes no
# parameters: the number is APPLICATION_ID.
BIRTH = (
    "PRAGMA auto_vacuum = INCREMENTAL",
    "PRAGMA application_id = 0x46454C54",
    "PRAGMA journal_mode = WAL",
)

# Each insertion that a trigger may refuse saves the pages it touches first: in memory (temp_store)
# that is 15 % of its time, in a temporary file it is two system calls a page and a disk to fill.
# mmap spreads damage; triggers must fire inside REPLACE (recursive_triggers); the writer alone
# checkpoints (wal_autocheckpoint); the WAL keeps 4 MiB, so that commits overwrite and a WAL grown
# behind a long reader shrinks again (journal_size_limit).
SETTINGS = (
    "PRAGMA busy_timeout = 2000",
    "PRAGMA foreign_keys = ON",
    "PRAGMA trusted_schema = OFF",
    "PRAGMA cell_size_check = ON",
    "PRAGMA mmap_size = 0",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA recursive_triggers = ON",
    "PRAGMA wal_autocheckpoint = 0",
    "PRAGMA journal_size_limit = 4194304",
    "PRAGMA synchronous = FULL",
)


class StoreProblem(Exception):
    """The database cannot be used: `detail` says what was found, `remedy` names the way out.

    Nothing was changed when it is raised.
    """

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(f"{detail} {remedy}")
        self.detail = detail
        self.remedy = remedy


class Connection(aiosqlite.Connection):
    """aiosqlite's connection thread, with the one verb feltd uses.

    The thread is a daemon thread here, so that a start which fails before `close()` still ends
    the process; nothing is lost by it, since nothing is acknowledged before its COMMIT.
    """

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, 64)
        self._thread.daemon = True

    async def run(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        """Run `fn(connection)` whole on the thread. Cancelling the wait does not stop it."""
        done: T = await self._execute(fn, self._conn)  # type: ignore[no-untyped-call]
        return done

    def leave_open(self) -> None:
        """Never close this connection, not even at exit: its thread keeps it until then."""
        self._tx.put_nowait((None, partial(_hold, self._connection)))
        self._connection = None

    def join(self) -> None:
        """After an opening that failed: wait until the thread is gone, which aiosqlite does not."""
        self._thread.join(2 * BUSY_TIMEOUT_MS / 1_000)


async def open_writer(path: Path) -> Connection:
    """Open the one connection that writes, making the file first when there is none.

    Raises StoreProblem, the file untouched, for one that is empty, foreign, broken, read-only,
    locked for more than two seconds or on a file system without WAL.
    """
    return await _opened(Connection(partial(_connect_writer, path)))


async def open_reader(path: Path) -> Connection:
    """Open a read-only connection beside the writer, which must be open already."""
    return await _opened(Connection(partial(_connect_reader, path)))


def open_local(path: Path, read_only: bool = True) -> sqlite3.Connection:
    """A plain connection for commands and tests; the caller closes it.

    Writing (`read_only=False`) is only for who holds the lock of `store.lock`, and makes the file
    when there is none. Read-only works beside a running daemon. Raises StoreProblem as
    `open_writer` does.
    """
    return _connect_reader(path) if read_only else _connect_writer(path)


def open_copier(path: Path) -> sqlite3.Connection:
    """A read-only connection that may write copies into other files; the caller closes it.

    The database itself is as safe from it as from a reader. Raises StoreProblem as they do.
    """
    conn = _connect_reader(path)
    # VACUUM INTO counts as a write even where what it reads cannot be written.
    conn.execute("PRAGMA query_only = OFF")
    return conn


def open_copy(path: Path) -> sqlite3.Connection:
    """A read-only connection to a file that nobody serves or writes to; the caller closes it.

    Nothing is made beside it, whatever its journal mode. Raises StoreProblem as `open_local` does.
    """
    return _connect_reader(path, "&immutable=1")


def memory() -> sqlite3.Connection:
    """An empty in-memory database with the settings of the real one (for rules and simulation)."""
    conn = _connection(":memory:")
    for pragma in (*BIRTH[:2], *SETTINGS):
        conn.execute(pragma)
    return conn


def create(path: Path) -> None:
    """Make the database file (mode 0600) with its page settings; refuses to replace one.

    A crash on the way leaves at most `<path>.new`, which the next call removes. Only for who
    holds the lock of `store.lock`.
    """
    draft = path.with_name(path.name + MAKING)
    for leftover in (draft, *(draft.with_name(draft.name + end) for end in ("-wal", "-shm"))):
        leftover.unlink(missing_ok=True)
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        conn = _connection(f"{draft.absolute().as_uri()}?mode=rw")
        try:
            for pragma in BIRTH:
                conn.execute(pragma)
        finally:
            conn.close()
        # link, not rename: it refuses to take the place of a file that came meanwhile.
        os.link(draft, path)
    except (OSError, sqlite3.Error) as error:
        raise StoreProblem(
            f"{path} cannot be made: {error}.", "Choose a folder this user can write to."
        ) from error
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path)


def sync_folder(path: Path) -> None:
    """Make the folder entry of `path` survive a power cut."""
    folder = os.open(path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def verify(path: Path) -> None:
    """Refuse a file that is not feltd's, without touching it or leaving anything beside it.

    Without a -wal nobody has the file open, so its header is read with `immutable=1`: no lock, no
    -wal, no -shm. With one it is opened as readers do: closing an immutable connection would drop
    the locks another connection of this process holds.
    """
    _verify_name(path)
    immutable = "" if path.with_name(path.name + "-wal").exists() else "&immutable=1"
    try:
        conn = _connection(f"{path.absolute().as_uri()}?mode=ro{immutable}")
        try:
            found = int(conn.execute("PRAGMA application_id").fetchone()[0])
        finally:
            conn.close()
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    if found != APPLICATION_ID:
        raise StoreProblem(
            f"{path} is an SQLite database of another program (application_id 0x{found:08x}).",
            "Name another file with --data.",
        )


def unusable(path: Path | str, error: sqlite3.Error) -> StoreProblem:
    """What an SQLite error at opening means for an operator."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        return StoreProblem(
            f"{path} is not an SQLite database.",
            "Name another file with --data, or put a backup in its place.",
        )
    if code == sqlite3.SQLITE_CORRUPT:
        return StoreProblem(
            f"{path} is damaged: {error}.",
            "Stop, keep the file and its -wal together, and put a backup in their place.",
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreProblem(
            f"{path} is locked by another program.",
            "End the program or shell that writes to it, then start again.",
        )
    return StoreProblem(
        f"{path} cannot be used: {error}.",
        "Make the file and its folder readable and writable for this user.",
    )


def _hold(conn: sqlite3.Connection | None) -> None:
    # The thread of a process that ends is never unwound, so what its frame holds is never closed.
    Event().wait()


async def _opened(conn: Connection) -> Connection:
    try:
        await conn
    except BaseException:
        conn.join()
        raise
    return conn


def _verify_name(path: Path) -> None:
    if path.is_symlink():
        raise StoreProblem(
            f"{path} is a symbolic link; the lock beside it would not guard the file.",
            "Name the file it points to.",
        )
    if not path.exists():
        raise StoreProblem(f"{path} does not exist.", "Run `feltd init` or name another file.")
    if not path.is_file():
        raise StoreProblem(f"{path} is not a file.", "Name a file with --data.")
    found = path.stat()
    if found.st_size == 0:
        raise StoreProblem(
            f"{path} is empty: a feltd database never is.",
            "Put a backup in its place, or remove it if it never held anything.",
        )
    if found.st_nlink > 1 and not _cut_off(path):
        raise StoreProblem(
            f"{path} has another hard link, under which its -wal would be missed.",
            "Remove the other link.",
        )


def _cut_off(path: Path) -> bool:
    """Whether its other link was the draft of a making cut off before its last step; now gone."""
    for end in (MAKING, RESTORING):
        draft = path.with_name(path.name + end)
        with suppress(OSError):
            if draft.samefile(path):
                draft.unlink()
    return path.stat().st_nlink == 1


def _connect_writer(path: Path) -> sqlite3.Connection:
    if not path.exists() and not path.is_symlink():
        create(path)
    verify(path)
    if not (os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK)):
        raise StoreProblem(
            f"{path} or its folder is read-only for this user.",
            "Make both writable for the user feltd runs as.",
        )
    try:
        conn = _connection(f"{path.absolute().as_uri()}?mode=rw")
        try:
            for pragma in SETTINGS:
                conn.execute(pragma)
            mode = conn.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            if mode != "wal":
                raise StoreProblem(
                    f"The file system of {path} gives journal mode {mode}, not WAL.",
                    "Keep the file on a local file system.",
                )
            conn.execute("BEGIN IMMEDIATE")
            conn.execute("ROLLBACK")
        except BaseException:
            conn.close()
            raise
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    return conn


def _connect_reader(path: Path, how: str = "") -> sqlite3.Connection:
    verify(path)
    try:
        conn = _connection(f"{path.absolute().as_uri()}?mode=ro{how}")
        try:
            for pragma in SETTINGS:
                conn.execute(pragma)
            conn.execute("PRAGMA query_only = ON")
            conn.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except BaseException:
            conn.close()
            raise
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    return conn


def _connection(uri: str) -> sqlite3.Connection:
    # isolation_level None: sqlite3 begins nothing on its own. The connection lives on one thread
    # at a time; aiosqlite makes and uses it on its own.
    conn = sqlite3.connect(
        uri,
        uri=True,
        isolation_level=None,
        timeout=BUSY_TIMEOUT_MS / 1_000,
        cached_statements=CACHED_STATEMENTS,
        check_same_thread=False,
    )
    conn.row_factory = sqlite3.Row
    return conn

"""For whoever owns the place results go to: apply a write only if no newer claim has written.

A worker that was paused past its lease does not know it and writes on. Its fencing token is lower
than that of whoever has the work now, so the sink can tell: each guard keeps the highest token it
has seen of a resource beside what it guards, and raises it in the same breath as the write. Equal
tokens pass, for one claim may write often. Standard library only; nothing here calls feltd.
"""

import fcntl
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: The table of both databases; a sink may look into it and must not write to it.
TABLE = """
CREATE TABLE IF NOT EXISTS feltd_fences (
  resource TEXT   PRIMARY KEY,
  highest  BIGINT NOT NULL
)
"""

# No row changed: a higher token has been there. The row stays locked until the write is committed,
# so two writers of one resource come one after the other.
RAISE = """
INSERT INTO feltd_fences (resource, highest)
VALUES (?, ?)
ON CONFLICT (resource) DO UPDATE
   SET highest = excluded.highest
 WHERE feltd_fences.highest <= excluded.highest
"""

HIGHEST = """
SELECT highest
  FROM feltd_fences
 WHERE resource = ?
"""

TOKEN_MAX = 2**63 - 1
#: What a connection of psycopg says of itself between transactions.
IDLE = 0


class StaleFence(Exception):
    """A write that came too late: `resource` has seen `highest`, which is above `token`."""

    def __init__(self, resource: str, token: int, highest: int | None) -> None:
        super().__init__(f"{resource} has seen token {highest}: a write under {token} is too late")
        self.resource = resource
        self.token = token
        self.highest = highest


class SqliteFence:
    """Guards rows of a SQLite database through a connection of the caller's.

    Between two writes the connection must have no transaction open. With `PRAGMA synchronous`
    below FULL a power cut may take back a write together with its token, never one of them alone.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        if getattr(connection, "autocommit", None) is False:
            raise ValueError("the connection must not keep a transaction open: autocommit=False")
        self._connection = connection

    def install(self) -> None:
        """Make the table feltd_fences where it is not there. Repeating is harmless."""
        self._connection.execute(TABLE)
        self._connection.commit()

    def highest(self, resource: str) -> int | None:
        """The highest token seen of a resource, None before the first."""
        row = self._connection.execute(HIGHEST, (resource,)).fetchone()
        return None if row is None else int(row[0])

    @contextmanager
    def admit(self, resource: str, token: int) -> Iterator[sqlite3.Cursor]:
        """A transaction for what the block writes through the cursor, committed at its end.

        Raises StaleFence, the block not entered, when a higher token has written to the resource.
        An exception of the block takes everything back, the token too.
        """
        _check(token)
        connection = self._connection
        if connection.in_transaction:
            raise ValueError("a transaction is open: commit it before a fenced write")
        cursor = connection.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        try:
            cursor.execute(RAISE, (resource, token))
            if cursor.rowcount != 1:
                raise StaleFence(resource, token, self.highest(resource))
            yield cursor
            connection.commit()
        except BaseException:
            connection.rollback()
            raise


class PostgresFence:
    """Guards rows of a PostgreSQL database through a psycopg (or like) connection of the caller's.

    Any DB-API connection whose placeholders are %s will do, with autocommit on or off. Between
    two writes it must have no transaction open. Where the isolation is stricter than READ
    COMMITTED, a writer may get a serialization error instead of its turn, and has written nothing.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def install(self) -> None:
        """Make the table feltd_fences where it is not there. Repeating is harmless."""
        with self._transaction() as cursor:
            cursor.execute(TABLE)

    def highest(self, resource: str) -> int | None:
        """The highest token seen of a resource, None before the first."""
        with self._transaction() as cursor:
            return _highest(cursor, resource)

    @contextmanager
    def admit(self, resource: str, token: int) -> Iterator[Any]:
        """A transaction for what the block writes through the cursor, committed at its end.

        Raises StaleFence, the block not entered, when a higher token has written to the resource;
        waits for a writer of it that is at work. An exception of the block takes everything back,
        the token too.
        """
        _check(token)
        with self._transaction() as cursor:
            cursor.execute(_format(RAISE), (resource, token))
            if cursor.rowcount != 1:
                raise StaleFence(resource, token, _highest(cursor, resource))
            yield cursor

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        connection = self._connection
        info = getattr(connection, "info", None)
        if getattr(info, "transaction_status", IDLE) != IDLE:
            raise ValueError("a transaction is open: commit it before a fenced write")
        by_hand = bool(getattr(connection, "autocommit", False))
        cursor = connection.cursor()
        try:
            if by_hand:
                cursor.execute("BEGIN")
            yield cursor
            if by_hand:
                cursor.execute("COMMIT")
            else:
                connection.commit()
        except BaseException:
            if by_hand:
                cursor.execute("ROLLBACK")
            else:
                connection.rollback()
            raise
        finally:
            cursor.close()


class FileFence:
    """Guards one file, by whole replacements of it.

    Beside it stand `<name>.fence` with the highest token, in decimal, and `<name>.lock`. The token
    is on disk before the content is: a crash in between leaves the old content behind the new
    token, and whoever holds that token writes again. On one machine's own file system only:
    flock means nothing on most network mounts.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # Two names of one file are one resource.
        self.path = Path(os.path.realpath(path))
        self._kept = self.path.with_name(self.path.name + ".fence")
        self._lock = self.path.with_name(self.path.name + ".lock")

    def highest(self) -> int | None:
        """The highest token seen, None before the first."""
        with self._locked():
            return self._read()

    def write(self, token: int, content: bytes | str) -> None:
        """Replace the file's content, on disk when this returns; str is written as UTF-8.

        Readers see the old content or the new, never a part. Raises StaleFence, nothing changed,
        when a higher token has written; waits for a writer that is at work.
        """
        _check(token)
        encoded = content.encode() if isinstance(content, str) else content
        with self._locked():
            highest = self._read()
            if highest is not None and highest > token:
                raise StaleFence(str(self.path), token, highest)
            if highest != token:
                _replace(self._kept, b"%d\n" % token)
            _replace(self.path, encoded)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        opened = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX)
            yield
        finally:
            os.close(opened)

    def _read(self) -> int | None:
        try:
            text = self._kept.read_text("ascii", errors="replace")
        except FileNotFoundError:
            return None
        if not re.fullmatch(r"[1-9][0-9]{0,18}\n", text):
            raise ValueError(f"{self._kept} holds no token: put the right one there by hand")
        return int(text)


def _check(token: int) -> None:
    if isinstance(token, bool) or not isinstance(token, int) or not 1 <= token <= TOKEN_MAX:
        raise ValueError(f"a fencing token is a positive integer, not {token!r}")


def _highest(cursor: Any, resource: str) -> int | None:
    cursor.execute(_format(HIGHEST), (resource,))
    row = cursor.fetchone()
    return None if row is None else int(row[0])


def _format(sql: str) -> str:
    # Our statements hold a question mark nowhere else.
    return sql.replace("?", "%s")


def _replace(path: Path, content: bytes) -> None:
    """Put a file in the place of another, on disk when it returns. Called under the lock."""
    fresh = path.with_name(path.name + ".new")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        if path.exists():
            os.fchmod(file.fileno(), path.stat().st_mode & 0o7777)
        os.fsync(file.fileno())
    os.replace(fresh, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

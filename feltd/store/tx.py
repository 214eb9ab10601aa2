"""What a rule sees of the database: one open transaction, four verbs and a way to tell.

A rule never sees the connection, never begins, commits or rolls back, and never holds a cursor:
each verb reads its statement to the end, because a half-read RETURNING breaks the next SAVEPOINT.
A `Tx` works on any sqlite3 connection that stands inside a transaction, so tests and the
simulator build one directly.
"""

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from feltd.errors import Refused
from feltd.store.trouble import FAILURES

T = TypeVar("T")

Row = sqlite3.Row

NO_PARAMS: dict[str, object] = {}

SAVE = "SAVEPOINT attempt"
KEEP = "RELEASE attempt"
UNDO = "ROLLBACK TO attempt"


class Kept(Refused):
    """A refusal whose writes stay: the caller is refused, yet what the rule wrote is committed."""


class Tx:
    """One open transaction.

    `statements` counts what ran through the four verbs. `signals` are the (topic, key) pairs told
    so far. `lost` is the error with which SQLite gave up the whole transaction; from then on
    every verb raises it again, so that a rule which swallowed it cannot write outside.
    `memo` outlives the transaction (it lives as long as the connection, when its owner hands the
    same one in again): for what pure functions found, under keys that name stored generations.
    """

    __slots__ = ("_conn", "_run", "lost", "memo", "signals", "statements")

    def __init__(self, conn: sqlite3.Connection, memo: dict[Any, Any] | None = None) -> None:
        self._conn = conn
        self.memo: dict[Any, Any] = {} if memo is None else memo
        self._run = conn.execute
        self.statements = 0
        self.signals: list[tuple[str, str]] = []
        self.lost: BaseException | None = None

    def row(self, sql: str, params: Mapping[str, object] = NO_PARAMS) -> Row | None:
        """The first row, or None. The rest is read and dropped: bound the query with LIMIT."""
        found = self.rows(sql, params)
        return found[0] if found else None

    def rows(self, sql: str, params: Mapping[str, object] = NO_PARAMS) -> list[Row]:
        """Every row, in the order of the query."""
        self.statements += 1
        try:
            return self._run(sql, params).fetchall()
        except FAILURES as error:
            self._check(error)
            raise

    def change(self, sql: str, params: Mapping[str, object] = NO_PARAMS) -> int:
        """Run a write; how many rows it changed."""
        self.statements += 1
        try:
            cursor = self._run(sql, params)
            # Only a RETURNING has rows here; reading on ends the statement and fills rowcount.
            if cursor.description is not None:
                cursor.fetchall()
            return cursor.rowcount
        except FAILURES as error:
            self._check(error)
            raise

    def attempt(self, fn: Callable[[], T]) -> T:
        """Run `fn` in a nested savepoint.

        Any exception takes back what `fn` wrote and told, and is raised again; a `Kept` keeps
        both. May be nested.
        """
        told = len(self.signals)
        self._bracket(SAVE)
        try:
            result = fn()
        except Kept:
            self._bracket(KEEP)
            raise
        except BaseException:
            del self.signals[told:]
            if self.lost is None:
                self._bracket(UNDO)
                self._bracket(KEEP)
            raise
        self._bracket(KEEP)
        return result

    def tell(self, topic: str, key: str) -> None:
        """Have the event loop told (topic, key) once this transaction is committed.

        Taken back with the operation or attempt that told it; told once a batch however often.
        """
        self.signals.append((topic, key))

    def end(self, reason: BaseException) -> None:
        """Every later verb raises `reason`: the transaction is over, whatever the rule thinks."""
        self.lost = reason
        self._run = self._refuse

    def _bracket(self, sql: str) -> None:
        try:
            self._run(sql)
        except FAILURES as error:
            self._check(error)
            raise

    def _check(self, error: BaseException) -> None:
        # FULL, IOERR, NOMEM and their kin may roll the whole transaction back by themselves; what
        # runs after that would commit by itself, statement by statement.
        if not self._conn.in_transaction:
            self.end(error)

    def _refuse(self, *_: object) -> NoReturn:
        assert self.lost is not None
        raise self.lost

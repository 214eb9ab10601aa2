"""What goes wrong in a schedule: the process dies, a reply is lost, the disk is full.

A `Line` stands between the writer and the connection and counts every statement that crosses it,
BEGIN and COMMIT included. Dead is dead: once it has raised `Crash`, nothing passes any more, so no
`except` of a rule can go on as if nothing had happened.
"""

import sqlite3
from collections.abc import Mapping
from typing import Literal, NamedTuple

BEGIN = "BEGIN IMMEDIATE"
NO_PARAMS: dict[str, object] = {}

Kind = Literal["none", "crash", "lost", "full"]


class Fault(NamedTuple):
    """What happens to one batch. `at` is the statement, 1 for BEGIN; 0 lets the seed choose it.

    crash: the process dies at the statement, nothing is committed. lost: it is committed, and no
    reply arrives. full: the statement finds the disk full and SQLite gives the transaction up.
    """

    kind: Kind = "none"
    at: int = 0


NONE = Fault()


class Crash(BaseException):
    """The process is gone. No rule, no writer and no cleanup of theirs may catch it."""


class Line:
    """A connection as the writer holds it; everything it runs crosses here."""

    def __init__(self, conn: sqlite3.Connection) -> None:
        self._conn = conn
        self._run = conn.execute
        self.fault = NONE
        #: Statements since `arm`.
        self.crossed = 0
        self.dead = False
        #: Only count: whoever rehearses rolls back, so nothing is committed.
        self.rehearsal = False

    def arm(self, fault: Fault, *, rehearsal: bool = False) -> None:
        """Count from one again, with this fault ahead."""
        self.fault, self.rehearsal = fault, rehearsal
        self.crossed, self.dead = 0, False

    def execute(self, sql: str, params: Mapping[str, object] = NO_PARAMS) -> sqlite3.Cursor:
        """Run a statement, or meet the fault in its place."""
        if self.dead:
            raise Crash(sql)
        self.crossed += 1
        if self.rehearsal and (
            sql == "COMMIT" or (sql == "BEGIN IMMEDIATE" and self.in_transaction)
        ):
            return self._run("SELECT 1")
        if self.crossed == self.fault.at:
            if self.fault.kind == "crash":
                self.dead = True
                raise Crash(sql)
            if self.fault.kind == "full":
                raise self._full()
        return self._run(sql, params)

    @property
    def in_transaction(self) -> bool:
        """As sqlite3.Connection has it."""
        return self._conn.in_transaction

    @property
    def total_changes(self) -> int:
        """As sqlite3.Connection has it."""
        return self._conn.total_changes

    def _full(self) -> sqlite3.Error:
        if self._conn.in_transaction:
            self._run("ROLLBACK")
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        error.sqlite_errorname = "SQLITE_FULL"
        return error

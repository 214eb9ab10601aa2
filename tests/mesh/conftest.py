"""A mesh in memory: the real migrations and rules, one operation a commit, time moved by hand."""

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity.principals import OPEN
from feltd.mesh import events, ledger
from feltd.model.base import Ask, Caller
from feltd.store import connect, migrate
from feltd.store.tx import Kept, Row, Tx

R = TypeVar("R")

START_MS = 1_800_000_000_000


class Mesh:
    """One database, one caller unless another is named, and a clock that stands still."""

    def __init__(self) -> None:
        self.conn: sqlite3.Connection = connect.memory()
        migrate.apply(self.conn)
        self.now = Now(START_MS, START_MS)
        self.memo: dict[Any, Any] = {}
        self.caller: Caller = OPEN
        self.limits: Any = None
        self.told: list[tuple[str, str]] = []
        self.statements = 0
        self._asked = 0
        self.run(lambda tx, now: ledger.begin(tx, "instance_test", now))

    def later(self, ms: int) -> None:
        """Move both clocks."""
        self.now = Now(self.now.lease_ms + ms, self.now.wall_ms + ms)

    def step_wall(self, ms: int) -> None:
        """Step the wall clock alone, as a person or NTP does."""
        self.now = Now(self.now.lease_ms, self.now.wall_ms + ms)

    def run(self, op: Callable[[Tx, Now], R]) -> R:
        """Commit one operation; its signals and statements stand in `told`, `statements`."""
        self.conn.execute("BEGIN IMMEDIATE")
        tx = Tx(self.conn, self.memo)
        try:
            result = tx.attempt(lambda: op(tx, self.now))
        except Kept:
            self._commit(tx)
            raise
        except BaseException:
            self.conn.execute("ROLLBACK")
            raise
        self._commit(tx)
        return result

    def do(
        self,
        verb: Callable[[Tx, Ask[Any], Now], R],
        body: Any = None,
        *,
        id: str = "",
        caller: Caller | None = None,
        fresh: str | None = None,
    ) -> R:
        """Ask a rule for something and commit it."""
        self._asked += 1
        ask = Ask(
            caller=caller or self.caller,
            body=body,
            id=id,
            fresh=fresh or f"fresh-{self._asked}",
            limits=self.limits,
        )
        return self.run(lambda tx, now: verb(tx, ask, now))

    def refusal(self, verb: Callable[[Tx, Ask[Any], Now], Any], body: Any = None, **ask: Any) -> str:
        """The code a rule refuses with."""
        with pytest.raises(Refused) as refused:
            self.do(verb, body, **ask)
        return refused.value.code

    def row(self, sql: str, **params: object) -> Row:
        """One row of a query."""
        found = self.conn.execute(sql, params).fetchone()
        assert found is not None
        return found

    def value(self, sql: str, **params: object) -> Any:
        """The first column of one row."""
        return self.row(sql, **params)[0]

    def _commit(self, tx: Tx) -> None:
        self.told, self.statements = list(dict.fromkeys(tx.signals)), tx.statements
        events.seal(tx, self.now)
        self.conn.execute("COMMIT")


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    made = Mesh()
    yield made
    made.conn.close()

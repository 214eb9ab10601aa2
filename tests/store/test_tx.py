"""What a rule can do with a transaction, and what it cannot break."""

import sqlite3
from collections.abc import Iterator

import pytest

from feltd.errors import Refused
from feltd.store import connect
from feltd.store.tx import Kept, Tx

INSERT = "INSERT INTO notes (text) VALUES (:text) RETURNING note_id"
COUNT = "SELECT count(*) AS found FROM notes"


@pytest.fixture
def conn() -> Iterator[sqlite3.Connection]:
    made = connect.memory()
    made.execute("CREATE TABLE notes (note_id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT")
    made.execute("BEGIN IMMEDIATE")
    yield made
    made.close()


@pytest.fixture
def tx(conn: sqlite3.Connection) -> Tx:
    return Tx(conn)


def count(tx: Tx) -> int:
    row = tx.row(COUNT)
    assert row is not None
    return int(row["found"])


def test_rows_are_read_by_name_and_counted(tx: Tx) -> None:
    made = tx.row(INSERT, {"text": "a"})
    tx.change("INSERT INTO notes (text) VALUES (:text)", {"text": "b"})

    assert made is not None
    assert made["note_id"] == 1
    assert [row["text"] for row in tx.rows("SELECT text FROM notes ORDER BY note_id")] == ["a", "b"]
    assert tx.row("SELECT text FROM notes WHERE note_id = :id", {"id": 9}) is None
    assert tx.change("UPDATE notes SET text = 'c'") == 2
    assert tx.statements == 5


def test_a_returning_read_for_its_first_row_does_not_break_the_next_savepoint(tx: Tx) -> None:
    many = "INSERT INTO notes (text) VALUES ('a'), ('b'), ('c') RETURNING note_id"
    tx.row(many)
    assert tx.change(many) == 3

    assert tx.attempt(lambda: count(tx)) == 6


def test_a_failed_attempt_takes_back_its_writes_and_its_signals_only(tx: Tx) -> None:
    tx.change(INSERT, {"text": "before"})
    tx.tell("ready", "acme/docs")

    def fail() -> None:
        tx.change(INSERT, {"text": "inside"})
        tx.tell("ready", "acme/mail")
        raise Refused("WORKLOAD_NOT_READY", "not now")

    with pytest.raises(Refused):
        tx.attempt(fail)

    assert count(tx) == 1
    assert tx.signals == [("ready", "acme/docs")]


def test_attempts_nest(tx: Tx) -> None:
    def inner() -> None:
        tx.change(INSERT, {"text": "inner"})
        raise LookupError

    def outer() -> None:
        tx.change(INSERT, {"text": "outer"})
        with pytest.raises(LookupError):
            tx.attempt(inner)

    tx.attempt(outer)

    assert [row["text"] for row in tx.rows("SELECT text FROM notes")] == ["outer"]


def test_a_kept_refusal_keeps_what_the_attempt_wrote(tx: Tx) -> None:
    def heard() -> None:
        tx.change(INSERT, {"text": "heard"})
        tx.tell("worker", "edge-1")
        raise Kept("WORKER_CLOCK_INVALID", "clock is off")

    with pytest.raises(Kept):
        tx.attempt(heard)

    assert count(tx) == 1
    assert tx.signals == [("worker", "edge-1")]


def test_a_rule_that_swallows_the_loss_of_the_transaction_cannot_write_outside_it(
    tx: Tx, conn: sqlite3.Connection
) -> None:
    conn.execute("PRAGMA max_page_count = 3")

    def swallow() -> None:
        tx.change("INSERT INTO notes (text) VALUES (:text)", {"text": "x" * 100_000})

    with pytest.raises(sqlite3.OperationalError, match="full"):
        tx.attempt(swallow)

    assert not conn.in_transaction
    with pytest.raises(sqlite3.OperationalError, match="full"):
        tx.change(INSERT, {"text": "autocommitted"})
    assert conn.execute(COUNT).fetchone()[0] == 0

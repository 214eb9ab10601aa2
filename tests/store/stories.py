"""Small operations on the notes table, shared by the stories about the writer."""

import asyncio
import threading
from typing import Any

import pytest

from feltd.clock import Now
from feltd.errors import Refused
from feltd.store.tx import Kept, Tx
from feltd.store.writer import Writer

ADD = "INSERT INTO notes (text) VALUES (:text) RETURNING note_id"
ALL = "SELECT text FROM notes ORDER BY note_id"


def add(tx: Tx, text: str, now: Now) -> int:
    row = tx.row(ADD, {"text": text})
    assert row is not None
    return int(row["note_id"])


def add_and_tell(tx: Tx, text: str, now: Now) -> int:
    tx.tell("notes", text)
    return add(tx, text, now)


def add_then_refuse(tx: Tx, text: str, now: Now) -> None:
    add_and_tell(tx, text, now)
    raise Refused("WORKLOAD_NOT_READY", "not now")


def add_then_keep(tx: Tx, text: str, now: Now) -> None:
    add_and_tell(tx, text, now)
    raise Kept("WORKER_CLOCK_INVALID", "the clock is off")


def stamp(tx: Tx, cmd: None, now: Now) -> int:
    return now.lease_ms


def look(tx: Tx, cmd: None, now: Now) -> list[str]:
    return [row["text"] for row in tx.rows(ALL)]


class Gate:
    """An operation that holds the writer thread until it is opened."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.entered = threading.Event()

    def rule(self, tx: Tx, text: str, now: Now) -> int:
        made = add(tx, text, now)
        self.entered.set()
        assert self._open.wait(30)
        return made

    def open(self) -> None:
        self._open.set()

    async def hold(self, writer: Writer, **kept: object) -> "asyncio.Task[int]":
        """Submit it and wait until the writer stands in it."""
        held = asyncio.create_task(writer.submit(self.rule, "gate", **kept))  # type: ignore[arg-type]
        await asyncio.to_thread(self.entered.wait, 30)
        return held


async def refusal(waiting: Any) -> tuple[str, object]:
    """The code and `committed` of a submit that is refused."""
    with pytest.raises(Refused) as refused:
        await waiting
    return refused.value.code, refused.value.facts["committed"]


def limit_pages(tx: Tx, pages: int, now: Now) -> None:
    # PRAGMA takes no parameters; the number is the test's own.
    tx.rows("PRAGMA max_page_count = " + str(pages))


def add_much(tx: Tx, text: str, now: Now) -> int:
    return add(tx, text * 2_000_000, now)

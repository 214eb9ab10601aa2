"""A real database file with two small tables of its own, and a writer on it."""

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from feltd.clock import Now
from feltd.store import connect, migrate
from feltd.store.writer import Writer

NOTES = """
CREATE TABLE notes (
  note_id INTEGER PRIMARY KEY,
  text    TEXT NOT NULL CHECK (text <> 'forbidden')
) STRICT;
CREATE TABLE commits (
  commit_id INTEGER PRIMARY KEY,
  at_ms     INTEGER NOT NULL
) STRICT;
"""


class HandClock:
    """Time that moves only by hand."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> Now:
        return Now(self.now_ms, self.now_ms)

    def later(self, ms: int) -> None:
        self.now_ms += ms


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of migrations that belongs to the test."""
    made = tmp_path / "migrations"
    made.mkdir()
    (made / "0001_notes.sql").write_text(NOTES)
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the database will be."""
    return tmp_path / "feltd.db"


OpenWriter = Callable[..., Awaitable[Writer]]


@pytest.fixture
async def open_writer(path: Path, folder: Path, clock: HandClock) -> AsyncIterator[OpenWriter]:
    """Opens a migrated database and a writer with the given hooks; closes it at the end."""
    writers: list[Writer] = []

    async def opened(**hooks: Any) -> Writer:
        conn = await connect.open_writer(path)
        await conn.run(lambda raw: migrate.apply(raw, folder))
        writers.append(Writer(conn, path, clock, **hooks))
        return writers[-1]

    yield opened
    for writer in writers:
        await writer.close()


Shell = Callable[[], sqlite3.Connection]


@pytest.fixture
def open_shell(path: Path) -> Iterator[Shell]:
    """Opens somebody's sqlite3 shell on the same file."""
    shells: list[sqlite3.Connection] = []

    def opened() -> sqlite3.Connection:
        shells.append(sqlite3.connect(path, isolation_level=None, check_same_thread=False))
        return shells[-1]

    yield opened
    for shell in shells:
        shell.close()

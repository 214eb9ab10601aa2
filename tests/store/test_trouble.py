"""What callers are told when the storage fails, and that it goes on once it can again."""

import asyncio
import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from feltd.clock import Now
from feltd.store import connect, migrate
from feltd.store.tx import Tx
from feltd.store.writer import Writer
from tests.store.conftest import HandClock, OpenWriter, Shell
from tests.store.stories import (
    Gate,
    add,
    add_and_tell,
    add_much,
    limit_pages,
    look,
    refusal,
)

pytestmark = pytest.mark.anyio


async def test_a_full_disk_takes_the_whole_batch_back_and_tells_everybody(
    open_writer: OpenWriter,
) -> None:
    """BC-078: 503 with a storage code, nothing acknowledged that is not stored, no latch."""
    told: list[object] = []
    writer = await open_writer(after_commit=told.append)
    await writer.submit(add, "before")
    await writer.submit(limit_pages, 40)

    gate = Gate()
    held = await gate.hold(writer)
    batch = [
        asyncio.create_task(refusal(one))
        for one in (
            writer.submit(add_and_tell, "innocent"),
            writer.submit(add_much, "x"),
        )
    ]
    await asyncio.sleep(0)
    gate.open()
    answers = [await refusal(held), *await asyncio.gather(*batch)]

    assert answers == [("STORAGE_FULL", False)] * 3
    assert told == []
    assert await writer.submit(look, None) == ["before"]
    assert writer.trouble is not None

    await writer.submit(limit_pages, 1_000_000)
    assert await writer.submit(add_much, "x") == 2
    assert writer.trouble is None
    assert writer.broken is None


async def test_a_disk_that_fills_at_commit_commits_nothing(open_writer: OpenWriter) -> None:
    """BC-078, where the page that finds no room is allocated before COMMIT itself."""

    def seal(tx: Tx, now: Now) -> None:
        tx.change("INSERT INTO commits (at_ms) VALUES (:at)", {"at": now.lease_ms})
        add_much(tx, "y", now)

    writer = await open_writer(before_commit=seal)
    await writer.submit(limit_pages, 40)

    assert await refusal(writer.submit(add, "one")) == ("STORAGE_FULL", False)
    assert await writer.submit(look, None) == []


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, "STORAGE_FULL"), (errno.EIO, "STORAGE_UNAVAILABLE")]
)
async def test_a_mark_that_cannot_be_written_before_commit_is_the_storages_failure(
    open_writer: OpenWriter, number: int, code: str
) -> None:
    def mark(tx: Tx, now: Now) -> None:
        raise OSError(number, os.strerror(number))

    writer = await open_writer(before_commit=mark)

    assert await refusal(writer.submit(add, "one")) == (code, False)
    assert await writer.submit(look, None) == []


async def test_a_shell_that_holds_the_lock_makes_storage_busy(
    open_writer: OpenWriter, open_shell: Shell
) -> None:
    """BC-066: no deferred upgrade, so the busy timeout counts; 503, nothing half done."""
    writer = await open_writer()
    await writer.submit(add, "before")
    shell = open_shell()
    shell.execute("BEGIN IMMEDIATE")

    answers = await asyncio.gather(
        *(refusal(writer.submit(add, str(number))) for number in range(3))
    )
    shell.execute("ROLLBACK")

    assert answers == [("STORAGE_BUSY", False)] * 3
    assert await writer.submit(look, None) == ["before"]
    assert writer.trouble is None
    await writer.submit(add, "after")


async def test_a_connection_closed_behind_the_writer_leaves_nobody_waiting(
    path: Path, folder: Path, clock: HandClock
) -> None:
    conn = await connect.open_writer(path)
    await conn.run(lambda raw: migrate.apply(raw, folder))
    stopped: list[BaseException] = []
    writer = Writer(conn, path, clock, on_fatal=stopped.append)
    await writer.submit(add, "one")
    await conn.close()

    assert await refusal(writer.submit(add, "two")) == ("STORAGE_UNAVAILABLE", False)
    assert await refusal(writer.submit(add, "three")) == ("STORAGE_UNAVAILABLE", False)
    assert await refusal(writer.checkpoint()) == ("STORAGE_UNAVAILABLE", False)
    assert len(stopped) == 1
    await writer.close()
    assert await refusal(writer.checkpoint()) == ("SERVICE_OVERLOADED", False)


async def test_a_damaged_page_ends_writing_but_not_the_daemon(
    open_writer: OpenWriter, path: Path
) -> None:
    stopped: list[BaseException] = []
    writer = await open_writer(on_fatal=stopped.append)

    def damaged(tx: Tx, cmd: None, now: Now) -> None:
        error = sqlite3.DatabaseError("database disk image is malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error

    assert await refusal(writer.submit(damaged, None)) == ("STORAGE_UNAVAILABLE", False)
    assert await refusal(writer.submit(add, "more")) == ("STORAGE_UNAVAILABLE", False)
    assert writer.broken is not None
    assert stopped == []


def test_an_io_error_at_commit_is_an_unknown_outcome_and_ends_the_daemon(
    path: Path, folder: Path
) -> None:
    """A write past RLIMIT_FSIZE fails inside COMMIT: nobody may be told it was not committed."""
    program = """
import asyncio, resource, sys
from pathlib import Path
from feltd.clock import Now
from feltd.errors import Refused
from feltd.store import connect, migrate
from feltd.store.writer import Writer
from tests.store.stories import add

async def main():
    path, folder = Path(sys.argv[1]), Path(sys.argv[2])
    conn = await connect.open_writer(path)
    await conn.run(lambda raw: migrate.apply(raw, folder))
    stopped = []
    writer = Writer(conn, path, lambda: Now(1, 1), on_fatal=stopped.append)
    await writer.submit(add, "small")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    for text in ("x" * 1_500_000, "small"):
        try:
            await writer.submit(add, text)
        except Refused as refused:
            print(refused.code, refused.facts["committed"], len(stopped))
    await writer.close()

asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(path), str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    )

    assert ended.stdout.splitlines() == [
        "OUTCOME_UNKNOWN unknown 1",
        "STORAGE_UNAVAILABLE False 1",
    ], ended.stderr


def test_a_statement_without_memory_takes_the_whole_batch_back(path: Path, folder: Path) -> None:
    """SQLite rolls everything back by itself then, and Python says MemoryError: 503, not 500."""
    program = """
import asyncio, sys
from contextlib import suppress
from pathlib import Path
from feltd.clock import Now
from feltd.errors import Refused
from feltd.store import connect, migrate
from feltd.store.writer import Writer
from tests.store.stories import add, look

def starve(tx, cmd, now):
    tx.rows("PRAGMA hard_heap_limit = 4000000")

def add_much(tx, swallows, now):
    add(tx, "innocent", now)
    with suppress(Exception if swallows else ()):
        tx.attempt(lambda: tx.change("INSERT INTO notes (text) VALUES (hex(zeroblob(9000000)))"))
    add(tx, "after", now)

async def main():
    path, folder = Path(sys.argv[1]), Path(sys.argv[2])
    conn = await connect.open_writer(path)
    await conn.run(lambda raw: migrate.apply(raw, folder))
    writer = Writer(conn, path, lambda: Now(1, 1))
    await writer.submit(starve, None)
    for swallows in (False, True):
        both = (writer.submit(add, "other"), writer.submit(add_much, swallows))
        for told in await asyncio.gather(*both, return_exceptions=True):
            print(told.code, told.facts["committed"])
    await writer.submit(add, "later")
    print(await writer.submit(look, None), writer.broken)
    await writer.close()

asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(path), str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    )

    assert ended.stdout.splitlines() == [
        *["STORAGE_UNAVAILABLE False"] * 4,
        "['later'] None",
    ], ended.stderr

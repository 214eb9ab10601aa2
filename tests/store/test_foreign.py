"""Other programs at the same file: they are noticed, waited for, and never written over."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from feltd.clock import Now
from feltd.store import connect
from feltd.store.tx import Tx
from tests.store.conftest import OpenWriter, Shell
from tests.store.stories import (
    add,
    look,
    refusal,
)

pytestmark = pytest.mark.anyio


SCRATCH = """
import sqlite3, sys
shell = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=5)
shell.execute("PRAGMA wal_autocheckpoint = 0")
shell.execute("CREATE TABLE scratch (a)")
print("ready", flush=True)
for number in range(200):
    shell.execute("INSERT INTO scratch VALUES (1)")
    shell.execute("DELETE FROM scratch")
"""


async def test_operations_go_on_beside_a_shell_that_writes(
    open_writer: OpenWriter, path: Path
) -> None:
    """BC-066: a foreign loop of writes costs waiting, never a failure."""
    seen: list[int] = []
    writer = await open_writer(on_foreign_write=lambda tx, now: seen.append(now.lease_ms))
    await writer.submit(add, "first")
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCRATCH, str(path), stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    await other.stdout.readline()
    await asyncio.gather(*(writer.submit(add, str(number)) for number in range(300)))
    assert await other.wait() == 0

    assert len(await writer.submit(look, None)) == 301
    assert seen


async def test_a_foreign_write_is_noticed_once_and_ours_never(
    open_writer: OpenWriter, open_shell: Shell
) -> None:
    seen: list[int] = []

    def foreign(tx: Tx, now: Now) -> None:
        seen.append(len(tx.rows("SELECT note_id FROM notes")))

    writer = await open_writer(on_foreign_write=foreign)
    for _ in range(3):
        await writer.submit(add, "ours")
    assert seen == []

    open_shell().execute("INSERT INTO notes (text) VALUES ('foreign')")
    for _ in range(3):
        await writer.submit(add, "ours")

    assert seen == [4]


OTHER = b"another file"


def replace(path: Path) -> None:
    """Put another file in the database's place, as a careless restore does."""
    path.rename(path.with_name("moved.db"))
    path.write_bytes(OTHER)


def content(path: Path) -> bytes:
    """The file as it is."""
    return path.read_bytes()


def untouched(path: Path) -> bool:
    """Whether the other file is as it was put there."""
    return path.read_bytes() == OTHER


async def test_a_database_that_was_replaced_stops_the_writer(
    open_writer: OpenWriter, path: Path
) -> None:
    stopped: list[BaseException] = []
    writer = await open_writer(on_fatal=stopped.append)
    await writer.submit(add, "before")
    replace(path)

    assert await refusal(writer.submit(add, "orphan")) == ("STORAGE_UNAVAILABLE", False)
    assert len(stopped) == 1
    assert await refusal(writer.submit(look, None)) == ("STORAGE_UNAVAILABLE", False)
    assert untouched(path)


async def test_a_wal_that_was_removed_stops_the_writer(open_writer: OpenWriter, path: Path) -> None:
    """BC-071: writing into a deleted -wal is noticed before anything is acknowledged."""
    stopped: list[BaseException] = []
    writer = await open_writer(on_fatal=stopped.append)
    await writer.submit(add, "before")
    path.with_name("feltd.db-wal").unlink()

    assert await refusal(writer.submit(add, "orphan")) == ("STORAGE_UNAVAILABLE", False)
    assert len(stopped) == 1


def test_a_wal_that_is_another_programs_now_is_neither_written_nor_removed(
    path: Path, folder: Path
) -> None:
    """Closing an SQLite connection checkpoints into the file and removes the -wal by its name."""
    program = """
import asyncio, os, sys
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
    writer = Writer(conn, path, lambda: Now(1, 1))
    await writer.submit(add, "in the wal")
    wal = Path(str(path) + "-wal")
    os.rename(wal, str(path) + "-ours")
    wal.write_bytes(b"another program's")
    before = path.stat().st_mtime_ns
    try:
        await writer.submit(add, "orphan")
    except Refused as refused:
        print(refused.code)
    await writer.close()
    assert path.stat().st_mtime_ns == before

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

    assert (ended.returncode, ended.stdout) == (0, "STORAGE_UNAVAILABLE\n"), ended.stderr
    assert path.with_name("feltd.db-wal").read_bytes() == b"another program's"


async def test_the_wal_stays_short_and_a_long_reader_only_delays_that(
    open_writer: OpenWriter, path: Path
) -> None:
    """BC-074: the WAL's size is told, a reader lets it grow, and it shrinks once he is gone."""
    writer = await open_writer()
    for _batch in range(40):
        await asyncio.gather(*(writer.submit(add, "x" * 3_000) for _ in range(50)))
    assert writer.wal_bytes < 1_000 * 4_120

    reader = connect.open_local(path)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM notes").fetchone()
    for _batch in range(60):
        await asyncio.gather(*(writer.submit(add, "x" * 3_000) for _ in range(50)))
    grown = writer.wal_bytes
    assert grown > 1_500 * 4_120
    reader.close()
    done = await writer.checkpoint(truncate=True)

    assert not done.busy
    assert writer.wal_bytes == 0
    assert writer.wal_pages == 0


@pytest.mark.parametrize("kept", [0, 32, 4_152])
async def test_a_wal_that_was_cut_short_stops_the_writer(
    open_writer: OpenWriter, path: Path, kept: int
) -> None:
    """What would be written behind the gap could never be read again.

    Nothing more is answered, and the files are left as the other program left them.
    """
    stopped: list[BaseException] = []
    writer = await open_writer(on_fatal=stopped.append, on_foreign_write=lambda tx, now: None)
    for _ in range(3):
        await writer.submit(add, "in the wal")
    os.truncate(f"{path}-wal", kept)
    before = content(path)

    assert await refusal(writer.submit(add, "orphan")) == ("STORAGE_UNAVAILABLE", False)
    assert [str(error) for error in stopped] == [f"{path}-wal was cut short by another program"]
    await writer.close()
    assert os.stat(f"{path}-wal").st_size == kept
    assert content(path) == before


async def test_a_shell_that_empties_the_wal_by_a_checkpoint_does_no_harm(
    open_writer: OpenWriter, open_shell: Shell, path: Path
) -> None:
    stopped: list[BaseException] = []
    writer = await open_writer(on_fatal=stopped.append, on_foreign_write=lambda tx, now: None)
    for number in range(5):
        await writer.submit(add, f"before {number}")
        assert os.stat(f"{path}-wal").st_size > 0
        moved = open_shell().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert (moved[0], os.stat(f"{path}-wal").st_size) == (0, 0)
        await writer.submit(add, f"after {number}")

    assert len(await writer.submit(look, None)) == 10
    assert stopped == []

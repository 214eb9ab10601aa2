"""The file gives free pages back in bites; a copy of it can, one made otherwise cannot."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from feltd.clock import Now
from feltd.store import connect, vacuum
from feltd.store.connect import open_local
from feltd.store.writer import Writer


@pytest.fixture
def bulky(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A file of feltd with 4 MiB of rows that were deleted again."""
    with closing(open_local(tmp_path / "feltd.db", read_only=False)) as conn:
        conn.execute("CREATE TABLE heap (n INTEGER PRIMARY KEY, text TEXT)")
        conn.execute(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"
            " INSERT INTO heap SELECT i, hex(zeroblob(2000)) FROM n"
        )
        conn.execute("CREATE TABLE last AS SELECT hex(zeroblob(20000)) AS text")
        conn.execute("DELETE FROM heap")
        yield conn


def pages(conn: sqlite3.Connection) -> int:
    """How long the file is."""
    return int(conn.execute("PRAGMA page_count").fetchone()[0])


def test_a_file_is_made_so_that_it_can_shrink(bulky: sqlite3.Connection, tmp_path: Path) -> None:
    assert vacuum.look(bulky).able
    bulky.execute("VACUUM INTO ?", [str(tmp_path / "copy.db")])
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        assert vacuum.look(copy).able
    with closing(connect.memory()) as memory:
        assert vacuum.look(memory).able


def test_a_bite_gives_back_so_many_pages_and_keeps_every_row(bulky: sqlite3.Connection) -> None:
    before, free = pages(bulky), vacuum.look(bulky).free
    assert free > 900
    for size in vacuum.BITES:
        given = vacuum.bite(bulky, size)
        assert given.given == size
    # A page that tells of the others may go with them.
    assert before - sum(vacuum.BITES) - pages(bulky) in (0, 1)
    while vacuum.bite(bulky, 128).free:
        pass
    assert pages(bulky) < before - free + 10
    assert len(bulky.execute("SELECT text FROM last").fetchone()[0]) == 40_000
    assert bulky.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    assert vacuum.bite(bulky, 8) == vacuum.Bite(0, 0, True)


def test_the_file_on_disk_is_shorter_after_a_checkpoint(
    bulky: sqlite3.Connection, tmp_path: Path
) -> None:
    bulky.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    before = (tmp_path / "feltd.db").stat().st_size
    while vacuum.bite(bulky, 128).free:
        pass
    bulky.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert (tmp_path / "feltd.db").stat().st_size < before / 10
    assert (tmp_path / "feltd.db-wal").stat().st_size == 0


def test_a_file_made_otherwise_is_left_as_it_is(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db", isolation_level=None)) as conn:
        conn.execute("CREATE TABLE heap AS SELECT hex(zeroblob(100000)) AS text")
        conn.execute("DELETE FROM heap")
        found = vacuum.bite(conn, 8)
        assert (found.given, found.able) == (0, False)
        assert found.free > 0
        # What the operator is told to do once.
        conn.executescript("PRAGMA auto_vacuum = INCREMENTAL; VACUUM")
        assert vacuum.look(conn).able


@pytest.mark.anyio
async def test_the_writer_bites_between_two_batches(bulky: sqlite3.Connection, path: Path) -> None:
    bulky.close()
    conn = await connect.open_writer(path)
    writer = Writer(conn, path, lambda: Now(1, 1))
    try:
        before = writer.wal_pages
        given = await writer.vacuum(64)
        assert given.given == 64
        # Its pages count towards the next checkpoint.
        assert writer.wal_pages > before
    finally:
        await writer.close()

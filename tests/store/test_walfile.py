"""What lies behind the last commit of a real -wal is found before SQLite drops it in silence."""

import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from feltd.store import connect, migrate, walfile
from feltd.store.walfile import Tail

FRAME_BYTES = 4096 + 24
COMMITS = 40


def dies(path: Path, folder: Path, story: Callable[[sqlite3.Connection], None]) -> Path:
    """Let a child tell the story to a new database and be killed; its -wal stays behind."""

    def live() -> None:
        conn = connect.open_local(path, read_only=False)
        migrate.apply(conn, folder)
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        story(conn)
        os.kill(os.getpid(), signal.SIGKILL)

    child = multiprocessing.get_context("fork").Process(target=live)
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    return path.with_name(path.name + "-wal")


def commits(conn: sqlite3.Connection, count: int = COMMITS) -> None:
    for number in range(count):
        conn.execute("INSERT INTO notes (text) VALUES (:text)", {"text": f"{number} " * 200})


def unfinished(conn: sqlite3.Connection) -> None:
    """A transaction too large for the cache writes frames before its COMMIT."""
    conn.execute("PRAGMA cache_size = 10")
    conn.execute("BEGIN IMMEDIATE")
    commits(conn, 200)


def kept_bytes(path: Path) -> int:
    """Where SQLite's own recovery says the last commit in the -wal ends."""
    conn = connect.open_local(path, read_only=False)
    frames = conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
    conn.close()
    return walfile.HEADER_BYTES + int(frames) * FRAME_BYTES if frames > 0 else 0


def flip(wal: Path, place: int) -> None:
    content = bytearray(wal.read_bytes())
    content[place] ^= 1
    wal.write_bytes(content)


def cut(wal: Path, size: int) -> None:
    with wal.open("r+b") as file:
        file.truncate(size)


def test_a_wal_that_ends_with_a_commit_has_no_tail(path: Path, folder: Path) -> None:
    wal = dies(path, folder, commits)

    size = wal.stat().st_size
    assert size > COMMITS * FRAME_BYTES
    assert walfile.read_tail(path) is None
    assert kept_bytes(path) == size


def test_no_wal_or_an_empty_one_has_no_tail(path: Path, folder: Path) -> None:
    assert walfile.read_tail(path) is None
    dies(path, folder, lambda conn: None)

    assert walfile.read_tail(path) is None


def test_an_unfinished_transaction_is_a_tail(path: Path, folder: Path) -> None:
    def story(conn: sqlite3.Connection) -> None:
        commits(conn)
        unfinished(conn)

    wal = dies(path, folder, story)
    size = wal.stat().st_size
    tail = walfile.read_tail(path)

    assert tail is not None
    assert tail.byte_offset + tail.discarded_bytes == size
    assert tail.byte_offset == kept_bytes(path)


def test_a_commit_cut_in_two_is_a_tail(path: Path, folder: Path) -> None:
    wal = dies(path, folder, commits)
    size = wal.stat().st_size
    for missing in (1, 4096, 4096 + 10, 4096 + 23):
        cut(wal, size - missing)
        tail = walfile.read_tail(path)
        assert tail is not None
        assert tail.byte_offset + tail.discarded_bytes == size - missing

    assert walfile.read_tail(path) == Tail(tail.byte_offset, tail.discarded_bytes)
    assert tail.byte_offset == kept_bytes(path)


@pytest.mark.parametrize("place", [4, 12, 20, 24 + 2_000], ids=["size", "salt", "sum", "page"])
def test_one_flipped_bit_shows_every_commit_behind_it_as_discarded(
    path: Path, folder: Path, place: int
) -> None:
    wal = dies(path, folder, commits)
    size = wal.stat().st_size
    flip(wal, walfile.HEADER_BYTES + 20 * FRAME_BYTES + place)
    tail = walfile.read_tail(path)

    assert tail is not None
    assert tail.byte_offset <= walfile.HEADER_BYTES + 20 * FRAME_BYTES
    assert tail.byte_offset + tail.discarded_bytes == size
    assert tail.byte_offset == kept_bytes(path)


def test_a_flipped_bit_in_the_header_drops_the_whole_wal(path: Path, folder: Path) -> None:
    wal = dies(path, folder, commits)
    size = wal.stat().st_size
    flip(wal, 17)

    assert walfile.read_tail(path) == Tail(0, size)
    assert kept_bytes(path) == 0


def test_frames_of_an_older_generation_are_no_tail(path: Path, folder: Path) -> None:
    def story(conn: sqlite3.Connection) -> None:
        commits(conn)
        conn.execute("PRAGMA wal_checkpoint(PASSIVE)")
        commits(conn, 3)

    wal = dies(path, folder, story)
    size = wal.stat().st_size

    assert walfile.read_tail(path) is None
    kept = kept_bytes(path)
    assert 0 < kept < size


def test_a_tail_before_frames_of_an_older_generation_ends_where_they_begin(
    path: Path, folder: Path
) -> None:
    def story(conn: sqlite3.Connection) -> None:
        commits(conn)
        conn.execute("PRAGMA wal_checkpoint(PASSIVE)")
        commits(conn, 6)

    wal = dies(path, folder, story)
    flip(wal, walfile.HEADER_BYTES + 3 * FRAME_BYTES + 100)
    tail = walfile.read_tail(path)

    assert tail is not None
    assert 0 < tail.discarded_bytes < COMMITS * FRAME_BYTES // 2
    assert tail.byte_offset == kept_bytes(path)


def test_reading_the_tail_changes_nothing(path: Path, folder: Path) -> None:
    wal = dies(path, folder, unfinished)
    before = (path.read_bytes(), wal.read_bytes())
    walfile.read_tail(path)

    assert (path.read_bytes(), wal.read_bytes()) == before


def test_a_wal_that_cannot_be_read_is_a_plain_refusal(tmp_path: Path) -> None:
    path = tmp_path / "feltd.db"
    path.with_name("feltd.db-wal").mkdir()

    with pytest.raises(connect.StoreProblem, match="cannot be read"):
        walfile.read_tail(path)

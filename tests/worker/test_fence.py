"""A sink's guard lets no older claim write after a newer one, in whatever order they come."""

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import feltd.worker
from feltd.worker import FileFence, PostgresFence, SqliteFence, StaleFence
from feltd.worker import fence as guards
from tests.worker import postgres

WRITERS = 4


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A SQLite sink with one row to write to and a table that keeps every write."""
    connection = sqlite3.connect(tmp_path / "sink.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE written (seq INTEGER PRIMARY KEY, token INTEGER)")
    SqliteFence(connection).install()
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres.server() as folder:
        with postgres.connect(folder) as connection:
            connection.execute(
                "CREATE TABLE written (seq BIGINT GENERATED ALWAYS AS IDENTITY, token BIGINT)"
            )
        fence = PostgresFence(postgres.connect(folder))
        fence.install()
        fence.install()
        yield folder


def writers(kind: str, where: str) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.worker.sinks", kind, where, str(seed)],
            stdout=subprocess.PIPE, text=True,
        )
        for seed in range(WRITERS)
    ]  # fmt: skip


def counts(running: list[subprocess.Popen[str]]) -> tuple[int, int]:
    """How many writes were accepted and how many came too late, over all writers."""
    said = [one.communicate(timeout=100)[0] for one in running]
    assert [one.returncode for one in running] == [0] * len(running)
    pairs = [tuple(map(int, one.split())) for one in said]
    return sum(one[0] for one in pairs), sum(one[1] for one in pairs)


# -- the same for both databases ------------------------------------------------------------


def walk_through(fence: Any, insert: str) -> None:
    with fence.admit("r", 5) as cursor:
        cursor.execute(insert, [5])
    with fence.admit("r", 7) as cursor:
        cursor.execute(insert, [7])
    with fence.admit("r", 7) as cursor:
        cursor.execute(insert, [77])
    with pytest.raises(StaleFence) as stale, fence.admit("r", 6):
        raise AssertionError("the block of a stale write was entered")
    assert (stale.value.resource, stale.value.token, stale.value.highest) == ("r", 6, 7)
    with fence.admit("other", 1) as cursor:
        cursor.execute(insert, [1])
    assert (fence.highest("r"), fence.highest("other"), fence.highest("none")) == (7, 1, None)


def fails_inside(fence: Any, insert: str) -> None:
    def write() -> None:
        with fence.admit("failing", 9) as cursor:
            cursor.execute(insert, [999])
            raise LookupError

    with pytest.raises(LookupError):
        write()
    assert fence.highest("failing") is None
    # The connection goes on as if nothing had been.
    with fence.admit("failing", 8) as cursor:
        cursor.execute(insert, [8])
    assert fence.highest("failing") == 8


@pytest.mark.parametrize("isolation", [None, "", "DEFERRED"])
def test_a_sqlite_row_takes_no_older_token(tmp_path: Path, isolation: str | None) -> None:
    connection = sqlite3.connect(tmp_path / "sink.db", isolation_level=isolation)
    connection.execute("CREATE TABLE written (seq INTEGER PRIMARY KEY, token INTEGER)")
    fence = SqliteFence(connection)
    fence.install()

    walk_through(fence, "INSERT INTO written (token) VALUES (?)")
    fails_inside(fence, "INSERT INTO written (token) VALUES (?)")

    kept = connection.execute("SELECT token FROM written ORDER BY seq").fetchall()
    assert [one[0] for one in kept] == [5, 7, 77, 1, 8]
    connection.close()


@pytest.mark.needs("postgres")
@pytest.mark.parametrize("autocommit", [False, True])
def test_a_postgresql_row_takes_no_older_token(server: str, autocommit: bool) -> None:
    with postgres.connect(server, autocommit=True) as clear:
        clear.execute("TRUNCATE written, feltd_fences")
    with postgres.connect(server, autocommit=autocommit) as connection:
        fence = PostgresFence(connection)

        walk_through(fence, "INSERT INTO written (token) VALUES (%s)")
        fails_inside(fence, "INSERT INTO written (token) VALUES (%s)")

        kept = connection.execute("SELECT token FROM written ORDER BY seq").fetchall()
        assert [one[0] for one in kept] == [5, 7, 77, 1, 8]


def test_an_open_transaction_is_refused_rather_than_committed(rows: sqlite3.Connection) -> None:
    rows.execute("BEGIN")
    with pytest.raises(ValueError, match="a transaction is open"), SqliteFence(rows).admit("r", 1):
        pass
    assert rows.in_transaction


@pytest.mark.needs("postgres")
def test_an_open_transaction_of_postgresql_is_refused_too(server: str) -> None:
    with postgres.connect(server) as connection:
        connection.execute("SELECT 1")
        fence = PostgresFence(connection)
        with pytest.raises(ValueError, match="a transaction is open"), fence.admit("r", 1):
            pass


def test_many_processes_write_one_sqlite_row_in_the_order_of_their_tokens(
    rows: sqlite3.Connection, tmp_path: Path
) -> None:
    accepted, late = counts(writers("sqlite", str(tmp_path / "sink.db")))

    kept = [one[0] for one in rows.execute("SELECT token FROM written ORDER BY seq")]
    assert kept == sorted(kept)
    assert len(kept) == accepted
    assert late > 0
    assert SqliteFence(rows).highest("row") == kept[-1]


@pytest.mark.needs("postgres")
def test_many_processes_write_one_postgresql_row_in_the_order_of_their_tokens(server: str) -> None:
    with postgres.connect(server, autocommit=True) as connection:
        connection.execute("TRUNCATE written, feltd_fences")

        accepted, late = counts(writers("postgres", server))

        found = connection.execute("SELECT token FROM written ORDER BY seq").fetchall()
        kept = [one[0] for one in found]
        assert kept == sorted(kept)
        assert len(kept) == accepted
        assert late > 0
        assert PostgresFence(connection).highest("row") == kept[-1]


DYING = """
import os, signal, sqlite3, sys
from feltd.worker import SqliteFence
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
with SqliteFence(connection).admit("r", 9) as cursor:
    cursor.execute("INSERT INTO written (token) VALUES (9)")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_dies_inside_a_write_leaves_neither_the_write_nor_its_token(
    rows: sqlite3.Connection, tmp_path: Path
) -> None:
    died = subprocess.run([sys.executable, "-c", DYING, str(tmp_path / "sink.db")], check=False)
    assert died.returncode == -signal.SIGKILL

    assert rows.execute("SELECT count(*) FROM written").fetchone()[0] == 0
    assert SqliteFence(rows).highest("r") is None
    with SqliteFence(rows).admit("r", 1) as cursor:
        cursor.execute("INSERT INTO written (token) VALUES (1)")


@pytest.mark.needs("postgres")
def test_a_connection_cut_inside_a_write_leaves_neither_the_write_nor_its_token(
    server: str,
) -> None:
    import psycopg

    with postgres.connect(server, autocommit=True) as operator:
        operator.execute("TRUNCATE written, feltd_fences")
        cut = postgres.connect(server)

        def write() -> None:
            with PostgresFence(cut).admit("r", 9) as cursor:
                cursor.execute("INSERT INTO written (token) VALUES (9)")
                operator.execute("SELECT pg_terminate_backend(%s)", [cut.info.backend_pid])
                cursor.execute("SELECT 1")

        with pytest.raises(psycopg.OperationalError):
            write()

        assert PostgresFence(operator).highest("r") is None
        assert operator.execute("SELECT count(*) FROM written").fetchone()[0] == 0


# -- a file ---------------------------------------------------------------------------------


def test_a_file_takes_no_older_token(tmp_path: Path) -> None:
    fence = FileFence(tmp_path / "report.txt")
    assert fence.highest() is None

    fence.write(5, "five")
    fence.write(7, "seven")
    fence.write(7, b"seven again")
    with pytest.raises(StaleFence) as stale:
        fence.write(6, "six")

    assert (tmp_path / "report.txt").read_text() == "seven again"
    assert (stale.value.highest, fence.highest()) == (7, 7)
    assert (tmp_path / "report.txt.fence").read_text() == "7\n"


def test_two_names_of_a_file_have_one_fence(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")

    FileFence(tmp_path / "link.txt").write(7, "seven")

    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "seven"
    with pytest.raises(StaleFence):
        FileFence(tmp_path / "real.txt").write(6, "six")


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    report = tmp_path / "report.txt"
    report.write_text("old")
    report.chmod(0o640)

    FileFence(report).write(1, "new")

    assert report.stat().st_mode & 0o777 == 0o640


def test_readers_of_a_file_never_see_an_older_token_after_a_newer_one(tmp_path: Path) -> None:
    where = tmp_path / "report.txt"
    running = writers("file", str(where))
    seen: list[int] = []
    while any(one.poll() is None for one in running):
        if where.exists():
            lines = where.read_text().split()
            assert len(lines) == 50
            assert len(set(lines)) == 1
            seen.append(int(lines[0]))
        time.sleep(0.001)
    accepted, late = counts(running)

    assert seen == sorted(seen)
    assert accepted > 0
    assert late > 0
    assert FileFence(where).highest() == int(where.read_text().split()[0])


def test_a_crash_at_any_step_never_leaves_the_new_content_behind_the_old_token(
    tmp_path: Path,
) -> None:
    where = tmp_path / "report.txt"
    outcomes = set()
    for step in range(20):
        for name in tmp_path.iterdir():
            name.unlink()
        FileFence(where).write(5, "old")
        crash = [sys.executable, "-m", "tests.worker.sinks", "crash", str(where), str(step)]
        died = subprocess.run(crash, check=False).returncode
        content, highest = where.read_text(), FileFence(where).highest()
        outcomes.add((content, highest))

        assert content in ("old", "new")
        assert content == "old" or highest == 7
        # Whoever holds the token writes again, whatever the crash left.
        FileFence(where).write(7, "new")
        with pytest.raises(StaleFence):
            FileFence(where).write(6, "late")
        assert where.read_text() == "new"
        if died == 0:
            break
    assert outcomes == {("old", 5), ("old", 7), ("new", 7)}


def test_a_spoiled_token_file_lets_nobody_write(tmp_path: Path) -> None:
    fence = FileFence(tmp_path / "report.txt")
    fence.write(5, "five")
    (tmp_path / "report.txt.fence").write_text("")

    with pytest.raises(ValueError, match="holds no token"):
        fence.write(9, "nine")
    assert (tmp_path / "report.txt").read_text() == "five"


@pytest.mark.parametrize("token", [0, -1, True, "7", None, 2**63, 1.0])
def test_what_is_no_token_is_refused(tmp_path: Path, rows: sqlite3.Connection, token: Any) -> None:
    with pytest.raises(ValueError, match="a fencing token is a positive integer"):
        FileFence(tmp_path / "x").write(token, "x")
    with pytest.raises(ValueError, match="positive integer"), SqliteFence(rows).admit("r", token):
        pass
    assert not (tmp_path / "x").exists()


def test_the_guards_are_public_and_need_nothing_but_the_standard_library() -> None:
    assert {"FileFence", "PostgresFence", "SqliteFence", "StaleFence"} <= set(feltd.worker.__all__)
    source = Path(guards.__file__).read_text()
    lines = [line.split() for line in source.splitlines() if line.startswith(("import ", "from "))]
    assert {line[1].split(".")[0] for line in lines} <= set(sys.stdlib_module_names)

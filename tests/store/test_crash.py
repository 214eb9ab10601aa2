"""Real processes that are killed or fail: nothing acknowledged is lost, and none of them hangs."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from feltd.store import connect, migrate

ROOT = Path(__file__).parents[2]

WORK = """
import asyncio, os, sys
from pathlib import Path
from feltd.clock import Now
from feltd.store import connect, migrate
from feltd.store.writer import Writer
from tests.store.stories import add

async def main():
    path, folder = Path(sys.argv[1]), Path(sys.argv[2])
    conn = await connect.open_writer(path)
    await conn.run(lambda raw: migrate.apply(raw, folder))
    writer = Writer(conn, path, lambda: Now(1, 1))

    async def caller(name):
        number = 0
        while True:
            text = f"{sys.argv[3]}/{name}/{number}"
            await writer.submit(add, text, tenant=str(name))
            os.write(1, (text + chr(10)).encode())
            number += 1

    await asyncio.gather(*map(caller, range(32)))

asyncio.run(main())
"""


def killed_at_work(path: Path, folder: Path, life: int, acknowledged: int) -> set[str]:
    """Run a writer under load and kill it; what it had acknowledged."""
    with subprocess.Popen(
        [sys.executable, "-c", WORK, str(path), str(folder), str(life)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(acknowledged)]
        child.kill()
        lines += child.stdout.readlines()
    return {line.strip() for line in lines if line.endswith("\n")}


def test_a_kill_under_load_loses_nothing_acknowledged(path: Path, folder: Path) -> None:
    acknowledged: set[str] = set()
    for life in range(6):
        acknowledged |= killed_at_work(path, folder, life, 200 + 37 * life)

    conn = connect.open_local(path, read_only=False)
    stored = {row["text"] for row in conn.execute("SELECT text FROM notes").fetchall()}
    assert migrate.quick_check(conn) == []
    conn.close()
    assert len(acknowledged) > 1_000
    assert acknowledged <= stored
    assert migrate.check(path, folder, deep=True).pending == []


FAILS = """
import asyncio, sys
from pathlib import Path
from feltd.store import connect, migrate
from feltd.store.readers import Readers
from feltd.store.writer import Writer
from feltd.clock import Now

kept = []

async def main():
    path, folder = Path(sys.argv[1]), Path(sys.argv[2])
    conn = await connect.open_writer(path)
    kept.append(conn)
    await conn.run(lambda raw: migrate.apply(raw, folder))
    kept.append(await Readers.open(path, lambda: Now(1, 1)))
    kept.append(Writer(conn, path, lambda: Now(1, 1)))
    raise SystemExit("the port is in use")

asyncio.run(main())
"""


@pytest.mark.parametrize("failing", ["migration", "port", "file"])
def test_a_start_that_fails_ends_its_process(path: Path, folder: Path, failing: str) -> None:
    """BC-069: a connection thread nobody closed does not keep the process alive."""
    if failing == "migration":
        (folder / "0002_broken.sql").write_text("INSERT INTO nowhere VALUES (1);")
    if failing == "file":
        path.write_bytes(b"")
    ended = subprocess.run(
        [sys.executable, "-c", FAILS, str(path), str(folder)],
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 1


LOOK = """
import sqlite3, sys
shell = sqlite3.connect(sys.argv[1])
shell.execute("SELECT count(*) FROM notes").fetchone()
shell.close()
"""


def test_an_operators_look_between_acknowledgement_and_kill_loses_nothing(
    path: Path, folder: Path
) -> None:
    """BC-071: a foreign reader that comes and goes must not take the -wal away with it."""
    with subprocess.Popen(
        [sys.executable, "-c", WORK, str(path), str(folder), "0"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(50)]
        for _ in range(3):
            subprocess.run([sys.executable, "-c", LOOK, str(path)], check=True, timeout=60)
            lines += [child.stdout.readline() for _ in range(50)]
        assert path.with_name("feltd.db-wal").exists()
        child.kill()
        lines += child.stdout.readlines()

    conn = connect.open_local(path, read_only=False)
    stored = {row["text"] for row in conn.execute("SELECT text FROM notes").fetchall()}
    conn.close()
    assert {line.strip() for line in lines if line.endswith("\n")} <= stored


def test_a_copy_made_by_sqlite_under_load_holds_what_was_acknowledged_before(
    path: Path, folder: Path, tmp_path: Path
) -> None:
    """BC-076: a second connection copies with VACUUM INTO; a copy of the two files would not do."""
    copy = tmp_path / "copy.db"
    with subprocess.Popen(
        [sys.executable, "-c", WORK, str(path), str(folder), "0"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as child:
        assert child.stdout is not None
        before = [child.stdout.readline().strip() for _ in range(300)]
        reader = connect.open_local(path)
        reader.execute("PRAGMA query_only = OFF")
        reader.execute("VACUUM INTO :copy", {"copy": str(copy)})
        reader.close()
        child.kill()
        child.stdout.readlines()

    conn = sqlite3.connect(copy)
    assert migrate.quick_check(conn) == []
    assert set(before) <= {row[0] for row in conn.execute("SELECT text FROM notes").fetchall()}
    conn.close()

"""A copy of a database that others write to: of one commit, bounded, or nothing at all."""

import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from feltd.errors import Refused
from feltd.store import backup, copying
from feltd.store.connect import APPLICATION_ID, StoreProblem, open_copy, open_local
from feltd.store.copying import Progress

ROWS = """
CREATE TABLE notes (
  note_id INTEGER PRIMARY KEY AUTOINCREMENT,
  text    TEXT NOT NULL
) STRICT
"""
ADD = "INSERT INTO notes (text) VALUES (:text)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database of some 4 MB, in WAL mode."""
    made = tmp_path / "feltd.db"
    conn = open_local(made, read_only=False)
    conn.execute("BEGIN")
    conn.execute(ROWS)
    for _ in range(1_000):
        conn.execute(ADD, {"text": "x" * 4_000})
    conn.execute("COMMIT")
    conn.close()
    return made


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    folder = tmp_path / "backups"
    backup.prepare(folder)
    return backup.draft_in(folder, 1_790_000_000_000)


def rows(file: Path) -> int:
    conn = open_copy(file)
    found: int = conn.execute("SELECT count(*) FROM notes").fetchone()[0]
    conn.close()
    return found


class Writing:
    """A writer that commits one row after another until it is told to stop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.acknowledged = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Writing":
        self._thread.start()
        while not self.acknowledged:
            time.sleep(0.001)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        conn = open_local(self.path, read_only=False)
        while not self._stop.is_set():
            conn.execute(ADD, {"text": "y" * 4_000})
            self.acknowledged += 1
        conn.close()


def test_a_copy_under_writes_has_all_that_was_acknowledged_before_and_is_whole(
    path: Path, draft: Path
) -> None:
    """BC-076."""
    told: list[Progress] = []
    with Writing(path) as writing:
        for _ in range(5):
            before = writing.acknowledged
            backup.drop(draft)
            draft.touch(0o600)
            copying.copy(path, draft, told.append)
            after = writing.acknowledged
            assert 1_000 + before <= rows(draft) <= 1_000 + after + 1
            conn = open_copy(draft)
            assert copying.damage(conn) == []
            assert conn.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
            assert conn.execute("PRAGMA auto_vacuum").fetchone()[0] == 2
            counter = conn.execute("SELECT seq FROM sqlite_sequence").fetchone()[0]
            assert counter >= 1_000 + before, "the counters come along"
            conn.close()
    assert {one.phase for one in told} == {"copy"}
    assert sorted(file.name for file in draft.parent.iterdir()) == [draft.name]


def test_a_copy_is_given_up_when_the_log_grows_past_its_bound(path: Path, draft: Path) -> None:
    with Writing(path), pytest.raises(Refused) as refused:
        copying.copy(path, draft, lambda _: None, wal_bytes_max=4_096)
    assert (refused.value.code, refused.value.facts["committed"]) == ("STORAGE_BUSY", False)
    assert "write-ahead log" in refused.value.detail
    # Nothing holds the log any more.
    conn = open_local(path, read_only=False)
    assert conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    conn.close()


def test_a_copy_leaves_the_database_as_it_was(path: Path, draft: Path) -> None:
    before = path.read_bytes()
    copying.copy(path, draft, lambda _: None)
    assert path.read_bytes() == before


def test_a_database_of_another_program_is_not_copied(tmp_path: Path, draft: Path) -> None:
    foreign = tmp_path / "foreign.db"
    conn = sqlite3.connect(foreign)
    conn.execute("CREATE TABLE t (a)")
    conn.close()
    with pytest.raises(StoreProblem):
        copying.copy(foreign, draft, lambda _: None)


ON_A_SMALL_DISK = """
mount -t tmpfs -o size=110m tmpfs {folder} || exit 9
exec {python} - {folder} {how} <<'SCRIPT'
import os, sys
from pathlib import Path
from feltd.errors import Refused
from feltd.store import backup, copying
from feltd.store.connect import open_local
folder, how = Path(sys.argv[1]), sys.argv[2]
conn = open_local(folder / "feltd.db", read_only=False)
conn.execute("CREATE TABLE notes (text TEXT) STRICT")
conn.execute("BEGIN")
for _ in range(4_000):
    conn.execute("INSERT INTO notes VALUES (:text)", {{"text": "x" * 4_000}})
conn.execute("COMMIT")
conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
conn.close()
folder = folder / "backups"
backup.prepare(folder)
draft = backup.draft_in(folder, 0)
def fill(_):
    with open(folder / "filler", "ab", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(65_536))
        except OSError:
            pass
calls = []
def tell(progress):
    calls.append(progress)
    if how == "during":
        fill(progress)
if how == "before":
    fill(None)
try:
    copying.copy(folder.parent / "feltd.db", draft, tell)
except Refused as refused:
    print(refused.code, len(calls), refused.detail)
finally:
    backup.drop(draft)
print(sorted(one for one in os.listdir(folder) if one != "filler"))
SCRIPT
"""


@pytest.mark.needs("unshare")
@pytest.mark.parametrize("how", ["before", "during"])
def test_a_disk_that_is_or_becomes_full_is_told_and_nothing_is_left(
    tmp_path: Path, how: str
) -> None:
    """BC-078: before the first byte where it will not fit, else in the middle."""
    folder = tmp_path / "disk"
    folder.mkdir()
    script = ON_A_SMALL_DISK.format(folder=folder, python=sys.executable, how=how)
    ran = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told, left = ran.stdout.splitlines()
    assert told.startswith("STORAGE_FULL"), told
    assert left == "[]"

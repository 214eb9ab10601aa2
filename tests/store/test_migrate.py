"""The schema reaches this feltd's version, whatever interrupts it, or the file stays as it was."""

import multiprocessing
import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from feltd.store import connect, lock, migrate
from feltd.store.connect import StoreProblem

SECOND = """
-- A comment with a ; in it.
ALTER TABLE notes ADD COLUMN author TEXT NOT NULL DEFAULT 'a;b';
/* Another ; one. */
CREATE INDEX notes_of_author ON notes (author); CREATE TABLE counts (
  name TEXT PRIMARY KEY,
  found INTEGER NOT NULL -- how many; never null
) STRICT;
CREATE TRIGGER notes_are_counted AFTER INSERT ON notes
BEGIN
  INSERT INTO counts (name, found) VALUES ('notes', 1)
  ON CONFLICT (name) DO UPDATE SET found = found + 1;
  SELECT CASE WHEN NEW.text = ';' THEN RAISE(ABORT, 'no; not that') END;
END;
INSERT INTO notes (text) VALUES ('from the migration');
-- The end.
"""


@pytest.fixture
def two(folder: Path) -> Path:
    (folder / "0002_authors.sql").write_text(SECOND)
    return folder


def schema(path: Path) -> list[tuple[object, ...]]:
    conn = connect.open_local(path)
    try:
        found = conn.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name").fetchall()
        notes = conn.execute("SELECT text, author FROM notes").fetchall()
        version = conn.execute("PRAGMA user_version").fetchone()
        return [tuple(row) for row in (*found, *notes, version)]
    finally:
        conn.close()


def migrated(path: Path, folder: Path | None) -> list[str]:
    conn = connect.open_local(path, read_only=False)
    try:
        return migrate.apply(conn, folder)
    finally:
        conn.close()


def test_statements_are_split_where_they_end() -> None:
    firsts = [statement.split("\n")[-1] for statement in migrate.statements(SECOND)]

    assert len(firsts) == 5
    assert firsts[0].startswith("ALTER TABLE")
    with pytest.raises(StoreProblem, match="ends inside a statement"):
        list(migrate.statements("CREATE TABLE a (b);\nCREATE TABLE c (d"))


def test_the_shipped_migrations_apply_once(path: Path) -> None:
    shipped = [one.name for one in migrate.migrations()]

    assert migrated(path, None) == shipped
    assert migrated(path, None) == []
    assert migrate.check(path, deep=True) == migrate.Plan(len(shipped), shipped, [])


def test_what_is_missing_is_planned_and_then_applied(path: Path, folder: Path) -> None:
    migrated(path, folder)
    (folder / "0002_authors.sql").write_text(SECOND)

    assert migrate.check(path, folder).pending == ["0002_authors.sql"]
    assert migrated(path, folder) == ["0002_authors.sql"]
    assert schema(path)[-1] == (2,)


def killed_at(path: Path, folder: Path | None, statement: int) -> bool:
    """Migrate in a child that is killed when its n-th statement begins; whether it was."""

    def migrate_and_die() -> None:
        conn = connect.open_local(path, read_only=False)
        ran = 0

        def count(sql: str) -> None:
            nonlocal ran
            ran += 1
            if ran == statement:
                os.kill(os.getpid(), signal.SIGKILL)

        conn.set_trace_callback(count)
        migrate.apply(conn, folder)
        conn.close()

    child = multiprocessing.get_context("fork").Process(target=migrate_and_die)
    child.start()
    child.join(60)
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode != 0


def test_a_kill_between_any_two_statements_leaves_a_migration_to_run_again(
    tmp_path: Path, two: Path
) -> None:
    """BC-079: each migration and its stamp are one transaction; the next start just goes on."""
    whole = tmp_path / "whole.db"
    migrated(whole, two)
    statement = 0
    killed = True
    while killed:
        statement += 1
        path = tmp_path / f"killed{statement}.db"
        killed = killed_at(path, two, statement)
        migrated(path, two)
        assert schema(path) == schema(whole)
        assert migrate.check(path, two, deep=True).pending == []

    assert statement > 20


@pytest.mark.timeout(600)
@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.soak)])
def test_a_kill_within_the_shipped_migrations_leaves_them_to_run_again(
    tmp_path: Path, every: int
) -> None:
    """BC-079 over the real files, at every ninth statement; at each of them when it has time."""
    statement = 1
    while killed_at(path := tmp_path / f"killed{statement}.db", None, statement):
        migrated(path, None)
        assert migrate.check(path).pending == []
        path.unlink()
        statement += every

    assert migrate.check(path, deep=True).pending == []


def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path, two: Path) -> None:
    (two / "0003_broken.sql").write_text(
        "CREATE TABLE good (a);\nINSERT INTO nowhere VALUES (1);\n"
    )
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        migrated(path, two)

    (two / "0003_broken.sql").unlink()
    assert migrate.check(path, two).pending == []
    assert [row[1] for row in schema(path) if row[0] == "table"] == [
        "commits",
        "counts",
        "notes",
        "schema_migrations",
        "storage_probe",
    ]


def test_a_migration_may_not_end_its_own_transaction(path: Path, folder: Path) -> None:
    (folder / "0002_commits.sql").write_text("CREATE TABLE a (b);\nCOMMIT;\n")
    with pytest.raises(StoreProblem, match="ends its own transaction"):
        migrated(path, folder)


def started(path: Path, folder: Path) -> None:
    """As a start does it: who writes holds the lock; who finds it held comes again."""
    while True:
        try:
            held = lock.take(path)
        except lock.LockHeld:
            time.sleep(0.002)
            continue
        with held:
            migrated(path, folder)
        return


def test_starts_at_once_apply_each_file_once(path: Path, two: Path) -> None:
    """BC-079: one migrates, the others are kept out by the lock and then find it applied."""
    connect.create(path)
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=started, args=(path, two)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)

    assert [child.exitcode for child in children] == [0, 0, 0, 0]
    assert migrate.check(path, two, deep=True).applied == ["0001_notes.sql", "0002_authors.sql"]


def test_a_newer_database_is_refused_untouched(path: Path, two: Path) -> None:
    migrated(path, two)
    (two / "0002_authors.sql").unlink()
    before = path.read_bytes()
    with pytest.raises(StoreProblem, match="newer than this feltd") as refused:
        migrated(path, two)

    assert "newer feltd" in refused.value.remedy
    with pytest.raises(StoreProblem, match="newer"):
        migrate.check(path, two)
    assert path.read_bytes() == before


def test_a_database_made_by_an_edited_migration_is_refused(path: Path, two: Path) -> None:
    migrated(path, two)
    before = path.read_bytes()
    (two / "0001_notes.sql").write_text("CREATE TABLE notes (a);\n")
    with pytest.raises(StoreProblem, match=r"0001_notes\.sql was applied with another text"):
        migrated(path, two)

    assert path.read_bytes() == before


def test_a_version_that_no_recorded_migration_explains_is_refused(path: Path, two: Path) -> None:
    migrated(path, two)
    shell = sqlite3.connect(path)
    shell.execute("DELETE FROM schema_migrations WHERE number = 2")
    shell.commit()
    shell.close()
    with pytest.raises(StoreProblem, match="2 is claimed, but 1 are recorded"):
        migrate.check(path, two)


def test_an_open_database_of_another_program_is_not_migrated(folder: Path) -> None:
    conn = sqlite3.connect(":memory:", isolation_level=None)
    with pytest.raises(StoreProblem, match="another program"):
        migrate.apply(conn, folder)

    assert conn.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0
    conn.close()


def test_misnumbered_files_are_refused(folder: Path) -> None:
    (folder / "0003_gap.sql").write_text("SELECT 1;")
    with pytest.raises(StoreProblem, match="not 1, 2, 3"):
        migrate.migrations(folder)
    (folder / "0003_gap.sql").rename(folder / "third.sql")
    with pytest.raises(StoreProblem, match=r"third\.sql is not named"):
        migrate.migrations(folder)


def test_a_damaged_page_is_found_by_the_deep_check_and_leaves_the_file_untouched(
    path: Path, two: Path
) -> None:
    migrated(path, two)
    conn = connect.open_local(path, read_only=False)
    for number in range(2_000):
        conn.execute("INSERT INTO notes (text) VALUES (:text)", {"text": f"{number} " * 20})
    conn.close()
    content = bytearray(path.read_bytes())
    content[4096 * 9 : 4096 * 10] = os.urandom(4096)
    path.write_bytes(content)
    with pytest.raises(StoreProblem, match="damaged") as refused:
        migrate.check(path, two, deep=True)

    assert "backup" in refused.value.remedy
    assert path.read_bytes() == content

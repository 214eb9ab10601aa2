"""How the file is born, which files are refused, and that refusing touches nothing."""

import ast
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import feltd.store
from feltd.store import connect, migrate
from feltd.store.connect import StoreProblem


def make(path: Path, folder: Path) -> None:
    conn = connect.open_local(path, read_only=False)
    migrate.apply(conn, folder)
    conn.execute("INSERT INTO notes (text) VALUES ('kept')")
    conn.close()


def image(path: Path) -> dict[str, bytes]:
    """Every file beside and including the database, byte for byte."""
    return {file.name: file.read_bytes() for file in path.parent.glob(path.name + "*")}


def test_a_new_file_is_whole_private_and_ours(path: Path) -> None:
    conn = connect.open_local(path, read_only=False)
    settings = [
        conn.execute(pragma).fetchone()[0]
        for pragma in (
            "PRAGMA journal_mode",
            "PRAGMA auto_vacuum",
            "PRAGMA application_id",
            "PRAGMA user_version",
        )
    ]
    conn.close()

    assert settings == ["wal", 2, 0x46454C54, 0]
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(file.name for file in path.parent.glob("feltd*")) == ["feltd.db"]


def test_a_file_whose_making_was_cut_short_is_made_again(path: Path) -> None:
    path.with_name("feltd.db.new").write_bytes(b"half")

    connect.open_local(path, read_only=False).close()

    assert migrate.check(path).applied == []
    assert not path.with_name("feltd.db.new").exists()


def test_a_file_that_came_meanwhile_is_not_replaced(path: Path) -> None:
    path.write_bytes(b"")
    with pytest.raises(StoreProblem):
        connect.create(path)

    assert path.read_bytes() == b""
    assert not path.with_name("feltd.db.new").exists()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_bytes(b"these are my notes\n" * 400)


def zeroed_header(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[:100] = bytes(100)
    path.write_bytes(content)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


def foreign(path: Path) -> None:
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("PRAGMA journal_mode = WAL")
    other.execute("PRAGMA application_id = 7")
    other.execute("CREATE TABLE songs (a)")
    other.commit()
    other.close()


def unnamed(path: Path) -> None:
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE songs (a)")
    other.commit()
    other.close()


@pytest.mark.parametrize(
    "spoil", [empty, text, zeroed_header, cut_short, foreign, unnamed], ids=lambda one: one.__name__
)
def test_a_file_that_is_not_ours_is_refused_untouched(
    path: Path, folder: Path, spoil: Callable[[Path], None]
) -> None:
    make(path, folder)
    spoil(path)
    before = image(path)

    for opening in (
        lambda: connect.open_local(path, read_only=False),
        lambda: connect.open_local(path),
        lambda: migrate.check(path, folder),
    ):
        with pytest.raises(StoreProblem) as refused:
            opening()
        assert str(path) in refused.value.detail
        assert refused.value.remedy

    assert image(path) == before


def test_links_are_refused(path: Path, folder: Path) -> None:
    make(path, folder)
    link = path.with_name("link.db")
    link.symlink_to(path)
    with pytest.raises(StoreProblem, match="symbolic link"):
        connect.open_local(link)
    link.unlink()
    os.link(path, link)
    with pytest.raises(StoreProblem, match="hard link"):
        connect.open_local(link)


def test_a_missing_file_is_not_made_for_a_reader(path: Path) -> None:
    with pytest.raises(StoreProblem, match="does not exist"):
        connect.open_local(path)

    assert not path.exists()


def test_a_reader_cannot_write(path: Path, folder: Path) -> None:
    make(path, folder)
    reader = connect.open_local(path)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.execute("DELETE FROM notes")
    reader.close()


def test_a_lock_held_at_start_is_named(path: Path, folder: Path) -> None:
    make(path, folder)
    shell = sqlite3.connect(path, isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreProblem, match="locked by another program"):
        connect.open_local(path, read_only=False)
    shell.close()


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o444, 0o777), (0o666, 0o555)])
def test_a_file_or_folder_this_user_may_not_write_is_refused(
    path: Path, folder: Path, file_mode: int, folder_mode: int
) -> None:
    make(path, folder)
    path.chmod(file_mode)
    path.parent.chmod(folder_mode)
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from feltd.store import connect\n"
        "path = Path(sys.argv[1])\n"
        "os.chdir(path.parent)\n"
        "if os.getuid() == 0:\n"
        "    os.setgroups([])\n"
        "    os.setgid(65534)\n"
        "    os.setuid(65534)\n"
        "try:\n"
        "    connect.open_local(Path(path.name), read_only=False)\n"
        "except connect.StoreProblem as problem:\n"
        "    print(problem.detail)\n"
    )
    ancestors = [one for one in path.parents if one.name.startswith(("pytest-", "popen-"))]
    modes = {one: one.stat().st_mode for one in ancestors}
    for one in ancestors:
        one.chmod(0o755)
    try:
        ended = subprocess.run(
            [sys.executable, "-c", program, str(path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        path.parent.chmod(0o755)
        for one, mode in modes.items():
            one.chmod(mode)

    assert "read-only" in ended.stdout, ended.stderr


def test_memory_has_the_settings_of_the_real_file(folder: Path) -> None:
    conn = connect.memory()
    assert migrate.apply(conn, folder) == ["0001_notes.sql"]
    assert conn.execute("PRAGMA foreign_keys").fetchone()[0] == 1
    assert conn.execute("PRAGMA recursive_triggers").fetchone()[0] == 1
    assert conn.execute("PRAGMA trusted_schema").fetchone()[0] == 0
    conn.close()


def test_only_the_writer_may_checkpoint(path: Path, folder: Path) -> None:
    """BC-073: a reader can neither checkpoint by itself nor when asked to."""
    make(path, folder)
    writer = connect.open_local(path, read_only=False)
    writer.execute("INSERT INTO notes (text) VALUES ('in the wal')")
    reader = connect.open_local(path)
    assert reader.execute("PRAGMA wal_autocheckpoint").fetchone()[0] == 0
    with pytest.raises(sqlite3.OperationalError):
        reader.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    assert writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[2] > 0
    reader.close()
    writer.close()


@pytest.mark.anyio
async def test_a_function_runs_whole_on_the_connections_own_thread(
    path: Path, folder: Path
) -> None:
    """The canary for the one inner call of aiosqlite that feltd uses."""
    conn = await connect.open_writer(path)
    threads = {await conn.run(lambda raw: threading.get_ident()) for _ in range(3)}
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    assert await conn.run(lambda raw: migrate.apply(raw, folder)) == ["0001_notes.sql"]
    with pytest.raises(sqlite3.OperationalError):
        await conn.run(lambda raw: raw.execute("nonsense"))
    await conn.close()
    with pytest.raises(ValueError, match=r"closed|no active"):
        await conn.run(lambda raw: None)


def test_only_one_place_opens_databases_and_none_opens_the_file_by_itself() -> None:
    """BC-071: nothing in the store opens the database but SQLite; only walfile opens the -wal."""
    openers: dict[str, set[str]] = {}
    for file in Path(feltd.store.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name == "open" or name.endswith((".open", ".read_bytes", "sqlite3.connect")):
                    openers.setdefault(file.name, set()).add(name)

    assert openers.pop("connect.py") == {"os.open", "sqlite3.connect"}
    assert openers.pop("walfile.py") == {"path.with_name(path.name + '-wal').open"}
    assert openers.pop("lock.py") == {"os.open"}
    assert openers.pop("sidecar.py") == {"os.open", "mark_path(path).read_bytes"}
    # Key files are no databases and are read directly.
    assert openers.pop("private.py", {"os.open"}) == {"os.open"}
    # Copies and their manifests; in the process of a job, which never opens the live file so.
    assert openers.pop("backup.py") == {"os.open"}
    assert openers.pop("copying.py") == {"os.open", "file.open"}
    assert openers == {"writer.py": {"guard.open"}}

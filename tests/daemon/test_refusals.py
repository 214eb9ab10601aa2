"""What the daemon refuses to serve: plainly, with the way out, non-zero, and the file untouched."""

import json
import os
import shutil
import socket
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.daemon.running import PATIENCE_S, Daemon, feltd

APPLICATION_ID = 0x46454C54


def refused(daemon: Daemon, *flags: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and what is told of a start that must fail by itself (BC-069)."""
    before = contents(daemon.data.parent)
    process = daemon.spawn(*flags, env=env)
    code = process.wait(PATIENCE_S)
    assert process.stdout is not None
    assert process.stdout.read() == ""
    process.stdout.close()
    assert contents(daemon.data.parent) == before, "nothing was touched"
    return code, daemon.told().splitlines()[-1]


def contents(folder: Path) -> dict[str, bytes]:
    files = {one.name: one for one in folder.iterdir() if one.is_file()}
    # An empty -wal comes and goes with any reader.
    return {
        name: file.read_bytes()
        for name, file in files.items()
        if not name.endswith((".log", ".lock", "-shm")) and file.stat().st_size
    }


def test_a_second_daemon_names_the_first_and_leaves_with_75(daemon: Daemon) -> None:
    second = Daemon(daemon.data, "--tick-ms", "50")
    process = second.spawn()
    assert process.wait(PATIENCE_S) == 75
    assert f"is in use by process {daemon.pid}" in second.told()
    assert daemon.get("/health")["status"] == "healthy"
    second.close()


def test_a_daemon_whose_lock_file_was_removed_takes_it_anew(daemon: Daemon) -> None:
    lock = daemon.data.with_name(daemon.data.name + ".lock")
    lock.unlink()
    until_s = time.monotonic() + PATIENCE_S
    while not lock.exists():
        assert time.monotonic() < until_s
        time.sleep(0.02)

    second = Daemon(daemon.data, "--tick-ms", "50")
    process = second.spawn()

    assert process.wait(PATIENCE_S) == 75
    assert daemon.get("/health")["keeper"] == "healthy"
    second.close()


def test_a_missing_database_names_the_command_that_makes_one(tmp_path: Path) -> None:
    missing = Daemon(tmp_path / "feltd.db")
    code, told = refused(missing)
    assert code == 1
    assert f"no database at {missing.data}: run 'feltd init --data {missing.data}'" in told
    assert not missing.data.exists()


def emptied(data: Path) -> None:
    data.write_bytes(b"")


def overwritten(data: Path) -> None:
    data.write_bytes(b"this is no database at all\n" * 400)


def foreign(data: Path) -> None:
    data.unlink()
    conn = sqlite3.connect(data)
    conn.execute("CREATE TABLE theirs (id INTEGER)")
    conn.close()


def newer(data: Path) -> None:
    conn = sqlite3.connect(data)
    conn.execute("PRAGMA user_version = 9999")
    conn.close()


def edited(data: Path) -> None:
    conn = sqlite3.connect(data)
    conn.execute("UPDATE schema_migrations SET sha256 = 'x' WHERE number = 2")
    conn.commit()
    conn.close()


def without_ledger(data: Path) -> None:
    conn = sqlite3.connect(data)
    conn.execute("DELETE FROM ledger")
    conn.commit()
    conn.close()


def beheaded(data: Path) -> None:
    """The ledger counts an audit row more than there are: pages of two histories read so."""
    conn = sqlite3.connect(data)
    assert conn.execute("SELECT count(*) FROM audit").fetchone()[0] > 1
    conn.execute("DELETE FROM audit WHERE seq = (SELECT max(seq) FROM audit)")
    conn.commit()
    conn.close()


def headless(data: Path) -> None:
    with data.open("r+b") as file:
        file.write(bytes(100))


def linked(data: Path) -> None:
    data.rename(data.with_name("elsewhere.db"))
    data.symlink_to("elsewhere.db")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (emptied, "is empty: a feltd database never is"),
        (overwritten, "is not an SQLite database"),
        (headless, "is not an SQLite database"),
        (foreign, "another program"),
        (newer, "newer than this feltd"),
        (edited, "was applied with another text"),
        (without_ledger, "never initialised"),
        (beheaded, "without the -wal and -shm of the file it replaces"),
        (linked, "symbolic link"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_file_that_is_not_ours_is_refused_untouched(
    daemons: Callable[..., Daemon], spoil: Callable[[Path], None], told: str
) -> None:
    daemon = daemons()
    spoil(daemon.data)
    code, said = refused(daemon)
    assert code == 1
    assert told in said
    assert said.startswith("error: ")
    assert feltd("check", "--data", str(daemon.data)).returncode == 1


def test_a_damaged_page_is_found_before_serving(daemons: Callable[..., Daemon]) -> None:
    """BC-096: after an unclean stop by itself, after a clean one when asked."""
    daemon = daemons()
    daemon.start()
    daemon.stop()
    page_bytes = 4_096
    with daemon.data.open("r+b") as file:
        for page in range(10, 40):
            file.seek(page * page_bytes)
            file.write(b"\xff" * page_bytes)
    code, said = refused(daemon, "--check-at-start")
    assert (code, "is damaged" in said) == (1, True)
    assert feltd("check", "--data", str(daemon.data)).returncode == 1
    mark = daemon.data.with_name(daemon.data.name + ".mark")
    mark.write_text(mark.read_text().replace('"clean":true', '"clean":false'))
    code, said = refused(daemon)
    assert (code, "is damaged" in said) == (1, True)
    assert "put a backup in their place" in said


def test_a_wrong_keyring_is_refused(daemons: Callable[..., Daemon]) -> None:
    daemon = daemons()
    ring = daemon.data.parent / "signing.keyring"
    kept = ring.read_bytes()
    ring.chmod(0o644)
    assert "may be read" in refused(daemon)[1]
    ring.chmod(0o600)
    ring.write_bytes(b"{}")
    assert "is not a keyring" in refused(daemon)[1]
    ring.unlink()
    assert "does not exist" in refused(daemon)[1]
    ring.write_bytes(kept)
    ring.chmod(0o600)
    assert daemon.start().stop() == 0


def test_a_port_in_use_and_a_bind_that_is_open_to_all_end_the_start(
    daemons: Callable[..., Daemon],
) -> None:
    """BC-069: the process ends although its database thread was running."""
    daemon = daemons()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = daemon.spawn("--port", str(port))
        assert process.wait(PATIENCE_S) == 1
        assert f"cannot listen on 127.0.0.1:{port}" in daemon.told()
    assert refused(daemon, "--host", "0.0.0.0")[0] == 2
    assert refused(daemon, "--max-connections", "100000")[0] in (1, 2)
    assert refused(daemon, env={"FELTD_TICK_MS": "never"})[0] == 2


def test_sigterm_before_the_daemon_serves_ends_it(daemons: Callable[..., Daemon]) -> None:
    daemon = daemons()
    for wait_s in (0.05, 0.3, 0.6, 0.9):
        process = daemon.spawn()
        time.sleep(wait_s)
        process.terminate()
        assert process.wait(PATIENCE_S) in (0, -15)
        assert process.stdout is not None
        process.stdout.close()
    assert daemon.start().stop() == 0


def test_a_wall_clock_set_back_by_days_needs_a_word(daemons: Callable[..., Daemon]) -> None:
    """The mark says that the last run was two days in the future."""
    daemon = daemons()
    daemon.start()
    daemon.stop()
    mark = daemon.data.with_name(daemon.data.name + ".mark")
    known = json.loads(mark.read_text())
    known["lease_ms"] += 2 * 86_400_000
    mark.write_text(json.dumps(known))
    code, said = refused(daemon)
    assert code == 1
    assert "48 hours behind" in said or "47 hours behind" in said
    assert "--accept-clock" in said
    daemon.start("--accept-clock")
    told = daemon.get("/health")
    assert (told["clock"], told["status"]) == ("unhealthy", "degraded")
    later = daemon.post("/v1/keys", {"name": "k", "scopes": ["metrics:read"], "tenants": ["t"]})
    assert later["created_at_ms"] < known["lease_ms"], "keys live by wall time"


def test_a_copy_of_the_lock_file_is_no_lock(daemons: Callable[..., Daemon]) -> None:
    daemon = daemons()
    daemon.start()
    daemon.kill()
    assert os.path.exists(f"{daemon.data}.lock"), "it stays, and locks nobody out"
    shutil.copy(f"{daemon.data}.lock", f"{daemon.data}.lock.copy")
    assert daemon.start().stop() == 0

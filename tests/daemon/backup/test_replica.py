"""Litestream beside a daemon: refused where SQLite may lose commits by it, else kept at work."""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from feltd.api.health import Finding, Health, wal_reset_affected
from feltd.clock import LeaseClock, Now, wall_ms
from feltd.config import Config
from feltd.daemon import replica
from feltd.daemon.replica import Replica
from feltd.store import connect, migrate
from feltd.store.checkpoint import Checkpointer
from feltd.store.connect import StoreProblem
from feltd.store.neighbour import Neighbour
from feltd.store.probe import storage_touch
from feltd.store.tx import Tx
from feltd.store.writer import Writer
from tests.daemon.backup.conftest import eventually, folder_of
from tests.daemon.load import Load, crew
from tests.daemon.running import PATIENCE_S, Daemon, feltd, people

LITESTREAM = str(Path(sys.executable).with_name("litestream"))
AFFECTED = wal_reset_affected(sqlite3.sqlite_version_info)


def shipped(folder: Path, to: Path) -> Path:
    """What the replica has, put together by Litestream."""
    to.unlink(missing_ok=True)
    subprocess.run(
        [LITESTREAM, "restore", "-o", str(to), folder.as_uri()],
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    return to


def test_a_daemon_with_a_replica_serves_or_says_why_it_must_not(
    daemons: Callable[..., Daemon], tmp_path: Path
) -> None:
    """By the SQLite it runs on: the refusal leaves the file alone, else the replica has all."""
    folder = tmp_path / "replica"
    daemon = daemons("feltd.db", "--replica", str(folder))
    before = daemon.data.read_bytes()
    if AFFECTED:
        process = daemon.spawn()
        assert process.wait(PATIENCE_S) == 1
        told = daemon.told()
        assert f"this is {sqlite3.sqlite_version}" in told
        assert "feltd backup create" in told
        assert "Traceback" not in told
        assert daemon.data.read_bytes() == before
        assert not folder.exists()
        return
    daemon.start()
    mesh = people(daemon)
    *edges, holder = crew(daemon, mesh, 5)
    load = Load(daemon, mesh, edges, holder)
    load.begin()
    eventually(lambda: len(load.completed) > 100)
    load.end()
    assert not load.wrong
    assert daemon.get("/health")["status"] == "healthy"
    assert "foreign_write" not in {one["action"] for one in daemon.get("/v1/audit")["items"]}
    created = set(load.created)
    assert daemon.stop() == 0
    assert daemon.check().returncode == 0
    copy = shipped(folder, tmp_path / "shipped.db")
    target = tmp_path / "elsewhere" / "feltd.db"
    target.parent.mkdir()
    ran = feltd("backup", "restore", str(copy), "--data", str(target))
    assert ran.returncode == 0, ran.stderr
    restored = Daemon(target, "--tick-ms", "100")
    restored.key = daemon.key
    try:
        restored.start()
        with sqlite3.connect(f"file:{target}?mode=ro", uri=True) as shell:
            there = {row[0] for row in shell.execute("SELECT workload_id FROM workloads")}
        assert created <= there, "the last commits were shipped before the daemon ended"
    finally:
        restored.close()
    assert not folder_of(daemon).exists()


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("s3://bucket/feltd", "s3://bucket/feltd"),
        ("file:///srv/replica", "file:///srv/replica"),
        ("/srv/replica of mine", "file:///srv/replica%20of%20mine"),
    ],
)
def test_a_replica_is_a_url_or_a_folder(given: str, url: str) -> None:
    assert replica.replica_url(given) == url


def test_without_the_program_the_way_to_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "wal_reset_affected", lambda version: False)
    monkeypatch.setattr(replica, "PROGRAM", "no-such-litestream")
    with pytest.raises(StoreProblem, match="pip install"):
        replica.find_program()


def test_only_what_moves_the_counter_of_litestream_is_taken_for_it() -> None:
    conn = connect.memory()
    tx, neighbour = Tx(conn), Neighbour()
    assert not neighbour.wrote(tx)
    conn.execute("CREATE TABLE mine (a)")
    assert not neighbour.wrote(tx), "somebody else's table"
    conn.execute("CREATE TABLE _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER)")
    conn.execute("CREATE TABLE _litestream_lock (id INTEGER)")
    assert neighbour.wrote(tx)
    assert not neighbour.wrote(tx)
    conn.execute("INSERT INTO _litestream_seq VALUES (1, 1)")
    assert neighbour.wrote(tx)
    conn.execute("INSERT INTO mine VALUES (1)")
    assert not neighbour.wrote(tx)
    conn.execute("UPDATE _litestream_seq SET seq = 2")
    assert neighbour.wrote(tx)
    conn.close()


def test_who_leaves_checkpoints_makes_none(tmp_path: Path) -> None:
    conn = connect.open_local(tmp_path / "feltd.db", read_only=False)
    migrate.apply(conn)
    checkpointer = Checkpointer()
    checkpointer.count(10_000)
    assert checkpointer.due
    checkpointer.left = True
    assert not checkpointer.due
    wal = tmp_path / "feltd.db-wal"
    size = wal.stat().st_size
    assert checkpointer.run(conn, truncate=True).moved_pages == 0
    assert wal.stat().st_size == size
    checkpointer.left = False
    checkpointer.run(conn, truncate=True)
    assert wal.stat().st_size == 0
    conn.close()


@pytest.mark.anyio
async def test_litestream_is_begun_again_when_it_dies_and_ships_the_last_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal aside, so that this is tried on every SQLite: nothing here races with it."""
    monkeypatch.setattr(replica, "wal_reset_affected", lambda version: False)
    monkeypatch.setattr(replica, "AGAIN_S", (0.05, 0.1))
    folder, data = tmp_path / "replica", tmp_path / "feltd.db"
    conn = await connect.open_writer(data)
    await conn.run(migrate.apply)
    clock = LeaseClock(wall_ms())
    foreign: list[Now] = []
    kept = Replica(Config(data=str(data), replica=str(folder)))
    writer = Writer(
        conn, data, clock.now, on_foreign_write=kept.spared(lambda tx, now: foreign.append(now))
    )
    health = Health(Finding(), clock)
    kept.attach(writer, health)
    stop = asyncio.Event()
    running = asyncio.create_task(kept.run(stop))
    try:
        await until(lambda: list(folder.rglob("*.ltx")), writer)
        first = kept._process
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: "REPLICA_FAILING" in health._reasons, writer)
        before = {*folder.rglob("*.ltx")}
        await until(lambda: kept._process not in (None, first), writer)
        await until(lambda: {*folder.rglob("*.ltx")} - before, writer)
        assert not foreign, "what Litestream wrote is nobody else's"
    finally:
        stop.set()
        await running
        await writer.submit(storage_touch, None)
        await writer.close()
        await kept.close()
    last = kept._process
    assert last is not None
    assert last.returncode is not None
    with sqlite3.connect(data) as shell:
        wrote = shell.execute("SELECT probed_at_ms FROM storage_probe").fetchone()
    with sqlite3.connect(shipped(folder, tmp_path / "shipped.db")) as shell:
        assert shell.execute("SELECT probed_at_ms FROM storage_probe").fetchone() == wrote


async def until(what: Callable[[], object], writer: Writer) -> None:
    """Commit something now and then until it is true."""
    async with asyncio.timeout(PATIENCE_S):
        while not what():
            await writer.submit(storage_touch, None)
            await asyncio.sleep(0.05)


def test_the_program_of_the_extra_is_found_beside_python() -> None:
    assert shutil.which(LITESTREAM) == LITESTREAM

"""The mark is ahead of the tokens and close behind the commits; a large file is checked behind."""

import asyncio
import json
import os
import sqlite3
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from feltd.clock import Now
from feltd.config import Config, Hooks
from feltd.daemon import start
from feltd.daemon.marks import CEILING_ROOM, IDLE_MS, Marker
from feltd.daemon.place import take_lock
from feltd.daemon.run import Daemon as InProcess
from feltd.errors import Refused
from feltd.mesh import ledger
from feltd.store import connect, dialect, migrate, sidecar
from feltd.store.tx import Tx
from tests.daemon.running import Daemon

NOW = Now(5_000, 5_000)
ENDLESS = """
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
SELECT max(i) FROM n
"""


@pytest.fixture
def tx() -> Tx:
    conn = connect.memory()
    migrate.apply(conn)
    conn.execute("BEGIN")
    tx = Tx(conn)
    ledger.begin(tx, "instance_1", NOW)
    return tx


def test_no_token_is_committed_above_the_ceiling_on_disk(tx: Tx, tmp_path: Path) -> None:
    data = tmp_path / "feltd.db"
    marker = Marker(data, ledger.read(tx), 1_000, 5_000)
    first = 1_000 + CEILING_ROOM
    assert mark(data).ceiling == first
    for issued, ceiling in (
        (1_000 + 5, first),
        (first - CEILING_ROOM // 2 - 1, first),
        (first - CEILING_ROOM // 2, first + CEILING_ROOM // 2),
        (first + CEILING_ROOM, first + 2 * CEILING_ROOM),
    ):
        dialect.raise_sequence(tx, "claims", issued)
        marker.before_commit(tx, NOW)
        assert mark(data).ceiling == ceiling
        assert issued < mark(data).ceiling


def test_where_the_ceiling_cannot_be_raised_nothing_is_committed(tx: Tx, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    marker = Marker(folder / "feltd.db", ledger.read(tx), 1_000, 5_000)
    dialect.raise_sequence(tx, "claims", 1_000 + CEILING_ROOM)
    folder.rename(tmp_path / "gone")
    with pytest.raises(Refused) as refused:
        marker.before_commit(tx, NOW)
    assert (refused.value.code, refused.value.facts["committed"]) == ("STORAGE_UNAVAILABLE", False)


def test_an_idle_mark_is_rewritten_for_its_time_alone(tx: Tx, tmp_path: Path) -> None:
    data = tmp_path / "feltd.db"
    found = ledger.read(tx)
    marker = Marker(data, found, 1_000, 5_000)
    assert not marker.follow(found, 5_001)
    assert marker.follow(found, 5_000 + IDLE_MS)
    assert mark(data).lease_ms == 5_000 + IDLE_MS
    tx.change("UPDATE ledger SET commit_seq = commit_seq + 1")
    assert marker.follow(ledger.read(tx), 5_001 + IDLE_MS)
    assert not mark(data).clean
    assert marker.follow(ledger.read(tx), 5_001 + IDLE_MS, clean=True)
    assert mark(data).clean


def mark(data: Path) -> sidecar.Mark:
    found = sidecar.read(data)
    assert found is not None
    return found


def test_the_mark_follows_the_commits_of_a_daemon(daemon: Daemon) -> None:
    before = mark(daemon.data)
    daemon.post("/v1/keys", {"name": "k", "scopes": ["metrics:read"], "tenants": ["t"]})
    while mark(daemon.data).commit_seq <= before.commit_seq:
        os.sched_yield()
    after = mark(daemon.data)
    with closing(sqlite3.connect(daemon.data)) as shell:
        seq, _, digest = after.audit_head.partition(":")
        row = shell.execute("SELECT hash FROM audit WHERE seq = ?", (int(seq),)).fetchone()
    assert row == (digest,)
    assert (after.database, after.ceiling, after.clean) == (before.database, before.ceiling, False)


@pytest.mark.anyio
async def test_a_large_file_is_checked_beside_serving(
    daemons: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage nobody has met yet shows in /health and takes readiness away."""
    made = daemons()
    spoil_an_index(made.data)
    monkeypatch.setattr(start, "CHECK_BEFORE_BYTES_MAX", 0)
    config = Config(data=str(made.data), port=0, tick_ms=50)
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    lock = take_lock(made.data)
    running = InProcess(config, Hooks(), lock)
    run = asyncio.create_task(running.run(url.set_result))
    address = await url
    async with asyncio.timeout(60):
        while not running.health.damaged:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    told = json.loads(await asyncio.to_thread(read, f"{address}/health"))
    assert [reason["code"] for reason in told["reasons"]] == ["STORAGE_DAMAGED"]
    ready = json.loads(await asyncio.to_thread(read, f"{address}/health/ready"))
    assert (ready["ready"], ready["code"]) == (False, "STORAGE_PROBE_FAILED")
    running.begin_stop("test")
    assert await run == 0
    lock.release()


@pytest.mark.anyio
async def test_a_stop_ends_a_check_of_the_pages_that_would_take_for_ever(
    daemons: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = daemons()
    made.start()
    made.kill()
    began = threading.Event()

    def check(conn: sqlite3.Connection) -> list[str]:
        began.set()
        conn.execute(ENDLESS).fetchall()
        raise AssertionError("an endless check has ended")

    monkeypatch.setattr(start, "CHECK_BEFORE_BYTES_MAX", 0)
    monkeypatch.setattr(migrate, "quick_check", check)
    lock = take_lock(made.data)
    running = InProcess(Config(data=str(made.data), port=0, tick_ms=50), Hooks(), lock)
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    run = asyncio.create_task(running.run(url.set_result))
    await url
    await asyncio.to_thread(began.wait)
    running.begin_stop("test")
    assert await run == 0
    lock.release()
    assert mark(made.data).clean


def read(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.read()


def spoil_an_index(data: Path) -> None:
    """Damage one page that neither a start nor a probe looks at."""
    with closing(sqlite3.connect(data)) as shell:
        page = shell.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'workloads_dead'"
        ).fetchone()[0]
        page_bytes = shell.execute("PRAGMA page_size").fetchone()[0]
        shell.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with data.open("r+b") as file:
        file.seek((page - 1) * page_bytes)
        file.write(b"\xff" * page_bytes)

"""How fast compaction goes: small steps, behind everybody else, and none once the daemon stops."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from feltd.api.metrics import Metrics
from feltd.clock import Now
from feltd.config import Config
from feltd.daemon import compacting
from feltd.daemon.compacting import Compacting, policy_of
from feltd.errors import Refused
from feltd.mesh import events, ledger
from feltd.store import migrate
from feltd.store.connect import open_local, open_writer
from feltd.store.readers import Readers
from feltd.store.tx import Tx
from feltd.store.writer import Writer

NOW = Now(1_790_000_000_000, 1_790_000_000_000)
#: Changes of two tenants, all of them past their time.
CHANGES = 400


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with old changes."""
    data = tmp_path / "feltd.db"
    with closing(open_local(data, read_only=False)) as conn:
        migrate.apply(conn)
        conn.execute("BEGIN")
        ledger.begin(Tx(conn), "instance", NOW)
        for tenant_id in ("acme", "beta"):
            conn.execute("INSERT INTO change_logs (tenant_id) VALUES (?)", [tenant_id])
            conn.execute(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
                " INSERT INTO changes (tenant_id, seq, at_ms, kind, collection, record_id, version,"
                " before, after, actor) SELECT ?, i, 1, 'created', 'c', 'r' || i, 1, NULL,"
                " json_quote(hex(zeroblob(2000))), 'service:app' FROM n",
                [CHANGES, tenant_id],
            )
            conn.execute("UPDATE change_logs SET head_seq = ?", [CHANGES])
        conn.execute("COMMIT")
    return data


class Room:
    """A compaction and what it works with."""

    def __init__(self, path: Path, writer: Writer, readers: Readers) -> None:
        self.path = path
        self.writer = writer
        self.readers = readers
        self.metrics = Metrics()
        self.stop = asyncio.Event()
        config = Config(data=str(path))
        self.compacting = Compacting(config, writer, readers, self.metrics, self.stop)

    def count(self) -> int:
        """Changes that are left."""
        with closing(sqlite3.connect(self.path)) as shell:
            return int(shell.execute("SELECT count(*) FROM changes").fetchone()[0])

    async def round(self) -> None:
        """A round by the chore, to its end."""
        await self.compacting.begin()
        await self.compacting.begin()
        await self.compacting.close()


@pytest.fixture
async def room(path: Path) -> AsyncIterator[Room]:
    """A writer as the daemon's, sealing each commit."""
    writer = Writer(
        await open_writer(path),
        path,
        lambda: NOW,
        before_commit=lambda tx, now: events.seal(tx, now),
    )
    readers = await Readers.open(path, lambda: NOW)
    made = Room(path, writer, readers)
    yield made
    made.stop.set()
    await made.compacting.close()
    await readers.close()
    await writer.close()


@pytest.mark.anyio
async def test_the_first_time_is_before_anybody_is_served(room: Room) -> None:
    await room.compacting.begin()
    await room.compacting.close()
    assert room.count() == 2 * CHANGES


@pytest.mark.anyio
async def test_a_round_clears_everything_and_gives_the_space_back(room: Room) -> None:
    await room.round()
    assert room.count() == 0
    assert room.metrics.compacted == {"changes": 2 * CHANGES}
    assert room.metrics.logs_rewritten == 1
    with closing(sqlite3.connect(room.path)) as shell:
        assert shell.execute("PRAGMA freelist_count").fetchone()[0] <= compacting.FREE_PAGES
        told = shell.execute("SELECT count(*) FROM events WHERE kind = 'compact'").fetchone()
        assert told[0] == 1


@pytest.mark.anyio
async def test_a_stop_ends_a_round_between_two_slices(room: Room) -> None:
    await room.compacting.begin()
    await room.compacting.begin()
    async with asyncio.timeout(30):
        while not room.metrics.compacted:
            await room.writer.submit(lambda tx, cmd, now: None, None)
    room.stop.set()
    await room.compacting.close()
    assert 0 < room.count() < 2 * CHANGES
    assert room.compacting._failed is None


@pytest.mark.anyio
async def test_who_waits_goes_before_a_slice(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    slice_of = compacting.compact

    def noted(tx: Tx, cmd: Any, now: Now) -> Any:
        order.append("slice")
        return slice_of(tx, cmd, now)

    monkeypatch.setattr(compacting, "compact", noted)

    async def claim() -> None:
        await room.writer.submit(lambda tx, cmd, now: order.append("claim"), None)

    clearing = asyncio.create_task(room.compacting.some())
    await asyncio.gather(*(claim() for _ in range(40)))
    # A slice that was begun already ends; none begins in front of who waits.
    assert order[:40].count("slice") <= 1
    await clearing


@pytest.mark.anyio
async def test_a_refused_slice_is_told_and_tried_again(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(tx: Tx, cmd: Any, now: Now) -> Any:
        raise Refused("STORAGE_FULL", "the disk is full", committed=False)

    with monkeypatch.context() as broken:
        broken.setattr(compacting, "compact", full)
        await room.round()
        # The keeper is told at the next interval, when it goes on as well.
        with pytest.raises(Refused, match="the disk is full"):
            await room.compacting.begin()
        await room.compacting.close()
    with pytest.raises(Refused):
        await room.compacting.begin()
    await room.compacting.close()
    assert room.count() == 0
    await room.compacting.begin()


def test_slices_grow_and_shrink_with_what_they_cost() -> None:
    fitting = compacting._fitting
    assert fitting(100, 0.001, 0.004, whole=False) == 150
    assert fitting(100, 0.001, 0.004, whole=True) == 100
    assert fitting(100, 0.008, 0.004, whole=False) == 50
    assert fitting(100, 1.0, 0.004, whole=False) == 25
    assert fitting(4, 1.0, 0.004, whole=False) == compacting.ROWS_MIN
    assert fitting(500, 0.0, 0.004, whole=False) == compacting.ROWS_MAX


def test_the_policy_is_what_the_settings_say() -> None:
    day_ms = 86_400_000
    policy = policy_of(Config())
    assert policy.changes_ms == policy.consumer_limit_ms == day_ms
    assert policy.workloads_ms == policy.deleted_ms == policy.decisions_ms == 7 * day_ms
    assert (policy.dead_letters_ms, policy.events_ms, policy.audit_ms) == (
        0,
        30 * day_ms,
        365 * day_ms,
    )
    assert policy.workers_ms == policy.keys_ms == 30 * day_ms

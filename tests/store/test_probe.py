"""Readiness is a real read and a real commit, within a second of its own."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from feltd.clock import Now
from feltd.errors import Refused
from feltd.store.probe import Probe
from feltd.store.readers import Readers
from feltd.store.tx import Tx
from feltd.store.writer import Writer
from tests.store.conftest import HandClock, OpenWriter
from tests.store.stories import Gate, add, stamp

pytestmark = pytest.mark.anyio

PROBED = "SELECT probed_at_ms FROM storage_probe"


def probed(tx: Tx, cmd: None, now: Now) -> list[int]:
    return [row["probed_at_ms"] for row in tx.rows(PROBED)]


class Count:
    """Counts how often the probe wrote."""

    def __init__(self) -> None:
        self.touches = 0

    def operation(self, name: str, outcome: str, wait_s: float, run_s: float) -> None:
        self.touches += name == "storage_touch"

    def batch(self, size: int, commit_s: float) -> None:
        pass


@pytest.fixture
def count() -> Count:
    return Count()


@pytest.fixture
async def writer(open_writer: OpenWriter, count: Count) -> Writer:
    return await open_writer(observer=count)


@pytest.fixture
async def readers(writer: Writer, path: Path, clock: HandClock) -> AsyncIterator[Readers]:
    opened = await Readers.open(path, clock)
    yield opened
    await opened.close()


async def code_of(probe: Probe) -> str:
    with pytest.raises(Refused) as refused:
        await probe.ready()
    return refused.value.code


async def test_a_probe_reads_and_commits(writer: Writer, readers: Readers) -> None:
    took_ms = await Probe(writer, readers).ready()

    assert took_ms >= 0
    assert await writer.submit(probed, None) == [1_000_000]


async def test_a_fresh_commit_of_anybody_spares_the_write(
    writer: Writer, readers: Readers, count: Count
) -> None:
    probe = Probe(writer, readers)
    await writer.submit(add, "real work")
    await probe.ready()
    assert count.touches == 0

    await Probe(writer, readers, fresh_ms=-1).ready()
    assert count.touches == 1


async def test_a_batch_that_wrote_nothing_is_no_proof(
    writer: Writer, readers: Readers, count: Count
) -> None:
    await writer.submit(stamp, None)
    await Probe(writer, readers).ready()

    assert count.touches == 1


async def test_many_who_ask_at_once_share_one_write(
    writer: Writer, readers: Readers, count: Count
) -> None:
    probe = Probe(writer, readers)
    await asyncio.gather(*(probe.durable() for _ in range(50)))

    assert count.touches == 1


async def test_a_stalled_writer_is_told_within_the_bound(writer: Writer, readers: Readers) -> None:
    gate = Gate()
    held = await gate.hold(writer)
    probe = Probe(writer, readers, bound_ms=30)

    assert await asyncio.gather(*(code_of(probe) for _ in range(5))) == ["STORAGE_STALLED"] * 5
    gate.open()
    await held
    assert await Probe(writer, readers).ready() >= 0


async def test_a_lock_held_by_a_shell_fails_the_probe_and_it_recovers_by_itself(
    writer: Writer, readers: Readers, path: Path
) -> None:
    shell = sqlite3.connect(path, isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")

    assert await code_of(Probe(writer, readers, bound_ms=60_000)) == "STORAGE_PROBE_FAILED"
    shell.close()
    assert await Probe(writer, readers).ready() >= 0


async def test_closed_readers_are_no_storage(writer: Writer, readers: Readers) -> None:
    await readers.close()

    assert await code_of(Probe(writer, readers)) == "STORAGE_STALLED"


async def test_a_writer_that_stopped_is_no_storage(
    writer: Writer, readers: Readers, path: Path
) -> None:
    path.with_name("feltd.db-wal").unlink()
    with pytest.raises(Refused):
        await writer.submit(add, "orphan")

    assert await code_of(Probe(writer, readers)) == "STORAGE_UNAVAILABLE"

"""Reads see one state, never write, end in time, and give their reader back."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from feltd.clock import Now
from feltd.errors import Refused
from feltd.store.connect import StoreProblem
from feltd.store.readers import Readers
from feltd.store.tx import Tx
from feltd.store.writer import Writer
from tests.store.conftest import HandClock, OpenWriter
from tests.store.stories import add, look, stamp

pytestmark = pytest.mark.anyio

ENDLESS = """
WITH RECURSIVE numbers (number) AS (
  SELECT 1
  UNION ALL
  SELECT number + 1 FROM numbers
)
SELECT max(number) FROM numbers
"""


def endless(tx: Tx, cmd: None, now: Now) -> None:
    tx.row(ENDLESS)


def endless_steps(tx: Tx, cmd: None, now: Now) -> None:
    while True:
        tx.row("SELECT 1")


@pytest.fixture
async def writer(open_writer: OpenWriter) -> Writer:
    return await open_writer()


@pytest.fixture
async def readers(writer: Writer, path: Path, clock: HandClock) -> AsyncIterator[Readers]:
    opened = await Readers.open(path, clock)
    yield opened
    await opened.close()


async def code_of(reading: "asyncio.Future[object]") -> str:
    with pytest.raises(Refused) as refused:
        await reading
    return refused.value.code


async def test_a_read_sees_what_is_committed(writer: Writer, readers: Readers) -> None:
    await writer.submit(add, "one")

    assert await readers.read(look, None) == ["one"]
    assert await readers.read(stamp, None) == 1_000_000


async def test_a_read_sees_one_state_from_beginning_to_end(
    writer: Writer, readers: Readers
) -> None:
    first_look, may_go_on = threading.Event(), threading.Event()

    def twice(tx: Tx, cmd: None, now: Now) -> list[int]:
        before = len(look(tx, None, now))
        first_look.set()
        assert may_go_on.wait(30)
        return [before, len(look(tx, None, now))]

    reading = asyncio.create_task(readers.read(twice, None))
    await asyncio.to_thread(first_look.wait, 30)
    await writer.submit(add, "meanwhile")
    may_go_on.set()

    assert await reading == [0, 0]
    assert await readers.read(look, None) == ["meanwhile"]


async def test_a_read_cannot_write(readers: Readers) -> None:
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        await readers.read(add, "no")


async def test_an_error_in_a_read_is_its_own_and_leaves_no_transaction(readers: Readers) -> None:
    def broken(tx: Tx, cmd: None, now: Now) -> None:
        tx.row("SELECT a FROM nowhere")

    for _ in range(5):
        with pytest.raises(sqlite3.OperationalError, match="nowhere"):
            await readers.read(broken, None)

    assert await readers.read(look, None) == []


@pytest.mark.parametrize("reading", [endless, endless_steps])
async def test_a_read_past_its_time_is_ended_and_its_reader_serves_again(
    readers: Readers, reading: object
) -> None:
    for _ in range(4):
        call = readers.read(reading, None, timeout_ms=150)  # type: ignore[arg-type]
        assert await code_of(call) == "STORAGE_STALLED"  # type: ignore[arg-type]

    assert await asyncio.gather(*(readers.read(look, None) for _ in range(8))) == [[]] * 8


async def test_a_read_nobody_waits_for_is_ended(readers: Readers) -> None:
    calls = [asyncio.create_task(readers.read(endless, None)) for _ in range(2)]
    await asyncio.sleep(0.02)
    for call in calls:
        call.cancel()

    assert await readers.read(look, None) == []
    assert all(call.cancelled() for call in calls)


async def test_a_read_that_finds_no_reader_in_time_is_refused(readers: Readers) -> None:
    calls = [asyncio.create_task(readers.read(endless, None)) for _ in range(2)]
    await asyncio.sleep(0)

    assert await code_of(readers.read(look, None, 10)) == "SERVICE_OVERLOADED"  # type: ignore[arg-type]
    for call in calls:
        call.cancel()


async def test_closed_readers_refuse(readers: Readers) -> None:
    await readers.close()

    assert await code_of(readers.read(look, None)) == "SERVICE_OVERLOADED"  # type: ignore[arg-type]


async def test_readers_of_a_missing_file_are_refused(path: Path, clock: HandClock) -> None:
    with pytest.raises(StoreProblem, match="does not exist"):
        await Readers.open(path.with_name("other.db"), clock)


async def test_reads_hurried_by_tiny_limits_never_spoil_the_next_one(readers: Readers) -> None:
    """A late interrupt may hit the ROLLBACK or the next read's first statement; neither shows."""

    for _ in range(20):
        calls = [readers.read(look, None, timeout_ms=number % 3) for number in range(20)]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert {getattr(end, "code", "ok") for end in ends} <= {
            "ok",
            "STORAGE_STALLED",
            "SERVICE_OVERLOADED",
        }

    assert await asyncio.gather(*(readers.read(look, None) for _ in range(8))) == [[]] * 8


class Asking(NamedTuple):
    """A read of some tenants, which waits until it may go on."""

    tenants: tuple[str, ...]
    go_on: threading.Event
    served: list[str]


def asking(tx: Tx, cmd: Asking, now: Now) -> None:
    cmd.served.append(cmd.tenants[0] if cmd.tenants else "daemon")
    assert cmd.go_on.wait(20)


async def test_tenants_take_turns_and_the_daemon_itself_goes_first(
    writer: Writer, path: Path, clock: HandClock
) -> None:
    """A flood of slow reads of one tenant neither starves another nor makes the daemon unready."""
    go_on, served = threading.Event(), list[str]()
    readers = await Readers.open(path, clock, readers=1)
    flood = [
        asyncio.create_task(readers.read(asking, Asking(("many",), go_on, served)))
        for _ in range(9)
    ]
    await asyncio.sleep(0.05)
    late = [
        asyncio.create_task(readers.read(asking, Asking(tenants, go_on, served)))
        for tenants in (("few",), ("few",), ())
    ]
    await asyncio.sleep(0.05)
    go_on.set()
    await asyncio.gather(*flood, *late)
    await readers.close()

    assert served[0] == "many"
    assert served[1] == "daemon"
    assert served[2:6] == ["many", "few", "many", "few"]


async def test_who_gave_up_waiting_loses_nobody_a_turn(
    writer: Writer, path: Path, clock: HandClock
) -> None:
    go_on, served = threading.Event(), list[str]()
    readers = await Readers.open(path, clock, readers=1)
    first = asyncio.create_task(readers.read(asking, Asking(("a",), go_on, served)))
    await asyncio.sleep(0.05)
    gone = [
        asyncio.create_task(readers.read(asking, Asking((name,), go_on, served)))
        for name in ("b", "c", "c")
    ]
    last = asyncio.create_task(readers.read(asking, Asking(("c",), go_on, served)))
    await asyncio.sleep(0.05)
    for task in gone:
        task.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    go_on.set()
    await asyncio.gather(first, last)
    await readers.close()

    assert served == ["a", "c"]

"""The keeper: one table, each entry guarded alone, bounded, and silent when idle."""

import asyncio
from typing import Any

import pytest

from feltd.clock import LeaseClock, Now
from feltd.config import Config
from feltd.keeper import SLICES_MAX, Chore, Entry, Keeper, rules
from feltd.store.tx import Tx

pytestmark = pytest.mark.anyio


class Story:
    """What the entries of a test table did, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.clock = LeaseClock()

    def entry(self, name: str, *found: Any, every_ms: int = 0, limit: int = 10) -> Entry:
        """An entry that finds these things, one a call, and nothing afterwards."""
        rest = list(found)

        def op(tx: Tx, limit: int, now: Now) -> Any:
            self.told.append(name)
            one = rest.pop(0) if rest else 0
            if isinstance(one, Exception):
                raise one
            return one

        return Entry(name, every_ms, op, limit)

    def keeper(self, *table: Entry | Chore, tick_ms: int = 1_000) -> Keeper:
        """A keeper whose rules run on no database."""

        async def submit(op: Any, limit: int) -> Any:
            return op(None, limit, self.clock.now())

        return Keeper(table, submit, self.clock.now, tick_ms)


async def test_a_round_runs_the_table_in_its_order() -> None:
    story = Story()

    async def chore() -> None:
        story.told.append("mark")

    keeper = story.keeper(story.entry("a"), story.entry("b"), Chore("mark", 0, chore))
    await keeper.round()
    assert story.told == ["a", "b", "mark"]
    assert keeper.rounds == 1


async def test_one_entry_that_fails_keeps_no_other_from_running() -> None:
    story = Story()
    bad = story.entry("bad", RuntimeError("no"), RuntimeError("no"), 0)
    keeper = story.keeper(bad, story.entry("good"))
    await keeper.round(everything=True)
    await keeper.round(everything=True)
    record = keeper.records["bad"]
    assert (record.failing, record.failures, record.last_ok_ms) == (2, 2, 0)
    assert record.trouble == "RuntimeError: no"
    assert keeper.records["good"].last_ok_ms > 0
    await keeper.round(everything=True)
    assert (record.failing, record.failures, record.trouble) == (0, 2, "")
    assert record.last_ok_ms > 0


async def test_a_full_slice_is_followed_by_another_up_to_a_bound() -> None:
    story = Story()
    keeper = story.keeper(story.entry("some", 10, 10, 3), story.entry("many", *[10] * 99))
    await keeper.round()
    assert story.told.count("some") == 3
    assert story.told.count("many") == SLICES_MAX
    assert keeper.records["some"].changed == 23
    await keeper.round()
    assert story.told.count("many") == 2 * SLICES_MAX, "what is left comes in the next round"


async def test_an_entry_comes_as_often_as_the_table_says() -> None:
    story = Story()
    keeper = story.keeper(story.entry("often"), story.entry("rare", every_ms=60_000), tick_ms=10)
    for _ in range(3):
        await keeper.round()
        await asyncio.sleep(0.02)
    assert story.told.count("often") == 3
    assert story.told.count("rare") == 1


async def test_the_next_instant_is_not_slept_through() -> None:
    story = Story()
    soon = story.clock.now().lease_ms + 30
    promote = story.entry("promote", (0, soon), (1, None))
    keeper = story.keeper(promote, tick_ms=60_000)
    stop = asyncio.Event()
    running = asyncio.create_task(keeper.run(stop))
    promoted = keeper.records["promote"]
    async with asyncio.timeout(30):
        while not promoted.changed:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert story.clock.now().lease_ms >= soon
    assert story.told == ["promote", "promote"]
    stop.set()
    await running


async def test_an_instant_that_is_told_shortens_the_rest() -> None:
    story = Story()
    now_ms = story.clock.now().lease_ms
    promote = story.entry("promote", (0, now_ms + 60_000), (1, None))
    keeper = story.keeper(promote, tick_ms=60_000)
    stop = asyncio.Event()
    running = asyncio.create_task(keeper.run(stop))
    async with asyncio.timeout(30):
        while not keeper.rounds:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        keeper.expect("promote", now_ms + 120_000)
        keeper.expect("promote", story.clock.now().lease_ms + 30)
        while not keeper.records["promote"].changed:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert story.told == ["promote", "promote"], "it came once, at its time"
    stop.set()
    await running


async def test_an_instant_that_is_told_during_the_entry_is_not_forgotten() -> None:
    story = Story()
    soon_ms = story.clock.now().lease_ms + 30

    async def submit(op: Any, limit: int) -> Any:
        found = op(None, limit, story.clock.now())
        if story.told == ["promote"]:
            keeper.expect("promote", soon_ms)
        return found

    promote = story.entry("promote", (0, soon_ms + 60_000), (1, None))
    keeper = Keeper((promote,), submit, story.clock.now, 60_000)
    stop = asyncio.Event()
    running = asyncio.create_task(keeper.run(stop))
    async with asyncio.timeout(30):
        while not keeper.records["promote"].changed:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    stop.set()
    await running


async def test_a_stop_ends_the_rest_at_once_and_the_round_first() -> None:
    story = Story()
    stop = asyncio.Event()

    async def chore() -> None:
        stop.set()
        await asyncio.sleep(0)
        story.told.append("finished")

    keeper = story.keeper(Chore("chore", 0, chore), tick_ms=60_000)
    await keeper.run(stop)
    assert story.told == ["finished"]


async def test_a_failing_disk_does_not_fill_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    story = Story()
    keeper = story.keeper(story.entry("mark", *[OSError("full")] * 64))
    for _ in range(64):
        await keeper.round(everything=True)
    assert keeper.records["mark"].failures == 64
    assert capsys.readouterr().out.count("keeper task failed") == 7, "the 1st, 2nd, 4th … 64th"


def test_the_table_keeps_the_order_of_the_law() -> None:
    names = [one.name for one in rules(Config())]
    assert names[:2] == ["detect_failures", "recover_leases"]
    assert names.index("recover_leases") < names.index("promote")
    assert all(one.limit > 0 for one in rules(Config()))

"""When the writer asks for the outage credit: whenever the daemon could not hear."""

import pytest

from feltd.clock import Now
from feltd.store.tx import Tx
from feltd.store.writer import Writer
from tests.store.conftest import HandClock, OpenWriter
from tests.store.stories import (
    add,
    add_much,
    limit_pages,
    look,
    refusal,
    stamp,
)

pytestmark = pytest.mark.anyio


class Credit:
    """Notes when the writer asks for the outage credit."""

    def __init__(self) -> None:
        self.given: list[tuple[int, bool]] = []

    def __call__(self, tx: Tx, now: Now, gap_ms: int, first: bool) -> None:
        self.given.append((gap_ms, first))

    def taken(self) -> list[tuple[int, bool]]:
        given, self.given = self.given, []
        return given


async def test_the_outage_credit_is_due_at_the_start_and_after_a_gap(
    open_writer: OpenWriter, clock: HandClock
) -> None:
    credit = Credit()
    writer = await open_writer(tick_ms=2_000, before_batch=credit)
    await writer.submit(add, "first")
    assert credit.taken() == [(0, True)]

    clock.later(6_000)
    await writer.submit(stamp, None)
    assert credit.taken() == []

    clock.later(6_001)
    await writer.submit(stamp, None)
    assert credit.taken() == [(6_001, False)]


async def test_the_outage_credit_is_due_when_writes_kept_failing(
    open_writer: OpenWriter, clock: HandClock
) -> None:
    """Reading batches in between are no proof that a heartbeat could be stored."""
    credit = Credit()
    writer = await open_writer(before_batch=credit)
    await writer.submit(add, "before")
    await writer.submit(limit_pages, 40)
    credit.taken()
    for _ in range(4):
        assert (await refusal(writer.submit(add_much, "x")))[0] == "STORAGE_FULL"
        await writer.submit(stamp, None)
        clock.later(1_000)
    await writer.submit(limit_pages, 1_000_000)
    credit.taken()

    await writer.submit(add, "after")
    await writer.submit(add, "later")

    assert credit.taken() == [(4_000, False)]


async def test_the_outage_credit_is_due_when_keep_alive_calls_kept_being_shed(
    open_writer: OpenWriter, clock: HandClock
) -> None:
    credit = Credit()
    writer: Writer = await open_writer(before_batch=credit)
    await writer.submit(add, "before")
    credit.taken()
    for _ in range(4):
        writer.note_shed_keep_alive()
        await writer.submit(add, "ordinary", tenant="acme")
        await writer.submit(add, "the daemon's own round", keep_alive=True)
        clock.later(1_000)
    await writer.submit(add, "beat", keep_alive=True, tenant="acme")
    await writer.submit(add, "ordinary")

    assert credit.taken() == [(4_000, False)]


async def test_a_hook_that_fails_takes_the_batch_back_and_runs_again(
    open_writer: OpenWriter,
) -> None:
    tries: list[bool] = []

    def credit(tx: Tx, now: Now, gap_ms: int, first: bool) -> None:
        tries.append(first)
        if len(tries) == 1:
            raise LookupError

    writer = await open_writer(before_batch=credit)
    with pytest.raises(RuntimeError):
        await writer.submit(add, "lost")
    await writer.submit(add, "kept")

    assert tries == [True, True]
    assert await writer.submit(look, None) == ["kept"]

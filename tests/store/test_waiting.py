"""Callers who wait too long or leave: three answers, and no transaction left behind."""

import asyncio

import pytest

from feltd.store import writer as writing
from tests.store.conftest import OpenWriter, Shell
from tests.store.stories import (
    Gate,
    add,
    look,
    refusal,
)

pytestmark = pytest.mark.anyio

#: Long enough for an operation to start on a busy machine.
DEADLINE_MS = 500


async def test_an_operation_not_started_by_its_deadline_never_runs(
    open_writer: OpenWriter,
) -> None:
    writer = await open_writer()
    gate = Gate()
    held = await gate.hold(writer)

    late = await refusal(writer.submit(add, "late", deadline_ms=10))
    gate.open()
    await held

    assert late == ("SERVICE_OVERLOADED", False)
    assert await writer.submit(look, None) == ["gate"]


async def test_an_operation_started_by_its_deadline_is_unknown_and_runs_on(
    open_writer: OpenWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "UNKNOWN_AFTER_S", 0.02)
    writer = await open_writer()
    gate = Gate()

    late = await refusal(await gate.hold(writer, deadline_ms=DEADLINE_MS))
    gate.open()

    assert late == ("OUTCOME_UNKNOWN", "unknown")
    assert await writer.submit(look, None) == ["gate"]


async def test_an_operation_that_ends_in_its_extra_time_is_answered(
    open_writer: OpenWriter,
) -> None:
    writer = await open_writer()
    gate = Gate()
    held = await gate.hold(writer, deadline_ms=DEADLINE_MS)
    await asyncio.sleep(1.1 * DEADLINE_MS / 1_000)
    gate.open()

    assert await held == 1


async def test_a_slow_commit_can_be_held_for_tests(open_writer: OpenWriter) -> None:
    writer = await open_writer()
    writer.slow_commit_ms = 2 * DEADLINE_MS
    answer = asyncio.create_task(writer.submit(add, "slow", deadline_ms=DEADLINE_MS))
    await asyncio.sleep(1.1 * DEADLINE_MS / 1_000)

    assert not answer.done()
    assert await answer == 1


async def test_callers_that_leave_at_any_moment_leave_no_transaction_open(
    open_writer: OpenWriter, open_shell: Shell
) -> None:
    """BC-068: after 300 vanished callers the operator gets the lock and the next call is fine."""
    writer = await open_writer()

    async def vanish(number: int) -> str | None:
        call = asyncio.create_task(writer.submit(add, str(number), deadline_ms=100))
        await asyncio.sleep(number % 10 / 5_000)
        call.cancel()
        await asyncio.wait([call])
        return None if call.cancelled() or call.exception() else str(number)

    answered = await asyncio.gather(*map(vanish, range(300)))
    shell = open_shell()
    shell.execute("BEGIN IMMEDIATE")
    shell.execute("ROLLBACK")

    assert await writer.submit(add, "after") > 0
    stored = set(await writer.submit(look, None))
    assert {one for one in answered if one is not None} <= stored


async def test_a_caller_that_leaves_before_its_turn_takes_its_operation_along(
    open_writer: OpenWriter,
) -> None:
    writer = await open_writer()
    gate = Gate()
    held = await gate.hold(writer)
    left = asyncio.create_task(writer.submit(add, "left"))
    stays = asyncio.create_task(writer.submit(add, "stays"))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.sleep(0)
    gate.open()
    await asyncio.gather(held, stays)

    assert await writer.submit(look, None) == ["gate", "stays"]

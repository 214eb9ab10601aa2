"""The loop in this process after an outage: it ends with what the daemon holds for it, always."""

import asyncio
from typing import Any

import pytest

from feltd.worker.failures import Ending, returned
from feltd.worker.leases import Held
from tests.worker.crew import Crew
from tests.worker.test_loop import Running, off

pytestmark = pytest.mark.anyio

KIB_256 = 256 * 1024
#: Leases run on while their worker is lost.
KEPT = {"on_worker_lost": "lease"}


async def lost(crew: Crew) -> None:
    """Nobody beats: after its timeout the worker is OFFLINE."""
    await off(crew.until, lambda: crew.worker("here").get("lifecycle") == "OFFLINE", "here is lost")


async def takes(here: Running, most: int = 1) -> list[Any]:
    """Claims that the daemon gives, and that nothing here runs yet."""
    body = {"max": most, "lease_ms": 60_000, "start": True}
    answer = await here.client.pull(here.session.worker_id, body, bearer=here.session.key)
    return list(answer["claims"])


def finished(here: Running, claim: Any, ending: Ending) -> None:
    """The loop begins with a finished piece of work whose outcome has not been delivered."""
    held = Held(claim, 60_000, here.session.leases)
    held.leaving = True
    here.loop.desk.held[held.claim_id] = held
    here.loop.desk.courier.hand(held, ending)


async def test_more_claims_than_an_answer_holds_are_all_given_back(crew: Crew) -> None:
    async with Running(crew, concurrency=40) as here:
        await here.session.beat([], 0)
        given = "x" * (KIB_256 - 2)
        jobs = [await off(lambda: crew.work("echo", given, **KEPT)) for _ in range(40)]
        held = [one for _ in range(4) for one in await takes(here, 40)]
        assert len(held) == 40
        await lost(crew)
        here.begin()
        states = [(await off(crew.final, job))["state"] for job in jobs]
        stopped = await here.end()

    assert states == ["COMPLETED"] * 40
    assert {tuple(await off(crew.ends, job)) for job in jobs} == {("released", "completed")}
    assert stopped.code == 0


async def test_an_outcome_the_daemon_will_not_read_keeps_nobody_from_reconciling(
    crew: Crew,
) -> None:
    deep: Any = []
    for _ in range(40):
        deep = [deep]
    async with Running(crew) as here:
        await here.session.beat([], 0)
        jobs = [await off(lambda: crew.work("echo", 1, **KEPT)) for _ in range(2)]
        bad, good = [(await takes(here))[0] for _ in jobs]
        await lost(crew)
        here.begin()
        finished(here, bad, Ending("complete", {"output": deep}))
        finished(here, good, returned("well"))
        ended = {
            one["workload_id"]: await off(crew.final, one["workload_id"]) for one in (bad, good)
        }
        await off(crew.ready, "here")
        await here.end()

    assert ended[good["workload_id"]]["state"] == "COMPLETED"
    told = ended[bad["workload_id"]]
    assert (told["state"], told["failure"]["kind"]) == ("DEAD_LETTERED", "execution_error")


async def test_outcomes_that_no_one_body_holds_are_delivered_all_the_same(crew: Crew) -> None:
    large = "x" * 600_000
    async with Running(crew, concurrency=4) as here:
        await here.session.beat([], 0)
        jobs = [await off(lambda: crew.work("echo", 1, **KEPT)) for _ in range(4)]
        held = await takes(here, 4)
        await lost(crew)
        here.begin()
        for claim in held:
            finished(here, claim, returned(large))
        outputs = [(await off(crew.final, job))["result"]["output"] for job in jobs]
        await here.end()

    assert outputs == [large] * 4
    assert {tuple(await off(crew.ends, job)) for job in jobs} == {("completed",)}


async def test_a_worker_that_may_not_come_back_has_handed_in_what_it_finished(crew: Crew) -> None:
    _, crew.key = await off(lambda: crew.enroll(max_workers=1))
    async with Running(crew) as here:
        await here.session.beat([], 0)
        job = await off(lambda: crew.work("echo", 1, **KEPT))
        [claim] = await takes(here)
        await lost(crew)
        other = {"name": "other", "runtime": "process", "version": "1"}
        await here.client.register({**other, "capacity": {"concurrency": 1}})
        here.begin()
        finished(here, claim, returned("well"))
        stopped = await asyncio.wait_for(here.task, 30)

    assert stopped.code == 1
    assert "the grant allows 1 workers" in stopped.reason
    assert (await off(crew.final, job))["result"]["output"] == "well"

"""Work that a person gives to a running worker is done once, however often it is told of it."""

from typing import Any

import pytest

from tests.worker.crew import Crew
from tests.worker.test_loop import Running, off

pytestmark = pytest.mark.anyio


def give(crew: Crew, job: str, worker_id: str) -> dict[str, Any]:
    body = {"worker_id": worker_id, "lease_ms": 60_000}
    claim: dict[str, Any] = crew.client.call("POST", f"/v1/workloads/{job}/claim", body)
    return claim


async def test_a_beat_brings_given_work_and_it_is_done(crew: Crew) -> None:
    async with Running(crew) as here:
        await here.session.beat([], 0)
        job = await off(crew.work, "echo", 7)
        claim = await off(give, crew, job, here.session.worker_id)
        here.begin()
        done = await off(crew.final, job)
        await here.end()

    assert done["state"] == "COMPLETED"
    assert (done["result"]["output"], done["fencing_token"]) == (7, claim["fencing_token"])
    assert await off(crew.ends, job) == ["completed"]


async def test_an_answer_that_comes_late_begins_nothing_again(crew: Crew) -> None:
    async with Running(crew) as here:
        await here.session.beat([], 0)
        job = await off(crew.work, "echo", 7)
        await off(give, crew, job, here.session.worker_id)
        told = await here.session.beat([], 0)
        assert len(told["assigned_claims"]) == 1
        here.begin()
        done = await off(crew.final, job)
        completed = here.loop.desk.completed

        assert here.loop.received(told) is False

        assert here.loop.desk.slots == set()
        stopped = await here.end()

    assert (done["state"], completed, here.loop.desk.completed) == ("COMPLETED", 1, 1)
    assert stopped.code == 0

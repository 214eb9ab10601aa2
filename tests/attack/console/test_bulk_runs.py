"""Nobody takes every place for bulk changes, and a form that was sent twice is one of them."""

import asyncio
from typing import Any

import pytest

from feltd.api.bulkruns import UNDER_WAY_OF_ONE_MAX, Run, Runs
from feltd.errors import Refused
from feltd.mesh.bulk import Plan
from feltd.model.base import Caller, Subject
from feltd.model.workload import Filter


class Slow:
    """A storage at which every chunk waits until the test ends it."""

    async def read(self, *_: Any) -> Any:
        await asyncio.Event().wait()


def plan(definition: str) -> Plan:
    return Plan("cancel", Filter(definition_id=definition), None)


@pytest.mark.anyio
async def test_of_one_person_some_go_on_and_the_same_one_once() -> None:
    slow: Any = Slow()
    runs = Runs(slow, slow, asyncio.Event())
    ann, bob = (
        Caller(subject=Subject(kind="human", id=name), tenants=("t",), session_id="s")
        for name in ("ann", "bob")
    )

    def begin(caller: Caller, definition: str) -> Run:
        return runs.begin(caller, plan(definition), 1, 1_000)

    first = begin(ann, "a")
    assert begin(ann, "a") is first
    assert begin(bob, "a") is not first
    for number in range(UNDER_WAY_OF_ONE_MAX - 1):
        begin(ann, f"b{number}")
    with pytest.raises(Refused, match="of yours"):
        begin(ann, "c")
    begin(bob, "c")
    with pytest.raises(Refused, match="of yours"):
        begin(bob, "d")
    for task in list(runs._tasks):
        task.cancel()

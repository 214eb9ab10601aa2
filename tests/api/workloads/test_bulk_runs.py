"""A bulk change that the daemon loops: to its end, to its stop, or to the refusal of its caller."""

import asyncio
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec import structs

from feltd.api.bulkruns import UNDER_WAY_MAX, Run, Runs
from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity.principals import LOCAL
from feltd.mesh.bulk import Plan
from feltd.model.base import Caller, Subject
from feltd.model.workload import Filter
from feltd.store import connect
from feltd.store.readers import Readers
from feltd.store.writer import Writer
from tests.mesh.world import Mesh

pytestmark = pytest.mark.anyio

COUNT = 600
PLAN = Plan("cancel", Filter(state="READY"))
STRANGER = Caller(
    subject=Subject(kind="human", id="gone"),
    key_id="nobody",
    scopes=frozenset({"workloads:operate"}),
    tenants=("*",),
)


class Ground(NamedTuple):
    """The runs of a daemon whose workloads all are READY."""

    runs: Runs
    stop: asyncio.Event


@cache
def full() -> tuple[bytes, Now]:
    """A database of READY workloads, made once, and the instant it was made at."""
    mesh = Mesh()
    for _ in range(COUNT):
        mesh.workload()
    try:
        return mesh.conn.serialize(), mesh.now
    finally:
        mesh.close()


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    path = tmp_path / "feltd.db"
    image, now = full()
    path.write_bytes(image)
    writer = Writer(await connect.open_writer(path), path, lambda: now)
    readers = await Readers.open(path, lambda: now)
    stop = asyncio.Event()
    try:
        yield Ground(Runs(writer, readers, stop), stop)
    finally:
        stop.set()
        await asyncio.sleep(0)
        await readers.close()
        await writer.close()


async def over(run: Run) -> Run:
    """The run once it has ended."""
    while not run.ended:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return run


async def test_a_run_goes_on_to_the_end_by_itself(ground: Ground) -> None:
    run = await over(ground.runs.begin(LOCAL, PLAN, COUNT, 10_000))

    assert (run.ended, run.changed, run.remaining) == ("done", COUNT, 0)
    again = await over(ground.runs.begin(LOCAL, PLAN, 0, 10_000))
    assert (again.ended, again.changed) == ("done", 0)


async def test_a_run_that_is_told_to_stop_leaves_the_rest(ground: Ground) -> None:
    run = ground.runs.begin(LOCAL, PLAN, COUNT, 10_000)
    run.stopping = True
    await over(run)

    assert (run.ended, run.changed, run.remaining) == ("stopped", 0, COUNT)


async def test_a_stopping_daemon_ends_its_runs_and_begins_none(ground: Ground) -> None:
    run = ground.runs.begin(LOCAL, PLAN, COUNT, 10_000)
    ground.stop.set()
    await over(run)

    assert run.ended == "stopped"
    with pytest.raises(Refused) as refused:
        ground.runs.begin(LOCAL, PLAN, COUNT, 10_000)
    assert refused.value.code == "SERVICE_OVERLOADED"


async def test_who_is_known_no_more_changes_nothing_more(ground: Ground) -> None:
    run = await over(ground.runs.begin(STRANGER, PLAN, COUNT, 10_000))

    assert (run.ended, run.changed) == ("refused", 0)
    assert run.refused is not None
    assert run.refused.code == "UNAUTHENTICATED"


async def test_a_few_runs_go_on_at_once(ground: Ground) -> None:
    callers = [
        structs.replace(LOCAL, subject=Subject(kind="human", id=f"ann-{number}"))
        for number in range(UNDER_WAY_MAX)
    ]
    begun = [ground.runs.begin(caller, PLAN, COUNT, 10_000) for caller in callers]
    with pytest.raises(Refused) as refused:
        ground.runs.begin(LOCAL, PLAN, COUNT, 10_000)
    for run in begun:
        await over(run)

    assert refused.value.code == "SERVICE_OVERLOADED"
    assert sum(run.changed for run in begun) == COUNT


async def test_a_run_is_seen_by_its_maker_and_by_who_sees_all(ground: Ground) -> None:
    maker = Caller(subject=Subject(kind="human", id="a"), key_id="x", tenants=("t",))
    other = Caller(subject=Subject(kind="human", id="b"), key_id="y", tenants=("t",))
    run = await over(ground.runs.begin(maker, PLAN, COUNT, 10_000))

    assert ground.runs.of(maker, run.run_id) is run
    assert ground.runs.of(LOCAL, run.run_id) is run
    assert ground.runs.of(other, run.run_id) is None
    assert ground.runs.newest(maker, 3) == [run]
    assert ground.runs.newest(other, 3) == []

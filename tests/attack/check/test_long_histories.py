"""`feltd check` reads a workload of many attempts once, not once for each of them."""

from collections.abc import Iterator

import pytest

from feltd.mesh import promises
from tests.mesh.world import Mesh

AGAIN = {"max_attempts": 1_000, "initial_backoff_ms": 0, "max_backoff_ms": 0, "jitter": 0}
#: Counted in so many instructions of SQLite's machine.
STEP = 100


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    world = Mesh()
    yield world
    world.close()


def fail_again(mesh: Mesh, job: str, worker: str, times: int) -> None:
    for _ in range(times):
        mesh.say("fail", mesh.claims(job, by=worker), kind="transient")


def cost(mesh: Mesh, sql: str) -> int:
    """Hundreds of instructions a query takes, one more."""
    steps = 1

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    mesh.conn.set_progress_handler(step, STEP)
    try:
        assert mesh.conn.execute(sql).fetchall() == []
    finally:
        mesh.conn.set_progress_handler(None, STEP)
    return steps


def test_each_promise_costs_four_times_as_much_for_four_times_the_attempts(mesh: Mesh) -> None:
    job, worker = mesh.workload(retry_policy=AGAIN), mesh.worker()
    asked = [one for one in promises.PROMISES if one.id != "I21"]
    fail_again(mesh, job, worker, 100)
    before = {one.id: cost(mesh, one.sql) for one in asked}
    fail_again(mesh, job, worker, 300)

    after = {one.id: cost(mesh, one.sql) for one in asked}
    # A query that looks at each pair of attempts costs sixteen times as much.
    assert [name for name in after if after[name] > 8 * before[name] + 20] == []

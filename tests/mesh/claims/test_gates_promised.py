"""What is promised of pools and keys is found broken when somebody breaks it by hand."""

import pytest

from feltd.mesh import promises, rates
from tests.mesh.pools import stories
from tests.mesh.world import Mesh

KEY = {"key": "disk", "limit": 2}
RATE = {"key": "api", "limit": 2, "period_ms": 10_000}


@pytest.fixture
def busy(mesh: Mesh) -> Mesh:
    """Two claims of a pool, a key and a rate at their limits; a third of each waits."""
    worker = mesh.worker(capacity={"concurrency": 9})
    stories.make(mesh, max_concurrency=2)
    for _ in range(3):
        mesh.workload(placement={"pool_id": "gpu"}, concurrency=KEY, rate=RATE)
    assert len(mesh.pull(worker, max=9).claims) == 2
    return mesh


def broken(mesh: Mesh) -> set[str]:
    return {one.id for one in mesh.run(lambda tx, _, now: promises.ask(tx))}


@pytest.mark.parametrize(
    ("promise_id", "deed"),
    [
        ("I10", "UPDATE pools SET active = 1"),
        ("I10", "UPDATE pools SET max_concurrency = 1, updated_at_ms = 0"),
        ("I10", "UPDATE concurrency_keys SET active = 3"),
        ("I10", "UPDATE concurrency_keys SET claims_max = 1"),
        ("I10", "UPDATE rate_uses SET number = number - 1"),
        ("I10", "UPDATE claims SET pool_id = NULL"),
        ("I10", "UPDATE claims SET concurrency_key = NULL"),
        ("GATES", "UPDATE concurrency_keys SET claims_max = 3"),
        ("GATES", "UPDATE lanes SET concurrency_key = 99"),
        ("GATES", "UPDATE rate_keys SET opens_at_ms = NULL"),
        ("GATES", "UPDATE pools SET max_concurrency = 3"),
        ("GATES", "UPDATE pools SET pool_id = 'other'"),
    ],
)
def test_a_broken_promise_is_found(busy: Mesh, promise_id: str, deed: str) -> None:
    assert broken(busy) == set()
    if "rate_uses" in deed:
        busy.hand("INSERT INTO rate_uses VALUES (1, 4, :at_ms)", at_ms=busy.now.lease_ms)
    busy.hand(deed)
    assert promise_id in broken(busy)


def test_a_rate_that_the_keeper_forgets_is_found(busy: Mesh) -> None:
    busy.hand("UPDATE ledger SET served_at_ms = 1, recover_slack_ms = 2000")
    busy.later(12_001)
    busy.sweep()  # a commit, whose instant is noted
    assert "GATES" in broken(busy)
    busy.run(rates.open_rates, 10)
    assert "GATES" not in broken(busy)


def test_a_limit_that_was_lowered_breaks_no_promise(busy: Mesh) -> None:
    busy.workload(concurrency={**KEY, "limit": 1}, rate={**RATE, "limit": 1})
    busy.later(1)
    stories.change(busy, max_concurrency=1)
    assert broken(busy) == set()

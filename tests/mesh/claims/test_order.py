"""Work of low priority under a flood of higher: it waits a minute for each point, and no longer."""

import pytest

from tests.mesh.world import Mesh

MINUTE_MS = 60_000


def next_claimed(mesh: Mesh, edge: str) -> str:
    (held,) = mesh.pull(edge, start=True).claims
    mesh.say("complete", held, output=None)
    return held.workload_id


@pytest.mark.parametrize(("low", "high"), [(0, 10), (-3, 2), (5, 6), (-1_000, 1_000)])
def test_low_priority_is_claimed_before_all_that_came_later_than_its_bound(
    mesh: Mesh, low: int, high: int
) -> None:
    edge = mesh.worker()
    waits = mesh.workload(priority=low)
    bound_ms = (high - low) * MINUTE_MS

    # The flood never ends: more comes at each instant than is claimed.
    first = [mesh.workload(priority=high) for _ in range(3)]
    mesh.later(bound_ms - 1)
    within = [mesh.workload(priority=high) for _ in range(3)]
    assert next_claimed(mesh, edge) in first
    mesh.later(2)
    beyond = [mesh.workload(priority=high) for _ in range(3)]

    order = [next_claimed(mesh, edge) for _ in range(9)]
    assert order == [*first[1:], *within, waits, *beyond]


def test_with_one_claim_for_two_that_come_it_still_has_its_turn(mesh: Mesh) -> None:
    """Two a minute of priority 5 come, one is claimed: what came in five minutes goes first."""
    edge = mesh.worker()
    waits = mesh.workload()
    claimed: list[str] = []
    while waits not in claimed:
        for _ in range(2):
            mesh.workload(priority=5)
        claimed.append(next_claimed(mesh, edge))
        mesh.later(MINUTE_MS)
        assert len(claimed) <= 2 * 5 + 1

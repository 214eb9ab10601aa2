"""Parents that ended with many children take turns: none keeps the children of another waiting."""

import pytest

from tests.mesh.dependencies.stories import after, done, round_of, settle, states
from tests.mesh.world import Mesh


@pytest.fixture
def edge(mesh: Mesh) -> str:
    return mesh.worker()


def ended_with(mesh: Mesh, edge: str, count: int) -> list[str]:
    """A parent that has ended, by the children that its own commit did not tell."""
    job = mesh.workload()
    children = [after(mesh, job) for _ in range(200 + count)]
    done(mesh, job, edge)
    return children[200:]


def ready(mesh: Mesh, children: list[str]) -> int:
    return states(mesh, *children).count("READY")


def test_a_parent_of_many_does_not_keep_the_children_of_another_waiting(
    mesh: Mesh, edge: str
) -> None:
    many, few = ended_with(mesh, edge, 900), ended_with(mesh, edge, 40)

    assert settle(mesh) >= 200
    assert ready(mesh, few) == 40
    assert 100 <= ready(mesh, many) <= 200
    round_of(mesh)
    assert ready(mesh, many) == 900


def test_what_one_leaves_of_its_share_the_others_get(mesh: Mesh, edge: str) -> None:
    many, one = ended_with(mesh, edge, 500), ended_with(mesh, edge, 1)

    assert settle(mesh) >= 200
    assert ready(mesh, one) == 1
    assert ready(mesh, many) > 190


def test_more_parents_than_have_a_turn_at_once_are_told_in_turn(mesh: Mesh, edge: str) -> None:
    families = [ended_with(mesh, edge, 8) for _ in range(27)]

    settle(mesh, 50)
    settle(mesh, 50)
    assert all(ready(mesh, family) for family in families)
    round_of(mesh)
    assert all(ready(mesh, family) == 8 for family in families)

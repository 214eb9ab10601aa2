"""Decisions that are kept have a bound: who gives and gives does not fill everybody's disk."""

import pytest

from feltd.mesh import decisions
from tests.mesh.placement.test_directed import decision, give, kept, refusal
from tests.mesh.world import Mesh


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """So many decisions of a tenant are kept."""
    monkeypatch.setattr(decisions, "KEPT_MIN", 5)
    monkeypatch.setattr(decisions, "KEPT_BYTES_MAX", 1)
    return 5


def turned_down(mesh: Mesh, job: str, number: int) -> str:
    """A claim that nobody can be given; its decision."""
    wanted = {"required_labels": {"zone": str(number)}}
    return str(refusal(mesh, job, placement=wanted).facts["decision_id"])


def test_the_oldest_go_for_the_newest(mesh: Mesh, few: int) -> None:
    mesh.worker()
    job = mesh.workload()
    told = [turned_down(mesh, job, number) for number in range(3 * few)]

    assert [one.decision_id for one in kept(mesh)] == told[: -few - 1 : -1]
    assert decision(mesh, told[-1]).agrees
    # Tried again, it is decided and kept again.
    assert turned_down(mesh, job, 0) not in told


def test_a_decision_stays_as_long_as_its_claim_lives(mesh: Mesh, few: int) -> None:
    worker = mesh.worker(capacity={"concurrency": 2})
    job, other = mesh.workload(), mesh.workload()
    given = give(mesh, job)
    first = kept(mesh)[0].decision_id
    for number in range(3 * few):
        turned_down(mesh, other, number)

    assert decision(mesh, first).selected_worker == worker
    assert give(mesh, job).claim_id == given.claim_id
    mesh.say("release", given)
    turned_down(mesh, other, 3 * few)
    assert first not in [one.decision_id for one in kept(mesh)]


def test_small_ones_are_kept_in_their_thousands(mesh: Mesh) -> None:
    mesh.worker()
    job = mesh.workload()
    told = [turned_down(mesh, job, number) for number in range(decisions.KEPT_MIN + 50)]

    assert decision(mesh, told[0]).agrees

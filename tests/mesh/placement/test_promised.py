"""What is promised of decisions and fences is asked of the rows: slips of a hand are found."""

import pytest
from msgspec import convert

from feltd.mesh import directed, fences, promises
from feltd.model.claim import ClaimById
from feltd.model.fence import Raise
from tests.mesh.world import Mesh


def broken(mesh: Mesh) -> set[str]:
    return {one.id for one in mesh.run(lambda tx, _, now: promises.ask(tx))}


@pytest.fixture
def told(mesh: Mesh) -> Mesh:
    """Work that was given, work that could not be, and a fence."""
    worker = mesh.worker()
    held = mesh.ask(directed.claim, ClaimById(worker_id=worker), mesh.workload())[0]
    refused = mesh.workload()
    assert mesh.refused(lambda: mesh.ask(directed.claim, convert({}, ClaimById), refused))
    ask = fences.Raising("acme", Raise(fencing_token=held.fencing_token))
    mesh.ask(fences.fence, ask, "r")
    assert broken(mesh) == set()
    return mesh


@pytest.mark.parametrize(
    ("slip", "promise"),
    [
        ("UPDATE decisions SET fencing_token = NULL", "DIRECTED"),
        ("UPDATE decisions SET fencing_token = 1 WHERE fencing_token IS NULL", "DIRECTED"),
        ("UPDATE claims SET decision_id = NULL", "DIRECTED"),
        ("UPDATE claims SET decision_id = 99", "DIRECTED"),
        ("UPDATE claims SET how = 'id', decision_id = NULL", "DIRECTED"),
        ("UPDATE decisions SET inputs_digest = 'x' WHERE decision_id = 1", "DECIDED"),
        ("UPDATE decisions SET refused = '[]'", "DECIDED"),
        ("UPDATE decisions SET inputs = '{}'", "DECIDED"),
        ("UPDATE decisions SET inputs = replace(inputs, 'READY', 'OFFLINE')", "DECIDED"),
        ("UPDATE fences SET highest = 9007199254740991", "FENCES"),
        ("UPDATE fence_counts SET fences = 2", "FENCES"),
        ("DELETE FROM fence_counts", "FENCES"),
        ("DELETE FROM fences", "FENCES"),
    ],
)
def test_a_slip_is_found(told: Mesh, slip: str, promise: str) -> None:
    told.hand(slip)

    assert promise in broken(told)

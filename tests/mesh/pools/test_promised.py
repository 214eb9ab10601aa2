"""A claim that passed a hold or a quarantine is found by asking the rows."""

import pytest

from feltd.mesh import promises
from tests.mesh.pools.stories import confine, hold, lift, make
from tests.mesh.world import Mesh


def broken(mesh: Mesh) -> list[str]:
    return [one.id for one in mesh.run(lambda tx, _, now: promises.ask(tx))]


@pytest.mark.parametrize(
    ("scope", "value"),
    [
        ("all", None),
        ("tenant", None),
        ("application", "docs"),
        ("pool", "gpu"),
        ("definition", "extract"),
        ("definition", "extract#1"),
    ],
)
def test_a_claim_that_passed_a_hold_shows(mesh: Mesh, scope: str, value: str | None) -> None:
    make(mesh)
    edge = mesh.worker()
    held = hold(mesh, scope, value)
    lift(mesh, held.hold_id)
    mesh.later(1)
    mesh.claims(mesh.workload(placement={"pool_id": "gpu"}), by=edge)
    assert broken(mesh) == []

    mesh.hand("UPDATE holds SET ended_at_ms = NULL")
    assert broken(mesh) == ["HOLDS"]
    mesh.hand("UPDATE holds SET ended_at_ms = :at_ms", at_ms=mesh.now.lease_ms + 1)
    assert broken(mesh) == ["HOLDS"]


def test_a_claim_that_passed_a_quarantine_shows(mesh: Mesh) -> None:
    edge = mesh.worker(capacity={"concurrency": 2})
    mesh.claims(mesh.workload(), by=edge)
    mesh.later(1)
    confine(mesh, edge)
    assert broken(mesh) == []

    mesh.hand("UPDATE workers SET quarantined_at_ms = quarantined_at_ms - 2")
    assert broken(mesh) == ["HOLDS"]


@pytest.mark.parametrize(
    "wrong",
    [
        "UPDATE pools SET tenant_id = 'other'",
        "UPDATE pools SET application_id = 'mail'",
        "UPDATE workers SET removed_at_ms = 1",
        """UPDATE pools SET worker_ids = '["worker_made_up"]'""",
    ],
)
def test_a_pool_that_lists_a_stranger_shows(mesh: Mesh, wrong: str) -> None:
    make(mesh, application_id="docs", worker_ids=[mesh.worker()])
    assert broken(mesh) == []

    mesh.hand(wrong)
    assert "POOLS" in broken(mesh)


def test_one_that_is_over_begins_anew(mesh: Mesh) -> None:
    """What was claimed between two of them passed neither."""
    edge = mesh.worker(capacity={"concurrency": 2})
    confine(mesh, edge, until_at_ms=mesh.now.wall_ms + 10)
    mesh.later(10)
    mesh.claims(mesh.workload(), by=edge)
    mesh.later(1)

    shown = confine(mesh, edge).quarantine
    assert shown is not None
    assert shown.at_ms == mesh.now.lease_ms

"""Dead letters by what they died of and what they were."""

from typing import Any

import pytest

from feltd.identity import principals
from feltd.mesh import deadletters
from feltd.model.base import Caller, Subject
from tests.mesh.workloads.test_bulk import die
from tests.mesh.world import Mesh


def groups(
    mesh: Mesh, caller: Caller = principals.OPEN, **whose: Any
) -> dict[tuple[str, str], int]:
    found = mesh.ask(deadletters.by_definition, deadletters.Grouping(**whose), caller=caller)
    return {(one.failure_kind, one.newest_definition_id): one.workloads for one in found.items}


def test_each_kind_and_definition_is_a_group_with_its_newest(mesh: Mesh) -> None:
    first, second = mesh.workload(), mesh.workload()
    other = mesh.workload(definition_id="render")
    die(mesh, first, kind="bad_input", message="page 1")
    die(mesh, second, kind="bad_input", message="page 2")
    die(mesh, other, kind="bad_input", message="no font")
    die(mesh, mesh.workload(definition_id="render"), kind="execution_error")

    found = mesh.ask(deadletters.by_definition, deadletters.Grouping())
    assert groups(mesh) == {
        ("bad_input", "extract"): 2,
        ("bad_input", "render"): 1,
        ("execution_error", "render"): 1,
    }
    assert not found.capped
    assert (found.items[0].newest_workload_id, found.items[0].newest_message) == (second, "page 2")


def test_a_common_death_hides_no_rare_one(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    die(mesh, *[mesh.workload() for _ in range(12)], kind="bad_input")
    die(mesh, mesh.workload(), kind="zebra")
    monkeypatch.setattr(deadletters, "DEFINITION_ROWS_MAX", 8)

    found = mesh.ask(deadletters.by_definition, deadletters.Grouping())
    assert found.capped
    assert groups(mesh) == {("bad_input", "extract"): 4, ("zebra", "extract"): 1}


def test_nobody_sees_another_tenants(mesh: Mesh) -> None:
    die(mesh, mesh.workload())
    stranger = Caller(
        Subject("service", "x"), scopes=frozenset({"workloads:read"}), tenants=("bolt",)
    )

    assert groups(mesh, stranger) == {}
    assert groups(mesh, tenant_id="bolt") == {}
    assert groups(mesh, tenant_id="acme") == {("execution_error", "extract"): 1}

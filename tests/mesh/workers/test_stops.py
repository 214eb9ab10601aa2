"""Which workers stop when a grant or a key ends: told before, true afterwards."""

import pytest

from feltd.errors import Refused
from feltd.identity import keys, principals
from feltd.mesh import stops
from feltd.model.base import Ask
from tests.mesh.workers.stories import House
from tests.mesh.world import Mesh


def names(found: stops.Stops) -> list[str]:
    return sorted(one.name for one in found.workers)


def under_grant(mesh: Mesh, house: House, *grant_ids: str) -> dict[str, stops.Stops]:
    return mesh.ask(stops.with_grants, grant_ids, caller=principals.LOCAL)


def test_a_grant_takes_those_who_registered_under_it_and_below_it(mesh: Mesh, house: House) -> None:
    child = house.grant_for("registrar", parent_grant=house.grant.id)
    house.registers("own")
    house.registers("below", house.key("registrar", ["workers:register"], child), child)
    other = house.grant_for("stranger")

    found = under_grant(mesh, house, house.grant.id, child.id, other.id)
    assert names(found[house.grant.id]) == ["below", "own"]
    assert names(found[child.id]) == ["below"]
    assert found[other.id] == stops.Stops(0, [], False)


def test_who_is_gone_already_does_not_stop(mesh: Mesh, house: House) -> None:
    house.worker("edge").beat()
    mesh.later(ms=600_000)
    house.fails_silent()

    assert under_grant(mesh, house, house.grant.id)[house.grant.id].count == 0


def test_many_are_counted_to_a_bound_and_some_are_named(
    mesh: Mesh, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        house.registers(f"edge-{number}")
    monkeypatch.setattr(stops, "WORKERS_COUNTED", 5)
    monkeypatch.setattr(stops, "WORKERS_NAMED", 2)

    found = under_grant(mesh, house, house.grant.id)[house.grant.id]
    assert (found.count, len(found.workers), found.capped) == (5, 2, True)


def test_a_key_takes_those_whose_keys_were_obtained_through_it(mesh: Mesh, house: House) -> None:
    house.registers("edge", issue_key=True)
    house.registers("keyless")
    key_id = house.registrar.key_id

    found = mesh.ask(stops.with_keys, (key_id,), caller=principals.LOCAL)
    assert names(found[key_id]) == ["edge"]
    mesh.run(keys.revoke, Ask(principals.LOCAL, None, key_id))
    ended = mesh.row("SELECT count(*) AS n FROM keys WHERE worker_id IS NOT NULL AND"
                     " revoked_at_ms IS NULL")  # fmt: skip
    assert ended["n"] == 0
    assert mesh.ask(stops.with_keys, (key_id,), caller=principals.LOCAL)[key_id].count == 0


def test_what_is_another_tenants_is_left_out(mesh: Mesh, house: House) -> None:
    stranger = house.key("stranger", ["keys:admin", "grants:issue"], None, ("bolt",))

    assert mesh.ask(stops.with_grants, (house.grant.id,), caller=stranger) == {}
    assert mesh.ask(stops.with_keys, (house.registrar.key_id,), caller=stranger) == {}
    with pytest.raises(Refused) as refused:
        mesh.ask(stops.with_kids, ("k1",), caller=stranger)
    assert refused.value.code == "FORBIDDEN"
    assert mesh.ask(stops.with_kids, ("k1",), caller=principals.LOCAL) == {"k1": 0}
    for rule in (stops.with_grants, stops.with_keys):
        with pytest.raises(Refused):
            mesh.ask(rule, ("x",), caller=house.registrar)

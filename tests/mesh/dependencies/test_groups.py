"""A group is counted, awaited and called off as one, and takes nothing once it is sealed."""

import pytest
from msgspec import structs

from feltd.errors import Refused
from feltd.identity.principals import LOCAL
from feltd.mesh import cancel as cancelling
from feltd.mesh import creation, groups
from feltd.model.group import CancelGroup, GroupCancellation, GroupId
from feltd.model.workload import Cancel
from tests.mesh.dependencies.stories import (
    after,
    call_off_group,
    called_off,
    dies,
    done,
    failure,
    group,
    requeued,
    round_of,
    seal,
    states,
    waiting,
)
from tests.mesh.workloads.stories import creator, new, refusal, value
from tests.mesh.world import Mesh


@pytest.fixture
def edge(mesh: Mesh) -> str:
    return mesh.worker(capacity={"concurrency": 64})


def test_a_group_is_made_by_its_first_workload_and_counts_by_state(mesh: Mesh, edge: str) -> None:
    one = mesh.workload(group="night")
    mesh.workload(group="night")
    after(mesh, one, group="night")
    done(mesh, one, edge)
    shown = group(mesh)
    assert (shown.group, shown.application_id) == ("night", "docs")
    assert shown.counts == {"COMPLETED": 1, "READY": 2}
    assert (shown.sealed, shown.ended) == (False, False)


def test_a_group_has_ended_when_it_is_sealed_and_all_of_it_has(mesh: Mesh, edge: str) -> None:
    one, two = mesh.workload(group="night"), mesh.workload(group="night")
    done(mesh, one, edge)
    assert not seal(mesh).ended
    dies(mesh, two, edge)
    assert ("group", "acme/night") in mesh.signals
    assert group(mesh).ended


def test_sealing_what_has_ended_tells_who_waits(mesh: Mesh, edge: str) -> None:
    done(mesh, mesh.workload(group="night"), edge)
    assert ("group", "acme/night") not in mesh.signals
    assert seal(mesh).ended
    assert ("group", "acme/night") in mesh.signals
    before = value(mesh, "SELECT count(*) FROM events")
    assert seal(mesh).sealed_at_ms == mesh.now.lease_ms
    assert value(mesh, "SELECT count(*) FROM events") == before
    acts = "SELECT count(*) FROM audit WHERE action = 'seal' AND subject = 'group:acme/night'"
    assert value(mesh, acts) == 1


def test_a_sealed_group_takes_nothing_but_repeats(mesh: Mesh) -> None:
    first = mesh.ask(creation.create, new("k", group="night"))
    seal(mesh)
    assert refusal(mesh, creation.create, new("other", group="night")) == "WORKLOAD_INVALID"
    again = mesh.ask(creation.create, new("k", group="night"))
    assert again.workload.workload_id == first.workload.workload_id
    assert group(mesh).counts == {"READY": 1}


def test_a_group_is_of_one_application_and_each_tenant_has_its_own(mesh: Mesh) -> None:
    mesh.workload(group="night")
    assert (
        refusal(mesh, creation.create, new("k", group="night", application_id="other"))
        == "WORKLOAD_INVALID"
    )
    mesh.workload(group="night", tenant_id="other")
    assert group(mesh).counts == group(mesh, tenant_id="other").counts == {"READY": 1}


def test_work_waits_for_all_of_a_sealed_group(mesh: Mesh, edge: str) -> None:
    one, two = mesh.workload(group="night"), mesh.workload(group="night")
    assert (
        refusal(mesh, creation.create, new("k", dependencies=("group:night",)))
        == "WORKLOAD_DEPENDENCY_INVALID"
    )
    seal(mesh)
    child = after(mesh, "group:night")
    assert mesh.state(child) == "PENDING"
    done(mesh, one, edge)
    assert mesh.state(child) == "PENDING"
    done(mesh, two, edge)
    assert mesh.state(child) == "READY"
    assert mesh.state(after(mesh, "group:night")) == "READY"
    assert waiting(mesh) == 0


def test_a_group_is_no_dependency_of_another_application_or_tenant(mesh: Mesh) -> None:
    mesh.workload(group="night")
    seal(mesh)
    for owner in ({"application_id": "other"}, {"tenant_id": "other"}):
        body = new("k", dependencies=("group:night",), **owner)
        assert refusal(mesh, creation.create, body) == "WORKLOAD_DEPENDENCY_INVALID"


@pytest.mark.parametrize(
    ("policy", "state"), [("all_completed", "DEAD_LETTERED"), ("all_finished", "READY")]
)
def test_a_group_with_a_failure_ends_as_one(mesh: Mesh, edge: str, policy: str, state: str) -> None:
    """One failure decides nothing before the group has ended: it may be requeued until then."""
    one, two = mesh.workload(group="night"), mesh.workload(group="night")
    seal(mesh)
    child = after(mesh, "group:night", dependency_policy=policy)
    dies(mesh, one, edge)
    assert mesh.state(child) == "PENDING"
    done(mesh, two, edge)
    assert mesh.state(child) == state
    assert mesh.state(after(mesh, "group:night", dependency_policy=policy)) == state


def test_a_failure_requeued_in_time_spares_who_waits_for_the_group(mesh: Mesh, edge: str) -> None:
    one, two = mesh.workload(group="night"), mesh.workload(group="night")
    seal(mesh)
    child = after(mesh, "group:night")
    dies(mesh, one, edge)
    assert requeued(mesh, one) == "READY"
    done(mesh, two, edge)
    done(mesh, one, edge)
    assert mesh.state(child) == "READY"


def test_failures_spread_into_a_group_and_out_of_it(mesh: Mesh, edge: str) -> None:
    top = mesh.workload()
    after(mesh, top, group="night")
    seal(mesh)
    child = after(mesh, "group:night")
    dies(mesh, top, edge)
    assert failure(mesh, child) == ("DEAD_LETTERED", "dependency_failed")
    assert group(mesh).counts == {"DEAD_LETTERED": 1}


def test_calling_off_a_group_ends_what_nobody_holds_and_asks_the_others(
    mesh: Mesh, edge: str
) -> None:
    finished = mesh.workload(group="night")
    done(mesh, finished, edge)
    held = mesh.workload(group="night")
    claim = mesh.claims(held, by=edge)
    ready = mesh.workload(group="night")
    pending = after(mesh, ready, group="night")
    outside = after(mesh, ready)

    called = call_off_group(mesh, reason="the night is over")
    assert (called.changed, called.remaining) == (3, 0)
    assert states(mesh, finished, held, ready, pending) == [
        "COMPLETED",
        "CLAIMED",
        "CANCELLED",
        "CANCELLED",
    ]
    assert mesh.state(outside) == "DEAD_LETTERED"
    assert call_off_group(mesh).changed == 0
    mesh.say("release", claim)
    assert mesh.state(held) == "CANCELLED"


def test_calling_off_by_force_fences_the_holders(mesh: Mesh, edge: str) -> None:
    job = mesh.workload(group="night")
    claim = mesh.claims(job, by=edge, start=True)
    call_off_group(mesh)
    called = call_off_group(mesh, force=True)
    assert (called.changed, called.remaining) == (1, 0)
    assert mesh.state(job) == "CANCELLED"
    assert mesh.refusal("complete", claim) == "WORKLOAD_STALE_FENCE"


def test_a_large_group_is_called_off_in_chunks(mesh: Mesh) -> None:
    top = mesh.workload(group="night")
    for _ in range(699):
        after(mesh, top, group="night")
    called = call_off_group(mesh)
    assert (called.changed, called.remaining) == (500, 200)
    called = call_off_group(mesh)
    assert (called.changed, called.remaining) == (200, 0)
    assert group(mesh).counts == {"CANCELLED": 700}
    round_of(mesh)


def test_what_is_not_there_and_what_is_anothers_are_not_found(mesh: Mesh) -> None:
    mesh.workload(group="night", tenant_id="other")
    cancelled = GroupCancellation("acme", "night", CancelGroup())
    assert refusal(mesh, groups.get, GroupId("acme", "night")) == "GROUP_NOT_FOUND"
    assert refusal(mesh, groups.seal, GroupId("acme", "night")) == "GROUP_NOT_FOUND"
    assert refusal(mesh, groups.cancel, cancelled) == "GROUP_NOT_FOUND"


def test_a_submitter_calls_off_its_own_group_and_no_others(mesh: Mesh) -> None:
    mesh.by_hand = True
    one, two = creator(mesh, "one"), creator(mesh, "two")
    mesh.ask(creation.create, new("a", group="night"), caller=one)
    cancelled = GroupCancellation("acme", "night", CancelGroup())
    assert refusal(mesh, groups.cancel, cancelled, caller=two) == "FORBIDDEN"
    assert mesh.ask(groups.cancel, cancelled, caller=one).changed == 1
    mesh.ask(creation.create, new("b", group="night"), caller=one)
    assert mesh.ask(groups.cancel, cancelled, caller=LOCAL).changed == 1
    nobody = structs.replace(one, scopes=frozenset())
    assert refusal(mesh, groups.cancel, cancelled, caller=nobody) == "FORBIDDEN"


def test_a_dead_member_that_is_called_off_leaves_the_group_ended(mesh: Mesh, edge: str) -> None:
    job = mesh.workload(group="night")
    seal(mesh)
    dies(mesh, job, edge)
    called_off(mesh, job)
    assert group(mesh).counts == {"CANCELLED": 1}
    assert group(mesh).ended
    with pytest.raises(Refused):
        mesh.ask(cancelling.cancel, Cancel(), "workload_none")

"""What a claim lets its attempt use: what was asked, within the grants of creator and worker."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert, json, structs

from feltd.mesh import creation, holding
from feltd.model.capping import BOUNDS, ORDERS, capped, meeting
from feltd.model.grant import Grant, GrantConstraints, RuntimeCaps
from feltd.model.policy import RuntimePolicy
from tests.mesh.workers.stories import House
from tests.mesh.workloads import stories
from tests.mesh.world import Mesh

CAPS = st.builds(
    RuntimeCaps,
    **{name: st.none() | st.integers(1, 4) for name in BOUNDS},
    **{name: st.none() | st.sampled_from(order) for name, order in ORDERS.items()},
)
POLICIES = st.builds(
    RuntimePolicy,
    **{name: st.none() | st.integers(1, 4) for name in BOUNDS[:2]},
    max_duration_ms=st.integers(1, 4),
    **{name: st.sampled_from(order) for name, order in ORDERS.items()},
)


def looser(member: str, one: Any, other: Any) -> bool:
    """Whether `one` allows more than `other` in this member."""
    if other is None or one == other:
        return False
    if one is None:
        return True
    if member in ORDERS:
        return ORDERS[member].index(one) > ORDERS[member].index(other)
    return bool(one > other)


@given(POLICIES, CAPS)
def test_what_is_capped_is_looser_than_neither_and_no_tighter_than_both(
    policy: RuntimePolicy, caps: RuntimeCaps
) -> None:
    tight = capped(policy, caps)

    for member in structs.asdict(policy):
        held, most, least = (getattr(one, member) for one in (tight, caps, policy))
        assert not looser(member, held, most)
        assert not looser(member, held, least)
        assert held in (most, least)


@given(POLICIES, CAPS, CAPS)
def test_caps_may_be_applied_in_any_order_or_as_one(
    policy: RuntimePolicy, one: RuntimeCaps, other: RuntimeCaps
) -> None:
    assert capped(capped(policy, one), other) == capped(capped(policy, other), one)
    assert capped(policy, meeting(one, other)) == capped(capped(policy, one), other)


def policy_of(claim: Any) -> dict[str, Any]:
    told: dict[str, Any] = json.decode(claim.runtime_policy)
    return told


def worker_under(house: House, caps: dict[str, Any]) -> tuple[str, Grant]:
    """A READY worker, and the grant with these caps that it registered under."""
    grant = house.grant_for("edge-registrar", constraints={"runtime_policy": caps})
    by = house.key("edge-registrar", ["workers:register"], grant)
    return house.worker("edge-1", by=by).id, grant


def test_a_claim_of_work_that_asks_for_nothing_spells_out_every_member(mesh: Mesh) -> None:
    claim = mesh.claims(mesh.workload(), by=mesh.worker())

    assert policy_of(claim) == {
        "max_cpu_millis": None, "max_memory_bytes": None, "max_duration_ms": 3_600_000,
        "network_policy": "inherit", "filesystem_policy": "inherit", "secret_policy": "inherit",
        "artifact_policy": "references",
    }  # fmt: skip


def test_a_claim_is_capped_by_the_grants_of_its_creator_and_of_its_worker(house: House) -> None:
    mesh = house.mesh
    submitter = stories.creator(
        mesh,
        constraints=convert(
            {"runtime_policy": {"max_memory_bytes": 500, "network_policy": "loopback"}},
            GrantConstraints,
        ),
    )
    asked = RuntimePolicy(max_memory_bytes=900, max_cpu_millis=70, filesystem_policy="scratch")
    job = stories.create(mesh, "job-1", submitter, runtime_policy=asked).workload.workload_id
    worker, _ = worker_under(house, {"max_cpu_millis": 60, "filesystem_policy": "none"})

    claim = mesh.claims(job, by=worker)
    told = policy_of(claim)
    again = mesh.run(lambda tx, _, now: holding.live_claim(tx, claim.fencing_token))

    assert (told["max_memory_bytes"], told["network_policy"]) == (500, "loopback")
    assert (told["max_cpu_millis"], told["filesystem_policy"]) == (60, "none")
    assert told["max_duration_ms"] == 3_600_000
    assert again is not None
    assert policy_of(again) == told


def test_a_narrowed_grant_caps_the_claims_that_come_after(house: House) -> None:
    mesh = house.mesh
    worker, grant = worker_under(house, {"max_duration_ms": 1_000})
    house.replace(grant, constraints={"runtime_policy": {"max_duration_ms": 500}})

    assert policy_of(mesh.claims(mesh.workload(), by=worker))["max_duration_ms"] == 500


def test_a_repeated_creation_under_a_tighter_grant_is_the_same_work(mesh: Mesh) -> None:
    """What is asked for names the work; what the grant allows of it does not."""
    first = stories.create(mesh, "job-1", runtime_policy=RuntimePolicy(max_cpu_millis=9))
    again = stories.create(mesh, "job-1", runtime_policy=RuntimePolicy(max_cpu_millis=9))
    other = stories.refusal(
        mesh, creation.create, stories.new("job-1", runtime_policy=RuntimePolicy(max_cpu_millis=8))
    )

    assert again.workload.workload_id == first.workload.workload_id
    assert other == "WORKLOAD_IDEMPOTENCY_CONFLICT"


@pytest.mark.parametrize("capping", ["workload", "grant of the worker"])
def test_artifacts_are_refused_where_the_policy_allows_none(house: House, capping: str) -> None:
    mesh = house.mesh
    worker, asked = mesh.worker(), {"runtime_policy": {"artifact_policy": "none"}}
    if capping != "workload":
        (worker, _), asked = worker_under(house, {"artifact_policy": "none"}), {}
    held = mesh.claims(mesh.workload(**asked), by=worker, start=True)

    assert mesh.refusal("complete", held, artifacts=["s3://b/1"]) == "WORKLOAD_INVALID"
    assert mesh.state(held.workload_id) == "RUNNING"
    assert mesh.say("complete", held, output=1).state == "COMPLETED"
    assert mesh.refusal("complete", held, artifacts=["s3://b/1"]) == "WORKLOAD_STALE_FENCE"


def test_artifacts_of_a_claim_that_was_lost_are_the_fences_to_refuse(mesh: Mesh) -> None:
    job = mesh.workload(runtime_policy={"artifact_policy": "none"})
    held = mesh.claims(job, by=mesh.worker(), start=True)
    mesh.later(ms=60_000)

    assert mesh.refusal("complete", held, artifacts=["s3://b/1"]) == "WORKLOAD_STALE_FENCE"

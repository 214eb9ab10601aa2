"""What a creation asks for means the same whichever version of feltd it was first sent to."""

import pytest

from feltd.mesh import asked, creation
from feltd.model.grant import GrantConstraints, RuntimeCaps
from feltd.model.policy import (
    Concurrency,
    Placement,
    Rate,
    RuntimePolicy,
    Timeouts,
    placement_text,
)
from feltd.model.workload import NewWorkload, Resources, RetryPolicy
from tests.mesh.workloads.stories import create, creator, new, refusal, row, value
from tests.mesh.world import Mesh

OWNER = {"tenant_id": "acme", "application_id": "docs"}
#: What the first version of feltd made of these bodies, with input {"n":1}.
FIRST_PLAIN = "f3aa13c74e10d732178454bc3859a29ed12642eb8b73ef6272aac7f08d73a4cc"
FIRST_FULL = "ac863fc26174d8ef45694cbbc482aeef1aeceb2e8a1340e245d967a0373af199"
FULL = NewWorkload(
    definition_id="extract",
    idempotency_key="k",
    placement=Placement(required_labels={"zone": "a", "b": "c"}, anti_affinity={"rack": "1"}),
    labels={"z": "1", "a": "2"},
    capability_snapshot=("b", "a"),
    priority=3,
    retry_policy=RetryPolicy(max_attempts=5, multiplier=1.5),
    not_before_at_ms=7,
    resources=Resources(cpu_millis=3),
    on_worker_lost="lease",
)


def digest(body: NewWorkload) -> str:
    return asked.digest(asked.filled(body, OWNER), b'{"n":1}')


def test_a_body_of_the_first_version_keeps_its_digest() -> None:
    assert digest(NewWorkload(definition_id="extract", idempotency_key="k")) == FIRST_PLAIN
    assert digest(FULL) == FIRST_FULL
    said = NewWorkload(
        definition_id="extract",
        idempotency_key="k",
        timeouts=Timeouts(),
        runtime_policy=RuntimePolicy(),
        placement=Placement(affinity_wait_ms=2_000),
        dependency_policy="all_completed",
    )
    assert digest(said) == FIRST_PLAIN


def test_work_made_before_the_upgrade_is_the_first_of_its_key_after_it(mesh: Mesh) -> None:
    first = create(mesh, "k", definition_id="extract", input={"n": 1})
    mesh.hand(
        "UPDATE workloads SET body_sha256 = :digest, timeouts = '{}', runtime_policy = '{}',"
        " dependencies = '[]', dependency_policy = 'all_completed'",
        digest=FIRST_PLAIN,
    )
    again = create(mesh, "k", definition_id="extract", input={"n": 1})
    assert not again.created
    assert again.workload.workload_id == first.workload.workload_id
    assert again.workload.runtime_policy == RuntimePolicy()


def test_a_kind_of_work_from_before_the_upgrade_is_still_that_kind(mesh: Mesh) -> None:
    assert placement_text(Placement()) == '{"required_labels":{},"anti_affinity":{}}'
    create(mesh, "a")
    create(mesh, "b", placement=Placement(affinity_wait_ms=2_000))
    assert value(mesh, "SELECT count(*) FROM demands") == 1
    create(mesh, "c", placement=Placement(affinity={"zone": "a"}))
    assert value(mesh, "SELECT count(*) FROM demands") == 2


@pytest.mark.parametrize(
    "other",
    [
        {"timeouts": Timeouts(total_ms=5)},
        {"runtime_policy": RuntimePolicy(network_policy="none")},
        {"dependency_policy": "all_finished"},
        {"group": "night"},
        {"concurrency": Concurrency("k", 1)},
        {"rate": Rate("k", 1, 1_000)},
        {"placement": Placement(affinity={"zone": "a"})},
        {"placement": Placement(affinity_wait_ms=5)},
    ],
)
def test_each_new_member_makes_another_body(mesh: Mesh, other: dict[str, object]) -> None:
    create(mesh, "k")
    assert refusal(mesh, creation.create, new("k", **other)) == "WORKLOAD_IDEMPOTENCY_CONFLICT"
    create(mesh, "other", **other)
    assert refusal(mesh, creation.create, new("other")) == "WORKLOAD_IDEMPOTENCY_CONFLICT"
    assert not create(mesh, "other", **other).created


def test_what_is_asked_is_stored_in_its_columns(mesh: Mesh) -> None:
    job = create(
        mesh,
        "k",
        timeouts=Timeouts(queue_ms=5_000),
        concurrency=Concurrency("printer", 2),
        rate=Rate("mail", 3, 1_000),
        group="night",
    ).workload
    told = row(mesh, job.workload_id)
    assert told["timeouts"] == '{"queue_ms":5000}'
    assert told["concurrency"] == '{"key":"printer","limit":2}'
    assert told["rate"] == '{"key":"mail","limit":3,"period_ms":1000}'
    assert (told["group_name"], told["gated"], told["pool_id"]) == ("night", 1, None)
    assert told["runtime_policy"] == "{}"
    plain = create(mesh, "plain").workload
    assert row(mesh, plain.workload_id)["gated"] == 0


def test_a_grant_caps_the_runtime_policy_and_the_tighter_wins(mesh: Mesh) -> None:
    caps = RuntimeCaps(max_duration_ms=60_000, network_policy="loopback", max_memory_bytes=2**20)
    caller = creator(mesh, constraints=GrantConstraints(runtime_policy=caps))
    loose = create(mesh, "loose", caller).workload.runtime_policy
    assert (loose.max_duration_ms, loose.network_policy) == (60_000, "loopback")
    assert loose.max_memory_bytes == 2**20
    tight = RuntimePolicy(max_duration_ms=5, network_policy="none", max_memory_bytes=7)
    told = create(mesh, "tight", caller, runtime_policy=tight)
    assert told.workload.runtime_policy == tight
    assert not create(mesh, "loose", caller).created


def test_a_pool_that_is_not_there_is_refused(mesh: Mesh) -> None:
    for pool in ("gpu", "other"):
        body = new("k", placement=Placement(pool_id=pool))
        assert refusal(mesh, creation.create, body) == "WORKER_POOL_NOT_FOUND"
    assert value(mesh, "SELECT count(*) FROM workloads") == 0

"""A process becomes a worker, changes, restarts, and loses its name to another."""

import pytest
from msgspec import convert

from feltd.identity import principals
from feltd.mesh import register, states
from feltd.model.worker import Registration
from tests.mesh.workers.stories import House
from tests.mesh.world import Mesh


@pytest.mark.parametrize(
    ("tenant_id", "application_id", "name", "worker_id"),
    [
        ("t", "a", "edge", "worker_cce6afc4b175e9a47f212537"),
        ("acme", "docs", "edge-1", "worker_7ae616376f57fc43b8a4e5f6"),
    ],
)
def test_the_id_of_a_worker_follows_from_its_name(
    mesh: Mesh, tenant_id: str, application_id: str, name: str, worker_id: str
) -> None:
    told = {"tenant_id": tenant_id, "application_id": application_id, "name": name}
    registration = convert(
        {**told, "runtime": "edge", "version": "1", "capacity": {"concurrency": 1}}, Registration
    )

    admitted = mesh.ask(register.register, register.Registering(registration=registration))

    assert admitted.answer.worker.worker_id == worker_id
    assert register.id_of(tenant_id, application_id, name) == worker_id


def test_registration_intersects_capabilities_and_lifecycle_is_strict(house: House) -> None:
    """Twin of the seed's first test (T1)."""
    answer = house.registers(
        capabilities=["documents.extract", "database.admin"],
        labels={"environment": "production"},
        capacity={"concurrency": 1},
        registered_by={"kind": "service", "id": "registrar"},
        issue_key=True,
    )

    assert bytes(answer.worker.granted_capabilities) == b'["documents.extract"]'
    assert answer.worker.lifecycle == "REGISTERED"
    assert answer.worker.health == "UNKNOWN"
    assert (answer.worker.heartbeat_interval_ms, answer.worker.heartbeat_timeout_ms) == (
        10_000,
        30_000,
    )
    assert answer.worker.capability_version == house.grant.revision
    assert not states.worker_transition("REGISTERED", "BUSY")
    denied = house.refusal(lambda: house.transition(answer.worker.worker_id, "BUSY"))
    assert denied.code == "WORKER_TRANSITION_DENIED"
    assert denied.detail == "Registered cannot transition to Busy"
    house.mesh.later(ms=1_000)
    assert house.worker("edge").beat(timestamp_at_ms=house.mesh.now.wall_ms - 1).worker.health


def test_what_is_absent_is_taken_from_the_grant(house: House) -> None:
    worker = house.registers().worker

    assert (worker.tenant_id, worker.application_id) == ("acme", "docs")
    assert bytes(worker.declared_capabilities) == b'["documents.extract"]'
    assert worker.authorization_grant_id == house.grant.id


@pytest.mark.parametrize(
    ("members", "pointer", "detail"),
    [
        ({"capacity": {"concurrency": 0}}, "/capacity/concurrency", "concurrency must be positive"),
        ({"capacity": {"concurrency": 1_025}}, "/capacity/concurrency", "at most 1024"),
        (
            {"heartbeat_interval_ms": 5_000, "heartbeat_timeout_ms": 9_999},
            "/heartbeat_timeout_ms",
            "9999 is less than twice heartbeat_interval_ms 5000",
        ),
    ],
)
def test_nonsense_is_refused_naming_the_member_and_the_numbers(
    house: House, members: dict[str, object], pointer: str, detail: str
) -> None:
    """BC-020: a timeout that an ordinary beat would miss is refused."""
    refused = house.refusal(lambda: house.registers(**members))

    assert refused.code == "WORKER_INVALID"
    assert refused.facts["errors"][0]["pointer"] == pointer
    assert detail in refused.facts["errors"][0]["detail"]


def test_a_label_that_looks_like_a_secret_is_refused_without_echo(house: House) -> None:
    labels = {"team/note": "password=hunter2hunter2"}

    refused = house.refusal(lambda: house.registers(labels=labels))

    assert refused.code == "WORKLOAD_SECRET_IN_TEXT"
    assert refused.facts["errors"] == [
        {"pointer": "/labels/team~1note", "detail": "rule assignment"}
    ]
    assert "on_secret" not in refused.detail, "a registration has no such member"
    assert "hunter2" not in str(refused.facts) + refused.detail


def test_a_lease_does_not_outlive_the_grant_its_worker_changed_to(house: House) -> None:
    edge = house.worker()
    [held] = edge.takes(lease_ms=600_000)
    ends_at_ms = house.mesh.now.wall_ms + 60_000
    shorter = house.grant_for("registrar", expires_at_ms=ends_at_ms)

    assert house.registers(grant=shorter).worker.claims == [held.claim_id]

    lease = house.mesh.row(
        "SELECT expires_at_ms FROM workloads WHERE workload_id = :id", id=held.workload_id
    )
    assert lease["expires_at_ms"] == house.mesh.now.lease_from_wall(ends_at_ms)


def test_a_key_that_is_issued_is_a_deed_though_nothing_else_changes(house: House) -> None:
    house.registers()
    deeds = "SELECT count(*) FROM audit WHERE action = 'register'"
    events = "SELECT count(*) FROM events WHERE kind = 'register'"
    house.registers()
    assert house.mesh.row(deeds)[0] == 1

    house.registers(issue_key=True)

    assert (house.mesh.row(deeds)[0], house.mesh.row(events)[0]) == (2, 1)


def test_shape_is_refused_before_the_grant_is_looked_at(house: House) -> None:
    stranger = house.key("stranger", ["workers:register"], None)

    refused = house.refusal(lambda: house.registers(by=stranger, capacity={"concurrency": 0}))

    assert refused.code == "WORKER_INVALID"


@pytest.mark.parametrize(
    "members",
    [
        {"tenant_id": "other"},
        {"application_id": "other"},
        {"registered_by": {"kind": "service", "id": "somebody"}},
    ],
)
def test_a_registration_outside_its_grant_is_refused(
    house: House, members: dict[str, object]
) -> None:
    refused = house.refusal(lambda: house.registers(**members))

    assert (refused.code, refused.detail) == (
        "WORKER_UNAUTHORIZED",
        "registration grant scope mismatch",
    )


def test_a_grant_of_somebody_else_registers_nobody(house: House) -> None:
    theirs = house.grant_for("somebody")

    assert house.refusal(lambda: house.registers(grant=theirs)).code == "WORKER_UNAUTHORIZED"


def test_a_grant_must_allow_registering_and_reach_the_name(house: House) -> None:
    weak = house.grant_for("registrar", capabilities=["worker:capability:documents.extract"])
    narrow = house.grant_for(
        "registrar", resources=[{"kind": "EXACT", "uri": "flow://docs/workers/edge-7"}]
    )

    assert house.refusal(lambda: house.registers(grant=weak)).code == "WORKER_UNAUTHORIZED"
    assert house.refusal(lambda: house.registers(grant=narrow)).code == "WORKER_UNAUTHORIZED"
    assert house.registers("edge-7", grant=narrow).worker.name == "edge-7"


def test_a_grant_that_ended_registers_nobody(house: House) -> None:
    house.mesh.later(ms=86_400_000)

    assert house.refusal(house.registers).code == "WORKER_UNAUTHORIZED"


def test_a_grants_constraints_bound_what_registers_under_it(house: House) -> None:
    bounded = house.grant_for(
        "registrar",
        constraints={
            "max_concurrency": 2,
            "runtimes": ["edge"],
            "labels": {"trusted/zone": "a"},
            "workload_kinds": ["extract", "summarise"],
            "heartbeat_timeout_ms": 6_000,
        },
    )

    def refused(**members: object) -> str:
        told = {"runtime": "edge", **members}
        return house.refusal(lambda: house.registers(grant=bounded, **told)).code

    assert refused(capacity={"concurrency": 3}) == "WORKER_UNAUTHORIZED"
    assert refused(runtime="wasm") == "WORKER_UNAUTHORIZED"
    assert refused(labels={"trusted/zone": "b"}) == "WORKER_UNAUTHORIZED"
    assert refused(labels={"trusted/rack": "1"}) == "WORKER_UNAUTHORIZED"
    assert refused(workload_kinds=["erase"]) == "WORKER_UNAUTHORIZED"
    assert refused(heartbeat_timeout_ms=6_001) == "WORKER_UNAUTHORIZED"
    assert refused(heartbeat_interval_ms=5_000) == "WORKER_UNAUTHORIZED"

    worker = house.registers(grant=bounded, runtime="edge").worker
    assert bytes(worker.labels) == b'{"trusted/zone":"a"}'
    assert bytes(worker.workload_kinds) == b'["extract","summarise"]'
    assert (worker.heartbeat_interval_ms, worker.heartbeat_timeout_ms) == (3_000, 6_000)


def test_a_grant_for_no_kind_of_work_is_not_one_for_any(house: House) -> None:
    barren = house.grant_for("registrar", constraints={"workload_kinds": []})

    assert house.refusal(lambda: house.registers(grant=barren)).code == "WORKER_UNAUTHORIZED"


def test_registering_settles_what_a_changed_grant_left_open(house: House) -> None:
    edge = house.worker()
    house.mesh.hand("UPDATE workers SET authority_unsettled = 1 WHERE worker_id = :id", id=edge.id)

    house.registers()

    assert edge.row()["authority_unsettled"] == 0


def test_trusted_labels_come_only_from_a_grant(house: House) -> None:
    refused = house.refusal(lambda: house.registers(labels={"trusted/zone": "a"}))

    assert refused.code == "WORKER_UNAUTHORIZED"


def test_a_grant_holds_so_many_workers_at_a_time_its_children_counted(house: House) -> None:
    few = house.grant_for("registrar", constraints={"max_workers": 2})
    child = house.grant_for("registrar", parent_grant=few.id)
    house.registers("one", grant=few)
    house.registers("two", grant=child)

    full = house.refusal(lambda: house.registers("three", grant=child))

    assert (full.code, full.facts["limit"], full.facts["used"]) == ("WORKER_UNAUTHORIZED", 2, 2)
    assert house.registers("one", grant=few).worker.name == "one"
    house.registers("elsewhere")
    moving = house.refusal(lambda: house.registers("elsewhere", grant=few))
    assert moving.code == "WORKER_UNAUTHORIZED"
    house.mesh.later(ms=30_000)
    house.fails_silent()
    assert house.registers("three", grant=child).worker.name == "three"


def test_the_same_process_with_the_same_content_changes_nothing(house: House) -> None:
    first = house.admits()
    house.mesh.later(ms=1_000)

    again = house.admits()

    assert (first.created, again.created) == (True, False)
    assert again.answer.worker == first.answer.worker


def test_an_upgrade_of_the_same_process_is_taken_at_once(house: House) -> None:
    """BC-031: what registers again takes effect; the former version must register."""
    edge = house.worker()
    grown = house.grant_for("registrar", may=["documents.extract", "documents.sign"])

    after = house.registers(version="2", capacity={"concurrency": 4}, grant=grown).worker

    assert (after.version, after.capacity.concurrency) == ("2", 4)
    assert bytes(after.granted_capabilities) == b'["documents.extract","documents.sign"]'
    assert after.capability_version == edge.worker.capability_version + 1
    assert after.lifecycle == "READY"
    assert after.incarnation == 1
    old = house.refusal(edge.beat)
    assert (old.code, old.next) == ("WORKER_HEARTBEAT_REJECTED", "register")
    assert old.facts["capability_version"] == after.capability_version
    assert edge.beat(version="2", capability_version=after.capability_version).worker


def test_an_upgrade_keeps_the_claims_it_still_covers(house: House) -> None:
    edge = house.worker(capacity={"concurrency": 3})
    kept = edge.takes(2)
    house.registers(version="2", capacity={"concurrency": 2})
    assert house.show(edge.id).claims == [held.claim_id for held in kept]

    less = house.grant_for("registrar", may=["documents.sign"])
    after = house.registers(version="3", capacity={"concurrency": 2}, grant=less).worker

    assert after.claims == []
    assert house.ends() == [(held.claim_id, "authority_lost") for held in kept]


def test_concurrency_does_not_go_below_the_live_claims(house: House) -> None:
    edge = house.worker(capacity={"concurrency": 3})
    edge.takes(2)

    refused = house.refusal(lambda: house.registers(capacity={"concurrency": 1}))

    assert (refused.code, refused.facts["used"]) == ("WORKER_BUSY", 2)
    assert house.show(edge.id).capacity.concurrency == 3


def test_another_process_takes_no_name_from_one_that_is_heard(house: House) -> None:
    edge = house.worker()
    house.mesh.later(ms=7_000)

    refused = house.refusal(lambda: house.registers(process_id="second"))

    assert (refused.code, refused.facts["heard_ms_ago"]) == ("WORKER_BUSY", 7_000)
    assert refused.facts["incarnation"] == 1
    house.mesh.later(ms=23_000)
    assert house.registers(process_id="second").worker.incarnation == 2
    assert house.refusal(edge.beat).code == "UNAUTHENTICATED"
    ended = "SELECT revoked_reason FROM keys WHERE key_id = :id"
    assert house.mesh.row(ended, id=edge.caller.key_id)["revoked_reason"] == "taken_over"


def test_a_restart_takes_over_and_the_dead_process_holds_nothing(house: House) -> None:
    """BC-029: a new incarnation; the old one's claims end at once, its key is taken over."""
    old = house.worker()
    [held] = old.takes()

    after = house.registers(process_id="second", takeover=True, issue_key=True)

    assert (after.worker.incarnation, after.worker.lifecycle) == (2, "REGISTERED")
    assert after.worker.claims == []
    assert house.ends() == [(held.claim_id, "worker_lost")]
    gone = house.refusal(old.beat)
    assert gone.code == "UNAUTHENTICATED"
    assert gone.facts["reasons"][0]["code"] == "taken_over"
    assert house.refusal(lambda: old.says("complete", held)).code == "UNAUTHENTICATED"
    key = house.mesh.row("SELECT revoked_reason FROM keys WHERE key_id = :id", id=old.caller.key_id)
    assert key["revoked_reason"] == "taken_over"
    house.keeps_its_promises()


def test_a_failed_worker_comes_back_as_another_process(house: House) -> None:
    """BC-028: a stalled name does not stand in the way."""
    house.worker()
    house.mesh.later(ms=30_000)
    assert len(house.fails_silent()) == 1

    after = house.admits(process_id="second")

    assert not after.created
    assert (after.answer.worker.incarnation, after.answer.worker.lifecycle) == (2, "REGISTERED")
    assert after.answer.worker.offline_reason is None


def test_no_process_id_is_another_process_than_a_named_one(house: House) -> None:
    house.registers()

    assert house.refusal(lambda: house.registers(process_id=None)).code == "WORKER_BUSY"
    assert house.registers("plain", process_id=None).worker.incarnation == 1
    assert house.registers("plain", process_id=None).worker.incarnation == 1


def test_a_key_is_issued_for_this_incarnation_and_ends_those_before(house: House) -> None:
    first = house.worker()
    house.registers(issue_key=True)

    assert house.refusal(first.beat).facts["reasons"][0]["code"] == "revoked"
    assert house.refusal(first.beat).code == "UNAUTHENTICATED"


def test_without_keys_granted_is_what_is_declared(mesh: Mesh) -> None:
    told = {"name": "edge", "runtime": "edge", "version": "1", "capacity": {"concurrency": 1}}
    registration = convert({**told, "capabilities": ["b", "a", "a"]}, Registration)

    body = register.Registering(registration=registration)
    worker = mesh.ask(register.register, body, caller=principals.OPEN).answer.worker

    assert bytes(worker.granted_capabilities) == b'["a","b"]'
    assert (worker.tenant_id, worker.application_id) == ("default", "default")


def test_registering_is_told_apart_from_a_known_worker(house: House) -> None:
    def known(name: str) -> bool:
        told = {"name": name, "runtime": "edge", "version": "1", "capacity": {"concurrency": 1}}
        body = register.Registering(registration=convert(told, Registration))
        return house.mesh.ask(register.known, body, caller=house.registrar)

    house.registers("edge")

    assert known("edge")
    assert not known("other")


def test_the_pace_fits_itself_to_the_half_that_was_said(house: House) -> None:
    quick = house.registers("quick", heartbeat_timeout_ms=3_000).worker
    slow = house.registers("slow", heartbeat_interval_ms=60_000).worker

    assert (quick.heartbeat_interval_ms, quick.heartbeat_timeout_ms) == (1_500, 3_000)
    assert (slow.heartbeat_interval_ms, slow.heartbeat_timeout_ms) == (60_000, 120_000)

"""Work comes in once for its key, under a grant that covers it, and is offered at once."""

from typing import Any

import msgspec
import pytest

from feltd.errors import Refused
from feltd.identity.principals import LOCAL, OPEN
from feltd.mesh import cancel, creation, workloads
from feltd.model.base import Caller, Subject
from feltd.model.claim import Pull
from feltd.model.grant import GrantConstraints
from feltd.model.worker import Registration
from feltd.model.workload import (
    Batch,
    Cancel,
    Creation,
    Made,
    NewWorkload,
    Refusal,
    RetryPolicy,
    Tombstone,
)
from tests.mesh.workloads.stories import create, creator, new, refusal, value
from tests.mesh.world import Mesh

REGISTRATION = {"name": "a", "runtime": "edge", "version": "1", "capacity": {"concurrency": 1}}
ROWS = "SELECT count(*) FROM workloads"


def test_a_new_workload_is_ready_at_once_and_told(mesh: Mesh) -> None:
    made = create(mesh, key="k", definition_id="extract", input={"file": "artifact://x"})
    assert made.created
    job = made.workload
    assert job.state == "READY"
    assert job.eligible_at_ms == mesh.now.lease_ms
    assert job.fencing_token == 0
    assert job.retry_policy.max_attempts == 3
    assert bytes(job.input) == b'{"file":"artifact://x"}'
    assert ("ready", "acme/docs") in mesh.signals
    assert value(mesh, "SELECT head_seq FROM demands") == value(mesh, "SELECT seq FROM workloads")


def test_ids_ascend_with_time(mesh: Mesh) -> None:
    ids = []
    for key in "abc":
        ids.append(create(mesh, key=key).workload.workload_id)
        mesh.later(1)
    assert ids == sorted(ids)


def test_the_same_key_and_body_is_the_first_workload(mesh: Mesh) -> None:
    """BC-037, BC-039."""
    first = create(mesh, key="k", input=1, capability_snapshot=("b", "a"))
    mesh.later(5)
    again = create(
        mesh,
        key="k",
        input=1,
        capability_snapshot=("a", "b", "a"),
        created_at_ms=77,
        requested_by=OPEN.subject,
        retry_policy=RetryPolicy(),
        environment="production",
    )
    assert not again.created
    assert again.workload.workload_id == first.workload.workload_id
    assert value(mesh, ROWS) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"input": 2},
        {"definition_id": "other"},
        {"priority": 1},
        {"labels": {"a": "b"}},
        {"not_before_at_ms": 5},
        {"retry_policy": RetryPolicy(max_attempts=4)},
        {"capability_snapshot": ("x",)},
    ],
)
def test_the_same_key_with_another_body_is_a_conflict(mesh: Mesh, other: dict[str, Any]) -> None:
    create(mesh, key="k", input=1)
    body = new(key="k", **{"input": 1, **other})
    assert refusal(mesh, creation.create, body) == "WORKLOAD_IDEMPOTENCY_CONFLICT"
    assert value(mesh, ROWS) == 1


def test_the_key_of_a_dead_workload_answers_with_what_became_of_it(mesh: Mesh) -> None:
    """BC-039."""
    job = create(mesh, key="k").workload
    mesh.ask(cancel.cancel, Cancel(), id=job.workload_id)
    again = create(mesh, key="k")
    assert not again.created
    assert again.workload.state == "CANCELLED"


@pytest.mark.parametrize(
    "members",
    [
        {"labels": {"note": "\x9b2J"}},
        {"idempotency_key": "a\x85b"},
        {"idempotency_key": "a\x1bb"},
        {"retry_policy": {"retry_on": ["Timeout"]}},
    ],
)
def test_what_a_terminal_would_obey_is_no_label_and_no_key(members: dict[str, Any]) -> None:
    asked = {"definition_id": "extract", "idempotency_key": "k", **members}

    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(asked, NewWorkload)


@pytest.mark.parametrize("kind", ["..", ".#1", "a#..", "a#b#c", "a" * 129, "a#" + "b" * 129, "#1"])
def test_one_rule_says_what_a_kind_of_work_is(kind: str) -> None:
    """Pulls, registrations and grants name kinds, all of them in one way."""
    for shape in (Pull, Registration, GrantConstraints):
        members = {"workload_kinds": [kind]}
        with pytest.raises(msgspec.ValidationError, match="workload_kinds"):
            msgspec.convert(
                {**REGISTRATION, **members} if shape is Registration else members, shape
            )


def test_a_tombstone_outlives_its_workload(mesh: Mesh) -> None:
    job = create(mesh, key="k").workload
    mesh.ask(cancel.cancel, Cancel(), id=job.workload_id)
    digest = value(mesh, "SELECT body_sha256 FROM workloads")
    mesh.hand("DELETE FROM workloads")
    mesh.hand(
        "INSERT INTO tombstones VALUES ('acme', 'docs', 'k', :id, 'CANCELLED', NULL, :digest, 1)",
        id=job.workload_id,
        digest=digest,
    )
    again = create(mesh, key="k")
    assert again.workload == Tombstone(job.workload_id, "CANCELLED", None)
    assert not again.created
    body = new(key="k", input="another")
    assert refusal(mesh, creation.create, body) == "WORKLOAD_IDEMPOTENCY_CONFLICT"


def test_keys_of_two_applications_name_two_workloads(mesh: Mesh) -> None:
    create(mesh, key="k", application_id="a")
    assert create(mesh, key="k", application_id="b").created


def test_what_a_grant_covers_may_be_created(mesh: Mesh) -> None:
    caller = creator(mesh, capabilities=("workload:capability:ask", "worker:capability:do"))
    nameless = NewWorkload(
        definition_id="extract", idempotency_key="k", capability_snapshot=("ask", "do")
    )
    job = mesh.ask(creation.create, Creation(nameless), caller=caller).workload
    assert (job.tenant_id, job.application_id) == ("acme", "docs")
    assert job.requested_by == caller.subject
    assert job.authorization_grant_id == caller.grant_id
    assert create(mesh, key="empty", caller=caller).created


@pytest.mark.parametrize(
    "asked",
    [
        {"capability_snapshot": ("ask", "more")},
        {"tenant_id": "other"},
        {"application_id": "other"},
        {"priority": 6},
    ],
)
def test_what_a_grant_does_not_cover_is_refused(mesh: Mesh, asked: dict[str, Any]) -> None:
    caller = creator(
        mesh,
        capabilities=("workload:capability:ask",),
        constraints=GrantConstraints(max_priority=5),
    )
    body = new(key="k", **asked)
    assert refusal(mesh, creation.create, body, caller=caller) == "WORKLOAD_UNAUTHORIZED"
    assert value(mesh, ROWS) == 0


def test_a_grant_for_kinds_of_work_is_one_for_no_other(mesh: Mesh) -> None:
    kinds = GrantConstraints(workload_kinds=("ocr", "extract#2"))
    caller = creator(mesh, constraints=kinds)

    for number, (definition_id, revision) in enumerate((("extract", "2"), ("ocr", "7"))):
        asked = {"definition_id": definition_id, "definition_revision": revision}
        assert mesh.ask(creation.create, new(key=f"k{number}", **asked), caller=caller).created
    other = new(key="other", definition_id="extract", definition_revision="1")
    assert refusal(mesh, creation.create, other, caller=caller) == "WORKLOAD_UNAUTHORIZED"


def test_without_a_live_grant_of_ones_own_nothing_is_created(mesh: Mesh) -> None:
    caller = creator(mesh)
    bare = msgspec.structs.replace(caller, grant_id=None)
    assert refusal(mesh, creation.create, new(key="k"), caller=bare) == "WORKLOAD_UNAUTHORIZED"
    foreign = creator(mesh, name="somebody")
    borrowed = Creation(new(key="k").body, grant_id=foreign.grant_id)
    assert refusal(mesh, creation.create, borrowed, caller=caller) == "WORKLOAD_UNAUTHORIZED"
    mesh.later(10_000_000)
    assert refusal(mesh, creation.create, new(key="k"), caller=caller) == "WORKLOAD_UNAUTHORIZED"


def test_a_key_revoked_before_the_commit_creates_nothing(mesh: Mesh) -> None:
    caller = creator(mesh)
    mesh.hand("UPDATE keys SET revoked_at_ms = 1, revoked_reason = 'revoked'")
    assert refusal(mesh, creation.create, new(key="k"), caller=caller) == "UNAUTHENTICATED"


def test_the_local_operator_names_tenant_and_application_himself(mesh: Mesh) -> None:
    assert create(mesh, key="k", caller=LOCAL).created
    nameless = Creation(NewWorkload(definition_id="extract", idempotency_key="k"))
    assert refusal(mesh, creation.create, nameless, caller=LOCAL) == "WORKLOAD_INVALID"


def test_without_keys_the_default_tenant_and_application_are_meant(mesh: Mesh) -> None:
    nameless = Creation(NewWorkload(definition_id="extract", idempotency_key="k"))
    job = mesh.ask(creation.create, nameless).workload
    assert (job.tenant_id, job.application_id) == ("default", "default")


def test_nobody_asks_in_anothers_name(mesh: Mesh) -> None:
    body = new(key="k", requested_by=Subject(kind="service", id="somebody"))
    assert refusal(mesh, creation.create, body) == "WORKLOAD_INVALID"


def test_labels_that_look_like_a_secret_are_refused(mesh: Mesh) -> None:
    body = new(key="k", labels={"note": "password=hunter2hunter2"})
    with pytest.raises(Refused) as refused:
        mesh.ask(creation.create, body)
    assert refused.value.code == "WORKLOAD_SECRET_IN_TEXT"
    assert "hunter2" not in str(refused.value.facts) + refused.value.detail


def test_input_is_at_most_256_kib(mesh: Mesh) -> None:
    assert create(mesh, key="fits", input="x" * (262_144 - 2)).created
    body = new(key="k", input="x" * (262_144 - 1))
    assert refusal(mesh, creation.create, body) == "WORKLOAD_INVALID"


def test_a_batch_refuses_its_bad_items_alone(mesh: Mesh) -> None:
    """BC-010."""
    create(mesh, key="old")
    create(mesh, key="taken", input=1)
    answer = mesh.ask(
        creation.create_batch,
        Batch(
            (
                new(key="one"),
                Refusal("WORKLOAD_INVALID", "no such member"),
                new(key="taken", input=2),
                new(key="old"),
                new(key="one"),
            )
        ),
    )
    one, unread, conflict, old, again = answer.items
    assert isinstance(one, Made)
    assert one.created
    assert (unread.code, conflict.code) == ("WORKLOAD_INVALID", "WORKLOAD_IDEMPOTENCY_CONFLICT")
    assert (old.created, again.created) == (False, False)
    assert again.workload_id == one.workload_id
    assert value(mesh, ROWS) == 3


def test_an_atomic_batch_is_all_or_nothing(mesh: Mesh) -> None:
    """BC-010."""
    create(mesh, key="taken", input=1)
    items = tuple(new(key=f"k{n}") for n in range(49))
    with pytest.raises(Refused) as refused:
        mesh.ask(creation.create_batch, Batch((*items, new(key="taken", input=2)), atomic=True))
    assert refused.value.code == "WORKLOAD_IDEMPOTENCY_CONFLICT"
    assert refused.value.facts["errors"][0]["pointer"] == "/workloads/49"
    assert value(mesh, ROWS) == 1
    answer = mesh.ask(creation.create_batch, Batch(items, atomic=True))
    assert all(item.created for item in answer.items)
    assert value(mesh, ROWS) == 50


def test_a_batch_of_a_thousand_has_a_thousand_ids(mesh: Mesh) -> None:
    items = tuple(new(key=f"k{n}", input=n) for n in range(1_000))
    answer = mesh.ask(creation.create_batch, Batch(items))
    assert len({item.workload_id for item in answer.items}) == 1_000
    assert value(mesh, ROWS) == 1_000


def test_what_a_workload_is_shown_as_can_be_encoded(mesh: Mesh) -> None:
    job = create(mesh, key="k", input={"a": [1]}, labels={"team": "x"}).workload
    shown = msgspec.json.decode(
        msgspec.json.encode(mesh.ask(workloads.get, None, id=job.workload_id))
    )
    assert shown["input"] == {"a": [1]}
    assert shown["attempts"] == []
    assert "result" not in shown
    assert shown["requested_by"] == {"kind": "service", "id": "local"}


def test_another_tenants_workload_is_not_there(mesh: Mesh) -> None:
    job = create(mesh, key="k", tenant_id="acme", application_id="docs").workload
    stranger = Caller(Subject(kind="service", id="s"), local=True, tenants=("other",))
    refused = refusal(mesh, workloads.get, None, id=job.workload_id, caller=stranger)
    assert refused == "WORKLOAD_NOT_FOUND"
    assert refusal(mesh, workloads.get, None, id="workload_made_up") == "WORKLOAD_NOT_FOUND"

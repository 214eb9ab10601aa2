"""Who somebody is: twins of the three tests the seeds have, and confirming a caller."""

import pytest

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import principals
from feltd.identity.principals import LOCAL, OPEN, acting_worker, confirm, grant_subject
from feltd.model.base import Caller, Subject
from feltd.model.key import Principal
from tests.identity.house import DAY_MS, HOUR_MS, House, reasons


def principal(subject_type: str, identity_id: str | None = "one", scopes: str = "*") -> Principal:
    return Principal(
        key_id="key-1", scopes=(scopes,), subject_type=subject_type, identity_id=identity_id
    )


@pytest.mark.parametrize(
    ("subject_type", "kind"),
    [
        ("worker", "worker"),
        ("human", "human"),
        ("user", "human"),
        ("service", "service"),
        ("api_key", "service"),
        ("agent", "agent"),
    ],
)
def test_only_a_worker_principal_maps_to_a_worker_subject(subject_type: str, kind: str) -> None:
    """T8: not even the scope '*' makes a worker of anybody else."""
    subject = grant_subject(principal(subject_type))

    assert subject.kind == kind
    assert (subject.kind == "worker") == (subject_type == "worker")


def test_a_worker_subject_is_bound_to_its_own_identity() -> None:
    """T9."""
    subject = grant_subject(principal("worker", "worker-x"))

    assert subject == Subject(kind="worker", id="worker-x")
    assert subject != Subject(kind="worker", id="worker-y")


def test_a_worker_principal_without_an_identity_falls_back_to_its_key_id() -> None:
    """T10: never a wildcard."""
    assert grant_subject(principal("worker", None)) == Subject(kind="worker", id="key-1")


def test_an_unknown_subject_type_is_nobody() -> None:
    for subject_type in ("", "*", "admin", "Worker", "workload", "connection"):
        with pytest.raises(Refused, match="UNAUTHENTICATED"):
            grant_subject(principal(subject_type))


def standing(house: House, caller: Caller) -> None:
    house.do(lambda tx, now: confirm(tx, caller, now))


def test_a_caller_is_good_until_the_commit_that_ends_its_key(house: House) -> None:
    caller = house.caller()
    standing(house, caller)

    house.revoke_key(caller.key_id)

    refused = house.refusal(lambda: standing(house, caller))
    assert (refused.code, reasons(refused)) == ("UNAUTHENTICATED", ["revoked"])


def test_a_key_expires_at_its_instant_by_wall_time(house: House) -> None:
    caller = house.caller(expires_at_ms=house.wall_ms + HOUR_MS)

    house.later(HOUR_MS - 1)
    standing(house, caller)
    house.later(1)

    assert reasons(house.refusal(lambda: standing(house, caller))) == ["expired"]


def test_a_worker_that_lost_its_name_is_told_so(house: House) -> None:
    registrar = house.caller(scopes=["workers:register"])
    worker = house.issue_worker_key(registrar, house.worker("worker_1"))
    standing(house, worker)

    assert house.takes_over("worker_1") == [worker.key_id]

    refused = house.refusal(lambda: standing(house, worker))
    assert reasons(refused) == ["taken_over"]


def test_a_workers_key_of_another_incarnation_is_not_good_even_if_nobody_ended_it(
    house: House,
) -> None:
    registrar = house.caller(scopes=["workers:register"])
    worker = house.issue_worker_key(registrar, house.worker("worker_1"))

    house.conn.execute("UPDATE workers SET incarnation = 2")

    assert reasons(house.refusal(lambda: standing(house, worker))) == ["taken_over"]


def test_a_workers_key_lives_no_longer_than_its_grant_and_lives_on_when_that_is_extended(
    house: House,
) -> None:
    grant = house.grant("registrar", expires_at_ms=house.wall_ms + HOUR_MS)
    registrar = house.caller(identity_id="registrar", grant_id=grant.id)
    worker = house.issue_worker_key(registrar, house.worker("worker_1"), grant_id=grant.id)

    house.later(HOUR_MS)
    assert reasons(house.refusal(lambda: standing(house, worker))) == ["grant_ended"]
    # The registrar is still somebody; its grant alone is of no use.
    standing(house, registrar)
    assert house.refusal(lambda: house.usable(registrar)).code == "GRANT_DENIED"

    house.replace(grant, expires_at_ms=house.wall_ms + DAY_MS)
    assert ("key", worker.key_id) in house.signals
    standing(house, worker)


def test_a_made_up_caller_is_nobody_and_a_local_one_needs_no_key(house: House) -> None:
    nobody = Caller(subject=Subject(kind="service", id="x"), key_id="000000000000")

    refused = house.refusal(lambda: standing(house, nobody))

    assert (refused.code, reasons(refused)) == ("UNAUTHENTICATED", [])
    standing(house, LOCAL)
    standing(house, OPEN)


def test_a_worker_key_acts_as_its_worker_alone(house: House) -> None:
    worker = house.issue_worker_key(house.caller(), house.worker("worker_1"))

    assert acting_worker(worker, "worker_1") == "worker_1"
    assert acting_worker(OPEN, "worker_9") == "worker_9"
    for caller in (worker, LOCAL, house.caller(scopes=["*"])):
        with pytest.raises(Refused, match="MESH_CLAIM_SCOPE_DENIED"):
            acting_worker(caller, "worker_2", "MESH_CLAIM_SCOPE_DENIED")


def test_a_foreign_object_answers_exactly_like_a_made_up_one() -> None:
    caller = Caller(subject=Subject(kind="service", id="x"), tenants=("acme",))

    with pytest.raises(Refused) as foreign:
        principals.require_tenant(caller, "other", "WORKLOAD_NOT_FOUND")
    made_up = principals.not_found("WORKLOAD_NOT_FOUND")

    assert (foreign.value.code, foreign.value.detail, foreign.value.facts) == (
        made_up.code,
        made_up.detail,
        made_up.facts,
    )


def test_confirming_is_one_statement(house: House) -> None:
    caller = house.caller()

    def count(tx: object, now: Now) -> int:
        confirm(tx, caller, now)  # type: ignore[arg-type]
        return tx.statements  # type: ignore[attr-defined, no-any-return]

    assert house.do(count) == 1

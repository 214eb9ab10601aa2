"""The fence: what is presented is compared with what is stored, in one order of refusals."""

from collections.abc import Callable
from typing import Any

import pytest

from feltd.errors import Refused
from feltd.identity import principals
from feltd.model.base import Caller
from feltd.model.claim import Claim
from tests.mesh.world import VERBS, Mesh

STALE = "WORKLOAD_STALE_FENCE"
SCOPE = "MESH_CLAIM_SCOPE_DENIED"

every_verb = pytest.mark.parametrize("verb", sorted(VERBS))


class Holder:
    """A worker with a key of its own that holds one claim, ready for any verb."""

    def __init__(self, mesh: Mesh, verb: str = "renew") -> None:
        self.mesh = mesh
        self.worker_id = mesh.worker("holder", capacity={"concurrency": 4})
        self.caller: Caller = mesh.key(self.worker_id)
        self.job = mesh.workload()
        self.held: Claim = mesh.claims(self.job, by=self.worker_id, start=verb != "start")

    def refusal(self, verb: str, **members: Any) -> str | None:
        """What the verb is refused with; it must have changed no row then."""
        before = self.mesh.everything()
        code = self.mesh.refusal(verb, self.held, caller=self.caller, **members)
        assert code is None or self.mesh.everything() == before
        return code


@every_verb
def test_the_holder_passes(mesh: Mesh, verb: str) -> None:
    assert Holder(mesh, verb).refusal(verb) is None


@every_verb
def test_a_token_that_is_not_the_claims_is_refused(mesh: Mesh, verb: str) -> None:
    holder = Holder(mesh, verb)
    token = holder.held.fencing_token

    assert holder.refusal(verb, fencing_token=token + 1) == STALE
    assert holder.refusal(verb, claim_id=f"claim_{token + 1}") == STALE
    assert holder.refusal(verb, claim_id=f"claim_{token + 1}", fencing_token=token + 1) == STALE
    assert holder.refusal(verb, claim_id="claim_0", fencing_token=1) == STALE
    assert holder.refusal(verb, claim_id=f"claim_0{token}") == STALE


@every_verb
def test_a_claim_of_another_workload_is_refused(mesh: Mesh, verb: str) -> None:
    holder = Holder(mesh, verb)
    other = mesh.workload()
    mesh.claims(other, by=holder.worker_id, start=verb != "start")

    before = mesh.everything()

    assert mesh.refusal_at(verb, holder.held, other, holder.caller) == STALE
    assert mesh.everything() == before


@every_verb
def test_another_worker_may_not_name_the_holder_nor_use_its_claim(mesh: Mesh, verb: str) -> None:
    holder = Holder(mesh, verb)
    thief_id = mesh.worker("thief")
    holder.caller = mesh.key(thief_id, "k2")

    assert holder.refusal(verb) == SCOPE
    assert holder.refusal(verb, worker_id=thief_id) == STALE


@every_verb
def test_the_holder_may_not_name_another_worker(mesh: Mesh, verb: str) -> None:
    holder = Holder(mesh, verb)
    other = mesh.worker("other")

    assert holder.refusal(verb, worker_id=other) == SCOPE


@every_verb
def test_who_is_no_worker_holds_nothing(mesh: Mesh, verb: str) -> None:
    holder = Holder(mesh, verb)
    holder.caller = principals.LOCAL

    assert holder.refusal(verb) == SCOPE


@every_verb
def test_an_earlier_incarnation_is_refused_even_with_a_key_for_any(mesh: Mesh, verb: str) -> None:
    """The row of the worker decides: its claims were made by the process before."""
    holder = Holder(mesh, verb)
    holder.caller = mesh.key(holder.worker_id, "k2", incarnation=None)
    mesh.hand("UPDATE workers SET incarnation = 2 WHERE worker_id = :id", id=holder.worker_id)

    assert holder.refusal(verb) == STALE


@every_verb
def test_the_key_of_an_earlier_incarnation_is_told_it_was_taken_over(mesh: Mesh, verb: str) -> None:
    holder = Holder(mesh, verb)
    mesh.hand("UPDATE workers SET incarnation = 2 WHERE worker_id = :id", id=holder.worker_id)
    mesh.hand("UPDATE workloads SET claim_incarnation = 2 WHERE workload_id = :id", id=holder.job)

    assert holder.refusal(verb) == "UNAUTHENTICATED"


@every_verb
def test_a_revoked_key_is_refused_in_the_committing_transaction(mesh: Mesh, verb: str) -> None:
    holder = Holder(mesh, verb)
    mesh.hand("UPDATE keys SET revoked_at_ms = 1, revoked_reason = 'revoked'")

    assert holder.refusal(verb) == "UNAUTHENTICATED"


@every_verb
def test_a_key_ends_at_its_expiry_by_wall_time(mesh: Mesh, verb: str) -> None:
    holder = Holder(mesh, verb)
    mesh.hand("UPDATE keys SET expires_at_ms = :at", at=mesh.now.wall_ms + 1)
    before = mesh.everything()
    mesh.now = mesh.now._replace(wall_ms=mesh.now.wall_ms + 1)

    assert holder.refusal(verb) == "UNAUTHENTICATED"
    assert mesh.everything() == before


@every_verb
def test_without_live_authority_nothing_is_written(mesh: Mesh, verb: str) -> None:
    holder = Holder(mesh, verb)
    mesh.hand("UPDATE workers SET authority_live = 0")

    assert holder.refusal(verb) == "MESH_CAPABILITY_DENIED"


def test_the_words_of_a_refused_fence_stay_and_a_reason_says_which(mesh: Mesh) -> None:
    holder = Holder(mesh, "renew")
    scope, authority = "claim crosses worker/workload scope", "claim capability snapshot is invalid"

    foreign = told(lambda: mesh.say("renew", holder.held, holder.caller, worker_id="worker_x"))
    mesh.hand("UPDATE workers SET authority_live = 0")
    ended = told(lambda: mesh.say("renew", holder.held, holder.caller))

    assert foreign == (scope, [("worker", "the claim is of another worker than the caller")])
    assert ended == (authority, [("grant", "the grant this worker registered with is not live")])


def told(act: Callable[[], object]) -> tuple[str, list[tuple[str, str]]]:
    """The detail of a refusal, and its reasons."""
    with pytest.raises(Refused) as refused:
        act()
    reasons = refused.value.facts["reasons"]
    return refused.value.detail, [(reason["code"], reason["detail"]) for reason in reasons]


@every_verb
def test_authority_ends_at_its_expiry_by_wall_time(mesh: Mesh, verb: str) -> None:
    holder = Holder(mesh, verb)
    mesh.hand("UPDATE workers SET authority_expires_at_ms = :at", at=mesh.now.wall_ms)

    assert holder.refusal(verb) == "MESH_CAPABILITY_DENIED"


@every_verb
def test_an_unsettled_worker_is_settled_before_it_writes(mesh: Mesh, verb: str) -> None:
    """Its grant is gone: what it holds ends authority_lost, and so it holds nothing."""
    holder = Holder(mesh, verb)
    mesh.hand("UPDATE workers SET authority_unsettled = 1")
    code = mesh.refusal(verb, holder.held, caller=holder.caller)

    assert code == STALE


STATES: dict[str, set[str]] = {
    "start": {"CLAIMED"},
    "checkpoint": {"RUNNING", "CHECKPOINTED"},
    "complete": {"RUNNING", "CHECKPOINTED"},
    "renew": {"CLAIMED", "RUNNING", "CHECKPOINTED"},
    "log": {"CLAIMED", "RUNNING", "CHECKPOINTED"},
    "release": {"CLAIMED", "RUNNING", "CHECKPOINTED"},
    "fail": {"CLAIMED", "RUNNING", "CHECKPOINTED"},
}


@pytest.mark.parametrize("state", ["CLAIMED", "RUNNING", "CHECKPOINTED"])
@every_verb
def test_each_verb_works_in_its_states_alone(mesh: Mesh, verb: str, state: str) -> None:
    holder = Holder(mesh, "start")
    if state != "CLAIMED":
        mesh.say("start", holder.held)
    if state == "CHECKPOINTED":
        mesh.say("checkpoint", holder.held)

    code = holder.refusal(verb)

    if verb == "start" and state != "CLAIMED":
        assert code is None, "repeating start while the claim lives changes nothing"
    else:
        assert (code is None) == (state in STATES[verb])
        assert code in (None, "WORKLOAD_TRANSITION_DENIED")


def test_repeating_start_changes_nothing(mesh: Mesh) -> None:
    holder = Holder(mesh, "renew")
    before = mesh.everything()
    mesh.later(ms=10)

    assert mesh.say("start", holder.held, caller=holder.caller).state == "RUNNING"
    assert mesh.everything() == before


def test_work_of_another_tenant_looks_like_none_at_all(mesh: Mesh) -> None:
    holder = Holder(mesh)
    foreign = mesh.workload(tenant_id="globex")
    answers = []
    for job in (foreign, "workload_made_up"):
        with pytest.raises(Refused) as refused:
            mesh.say_at("renew", holder.held, job, holder.caller)
        answers.append((refused.value.code, refused.value.detail, refused.value.next))

    assert answers[0] == answers[1]
    assert answers[0][0] == "WORKLOAD_NOT_FOUND"
    assert answers[0][2] == "drop_claim"


def test_work_of_another_application_is_out_of_scope(mesh: Mesh) -> None:
    holder = Holder(mesh)
    other = mesh.workload(application_id="mail")

    assert mesh.refusal_at("renew", holder.held, other, holder.caller) == SCOPE


def order_of(mesh: Mesh) -> list[tuple[str, Callable[[Holder, dict[str, Any]], object]]]:
    """Each reason to refuse, first to last, with what brings it about."""

    def other_worker(holder: Holder, members: dict[str, Any]) -> None:
        members["worker_id"] = mesh.worker("somebody")

    def other_tenant(holder: Holder, members: dict[str, Any]) -> None:
        members["job"] = mesh.workload(tenant_id="globex")

    def other_application(holder: Holder, members: dict[str, Any]) -> None:
        members.setdefault("job", mesh.workload(application_id="mail"))

    def made_up(holder: Holder, members: dict[str, Any]) -> None:
        members["fencing_token"] = 999

    def no_authority(holder: Holder, members: dict[str, Any]) -> None:
        mesh.hand("UPDATE workers SET authority_live = 0")

    def not_started(holder: Holder, members: dict[str, Any]) -> None:
        return None

    return [
        (SCOPE, other_worker),
        ("WORKLOAD_NOT_FOUND", other_tenant),
        (SCOPE, other_application),
        (STALE, made_up),
        ("MESH_CAPABILITY_DENIED", no_authority),
        ("WORKLOAD_TRANSITION_DENIED", not_started),
    ]


@pytest.mark.parametrize("first", range(6))
def test_the_first_reason_in_the_order_of_the_law_is_told(mesh: Mesh, first: int) -> None:
    """Everything from `first` on is wrong at once; a claim that is not started completes."""
    holder = Holder(mesh, "start")
    reasons = order_of(mesh)
    members: dict[str, Any] = {}
    for _, wrong in reasons[first:]:
        wrong(holder, members)
    job = members.pop("job", holder.job)

    assert (
        mesh.refusal_at("complete", holder.held, job, holder.caller, **members) == reasons[first][0]
    )


def test_what_passes_the_fence_counts_as_heard_once_a_second(mesh: Mesh) -> None:
    holder = Holder(mesh)
    seen = "SELECT last_seen_at_ms AS at FROM workers WHERE worker_id = :id"

    mesh.later(ms=999)
    holder.refusal("renew")
    assert mesh.row(seen, id=holder.worker_id)["at"] == mesh.now.lease_ms - 999
    mesh.later(ms=1)
    holder.refusal("renew")
    assert mesh.row(seen, id=holder.worker_id)["at"] == mesh.now.lease_ms


def test_renew_and_log_write_neither_event_nor_history(mesh: Mesh) -> None:
    holder = Holder(mesh)
    count = "SELECT count(*) AS n FROM events"
    before = mesh.row(count)["n"]

    holder.refusal("renew")
    holder.refusal("log")

    assert mesh.row(count)["n"] == before

"""Work comes to who pulls it, best rank first, and to nobody who may not have it."""

import re
from typing import Any

import pytest
from msgspec import convert

from feltd.errors import Refused
from feltd.mesh import (
    attempts,
    claims,
    evict,
    fence,
    giveback,
    holding,
    outcomes,
    refusal,
    sweep,
    taking,
)
from feltd.model.claim import ClaimById, ClaimQuery, Evict
from tests.mesh.world import Mesh


def names(mesh: Mesh, worker: str, **members: Any) -> list[str]:
    return [claim.workload_id for claim in mesh.pull(worker, **members).claims]


def reasons(mesh: Mesh, worker: str, **members: Any) -> list[str]:
    pulled = mesh.pull(worker, **members)
    assert pulled.claims == []
    return [reason.code for reason in pulled.reasons]


def test_a_claim_carries_all_that_running_it_needs(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = mesh.workload(
        input={"file": "a"}, capability_snapshot=["docs.extract"], connection_scopes=["db.read"]
    )

    pulled = mesh.pull(worker, lease_ms=5_000)

    (claim,) = pulled.claims
    token = claim.fencing_token
    assert (claim.workload_id, claim.worker_id, claim.attempt_number) == (job, worker, 1)
    assert claim.claim_id == f"claim_{token}"
    assert (claim.lease_id, claim.attempt_id) == (f"lease_{token}", f"attempt_{token}")
    assert claim.execution_context_id == f"context_claim_{token}"
    assert claim.expires_at_ms == mesh.now.lease_ms + 5_000
    assert bytes(claim.input) == b'{"file":"a"}'
    assert bytes(claim.capability_snapshot) == b'["docs.extract"]'
    assert claim.checkpoint is None
    assert (pulled.lifecycle, pulled.reasons) == ("BUSY", [])


def test_best_rank_comes_first_and_age_counts_a_minute_a_point(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 9})
    old = mesh.workload()
    mesh.later(ms=59_000)
    urgent = mesh.workload(priority=1)
    mesh.later(ms=2_000)
    later_urgent = mesh.workload(priority=1)
    plain = mesh.workload()

    assert names(mesh, worker, max=9) == [urgent, old, later_urgent, plain]


def test_tokens_only_grow(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 3})
    job = mesh.workload()
    tokens = []
    for _ in range(5):
        held = mesh.claims(job, by=worker)
        tokens.append(held.fencing_token)
        mesh.say("release", held)

    assert tokens == sorted(set(tokens))


def test_no_more_than_asked_and_no_more_than_there_is_room(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 3})
    for _ in range(5):
        mesh.workload()

    assert len(mesh.pull(worker, max=2).claims) == 2
    assert len(mesh.pull(worker, max=9).claims) == 1
    assert reasons(mesh, worker) == ["WORKER_FULL"]


def test_an_empty_answer_says_why(mesh: Mesh) -> None:
    worker = mesh.worker()
    assert reasons(mesh, worker) == ["NO_WORK"]

    mesh.workload(definition_id="ocr", capability_snapshot=["docs.ocr"])
    (why,) = mesh.pull(worker).reasons
    assert (why.code, why.demands) == ("NO_MATCH", 1)

    mesh.hand("UPDATE workers SET health = 'DEGRADED'")
    assert reasons(mesh, worker) == ["WORKER_UNHEALTHY"]

    mesh.hand("UPDATE workers SET drain_by = 'x:y', drain_at_ms = 1, drain_until = 'resumed'")
    assert "WORKER_DRAINING" in reasons(mesh, worker)


def test_a_worker_that_never_beat_is_told_to(mesh: Mesh) -> None:
    worker = mesh.worker()
    mesh.hand("UPDATE workers SET lifecycle = 'REGISTERED', lifecycle_cause = 'register'")

    pulled = mesh.pull(worker)

    assert pulled.lifecycle == "REGISTERED"
    assert "send a heartbeat first" in [reason.detail for reason in pulled.reasons]


@pytest.mark.parametrize(("reason", "next_"), [("failed", "reconcile"), ("drained", "stop")])
def test_an_offline_worker_must_reconcile_or_stop(mesh: Mesh, reason: str, next_: str) -> None:
    worker = mesh.worker()
    mesh.workload()
    mesh.hand(
        "UPDATE workers SET lifecycle = 'OFFLINE', lifecycle_cause = 'verb', offline_reason = :r",
        r=reason,
    )

    with pytest.raises(Refused) as refused:
        mesh.pull(worker)

    assert (refused.value.code, refused.value.next) == ("WORKER_RECOVERY_REQUIRED", next_)
    assert refused.value.facts["offline_reason"] == reason


def test_a_worker_whose_grant_has_ended_gets_nothing(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = mesh.workload()
    mesh.hand("UPDATE workers SET authority_expires_at_ms = :at", at=mesh.now.wall_ms)

    assert mesh.refused(lambda: mesh.pull(worker)) == "WORKER_UNAUTHORIZED"
    assert mesh.refused(lambda: mesh.claims(job, by=worker)) == "WORKLOAD_CAPABILITY_DENIED"


def test_a_pull_may_be_narrowed_to_kinds(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 9})
    mesh.workload(definition_id="extract")
    ocr = mesh.workload(definition_id="ocr", definition_revision="2")

    assert names(mesh, worker, max=9, workload_kinds=["ocr#2", "other"]) == [ocr]
    assert reasons(mesh, worker, workload_kinds=["ocr#1"]) == ["NO_MATCH"]


def test_the_same_request_gets_its_own_claims_again_and_never_others(mesh: Mesh) -> None:
    """BC-036: the answer of a pull was lost."""
    worker = mesh.worker(capacity={"concurrency": 9})
    for _ in range(4):
        mesh.workload()
    first = mesh.pull(worker, max=2, request_id="poll-1").claims

    again = mesh.pull(worker, max=2, request_id="poll-1").claims
    assert [one.claim_id for one in again] == [one.claim_id for one in first]

    mesh.say("complete", first[0], start=True)
    assert [one.claim_id for one in mesh.pull(worker, request_id="poll-1").claims] == [
        first[1].claim_id
    ]
    mesh.say("complete", first[1], start=True)
    assert reasons(mesh, worker, request_id="poll-1") == ["REQUEST_REPEATED"]
    assert len(mesh.pull(worker, max=9, request_id="poll-2").claims) == 2


def test_a_request_is_of_one_process_and_its_lapsed_claims_are_not_given_again(
    mesh: Mesh,
) -> None:
    worker = mesh.worker(capacity={"concurrency": 2})
    job = mesh.workload()
    mesh.pull(worker, lease_ms=1_000, request_id="poll-1")
    mesh.later(ms=1_000)
    assert reasons(mesh, worker, request_id="poll-1") == ["REQUEST_REPEATED"]

    mesh.hand("UPDATE workers SET incarnation = 2")
    mesh.sweep()
    mesh.later(ms=5_000)
    mesh.promote()

    assert names(mesh, worker, request_id="poll-1") == [job]


def test_an_empty_pull_may_be_repeated_until_there_is_work(mesh: Mesh) -> None:
    worker = mesh.worker()
    assert reasons(mesh, worker, request_id="poll-1") == ["NO_WORK"]
    job = mesh.workload()

    assert names(mesh, worker, request_id="poll-1") == [job]


def test_a_pull_may_start_what_it_takes(mesh: Mesh) -> None:
    (held,) = mesh_pull(mesh, start=True)

    assert (held.state, mesh.state(held.workload_id)) == ("RUNNING", "RUNNING")
    assert mesh.say("complete", held).state == "COMPLETED"


def mesh_pull(mesh: Mesh, **members: Any) -> list[Any]:
    worker = mesh.worker()
    mesh.workload()
    return mesh.pull(worker, **members).claims


def test_an_answer_ends_early_before_it_grows_too_large(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 100})
    for _ in range(30):
        mesh.workload(input="x" * 250_000)

    taken = mesh.pull(worker, max=100).claims

    assert 1 < len(taken) < 20
    assert sum(len(bytes(claim.input)) for claim in taken) < 4 * 1024 * 1024


def test_a_pull_counts_as_heard_once_a_second(mesh: Mesh) -> None:
    worker = mesh.worker()
    mesh.later(ms=20_000)
    mesh.pull(worker)

    assert mesh.row("SELECT last_seen_at_ms AS at FROM workers")["at"] == mesh.now.lease_ms


def test_nobody_pulls_for_another(mesh: Mesh) -> None:
    worker, other = mesh.worker(), mesh.worker("other")
    mesh.workload()
    key = mesh.key(other)

    assert mesh.refused(lambda: mesh.pull(worker, key)) == "FORBIDDEN"


def test_a_key_that_ended_pulls_nothing(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = mesh.workload()
    key = mesh.key(worker)
    mesh.hand("UPDATE keys SET revoked_at_ms = 1, revoked_reason = 'taken_over'")

    with pytest.raises(Refused) as refused:
        mesh.pull(worker, key)
    assert refused.value.code == "UNAUTHENTICATED"
    assert refused.value.facts["reasons"][0]["code"] == "taken_over"
    assert mesh.state(job) == "READY"


def test_a_key_of_an_earlier_process_pulls_nothing(mesh: Mesh) -> None:
    worker = mesh.worker()
    key = mesh.key(worker)
    mesh.hand("UPDATE workers SET incarnation = 2")

    assert mesh.refused(lambda: mesh.pull(worker, key)) == "UNAUTHENTICATED"


def test_work_goes_across_neither_tenant_nor_application(mesh: Mesh) -> None:
    worker = mesh.worker()
    mesh.workload(tenant_id="globex")
    mail = mesh.workload(application_id="mail")

    assert reasons(mesh, worker) == ["NO_WORK"]
    assert mesh.refused(lambda: mesh.claims(mail, by=worker)) == "MESH_PLACEMENT_DENIED"


def test_work_of_another_tenant_is_not_there_to_be_claimed(mesh: Mesh) -> None:
    worker = mesh.worker()
    foreign = mesh.workload(tenant_id="globex")

    for job in (foreign, "workload_made_up"):
        assert mesh.refused(lambda job=job: mesh.claims(job, by=worker)) == "WORKLOAD_NOT_FOUND"


class TestById:
    """A claim of one named workload, and its order of refusals."""

    def claim(self, mesh: Mesh, job: str, worker: str | None) -> str | None:
        body = convert({"worker_id": worker}, ClaimById)
        return mesh.refused(lambda: mesh.ask(claims.claim, body, job))

    def test_repeated_by_the_holder_it_is_the_same_claim(self, mesh: Mesh) -> None:
        worker = mesh.worker()
        job = mesh.workload()
        first = mesh.claims(job, by=worker)
        before = mesh.everything()

        held, new = mesh.ask(claims.claim, convert({"worker_id": worker}, ClaimById), job)

        assert (held, new) == (first, False)
        assert mesh.everything() == before

    def test_the_order_of_refusals(self, mesh: Mesh) -> None:
        worker, other = mesh.worker(), mesh.worker("other")
        needy = mesh.workload(capability_snapshot=["docs.ocr"])
        taken = mesh.workload()
        mesh.claims(taken, by=other)
        future = mesh.workload(not_before_at_ms=mesh.now.wall_ms + 5_000)
        picky = mesh.workload(placement={"required_labels": {"zone": "b"}})

        assert self.claim(mesh, "workload_none", "worker_none") == "WORKLOAD_NOT_FOUND"
        assert self.claim(mesh, taken, "worker_none") == "WORKER_NOT_FOUND"
        assert self.claim(mesh, needy, worker) == "WORKLOAD_CAPABILITY_DENIED"
        assert self.claim(mesh, taken, worker) == "WORKLOAD_NOT_READY"
        assert self.claim(mesh, future, worker) == "WORKLOAD_NOT_YET_ELIGIBLE"
        assert self.claim(mesh, picky, worker) == "MESH_PLACEMENT_DENIED"

    def test_every_rule_that_fails_is_named(self, mesh: Mesh) -> None:
        worker = mesh.worker(labels={"zone": "a"})
        mesh.claims(mesh.workload(), by=worker)
        picky = mesh.workload(
            placement={"required_labels": {"zone": "b"}}, resources={"cpu_millis": 500}
        )

        with pytest.raises(Refused) as refused:
            mesh.claims(picky, by=worker)

        assert refused.value.facts["rules"] == ["full", "resources", "required_labels"]
        assert refused.value.detail == "worker is not eligible"
        assert refused.value.facts["reasons"][2] == {
            "code": "required_labels",
            "detail": "a required label differs",
        }

    def test_without_a_key_the_body_must_say_who_takes_it(self, mesh: Mesh) -> None:
        assert self.claim(mesh, mesh.workload(), None) == "WORKLOAD_INVALID"

    def test_a_workers_key_takes_it_for_its_worker_alone(self, mesh: Mesh) -> None:
        worker, other = mesh.worker(), mesh.worker("other")
        job = mesh.workload()
        key = mesh.key(worker)
        by_other = convert({"worker_id": other}, ClaimById)

        assert mesh.refused(lambda: mesh.ask(claims.claim, by_other, job, key)) == "FORBIDDEN"
        held, new = mesh.ask(claims.claim, ClaimById(), job, key)
        assert (held.worker_id, new) == (worker, True)

    def test_it_is_claimable_though_the_keeper_has_not_yet_made_it_due(self, mesh: Mesh) -> None:
        worker = mesh.worker()
        job = mesh.workload(not_before_at_ms=mesh.now.wall_ms + 5_000)
        mesh.later(ms=5_000)

        assert mesh.claims(job, by=worker).workload_id == job
        mesh.promote()
        assert reasons(mesh, worker) == ["WORKER_FULL"]


class TestTheInsertDecides:
    """ISSUE tests everything itself; each condition is needed."""

    @pytest.mark.parametrize(
        "wrong",
        [
            "UPDATE workloads SET eligible_at_ms = eligible_at_ms + 1",
            "UPDATE workloads SET state = 'CANCELLED', due = 0, finished_at_ms = 1",
            "UPDATE workers SET lifecycle = 'DRAINING', lifecycle_cause = 'verb'",
            "UPDATE workers SET drain_by = 'x:y', drain_at_ms = 1, drain_until = 'resumed'",
            "UPDATE workers SET quarantined_at_ms = 1, quarantined_by = 'x:y'",
            "UPDATE applications SET gate_generation = gate_generation + 1",
            "UPDATE workers SET incarnation = 2",
            "UPDATE workers SET authority_live = 0",
            "UPDATE workers SET authority_unsettled = 1",
            "UPDATE workers SET authority_expires_at_ms = 1",
            "UPDATE keys SET revoked_at_ms = 1, revoked_reason = 'revoked'",
            "UPDATE keys SET expires_at_ms = 1",
        ],
    )
    def test_nothing_is_issued_against_what_is_stored(self, mesh: Mesh, wrong: str) -> None:
        params = self.params(mesh)
        mesh.hand(wrong)

        assert mesh.run(lambda tx, _, now: tx.row(taking.ISSUE, params)) is None

    def test_nothing_is_issued_beyond_concurrency(self, mesh: Mesh) -> None:
        params = self.params(mesh)
        mesh.claims(mesh.workload(), by=params["worker_id"])

        assert mesh.run(lambda tx, _, now: tx.row(taking.ISSUE, params)) is None

    @pytest.mark.parametrize("member", ["tenant_id", "application_id"])
    def test_nothing_is_issued_across_tenant_or_application(self, mesh: Mesh, member: str) -> None:
        params = self.params(mesh)
        params["workload_id"] = mesh.workload(**{member: "another"})

        assert mesh.run(lambda tx, _, now: tx.row(taking.ISSUE, params)) is None

    def params(self, mesh: Mesh) -> dict[str, Any]:
        worker = mesh.worker()
        params = {
            "workload_id": mesh.workload(),
            "worker_id": worker,
            "incarnation": 1,
            "lease_ms": 1_000,
            "now_ms": mesh.now.lease_ms,
            "wall_ms": mesh.now.wall_ms,
            "expires_at_ms": mesh.now.lease_ms + 1_000,
            "how": "pull",
            "key_id": mesh.key(worker).key_id,
            "request_id": None,
            "affinity": 0,
            "assigned": 0,
            "decision_id": None,
            "pool_id": None,
            "gate_generation": 0,
        }
        mesh.conn.execute("BEGIN")
        assert mesh.conn.execute(taking.ISSUE, params).fetchone() is not None
        mesh.conn.execute("ROLLBACK")
        return params


def test_claim_start_and_complete_are_at_most_twelve_statements(mesh: Mesh) -> None:
    """Heads included, with a key, as on the wire."""
    worker = mesh.worker()
    key = mesh.key(worker)
    for _ in range(3):
        mesh.workload()
    mesh.pull(worker, key, max=1)
    mesh.hand("UPDATE workers SET concurrency = 2")

    (held,) = mesh.pull(worker, key, request_id="poll-7").claims
    spent = [mesh.statements]
    mesh.say("start", held, caller=key)
    spent.append(mesh.statements)
    mesh.say("complete", held, caller=key, output={"words": 3})
    spent.append(mesh.statements)

    assert spent == [7, 2, 3]


def test_no_statement_of_the_claim_path_scans_a_table(mesh: Mesh) -> None:
    named = {
        f"{module.__name__}.{name}": text
        for module in (attempts, claims, evict, fence, giveback, holding, outcomes, refusal, sweep)
        for name, text in vars(module).items()
        if name.isupper()
        and isinstance(text, str)
        and text.lstrip()[:6] in ("SELECT", "UPDATE", "INSERT", "DELETE")
    }
    assert len(named) > 20
    for name, text in named.items():
        params = dict.fromkeys(_parameters(text), 0)
        plan = [row["detail"] for row in mesh.conn.execute("EXPLAIN QUERY PLAN " + text, params)]
        # The list of all claims walks them newest first, which is no scan for one; `live` and
        # `past` are one page each of what an index gave.
        scans = {step for step in plan if step.startswith("SCAN")} - {"SCAN live", "SCAN past"}
        if name != "feltd.mesh.holding.ALL":
            assert not scans, (name, plan)


def _parameters(text: str) -> set[str]:
    return set(re.findall(r":([a-z_0-9]+)", text))


class TestEvict:
    """An operator takes a claim away."""

    def evict(self, mesh: Mesh, claim_id: str, **members: Any) -> Any:
        body = convert({"reason": "host is replaced", **members}, Evict)
        return mesh.ask(evict.evict, body, claim_id)

    def test_the_work_is_free_at_once_and_nothing_is_spent(self, mesh: Mesh) -> None:
        held = mesh.claims(mesh.workload(), by=mesh.worker(), start=True)

        shown = self.evict(mesh, held.claim_id)

        assert (shown.state, shown.attempts[0].end, shown.attempts[0].spent) == (
            "READY",
            "evicted",
            False,
        )
        assert mesh.refusal("complete", held) == "WORKLOAD_STALE_FENCE"
        act = mesh.row("SELECT * FROM audit WHERE action = 'evict'")
        assert (act["subject"], act["reason"]) == (held.claim_id, "host is replaced")

    def test_it_may_spend_an_attempt_or_make_a_dead_letter(self, mesh: Mesh) -> None:
        worker = mesh.worker(capacity={"concurrency": 3})
        spent = mesh.claims(mesh.workload(), by=worker)
        last = mesh.claims(mesh.workload(retry_policy={"max_attempts": 1}), by=worker)
        dead = mesh.claims(mesh.workload(), by=worker)

        assert self.evict(mesh, spent.claim_id, spend_attempt=True).state == "READY"
        assert self.evict(mesh, last.claim_id, spend_attempt=True).state == "DEAD_LETTERED"
        assert self.evict(mesh, dead.claim_id, to="DEAD_LETTERED").state == "DEAD_LETTERED"

    def test_repeating_changes_nothing(self, mesh: Mesh) -> None:
        held = mesh.claims(mesh.workload(), by=mesh.worker())
        self.evict(mesh, held.claim_id)
        before = mesh.everything()

        assert self.evict(mesh, held.claim_id).state == "READY"
        assert mesh.everything() == before

    def test_an_ended_or_made_up_claim_cannot_be_evicted(self, mesh: Mesh) -> None:
        held = mesh.claims(mesh.workload(), by=mesh.worker())
        mesh.say("complete", held, start=True)

        assert mesh.refused(lambda: self.evict(mesh, held.claim_id)) == "WORKLOAD_STALE_FENCE"
        for claim_id in ("claim_99", "nonsense", "claim_", "claim_" + "9" * 30):
            code = mesh.refused(lambda claim_id=claim_id: self.evict(mesh, claim_id))
            assert code == "CLAIM_NOT_FOUND"


def test_what_nobody_was_told_of_is_given_back(mesh: Mesh) -> None:
    """BC-033: the client was gone when its claim was committed."""
    worker = mesh.worker(capacity={"concurrency": 3})
    for _ in range(3):
        mesh.workload()
    taken = mesh.pull(worker, max=3).claims
    mesh.say("complete", taken[0], start=True)

    assert mesh.run(giveback.give_back, taken) == 2
    assert mesh.run(giveback.give_back, taken) == 0
    assert [mesh.state(claim.workload_id) for claim in taken] == ["COMPLETED", "READY", "READY"]
    assert mesh.row("SELECT sum(attempts_spent) AS n FROM workloads")["n"] == 1


def test_lists_show_claims_newest_first_and_page_by_token(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 9})
    held = [mesh.claims(mesh.workload(), by=worker) for _ in range(5)]
    mesh.say("release", held[2])

    def page(**members: Any) -> tuple[list[int], int | None]:
        shown = mesh.ask(holding.list_claims, convert(members, ClaimQuery))
        return [one.fencing_token for one in shown.items], shown.next_before

    tokens = [claim.fencing_token for claim in reversed(held)]
    first, before = page(limit=3)
    rest, end = page(limit=3, before=before)
    assert (first + rest, end) == (tokens, None)
    assert page(live=True, worker_id=worker)[0] == [t for t in tokens if t != tokens[2]]
    assert page(live=False)[0] == [tokens[2]]
    assert page(workload_id=held[0].workload_id)[0] == [held[0].fencing_token]
    assert page(tenant_id="globex")[0] == []

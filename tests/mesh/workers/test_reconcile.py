"""After an outage both sides hold the same set, and no finished work is thrown away."""

from typing import Any

import pytest

from tests.mesh.workers.stories import Hand, House


def outcome(held: Any, **members: Any) -> dict[str, Any]:
    """A result of a claim: completed, unless a failure comes with it."""
    return {
        "attempt_id": held.attempt_id,
        "claim_id": held.claim_id,
        "fencing_token": held.fencing_token,
        "outcome": "failed" if "failure" in members else "completed",
        **members,
    }


def lost(house: House, edge: Hand, on_worker_lost: str = "lease") -> None:
    """The worker was silent for its timeout; its leases run on unless the story says."""
    house.mesh.later(ms=30_000)
    assert house.fails_silent(on_worker_lost) == [edge.id]


def test_every_live_claim_is_answered_whole_sent_or_not(house: House) -> None:
    edge = house.worker()
    known, unknown = edge.takes(2, lease_ms=60_000)
    lost(house, edge)

    verdict = edge.reconcile(known_claims=[known.claim_id], running_attempts=[known.attempt_id])

    assert [held.claim_id for held in verdict.authoritative_claims] == [
        known.claim_id,
        unknown.claim_id,
    ]
    assert verdict.authoritative_claims[1].fencing_token == unknown.fencing_token
    assert bytes(verdict.authoritative_claims[1].input) == b"null"
    assert (verdict.fenced_claims, verdict.cancel_attempts) == ([], [])
    assert verdict.server_time_ms == house.mesh.now.lease_ms
    assert (verdict.worker.lifecycle, verdict.worker.health) == ("BUSY", "HEALTHY")
    assert edge.says("release", unknown).state == "READY"


def test_what_ended_meanwhile_is_fenced_and_cancelled(house: House) -> None:
    edge = house.worker()
    [held] = edge.takes()
    lost(house, edge, "end")

    verdict = edge.reconcile(known_claims=[held.claim_id], running_attempts=[held.attempt_id])

    assert verdict.authoritative_claims == []
    assert verdict.fenced_claims == [held.claim_id]
    assert verdict.cancel_attempts == [held.attempt_id]


def test_slots_of_a_lost_worker_are_free_again(house: House) -> None:
    """BC-012: nothing is counted that is not held."""
    edge = house.worker()
    edge.takes(2)
    lost(house, edge, "end")

    assert edge.reconcile().worker.capacity.active == 0
    edge.beat()
    edge.takes(2)
    assert edge.shown().capacity.active == 2
    house.keeps_its_promises()


def test_the_servers_clock_decides_what_lives(house: House) -> None:
    edge = house.worker()
    [held] = edge.takes(lease_ms=30_000)
    lost(house, edge)

    verdict = edge.reconcile(
        known_claims=[held.claim_id], timestamp_at_ms=house.mesh.now.wall_ms - 60_000
    )

    assert verdict.fenced_claims == [held.claim_id]
    assert house.ends() == [(held.claim_id, "lease_expired")]
    assert verdict.worker.clock_skew_ms == -60_000


def test_a_superseded_attempt_is_cancelled_though_its_workload_runs(house: House) -> None:
    slow, fast = house.worker("slow"), house.worker("fast")
    [held] = slow.takes()
    slow.says("release", held)
    again = house.mesh.pull(fast.id, fast.caller, start=True).claims[0]
    assert again.workload_id == held.workload_id

    verdict = slow.reconcile(
        known_claims=[held.claim_id, again.claim_id],
        running_attempts=[held.attempt_id, again.attempt_id],
    )

    assert verdict.fenced_claims == sorted([held.claim_id, again.claim_id])
    assert verdict.cancel_attempts == sorted([held.attempt_id, again.attempt_id])
    assert fast.shown().claims == [again.claim_id]


def test_results_of_live_claims_commit(house: House) -> None:
    edge = house.worker(capacity={"concurrency": 3})
    done, broken, only_claimed = edge.takes(2, lease_ms=60_000) + edge.takes(
        1, start=False, lease_ms=60_000
    )
    lost(house, edge)

    verdict = edge.reconcile(
        known_claims=[done.claim_id, broken.claim_id, only_claimed.claim_id],
        completed_attempts=[done.attempt_id, only_claimed.attempt_id],
        failed_attempts=[broken.attempt_id],
        results=[
            outcome(done, result={"output": {"pages": 3}}),
            outcome(broken, failure={"kind": "transient", "message": "password=hunter2hunter2"}),
            outcome(only_claimed),
        ],
    )

    assert verdict.accepted_results == sorted(
        [done.attempt_id, broken.attempt_id, only_claimed.attempt_id]
    )
    assert verdict.late_results == verdict.fenced_claims == []
    assert verdict.authoritative_claims == []
    stored = house.mesh.row(
        "SELECT state, output, result_token FROM workloads WHERE workload_id = :id",
        id=done.workload_id,
    )
    assert tuple(stored) == ("COMPLETED", '{"pages":3}', done.fencing_token)
    assert house.mesh.state(broken.workload_id) == "READY"
    assert house.mesh.state(only_claimed.workload_id) == "COMPLETED"
    assert "hunter2" not in "".join(house.mesh.conn.iterdump())
    house.keeps_its_promises()


def test_a_repeated_reconciliation_gets_the_same_verdict(house: House) -> None:
    edge = house.worker()
    [held] = edge.takes()
    told: dict[str, Any] = {"results": [outcome(held, result={"output": 1})]}

    first = edge.reconcile(**told)
    again = edge.reconcile(**told)

    assert first.accepted_results == again.accepted_results == [held.attempt_id]


def test_late_results_are_kept_as_evidence_never_as_the_outcome(house: House) -> None:
    edge, other = house.worker(), house.worker("other")
    [held] = edge.takes()
    edge.says("release", held)
    again = house.mesh.pull(other.id, other.caller, start=True).claims[0]
    assert again.workload_id == held.workload_id

    verdict = edge.reconcile(results=[outcome(held, result={"output": "late"})])
    edge.reconcile(results=[outcome(held, result={"output": "later"})])

    assert (verdict.accepted_results, verdict.late_results) == ([], [held.attempt_id])
    assert house.mesh.state(held.workload_id) == "RUNNING"
    kept = house.mesh.conn.execute("SELECT fencing_token, outcome, report FROM late_results")
    [(token, said, report)] = [tuple(row) for row in kept]
    assert (token, said) == (held.fencing_token, "completed")
    assert '"late"' in report
    assert other.says("complete", again).state == "COMPLETED"


def test_what_looks_like_a_secret_is_covered_in_late_evidence_too(house: House) -> None:
    edge = house.worker(capacity={"concurrency": 2})
    done, broken = edge.takes(2)
    lost(house, edge)
    told = "password=hunter2hunter2"

    edge.reconcile(
        results=[
            outcome(done, result={"logs": [told]}),
            outcome(broken, failure={"kind": "transient", "message": told}),
        ]
    )

    kept = house.mesh.conn.execute("SELECT report FROM late_results").fetchall()
    assert [row["report"].count("‹redacted: assignment›") for row in kept] == [1, 1]
    assert "hunter2" not in "".join(house.mesh.conn.iterdump())


def test_results_of_others_and_made_up_ones_leave_no_trace(house: House) -> None:
    edge, other = house.worker(), house.worker("other")
    [theirs] = other.takes()
    made_up = {
        "attempt_id": "attempt_7",
        "claim_id": "claim_7",
        "fencing_token": 7,
        "outcome": "completed",
    }

    verdict = edge.reconcile(results=[outcome(theirs), made_up])

    assert verdict.late_results == sorted([theirs.attempt_id, "attempt_7"])
    assert house.mesh.row("SELECT count(*) AS n FROM late_results")["n"] == 0
    assert other.says("complete", theirs).state == "COMPLETED"


def test_finished_attempts_without_a_result_are_told_apart(house: House) -> None:
    edge = house.worker(capacity={"concurrency": 4})
    done, broken, given_back, live = edge.takes(4)
    edge.says("complete", done)
    edge.says("fail", broken, kind="transient", message="no")
    edge.says("release", given_back)

    verdict = edge.reconcile(
        known_claims=[live.claim_id],
        completed_attempts=[done.attempt_id, live.attempt_id],
        failed_attempts=[broken.attempt_id, given_back.attempt_id, "attempt_nonsense"],
    )

    assert verdict.accepted_results == sorted([done.attempt_id, broken.attempt_id])
    assert verdict.late_results == sorted([given_back.attempt_id, "attempt_nonsense"])
    assert [held.claim_id for held in verdict.authoritative_claims] == [live.claim_id]


def test_a_result_without_authority_leaves_the_claim_where_it_is(house: House) -> None:
    edge = house.worker()
    [held] = edge.takes()
    house.mesh.hand("UPDATE workers SET authority_live = 0 WHERE worker_id = :id", id=edge.id)

    verdict = edge.reconcile(known_claims=[held.claim_id], results=[outcome(held)])

    assert [kept.claim_id for kept in verdict.authoritative_claims] == [held.claim_id]
    assert verdict.accepted_results == verdict.late_results == []


@pytest.mark.parametrize(
    "members",
    [{"worker_version": "2"}, {"capability_version": 9}, {"worker_id": "worker_of_somebody"}],
)
def test_another_contract_must_register_first(house: House, members: dict[str, Any]) -> None:
    edge = house.worker()

    refused = house.refusal(lambda: edge.reconcile(**members))

    assert (refused.code, refused.next) == ("WORKER_RECONCILIATION_DENIED", "register")
    assert refused.detail == "worker contract version changed"


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"running_attempts": ["a"], "failed_attempts": ["b", "a"]}, "/failed_attempts/1"),
        ({"running_attempts": ["a"], "completed_attempts": ["a"]}, "/completed_attempts/0"),
        ({"known_claims": ["a"], "running_attempts": ["a"]}, "/running_attempts/0"),
    ],
)
def test_an_id_in_two_lists_is_refused(house: House, members: dict[str, Any], pointer: str) -> None:
    refused = house.refusal(lambda: house.worker().reconcile(**members))

    assert refused.code == "WORKER_INVALID"
    assert refused.facts["errors"][0]["pointer"] == pointer


def test_results_that_contradict_themselves_are_refused(house: House) -> None:
    edge = house.worker()
    [held] = edge.takes()
    failure = {"kind": "transient", "message": "no"}

    def pointer(**members: Any) -> str:
        refused = house.refusal(lambda: edge.reconcile(**members))
        assert refused.code == "WORKER_INVALID"
        return str(refused.facts["errors"][0]["pointer"])

    assert pointer(results=[outcome(held), outcome(held)]) == "/results/1"
    running = [held.attempt_id]
    assert pointer(results=[outcome(held)], running_attempts=running) == "/results/0"
    assert pointer(results=[outcome(held)], failed_attempts=running) == "/results/0"
    assert pointer(results=[{**outcome(held), "claim_id": "claim_999"}]) == "/results/0"
    assert pointer(results=[{**outcome(held), "outcome": "failed"}]) == "/results/0/failure"
    beside = {**outcome(held), "failure": failure}
    assert pointer(results=[beside]) == "/results/0/failure"
    assert pointer(results=[outcome(held, failure=failure, result={})]) == "/results/0/result"
    lapsed = outcome(held, failure={**failure, "kind": "lease_expired"})
    assert pointer(results=[lapsed]) == "/results/0/failure/kind"
    assert edge.shown().claims == [held.claim_id]


def test_reconciling_brings_no_more_workers_than_the_grant_allows(house: House) -> None:
    few = house.grant_for("registrar", constraints={"max_workers": 1})
    first = house.worker("first", grant=few)
    lost(house, first)
    house.worker("second", grant=few)

    assert house.refusal(first.reconcile).code == "WORKER_UNAUTHORIZED"
    assert first.shown().lifecycle == "OFFLINE"


def test_results_stand_although_the_grant_has_no_room_for_their_worker(house: House) -> None:
    few = house.grant_for("registrar", constraints={"max_workers": 1})
    first = house.worker("first", grant=few, capacity={"concurrency": 3})
    done, lapsed, running = first.takes(3, lease_ms=60_000)
    lost(house, first)
    first.says("release", lapsed)
    house.worker("second", grant=few)
    results = [outcome(done, result={"output": 1}), outcome(lapsed)]

    refused = house.refusal(lambda: first.reconcile(results=results))
    again = house.refusal(lambda: first.reconcile(results=results))

    assert (refused.code, refused.next) == ("WORKER_UNAUTHORIZED", "stop")
    assert "recorded" in refused.detail
    for told in (refused, again):
        assert told.facts["accepted_results"] == [done.attempt_id]
        assert told.facts["late_results"] == [lapsed.attempt_id]
        assert (told.facts["limit"], told.facts["used"]) == (1, 1)
    assert house.mesh.state(done.workload_id) == "COMPLETED"
    assert house.mesh.row("SELECT count(*) AS n FROM late_results")["n"] == 1
    assert first.shown().lifecycle == "OFFLINE"
    assert first.shown().claims == [running.claim_id]
    house.keeps_its_promises()


def test_ids_that_are_no_claims_are_fenced_like_any_other(house: House) -> None:
    """A bare number is not the claim of that number, whatever became of it."""
    edge = house.worker()
    [held] = edge.takes()
    bare, padded = str(held.fencing_token), f"claim_0{held.fencing_token}"

    verdict = edge.reconcile(known_claims=[bare, padded], results=[outcome(held)])

    assert verdict.accepted_results == [held.attempt_id]
    assert verdict.fenced_claims == sorted([bare, padded])

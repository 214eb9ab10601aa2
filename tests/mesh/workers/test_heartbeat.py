"""A worker beats, is heard by our clock, and learns where its account of its claims is wrong."""

from functools import partial

import pytest

from feltd.clock import Now
from feltd.mesh import assigned, cancel, directed, due, workers
from feltd.model.claim import ClaimById
from feltd.model.workload import Cancel
from tests.mesh.workers.stories import CAPABILITIES, House


def test_the_first_beat_makes_a_worker_ready(house: House) -> None:
    edge = house.worker()

    assert (edge.shown().lifecycle, edge.shown().health) == ("READY", "HEALTHY")


@pytest.mark.parametrize(
    "members",
    [
        {"worker_id": "worker_of_somebody"},
        {"version": "2"},
        {"capability_version": 7},
        {"process_id": "second"},
    ],
)
def test_a_beat_of_another_contract_must_register(house: House, members: dict[str, object]) -> None:
    edge = house.worker()
    before = edge.row()["last_seen_at_ms"]
    house.mesh.later(ms=2_000)

    refused = house.refusal(lambda: edge.beat(**members))

    assert refused.code == "WORKER_HEARTBEAT_REJECTED"
    assert refused.detail == "worker identity, version, or capability version changed"
    assert refused.next == "register"
    assert refused.facts["capability_version"] == edge.worker.capability_version
    assert edge.row()["last_seen_at_ms"] == before


def test_a_worker_that_is_not_there_must_register(house: House) -> None:
    edge = house.worker()
    house.operates("remove", edge.id)

    refused = house.refusal(edge.beat)

    assert (refused.code, refused.next) == ("WORKER_NOT_FOUND", "register")


def test_a_clock_that_is_off_is_refused_yet_the_beat_counts(house: House) -> None:
    """BC-022: nobody lives or dies by the clock of a worker."""
    edge = house.worker()
    house.mesh.later(ms=20_000)
    for off_ms in (5_001, -5_001, 315_360_000_000):
        wall_ms = house.mesh.now.wall_ms

        refused = house.refusal(partial(edge.beat, timestamp_at_ms=wall_ms + off_ms))

        assert (refused.code, refused.next) == ("WORKER_CLOCK_INVALID", "fix_clock")
        assert refused.facts["wall_time_ms"] == wall_ms
        assert refused.facts["server_time_ms"] == house.mesh.now.lease_ms
        assert edge.shown().clock_skew_ms == off_ms
    assert edge.row()["last_seen_at_ms"] == house.mesh.now.lease_ms
    house.mesh.later(ms=29_999)
    assert house.fails_silent() == []
    house.mesh.later(ms=1)
    assert house.fails_silent() == [edge.id]


@pytest.mark.parametrize("off_ms", [5_000, -5_000, 0])
def test_a_clock_within_five_seconds_is_taken(house: House, off_ms: int) -> None:
    edge = house.worker()

    answer = edge.beat(timestamp_at_ms=house.mesh.now.wall_ms + off_ms)

    assert answer.worker.clock_skew_ms == off_ms


def test_the_tolerance_is_of_wall_time_liveness_of_lease_time(house: House) -> None:
    """BC-024: the wall clock jumps a day; beats that follow it are fine, nobody fails."""
    edge = house.worker()
    now = house.mesh.now
    house.mesh.now = Now(now.lease_ms + 1_000, now.wall_ms + 86_400_000 - 5_000)

    assert house.fails_silent() == []
    assert edge.beat(timestamp_at_ms=house.mesh.now.wall_ms).worker.lifecycle == "READY"


def test_what_a_beat_reports_is_shown_and_decides_nothing(house: House) -> None:
    edge = house.worker()
    [held] = edge.takes()

    answer = edge.beat(
        capacity={"concurrency": 9, "active": 0},
        running_claims=[],
        reported={"load": 0.5, "rss_bytes": 1_024, "note": "warm"},
    )

    assert answer.worker.capacity.active == 1
    assert answer.worker.claims == [held.claim_id]
    assert answer.capacity_mismatch is not None
    assert (answer.capacity_mismatch.registered, answer.capacity_mismatch.reported) == (2, 9)
    assert answer.worker.reported is not None
    assert bytes(answer.worker.reported) == (
        b'{"concurrency":9,"active":0,"rss_bytes":1024,"load":0.5,"note":"warm"}'
    )


def test_a_poll_hears_that_its_worker_is_well_again(house: House) -> None:
    """One that waits through a bad hour would else look again by chance only."""
    edge = house.worker()
    edge.beat(health="DEGRADED")
    assert ("worker", edge.id) in house.mesh.signals

    edge.beat()
    assert ("worker", edge.id) in house.mesh.signals

    edge.beat()
    assert house.mesh.told == []


def test_busy_is_a_worker_whose_every_slot_is_taken(house: House) -> None:
    edge = house.worker(capacity={"concurrency": 1})
    [held] = edge.takes()

    assert edge.beat(running_claims=[held.claim_id]).worker.lifecycle == "BUSY"
    edge.says("complete", held)
    assert edge.shown().lifecycle == "READY"


def test_the_first_answer_after_a_recovery_names_the_fenced_claim(house: House) -> None:
    """BC-006: the worker is told, and its list puts nothing back."""
    slow, fast = house.worker("slow"), house.worker("fast")
    [held] = slow.takes(lease_ms=1_000)
    house.mesh.later(ms=1_000)
    assert slow.beat(running_claims=[held.claim_id]).fenced_claims == [held.claim_id]
    house.mesh.sweep()
    house.mesh.later(ms=2_000)
    house.mesh.run(due.promote, 100)
    taken = house.mesh.pull(fast.id, fast.caller).claims
    assert [claim.workload_id for claim in taken] == [held.workload_id]

    answer = slow.beat(running_claims=[held.claim_id])

    assert answer.fenced_claims == [held.claim_id]
    assert answer.worker.claims == []
    verdict = slow.reconcile(known_claims=[held.claim_id], running_attempts=[held.attempt_id])
    assert verdict.fenced_claims == [held.claim_id]
    assert verdict.cancel_attempts == [held.attempt_id]
    assert slow.shown().claims == []


def test_a_claim_nobody_runs_is_named_once_it_should_be_known(house: House) -> None:
    edge = house.worker()
    [held] = edge.takes()
    house.mesh.later(ms=5_000)
    assert edge.beat().unknown_claims == []
    house.mesh.later(ms=1)

    assert edge.beat().unknown_claims == [held.claim_id]
    assert edge.beat(running_claims=[held.claim_id]).unknown_claims == []


def test_made_up_and_foreign_claims_are_fenced(house: House) -> None:
    edge, other = house.worker(), house.worker("other")
    [theirs] = other.takes()

    answer = edge.beat(running_claims=["claim_0", "nonsense", theirs.claim_id])

    assert answer.fenced_claims == sorted(["claim_0", "nonsense", theirs.claim_id])


def test_a_claim_that_shall_be_cancelled_is_named(house: House) -> None:
    edge = house.worker()
    [held] = edge.takes()
    house.mesh.hand(
        "UPDATE workloads SET cancel_requested = 1 WHERE workload_id = :id", id=held.workload_id
    )

    assert edge.beat(running_claims=[held.claim_id]).cancel_claims == [held.claim_id]


def test_a_beat_renews_what_it_reports_and_nothing_else(house: House) -> None:
    """BC-020: 20 s of work on a 5 s lease is one attempt when it is renewed."""
    edge = house.worker(heartbeat_interval_ms=1_000)
    named, unnamed = edge.takes(2, lease_ms=5_000)
    for _ in range(5):
        house.mesh.later(ms=4_000)
        answer = edge.beat(running_claims=[named.claim_id], renew_leases=True, lease_ms=5_000)
        house.mesh.sweep()

    assert answer.renewed == {named.claim_id: house.mesh.now.lease_ms + 5_000}
    assert house.ends() == [(unnamed.claim_id, "lease_expired")]
    assert edge.says("complete", named).state == "COMPLETED"


def test_progress_is_kept_of_live_claims_only(house: House) -> None:
    edge, other = house.worker(), house.worker("other")
    [held] = edge.takes()
    [theirs] = other.takes()

    edge.beat(
        running_claims=[held.claim_id],
        progress={held.claim_id: {"done": 3, "total": 9}, theirs.claim_id: {"done": 1}},
    )

    def progress(workload_id: str) -> str | None:
        sql = "SELECT progress FROM workloads WHERE workload_id = :id"
        told: str | None = house.mesh.row(sql, id=workload_id)["progress"]
        return told

    assert progress(held.workload_id) == '{"done":3,"total":9}'
    assert progress(theirs.workload_id) is None
    # Nothing is written at the end of a lease, though nobody has recovered it yet.
    house.mesh.later(ms=held.expires_at_ms - house.mesh.now.lease_ms)
    edge.beat(progress={held.claim_id: {"done": 4}})
    assert progress(held.workload_id) == '{"done":3,"total":9}'


@pytest.mark.parametrize("member", ["start_ms", "execution_ms", "total_ms"])
def test_what_has_timed_out_is_no_live_claim_swept_or_not(house: House, member: str) -> None:
    edge = house.worker(capacity={"concurrency": 4})
    house.mesh.workload(capability_snapshot=CAPABILITIES, timeouts={member: 5_000})
    start = member != "start_ms"
    pulled = house.mesh.pull(edge.id, edge.caller, start=start, lease_ms=60_000)
    [held] = pulled.claims
    house.mesh.ask(cancel.cancel, Cancel(), held.workload_id)
    house.mesh.later(ms=4_999)
    assert edge.beat(running_claims=[held.claim_id]).cancel_claims == [held.claim_id]
    house.mesh.later(ms=1)

    reported = edge.beat(running_claims=[held.claim_id], renew_leases=True)
    silent = edge.beat()

    assert reported.fenced_claims == [held.claim_id]
    assert reported.renewed == {}
    assert reported.cancel_claims == silent.cancel_claims == silent.unknown_claims == []
    assert house.refusal(lambda: edge.says("complete", held)).code == "WORKLOAD_STALE_FENCE"


def test_a_given_claim_whose_time_to_start_has_passed_is_not_told_of(house: House) -> None:
    edge = house.worker()
    giver = house.key("giver", ["workloads:operate"], None, ("*",))
    job = house.mesh.workload(capability_snapshot=CAPABILITIES, timeouts={"start_ms": 5_000})
    body = ClaimById(worker_id=edge.id, lease_ms=60_000)
    house.mesh.ask(directed.claim, body, job, giver)
    assert len(edge.beat().assigned_claims) == 1

    house.mesh.later(ms=5_000)

    assert edge.beat().assigned_claims == []
    assert house.mesh.run(lambda tx, _, now: assigned.of_worker(tx, edge.id, now)) == []
    again = house.refusal(lambda: house.mesh.ask(directed.claim, body, job, giver))
    assert again.code == "WORKLOAD_NOT_READY"


def test_a_failed_worker_must_reconcile_before_it_beats(house: House) -> None:
    edge = house.worker()
    house.mesh.later(ms=30_000)
    house.fails_silent()

    refused = house.refusal(edge.beat)

    assert (refused.code, refused.next) == ("WORKER_RECOVERY_REQUIRED", "reconcile")
    assert refused.detail == "offline worker must reconcile before heartbeat"
    assert refused.facts["offline_reason"] == "failed"
    house.operates("recover", edge.id)
    assert house.refusal(edge.beat).code == "WORKER_RECOVERY_REQUIRED"
    assert edge.reconcile().worker.lifecycle == "READY"
    assert edge.beat().worker.lifecycle == "READY"


def test_the_key_of_another_worker_beats_for_nobody_else(house: House) -> None:
    edge, other = house.worker(), house.worker("other")

    edge.id = other.id

    assert house.refusal(edge.beat).code == "FORBIDDEN"


def test_a_beat_writes_neither_event_nor_audit_row(house: House) -> None:
    edge = house.worker()
    count = "SELECT (SELECT count(*) FROM events) + (SELECT count(*) FROM audit) AS n"
    before = house.mesh.row(count)["n"]
    house.mesh.later(ms=1_000)

    edge.beat()

    assert house.mesh.row(count)["n"] == before


def test_every_accepted_call_counts_as_heard_once_a_second(house: House) -> None:
    edge = house.worker(heartbeat_timeout_ms=3_000)
    [held] = edge.takes()
    begun_ms = edge.row()["last_seen_at_ms"]
    house.mesh.later(ms=999)
    edge.says("renew", held)
    house.mesh.run(lambda tx, _, now: workers.heard(tx, edge.id, now))
    assert edge.row()["last_seen_at_ms"] == begun_ms
    house.mesh.later(ms=1)
    edge.says("renew", held)

    assert edge.row()["last_seen_at_ms"] == begun_ms + 1_000
    house.mesh.later(ms=2_999)
    assert house.fails_silent() == []


def test_the_answer_says_when_the_grant_ends(house: House) -> None:
    edge = house.worker()

    assert edge.beat().grant_expires_at_ms == house.grant.expires_at_ms

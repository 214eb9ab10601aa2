"""Stories of work that takes too long: to be taken, to be started, to run, to be done at all."""

import pytest
from msgspec import convert

from feltd.mesh import cancel, due, overdue, reconcile, requeue, vitals
from feltd.model.worker import Reconciliation
from feltd.model.workload import Cancel, Requeue
from tests.mesh.deadlines.stories import bounded, deadline, newest_claim, round_of, standing
from tests.mesh.world import Mesh


def test_work_that_nobody_takes_in_time_is_a_dead_letter(mesh: Mesh) -> None:
    job = bounded(mesh, queue_ms=5_000)
    assert deadline(mesh, job) == 5_000
    mesh.later(4_999)
    assert round_of(mesh) == (0, mesh.now.lease_ms + 1)
    mesh.later(1)
    assert round_of(mesh) == (1, None)
    assert standing(mesh, job) == ("DEAD_LETTERED", "queue_timeout")
    told = mesh.row("SELECT failure_message AS said FROM workloads")["said"]
    assert told == "no worker took it within its queue_ms of 5000"
    assert deadline(mesh, job) is None
    event = mesh.row("SELECT kind, from_state, to_state, end_kind FROM events WHERE seq > 1")
    assert tuple(event) == ("time_out", "READY", "DEAD_LETTERED", "queue_timeout")


def test_who_waits_for_the_end_and_who_polls_behind_it_are_told(mesh: Mesh) -> None:
    job = bounded(mesh, queue_ms=5_000)
    mesh.later(5_000)
    mesh.run(overdue.end_timeouts, 10)
    assert {("ready", "acme/docs"), ("workload", job)} <= set(mesh.signals)


def test_the_queue_is_counted_from_when_it_may_run(mesh: Mesh) -> None:
    job = mesh.workload(timeouts={"queue_ms": 5_000}, not_before_at_ms=mesh.now.wall_ms + 60_000)
    assert deadline(mesh, job) == 65_000
    mesh.later(64_999)
    round_of(mesh)
    assert standing(mesh, job)[0] == "READY"
    mesh.later(1)
    round_of(mesh)
    assert standing(mesh, job) == ("DEAD_LETTERED", "queue_timeout")


def test_a_wall_clock_that_is_set_moves_the_queue_with_the_instant(mesh: Mesh) -> None:
    job = mesh.workload(timeouts={"queue_ms": 5_000}, not_before_at_ms=mesh.now.wall_ms + 60_000)
    mesh.run(due.rescale, 100)
    mesh.now = mesh.now._replace(wall_ms=mesh.now.wall_ms + 20_000)
    mesh.run(due.rescale, 100)
    assert deadline(mesh, job) == 45_000


def test_the_queue_begins_anew_with_each_attempt_and_after_its_backoff(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = mesh.workload(
        timeouts={"queue_ms": 5_000}, retry_policy={"initial_backoff_ms": 10_000, "jitter": 0}
    )
    held = mesh.claims(job, by=worker, start=True)
    assert deadline(mesh, job) is None, "nothing bounds the run"
    mesh.later(20_000)
    mesh.say("fail", held)
    assert deadline(mesh, job) == 15_000


@pytest.mark.parametrize("kind", ["queue_timeout", "total_timeout"])
def test_neither_queue_nor_total_is_retried(mesh: Mesh, kind: str) -> None:
    member = kind.replace("timeout", "ms")
    job = mesh.workload(
        timeouts={member: 5_000}, retry_policy={"max_attempts": 100, "retry_on": [kind]}
    )
    if kind == "total_timeout":
        mesh.claims(job, by=mesh.worker())
    mesh.later(5_000)
    round_of(mesh)
    assert standing(mesh, job) == ("DEAD_LETTERED", kind)


def test_a_claim_that_is_not_started_ends_and_the_work_is_tried_again(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = bounded(mesh, start_ms=2_000)
    held = mesh.claims(job, by=worker)
    assert deadline(mesh, job) == 2_000
    mesh.later(1_999)
    mesh.say("renew", held)
    mesh.later(1)
    assert mesh.refusal("renew", held) == "WORKLOAD_STALE_FENCE"
    assert mesh.refusal("start", held) == "WORKLOAD_STALE_FENCE"
    round_of(mesh)
    assert standing(mesh, job) == ("READY", "timeout")
    ended = newest_claim(mesh, job)
    assert (ended["end_kind"], ended["end_state"], ended["spent"]) == ("timeout", "READY", 1)
    assert ended["failure_message"] == "its worker did not start it within its start_ms of 2000"
    assert mesh.row("SELECT kind FROM events ORDER BY seq DESC LIMIT 1")["kind"] == "time_out"


def test_a_start_in_time_ends_the_wait_for_it(mesh: Mesh) -> None:
    job = bounded(mesh, start_ms=2_000)
    held = mesh.claims(job, by=mesh.worker())
    mesh.later(1_999)
    mesh.say("start", held)
    assert deadline(mesh, job) is None
    mesh.later(5_000)
    round_of(mesh)
    assert mesh.say("complete", held).state == "COMPLETED"


def test_renewing_never_makes_a_run_longer(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = bounded(mesh, execution_ms=60_000)
    held = mesh.claims(job, by=worker, start=True)
    for _ in range(3):
        mesh.later(19_999)
        mesh.say("renew", held)
        mesh.say("checkpoint", held)
        round_of(mesh)
    assert deadline(mesh, job) == 3
    mesh.later(3)
    for verb in ("renew", "checkpoint", "log"):
        assert mesh.refusal(verb, held) == "WORKLOAD_STALE_FENCE"
    round_of(mesh)
    assert standing(mesh, job) == ("READY", "timeout")
    assert newest_claim(mesh, job)["failure_message"] == (
        "it ran longer than its execution_ms of 60000"
    )


def test_the_last_attempt_that_runs_too_long_leaves_a_dead_letter(mesh: Mesh) -> None:
    job = mesh.workload(timeouts={"execution_ms": 1_000}, retry_policy={"max_attempts": 1})
    mesh.claims(job, by=mesh.worker(), start=True)
    mesh.later(1_000)
    round_of(mesh)
    assert standing(mesh, job) == ("DEAD_LETTERED", "timeout")


@pytest.mark.parametrize("verb", ["complete", "fail", "release"])
@pytest.mark.parametrize("swept", [False, True])
def test_what_comes_at_the_deadline_is_too_late_swept_or_not(
    mesh: Mesh, verb: str, swept: bool
) -> None:
    """The outcome does not hang on when the keeper came: at the deadline the claim is over."""
    job = bounded(mesh, execution_ms=1_000)
    held = mesh.claims(job, by=mesh.worker(), start=True)
    mesh.later(1_000)
    if swept:
        round_of(mesh)
    assert mesh.refusal(verb, held) == "WORKLOAD_STALE_FENCE"
    round_of(mesh)
    assert standing(mesh, job) == ("READY", "timeout")


def test_what_comes_just_before_the_deadline_counts(mesh: Mesh) -> None:
    job = bounded(mesh, execution_ms=1_000)
    held = mesh.claims(job, by=mesh.worker(), start=True)
    mesh.later(999)
    assert mesh.say("complete", held).state == "COMPLETED"
    assert deadline(mesh, job) is None


def test_complete_with_start_is_judged_by_the_start_timeout_first(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = bounded(mesh, start_ms=1_000, execution_ms=1)
    held = mesh.claims(job, by=worker)
    mesh.later(999)
    assert mesh.say("complete", held, start=True).state == "COMPLETED"
    late = bounded(mesh, start_ms=1_000, execution_ms=1)
    held = mesh.claims(late, by=worker)
    mesh.later(1_000)
    assert mesh.refusal("complete", held, start=True) == "WORKLOAD_STALE_FENCE"


def test_total_cuts_a_live_claim(mesh: Mesh) -> None:
    job = bounded(mesh, total_ms=10_000, execution_ms=60_000)
    held = mesh.claims(job, by=mesh.worker(), start=True, lease_ms=60_000)
    mesh.later(10_000)
    assert mesh.refusal("renew", held) == "WORKLOAD_STALE_FENCE"
    round_of(mesh)
    assert standing(mesh, job) == ("DEAD_LETTERED", "total_timeout")
    ended = newest_claim(mesh, job)
    assert (ended["end_kind"], ended["spent"]) == ("total_timeout", 1)


def test_total_goes_on_over_attempts_and_backoff(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = bounded(mesh, total_ms=10_000)
    held = mesh.claims(job, by=worker, start=True)
    mesh.later(4_000)
    mesh.say("fail", held)
    assert deadline(mesh, job) == 6_000
    mesh.later(6_000)
    round_of(mesh)
    assert standing(mesh, job) == ("DEAD_LETTERED", "total_timeout")


def test_a_timeout_of_work_that_shall_be_cancelled_cancels_it(mesh: Mesh) -> None:
    for member in ("execution_ms", "total_ms"):
        job = bounded(mesh, **{member: 1_000})
        mesh.claims(job, by=mesh.worker(name=member.replace("_", "-")), start=True)
        mesh.ask(cancel.cancel, Cancel(), job)
        mesh.later(1_000)
        round_of(mesh)
        assert standing(mesh, job)[0] == "CANCELLED"


def test_cancelled_work_has_no_timeout_left(mesh: Mesh) -> None:
    job = bounded(mesh, queue_ms=1_000)
    mesh.ask(cancel.cancel, Cancel(), job)
    assert deadline(mesh, job) is None


def test_a_requeue_begins_every_timeout_anew(mesh: Mesh) -> None:
    job = bounded(mesh, total_ms=10_000)
    mesh.later(10_000)
    round_of(mesh)
    mesh.later(100_000)
    assert mesh.ask(requeue.requeue, Requeue(), job).state == "READY"
    assert deadline(mesh, job) == 10_000
    mesh.later(10_000)
    round_of(mesh)
    assert standing(mesh, job) == ("DEAD_LETTERED", "total_timeout")


@pytest.mark.parametrize(("execution_ms", "kind"), [(500, "timeout"), (2_000, "lease_expired")])
def test_of_a_lease_and_a_timeout_the_earlier_end_counts(
    mesh: Mesh, execution_ms: int, kind: str
) -> None:
    """However late the keeper comes by: it finds both over."""
    job = bounded(mesh, execution_ms=execution_ms)
    mesh.claims(job, by=mesh.worker(), start=True, lease_ms=1_000)
    mesh.later(60_000)
    round_of(mesh)
    assert newest_claim(mesh, job)["end_kind"] == kind


def test_the_timeouts_are_ended_also_when_leases_are_not_recovered_first(mesh: Mesh) -> None:
    job = bounded(mesh, execution_ms=2_000)
    mesh.claims(job, by=mesh.worker(), start=True, lease_ms=1_000)
    mesh.later(60_000)
    mesh.run(overdue.end_timeouts, 10)
    assert newest_claim(mesh, job)["end_kind"] == "lease_expired"


def test_an_outage_gives_time_to_start_but_none_to_run(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 4})
    waiting = bounded(mesh, start_ms=10_000)
    limited = bounded(mesh, start_ms=10_000, total_ms=70_000)
    running = bounded(mesh, execution_ms=10_000)
    held = {
        job: mesh.claims(job, by=worker, start=job == running)
        for job in (waiting, limited, running)
    }
    mesh.later(60_000)
    mesh.run(lambda tx, _, now: vitals.credit(tx, now, 60_000, first=False))
    assert deadline(mesh, waiting) == 30_000, "a heartbeat timeout from now"
    assert deadline(mesh, limited) == 10_000, "never past total_ms"
    assert deadline(mesh, running) == -50_000
    round_of(mesh)
    assert standing(mesh, running) == ("READY", "timeout")
    assert mesh.say("start", held[waiting]).state == "RUNNING"
    mesh.later(10_000)
    round_of(mesh)
    assert standing(mesh, limited) == ("DEAD_LETTERED", "total_timeout")


def test_an_outage_gives_nothing_to_what_was_over_before(mesh: Mesh) -> None:
    job = bounded(mesh, start_ms=1_000)
    mesh.claims(job, by=mesh.worker())
    mesh.later(60_000)
    mesh.run(lambda tx, _, now: vitals.credit(tx, now, 50_000, first=False))
    assert deadline(mesh, job) == -59_000
    round_of(mesh)
    assert newest_claim(mesh, job)["end_kind"] == "timeout"


def test_work_past_its_queue_timeout_is_given_to_nobody(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = bounded(mesh, queue_ms=1_000)
    behind = mesh.workload()
    mesh.later(1_000)
    assert mesh.refused(lambda: mesh.claims(job, by=worker)) == "WORKLOAD_NOT_READY"
    mesh.pull(worker)
    assert standing(mesh, job)[0] == "READY", "not taken, and not yet ended"
    round_of(mesh)
    assert [held.workload_id for held in mesh.pull(worker).claims] == [behind]


def test_one_pass_is_bounded_and_says_when_to_come_again(mesh: Mesh) -> None:
    for _ in range(5):
        bounded(mesh, queue_ms=1_000)
    later = bounded(mesh, queue_ms=5_000)
    mesh.later(1_000)
    ended, again = round_of(mesh, limit=3)
    assert (ended, again) == (3, mesh.now.lease_ms)
    assert round_of(mesh, limit=3) == (2, mesh.now.lease_ms + 4_000)
    assert standing(mesh, later)[0] == "READY"


def test_one_that_cannot_be_ended_keeps_no_other_from_its_end(mesh: Mesh) -> None:
    stuck, free = bounded(mesh, queue_ms=1_000), bounded(mesh, queue_ms=1_000)
    mesh.hand(
        "CREATE TRIGGER stuck BEFORE UPDATE ON workloads WHEN NEW.state = 'DEAD_LETTERED'"
        f" AND NEW.workload_id = '{stuck}' BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    mesh.later(1_000)
    assert mesh.refused(lambda: mesh.run(overdue.end_timeouts, 10)) == "INTERNAL"
    assert standing(mesh, free)[0] == "DEAD_LETTERED"
    assert standing(mesh, stuck)[0] == "READY"


def test_a_row_without_reason_is_taken_away(mesh: Mesh) -> None:
    job = mesh.workload()
    mesh.hand("INSERT INTO deadlines VALUES (:job, 1)", job=job)
    assert mesh.run(overdue.end_timeouts, 10) == (1, None)
    assert standing(mesh, job)[0] == "READY"
    assert deadline(mesh, job) is None


def test_work_without_timeouts_pays_for_none(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = mesh.workload()
    mesh.pull(worker, start=True)
    assert mesh.conn.execute("SELECT count(*) FROM deadlines").fetchone()[0] == 0
    assert standing(mesh, job)[0] == "RUNNING"


def test_the_keeper_is_told_the_instant(mesh: Mesh) -> None:
    bounded(mesh, queue_ms=1_000)
    assert ("deadline", str(mesh.now.lease_ms + 1_000)) in mesh.signals


def test_a_claim_past_its_timeout_is_not_given_again(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = bounded(mesh, start_ms=1_000)
    mesh.pull(worker, request_id="r")
    mesh.later(1_000)
    assert mesh.pull(worker, request_id="r").claims == []
    assert mesh.refused(lambda: mesh.claims(job, by=worker)) == "WORKLOAD_NOT_READY"


def test_reconciliation_ends_what_has_timed_out_before_it_answers(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 2})
    over = mesh.claims(bounded(mesh, execution_ms=1_000), by=worker, start=True)
    kept = mesh.claims(mesh.workload(), by=worker, start=True)
    mesh.later(1_000)
    body = Reconciliation(
        worker_id=worker,
        worker_version="1",
        capability_version=1,
        known_claims=(over.claim_id, kept.claim_id),
    )
    answer = mesh.ask(reconcile.reconcile, body, worker)
    assert [claim.claim_id for claim in answer.authoritative_claims] == [kept.claim_id]
    assert answer.fenced_claims == [over.claim_id]
    assert standing(mesh, over.workload_id) == ("READY", "timeout")


@pytest.mark.parametrize("outcome", ["completed", "failed"])
@pytest.mark.parametrize("swept", [False, True])
def test_a_result_that_comes_after_the_timeout_is_kept_as_evidence(
    mesh: Mesh, outcome: str, swept: bool
) -> None:
    worker = mesh.worker(capacity={"concurrency": 2})
    sent = mesh.claims(bounded(mesh, execution_ms=1_000), by=worker, start=True)
    lost = mesh.claims(bounded(mesh, execution_ms=1_000), by=worker, start=True)
    mesh.later(1_000)
    if swept:
        round_of(mesh)
    told = {"failure": {"kind": "timeout", "message": "slow"}} if outcome == "failed" else {}
    result = {
        "attempt_id": sent.attempt_id,
        "claim_id": sent.claim_id,
        "fencing_token": sent.fencing_token,
        "outcome": outcome,
        **told,
    }
    body = {
        "worker_id": worker,
        "worker_version": "1",
        "capability_version": 1,
        "results": [result],
        f"{outcome}_attempts": [lost.attempt_id],
    }
    answer = mesh.ask(reconcile.reconcile, convert(body, Reconciliation), worker)
    assert answer.accepted_results == []
    assert answer.late_results == sorted([sent.attempt_id, lost.attempt_id])
    assert answer.authoritative_claims == []
    assert standing(mesh, sent.workload_id) == ("READY", "timeout")
    assert mesh.row("SELECT outcome FROM late_results")["outcome"] == outcome

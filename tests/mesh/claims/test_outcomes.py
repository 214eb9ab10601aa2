"""A claim ends once, in one way; what its holder repeats is answered as the first time."""

from typing import Any

import pytest

from feltd.errors import Refused
from feltd.mesh import attempts, cancel
from feltd.model.workload import Cancel
from tests.mesh.world import Mesh

STALE = "WORKLOAD_STALE_FENCE"


def attempts_of(mesh: Mesh, job: str) -> list[tuple[Any, ...]]:
    return [
        tuple(row)
        for row in mesh.conn.execute(
            "SELECT number, end_kind, end_state, spent FROM claims"
            " WHERE workload_id = :id ORDER BY fencing_token",
            {"id": job},
        )
    ]


def ends(mesh: Mesh, job: str, kind: str, **members: Any) -> attempts.Ended:
    return mesh.run(
        lambda tx, _, now: attempts.end_claim(tx, now, job, attempts.End(kind, **members))
    )


def test_complete_stores_the_one_result(mesh: Mesh) -> None:
    job = mesh.workload()
    held = mesh.claims(job, by=mesh.worker(), start=True)

    done = mesh.say(
        "complete",
        held,
        output={"words": 3},
        artifacts=["s3://b/1"],
        logs=["password=hunter2hunter2"],
        resource_usage={"cpu_ms": 12},
    )

    row = mesh.row("SELECT * FROM workloads WHERE workload_id = :id", id=job)
    assert done.result_id == f"result_{job}_{held.fencing_token}" == row["result_id"]
    assert (done.state, row["output"], row["artifacts"]) == (
        "COMPLETED",
        '{"words":3}',
        '["s3://b/1"]',
    )
    assert "hunter2" not in row["result_logs"]
    assert row["result_token"] == held.fencing_token
    assert (row["claim_worker_id"], row["lane_id"], row["expires_at_ms"]) == (None, None, None)
    claim = mesh.row("SELECT * FROM claims")
    assert (claim["end_kind"], claim["end_state"], claim["spent"]) == (
        "completed",
        "COMPLETED",
        1,
    )
    assert (claim["started_at_ms"], claim["expires_at_ms"]) == (
        mesh.now.lease_ms,
        held.expires_at_ms,
    )


def test_a_repeated_complete_gets_the_first_answer(mesh: Mesh) -> None:
    """BC-036: a reply was lost after the commit."""
    held = mesh.claims(mesh.workload(), by=mesh.worker(), start=True)
    first = mesh.say("complete", held, output={"b": 1, "a": 2})
    before = mesh.everything()
    mesh.later(ms=600_000)

    assert mesh.say("complete", held, output={"a": 2, "b": 1}) == first
    assert mesh.everything() == before


def test_a_complete_with_another_body_is_told_that_one_was_recorded(mesh: Mesh) -> None:
    held = mesh.claims(mesh.workload(), by=mesh.worker(), start=True)
    mesh.say("complete", held, output=1)
    before = mesh.everything()

    with pytest.raises(Refused) as refused:
        mesh.say("complete", held, output=2)

    assert (refused.value.code, refused.value.facts["recorded"]) == (STALE, True)
    assert mesh.refusal("complete", held, output=1, result_id="r-2") == STALE
    assert mesh.everything() == before


@pytest.mark.parametrize("verb", ["fail", "release"])
def test_a_repeated_end_gets_the_first_answer(mesh: Mesh, verb: str) -> None:
    held = mesh.claims(mesh.workload(), by=mesh.worker(), start=True)
    first = mesh.say(verb, held)
    before = mesh.everything()
    mesh.later(ms=5_000)

    assert mesh.say(verb, held) == first
    assert mesh.everything() == before


def test_a_repeat_is_answered_while_somebody_else_holds_the_work(mesh: Mesh) -> None:
    job = mesh.workload()
    held = mesh.claims(job, by=mesh.worker("a"), start=True)
    first = mesh.say("release", held)
    mesh.claims(job, by=mesh.worker("b"), start=True)
    before = mesh.everything()

    assert mesh.say("release", held) == first
    assert mesh.everything() == before


@pytest.mark.parametrize("ended", ["complete", "fail", "release"])
def test_any_other_verb_on_an_ended_claim_is_stale(mesh: Mesh, ended: str) -> None:
    held = mesh.claims(mesh.workload(), by=mesh.worker(), start=True)
    mesh.say(ended, held)

    for verb in ("start", "renew", "checkpoint", "log", "complete", "fail", "release"):
        if verb != ended:
            assert mesh.refusal(verb, held) == STALE, verb


@pytest.mark.parametrize("verb", ["fail", "release", "complete"])
def test_who_did_not_end_the_claim_gets_no_recorded_outcome(mesh: Mesh, verb: str) -> None:
    """The daemon's own ends are no answer to a repeat, whatever their kind is called."""
    job = mesh.workload(retry_policy={"max_attempts": 9})
    held = mesh.claims(job, by=mesh.worker(), start=True)
    ends(mesh, job, {"fail": "timeout", "release": "released", "complete": "evicted"}[verb])

    assert mesh.refusal(verb, held) == STALE


@pytest.mark.parametrize("verb", ["complete", "fail"])
def test_start_true_starts_a_claim_that_is_only_claimed(mesh: Mesh, verb: str) -> None:
    job = mesh.workload()
    held = mesh.claims(job, by=mesh.worker())

    mesh.say(verb, held, start=True)

    kinds = [row["kind"] for row in mesh.conn.execute("SELECT kind FROM events ORDER BY seq")]
    assert kinds[-3:] == ["claim", "start", verb]
    assert mesh.row("SELECT started_at_ms AS at FROM claims")["at"] == mesh.now.lease_ms


def test_start_true_on_a_running_claim_changes_nothing_of_it(mesh: Mesh) -> None:
    held = mesh.claims(mesh.workload(), by=mesh.worker(), start=True)
    mesh.later(ms=10)

    assert mesh.say("complete", held, start=True).state == "COMPLETED"


def test_a_late_complete_does_not_start_anything_either(mesh: Mesh) -> None:
    job = mesh.workload()
    held = mesh.claims(job, by=mesh.worker(), lease_ms=1_000)
    mesh.later(ms=1_000)

    assert mesh.refusal("complete", held, start=True) == STALE
    assert mesh.state(job) == "CLAIMED"


def test_expiry_and_failure_share_one_path_and_the_dead_letter_comes_last(mesh: Mesh) -> None:
    """BC-046: max_attempts 5 gives five attempts, whatever ended each."""
    worker = mesh.worker()
    job = mesh.workload(retry_policy={"max_attempts": 5})
    for number in range(1, 6):
        held = mesh.claims(job, by=worker, lease_ms=1_000, start=True)
        assert held.attempt_number == number
        if number % 2:
            mesh.later(ms=1_000)
            mesh.sweep()
        else:
            mesh.say("fail", held)
        assert mesh.state(job) == ("DEAD_LETTERED" if number == 5 else "READY")
        mesh.later(ms=200_000)

    assert [(kind, spent) for _, kind, _, spent in attempts_of(mesh, job)] == [
        ("lease_expired", 1),
        ("transient", 1),
        ("lease_expired", 1),
        ("transient", 1),
        ("lease_expired", 1),
    ]


def test_work_that_kills_its_workers_ends_as_a_dead_letter(mesh: Mesh) -> None:
    """BC-047: three workers claim and die."""
    job = mesh.workload()
    workers = [mesh.worker(f"w{n}") for n in range(3)]
    for worker in workers:
        mesh.claims(job, by=worker, lease_ms=1_000)
        mesh.later(ms=1_000)
        mesh.sweep()
        mesh.later(ms=100_000)

    row = mesh.row("SELECT * FROM workloads")
    assert (row["state"], row["failure_kind"], row["attempts_spent"]) == (
        "DEAD_LETTERED",
        "lease_expired",
        3,
    )
    history = mesh.conn.execute("SELECT worker_id, end_kind FROM claims ORDER BY fencing_token")
    assert [tuple(one) for one in history] == [(worker, "lease_expired") for worker in workers]


def test_the_wait_after_a_failure_is_kept(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = mesh.workload(retry_policy={"max_attempts": 9, "initial_backoff_ms": 2_000, "jitter": 0})
    first = mesh.say("fail", mesh.claims(job, by=worker))
    assert first.eligible_at_ms == mesh.now.lease_ms + 2_000

    mesh.later(ms=1_999)
    with pytest.raises(Refused) as refused:
        mesh.claims(job, by=worker)
    assert refused.value.code == "WORKLOAD_NOT_YET_ELIGIBLE"
    assert refused.value.facts["eligible_at_ms"] == first.eligible_at_ms
    mesh.later(ms=1)
    second = mesh.say("fail", mesh.claims(job, by=worker), retry_after_ms=90_000)
    assert second.eligible_at_ms == mesh.now.lease_ms + 90_000
    mesh.later(ms=90_000)
    third = mesh.say("fail", mesh.claims(job, by=worker), retry_after_ms=1)
    assert third.eligible_at_ms == mesh.now.lease_ms + 8_000


def test_what_is_not_to_be_retried_is_a_dead_letter_at_once(mesh: Mesh) -> None:
    job = mesh.workload()

    ended = mesh.say("fail", mesh.claims(job, by=mesh.worker()), kind="execution_error")

    assert (ended.state, ended.eligible_at_ms) == ("DEAD_LETTERED", None)
    row = mesh.row("SELECT * FROM workloads")
    assert (row["failure_kind"], row["failure_message"]) == ("execution_error", "try again")


def test_a_workers_own_word_may_be_retried_when_the_policy_says_so(mesh: Mesh) -> None:
    job = mesh.workload(retry_policy={"retry_on": ["printer_on_fire"]})

    assert mesh.say("fail", mesh.claims(job, by=mesh.worker()), kind="printer_on_fire").state == (
        "READY"
    )


@pytest.mark.parametrize(
    "kind", ["lease_expired", "worker_lost", "released", "evicted", "completed"]
)
def test_the_daemons_own_words_are_refused(mesh: Mesh, kind: str) -> None:
    held = mesh.claims(mesh.workload(), by=mesh.worker())

    assert mesh.refusal("fail", held, kind=kind) == "WORKLOAD_INVALID"


@pytest.mark.parametrize("kind", ["restored", "authority_lost", "evicted"])
def test_what_is_nobodys_attempt_costs_nothing(mesh: Mesh, kind: str) -> None:
    job = mesh.workload(retry_policy={"max_attempts": 1})
    worker = mesh.worker()
    for _ in range(3):
        mesh.claims(job, by=worker)
        assert ends(mesh, job, kind).state == "READY"

    assert mesh.row("SELECT attempts_spent AS n FROM workloads")["n"] == 0
    assert mesh.claims(job, by=worker).attempt_number == 4


def test_a_hundred_releases_in_a_row_are_a_dead_letter(mesh: Mesh) -> None:
    job, worker = mesh.workload(), mesh.worker()
    for _ in range(99):
        assert mesh.say("release", mesh.claims(job, by=worker)).state == "READY"
    assert mesh.say("release", mesh.claims(job, by=worker)).state == "DEAD_LETTERED"

    row = mesh.row("SELECT * FROM workloads")
    assert (row["failure_kind"], row["attempts_spent"]) == ("released", 0)


def test_releases_count_in_a_row_alone(mesh: Mesh) -> None:
    job, worker = mesh.workload(), mesh.worker()
    for _ in range(99):
        mesh.say("release", mesh.claims(job, by=worker))
    mesh.claims(job, by=worker)
    ends(mesh, job, "authority_lost")

    assert mesh.say("release", mesh.claims(job, by=worker)).state == "READY"


def test_a_release_keeps_what_failed_before(mesh: Mesh) -> None:
    job, worker = mesh.workload(), mesh.worker()
    mesh.say("fail", mesh.claims(job, by=worker))
    mesh.later(ms=10_000)
    mesh.say("release", mesh.claims(job, by=worker))

    row = mesh.row("SELECT * FROM workloads")
    assert (row["failure_kind"], row["failure_message"]) == ("transient", "try again")


@pytest.mark.parametrize("end", ["fail", "release", "lapse", "lose"])
def test_work_that_is_to_be_cancelled_is_cancelled_by_any_end_but_complete(
    mesh: Mesh, end: str
) -> None:
    job, worker = mesh.workload(), mesh.worker()
    held = mesh.claims(job, by=worker, lease_ms=1_000, start=True)
    mesh.ask(cancel.cancel, Cancel(), job)
    assert mesh.say("renew", held).cancel_requested

    if end == "lapse":
        mesh.later(ms=1_000)
        mesh.sweep()
    elif end == "lose":
        mesh.run(lambda tx, _, now: attempts.end_claims_of(tx, now, worker, "worker_lost"))
    else:
        assert mesh.say(end, held).state == "CANCELLED"

    assert mesh.state(job) == "CANCELLED"


def test_work_that_is_to_be_cancelled_may_still_be_completed(mesh: Mesh) -> None:
    job = mesh.workload()
    held = mesh.claims(job, by=mesh.worker(), start=True)
    mesh.ask(cancel.cancel, Cancel(), job)

    assert mesh.say("complete", held).state == "COMPLETED"


def test_a_forced_cancel_fences_its_holder_at_once(mesh: Mesh) -> None:
    job = mesh.workload()
    held = mesh.claims(job, by=mesh.worker(), start=True)

    mesh.ask(cancel.cancel, Cancel(force=True), job)

    assert mesh.state(job) == "CANCELLED"
    assert mesh.refusal("complete", held) == STALE
    assert attempts_of(mesh, job)[0][1] == "cancelled_by_force"


def test_a_late_release_frees_no_second_slot(mesh: Mesh) -> None:
    """BC-011: limits are counted from live claims, so nothing can be given back twice."""
    worker = mesh.worker(capacity={"concurrency": 1})
    first, second, third = (mesh.workload() for _ in range(3))
    late = mesh.claims(first, by=worker, lease_ms=1_000, start=True)
    mesh.later(ms=1_000)
    mesh.sweep()
    for _ in range(2):
        assert mesh.refusal("complete", late) == STALE
        assert mesh.refusal("release", late) == STALE
    mesh.claims(second, by=worker)
    for _ in range(2):
        mesh.refusal("release", late)

    assert mesh.refused(lambda: mesh.claims(third, by=worker)) == "MESH_PLACEMENT_DENIED"


def test_retried_work_keeps_its_priority_and_comes_first(mesh: Mesh) -> None:
    """BC-049."""
    worker = mesh.worker()
    urgent = mesh.workload(priority=9, retry_policy={"initial_backoff_ms": 1_000, "jitter": 0})
    mesh.say("fail", mesh.claims(urgent, by=worker))
    for _ in range(100):
        mesh.workload()
    mesh.later(ms=1_000)
    mesh.promote()

    assert mesh.pull(worker).claims[0].workload_id == urgent


def test_nothing_about_recovery_lives_in_memory(mesh: Mesh) -> None:
    """BC-008, BC-007: everything stands in the file, so a restart changes nothing."""
    job, worker = mesh.workload(input={"page": 1}), mesh.worker()
    mesh.claims(job, by=worker, lease_ms=1_000)
    mesh.later(ms=1_000)
    mesh.sweep()
    mesh.memo.clear()
    mesh.later(ms=100_000)

    again = mesh.claims(job, by=worker)

    assert (again.attempt_number, bytes(again.input)) == (2, b'{"page":1}')


def test_the_end_of_a_workers_claims_takes_all_of_them_oldest_first(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 4})
    held = [mesh.claims(mesh.workload(), by=worker).claim_id for _ in range(4)]
    other = mesh.claims(mesh.workload(), by=mesh.worker("other"))

    ended = mesh.run(lambda tx, _, now: attempts.end_claims_of(tx, now, worker, "restored"))
    none = mesh.run(lambda tx, _, now: attempts.end_claims_of(tx, now, worker, "restored"))

    assert (ended, none) == (held, [])
    assert mesh.state(other.workload_id) == "CLAIMED"


def test_the_end_of_a_claim_tells_who_waits(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = mesh.workload()
    mesh.say("release", mesh.claims(job, by=worker))
    assert mesh.told == [("ready", "acme/docs"), ("room", worker)]

    mesh.say("fail", mesh.claims(job, by=worker))
    told = mesh.told
    row = mesh.row("SELECT eligible_at_ms FROM workloads WHERE workload_id = :job", job=job)
    assert told == [("due", str(row["eligible_at_ms"])), ("room", worker)], "it is not due yet"

    mesh.later(ms=10_000)
    mesh.say("complete", mesh.claims(job, by=worker), start=True)
    assert mesh.told == [("workload", job), ("room", worker)]


def test_the_last_claim_of_a_draining_worker_lets_it_go(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 2})
    held = [mesh.claims(mesh.workload(), by=worker, start=True) for _ in range(2)]
    mesh.hand(
        "UPDATE workers SET lifecycle = 'DRAINING', lifecycle_cause = 'verb', drain_by = 'x:y',"
        " drain_at_ms = 1, drain_until = 'resumed'"
    )
    lifecycle = "SELECT lifecycle, offline_reason FROM workers"

    mesh.say("complete", held[0])
    assert mesh.row(lifecycle)["lifecycle"] == "DRAINING"
    mesh.say("complete", held[1])
    assert tuple(mesh.row(lifecycle)) == ("OFFLINE", "drained")


def test_the_log_keeps_the_newest_lines_each_at_most_a_kibibyte(mesh: Mesh) -> None:
    held = mesh.claims(mesh.workload(), by=mesh.worker())
    mesh.say("log", held, lines=["first", {"text": "é" * 2_000, "level": "warn", "at_ms": 7}])
    long = mesh.row("SELECT * FROM claim_logs WHERE level = 'warn'")
    assert (len(long["text"].encode()) <= 1_024, long["at_ms"]) == (True, 7)

    mesh.say("log", held, lines=[f"line {n}" for n in range(999)])
    mesh.say("log", held, lines=["last"])

    lines = [row["text"] for row in mesh.conn.execute("SELECT text FROM claim_logs ORDER BY seq")]
    assert (len(lines), lines[0], lines[-1]) == (1_000, "line 0", "last")


@pytest.mark.parametrize("verb", ["fail", "log"])
def test_text_that_looks_like_a_secret_is_refused_or_redacted(mesh: Mesh, verb: str) -> None:
    job = mesh.workload()
    held = mesh.claims(job, by=mesh.worker())
    text = "cannot log in: password=hunter2hunter2"
    said = {"message": text} if verb == "fail" else {"lines": [text]}

    with pytest.raises(Refused) as refused:
        mesh.say(verb, held, **said)
    assert refused.value.code == "WORKLOAD_SECRET_IN_TEXT"
    assert "hunter2" not in str(refused.value.facts) + refused.value.detail
    mesh.say(verb, held, on_secret="redact", **said)
    stored = (
        "SELECT failure_message AS t FROM claims"
        if verb == "fail"
        else ("SELECT text AS t FROM claim_logs")
    )
    assert mesh.row(stored)["t"] == "cannot log in: password=‹redacted: assignment›"

"""Polls that wait: woken one by one, ended at once when there is nothing to wait for."""

import time
from collections.abc import Iterator

import pytest

from tests.api.claims.conftest import Crew, Raw, Waiting, eventually
from tests.daemon.running import Daemon


def test_a_parked_poll_gets_the_work_that_comes(crew: Crew) -> None:
    worker = crew.worker()
    waiting = crew.poll(worker)

    job = crew.work()

    assert [one["workload_id"] for one in waiting.answer().body["claims"]] == [job]


def test_a_wait_that_is_over_ends_empty_with_the_reason(crew: Crew) -> None:
    worker = crew.worker()

    answer = crew.poll(worker, wait_ms=50).answer()

    assert (answer.status, answer.body["claims"]) == (200, [])
    assert [one["code"] for one in answer.body["reasons"]] == ["NO_WORK"]
    assert answer.body["lifecycle"] == "READY"


def test_work_of_another_application_wakes_nobody_for_good(crew: Crew) -> None:
    worker = crew.worker()
    waiting = crew.poll(worker, wait_ms=300)

    crew.work(definition_id="other", capability_snapshot=[], resources={"gpu_count": 9})

    answer = waiting.answer()
    assert [one["code"] for one in answer.body["reasons"]] == ["NO_MATCH"]


def test_a_waiter_that_cannot_take_it_passes_the_wake_on(crew: Crew) -> None:
    unfit = [crew.worker(workload_kinds=["nothing-of-this"]) for _ in range(3)]
    ahead = [crew.poll(edge) for edge in unfit]
    fit = crew.poll(crew.worker())

    job = crew.work()

    assert [one["workload_id"] for one in fit.answer().body["claims"]] == [job]
    assert not any(waiting.over for waiting in ahead)


def test_a_burst_reaches_every_waiter(crew: Crew) -> None:
    polls = [crew.poll(crew.worker(capacity={"concurrency": 1})) for _ in range(12)]
    body = [
        {
            "definition_id": "extract",
            "idempotency_key": f"burst-{n}",
            "capability_snapshot": ["documents.extract"],
        }
        for n in range(12)
    ]
    crew.daemon.post("/v1/workloads/batch", {"workloads": body}, key=crew.submitter_key)

    taken = {one["workload_id"] for poll in polls for one in poll.answer().body["claims"]}

    assert len(taken) == 12


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose keeper hardly runs, so that the writer's operations are the stories'."""
    running = Daemon(tmp_path_factory.mktemp("quiet") / "feltd.db", "--tick-ms", "60000")
    try:
        yield running.init().start()
    finally:
        running.close()


def operations(crew: Crew) -> float:
    count = crew.metric("feltd_writer_run_seconds_count")
    assert count > 0
    return count


def test_one_piece_of_work_costs_few_looks_however_many_wait(quiet: Daemon) -> None:
    """BC-057: about one waiter wakes for each workload, first come first."""
    crew = Crew(quiet)
    polls = [crew.poll(crew.worker()) for _ in range(30)]
    before = operations(crew)

    jobs = []
    for n in range(5):
        jobs.append(crew.work())
        eventually(lambda n=n: sum(poll.over for poll in polls) == n + 1)

    spent = operations(crew) - before
    assert [one["workload_id"] for poll in polls[:5] for one in poll.answer().body["claims"]] == (
        jobs
    ), "first come, first served"
    # A creation, a claim, and one look of the next in the row for each; a few looks by the clock.
    assert 10 <= spent <= 25
    crew.go_home()


def test_a_crowd_that_cannot_take_it_is_asked_once(quiet: Daemon) -> None:
    """Workers that offer the same need not look after one of them: nothing fits any."""
    crew = Crew(quiet)
    unfit = [crew.poll(crew.worker(workload_kinds=["nothing-of-this"])) for _ in range(20)]
    before = operations(crew)

    job = crew.work()
    fit = crew.poll(crew.worker())

    assert [one["workload_id"] for one in fit.answer().body["claims"]] == [job]
    assert operations(crew) - before <= 12
    assert not any(poll.over for poll in unfit)
    crew.go_home()


def test_a_freed_slot_wakes_the_poll_of_its_worker(crew: Crew) -> None:
    worker = crew.worker(capacity={"concurrency": 1})
    first, second = crew.work(), crew.work()
    (held,) = worker.pull(start=True)
    assert held["workload_id"] == first
    waiting = crew.poll(worker)

    worker.fenced("complete", held)

    (claim,) = waiting.answer().body["claims"]
    assert claim["workload_id"] == second


def test_a_drain_ends_the_open_poll_and_the_work_goes_elsewhere(crew: Crew) -> None:
    """BC-035."""
    worker, other = crew.worker(), crew.worker()
    waiting = crew.poll(worker)

    assert worker.call("drain", {"reason": "upgrade"}).status == 200
    answer = waiting.answer()
    job = crew.work()
    later = worker.call("claims", {"wait_ms": 20_000})

    assert (answer.status, answer.body["claims"]) == (200, [])
    assert [one["code"] for one in answer.body["reasons"]] == ["WORKER_DRAINING"]
    assert (later.status, later.body["next"]) == (409, "stop")
    assert [one["workload_id"] for one in other.pull()] == [job]


def test_a_draining_worker_that_still_holds_work_is_told_at_once(crew: Crew) -> None:
    worker = crew.worker()
    crew.work()
    (held,) = worker.pull(start=True)
    waiting = crew.poll(worker)
    worker.call("drain", {})

    for answer in (waiting.answer(), worker.call("claims", {"wait_ms": 20_000})):
        assert [one["code"] for one in answer.body["reasons"]] == ["WORKER_DRAINING"]
        assert answer.body["lifecycle"] == "DRAINING"
    assert worker.fenced("complete", held).status == 200


def test_a_takeover_ends_the_poll_of_the_process_before(crew: Crew) -> None:
    worker = crew.worker()
    waiting = crew.poll(worker)
    body = worker.body | {"process_id": "another", "takeover": True}

    crew.daemon.post("/v1/workers", body, key=crew.registrar_key)

    answer = waiting.answer()
    assert answer.body["claims"] == []
    assert [one["code"] for one in answer.body["reasons"]] == ["taken_over"]


def test_a_revoked_key_ends_its_poll(crew: Crew) -> None:
    worker = crew.worker()
    waiting = crew.poll(worker)
    key_id = worker.key.split("_")[2]

    assert crew.daemon.call("DELETE", f"/v1/keys/{key_id}").status == 204

    answer = waiting.answer()
    assert answer.body["claims"] == []
    assert [one["code"] for one in answer.body["reasons"]] == ["revoked"]
    crew.work()
    (claim,) = crew.worker().pull()
    assert claim


def test_clients_that_went_away_get_nothing(crew: Crew) -> None:
    """BC-033: half the pollers vanish; the rest take all the work though leases are long."""
    gone = [
        Raw(
            crew.daemon,
            f"/v1/workers/{edge.id}/claims",
            {"wait_ms": 30_000, "lease_ms": 3_600_000, "max": 8},
            edge.key,
        )
        for edge in (crew.worker() for _ in range(10))
    ]
    eventually(lambda: crew.parked() == 10)
    there = [crew.poll(crew.worker(), lease_ms=3_600_000, max=8) for _ in range(10)]
    for client in gone:
        client.reset()
    jobs = {crew.work() for _ in range(10)}

    def taken() -> set[str]:
        return {
            one["workload_id"]
            for poll in there
            if poll.over
            for one in poll.answer().body["claims"]
        }

    eventually(lambda: taken() == jobs)


def test_two_hundred_parked_polls_hold_no_permit(crew: Crew) -> None:
    worker = crew.worker()
    path, polls = f"/v1/workers/{worker.id}/claims", []
    for n in range(200):
        polls.append(Raw(crew.daemon, path, {"wait_ms": 30_000}, worker.key))
        if n % 20 == 19:
            eventually(lambda n=n: crew.parked() == n + 1)

    assert crew.metric("feltd_in_flight ") <= 1
    assert worker.beat().status == 200
    for client in polls:
        client.reset()
    eventually(lambda: crew.parked() == 0)


def test_an_exchange_commits_its_items_before_it_waits(crew: Crew) -> None:
    worker = crew.worker()
    crew.work()
    (held,) = worker.pull(start=True)
    fence = {name: held[name] for name in ("claim_id", "worker_id", "fencing_token")}
    item = {**fence, "workload_id": held["workload_id"], "output": 1}
    waiting = Waiting(
        lambda: worker.call("exchange", {"complete": [item], "claim": {"wait_ms": 20_000}})
    )
    eventually(lambda: crew.state(held["workload_id"]) == "COMPLETED")
    eventually(lambda: crew.parked() == 1)
    assert not waiting.over

    job = crew.work()

    answer = waiting.answer().body
    assert [one["ok"] for one in answer["outcomes"]] == [True]
    assert [one["workload_id"] for one in answer["claims"]] == [job]


def test_a_refused_heartbeat_does_not_wait(crew: Crew) -> None:
    worker = crew.worker()
    beat = {
        "worker_id": worker.id,
        "version": "another",
        "capability_version": 1,
        "capacity": {"concurrency": 8},
        "health": "HEALTHY",
    }

    answer = worker.call("exchange", {"heartbeat": beat, "claim": {"wait_ms": 30_000}}).body

    assert answer["outcomes"][0]["code"] == "WORKER_HEARTBEAT_REJECTED"
    assert [one["code"] for one in answer["reasons"]] == ["WORKER_HEARTBEAT_REJECTED"]


def test_a_stop_ends_every_poll_at_once(crew: Crew) -> None:
    """Last in this file: it stops the daemon."""
    waiting = [crew.poll(crew.worker()) for _ in range(3)]
    begun_s = time.monotonic()

    assert crew.daemon.stop() == 0

    for poll in waiting:
        answer = poll.answer()
        assert (answer.status, answer.body["claims"]) == (200, [])
        assert answer.body["reasons"][0]["detail"] == "the daemon is stopping"
    assert time.monotonic() - begun_s < 30

"""A worker process lives, dies, is replaced, drained and revoked: real processes, a real daemon."""

import signal
from collections.abc import Callable

import pytest

from feltd.worker import Refusal
from tests.daemon.running import Daemon
from tests.worker.crew import Crew


def test_two_variables_are_all_a_worker_needs(crew: Crew) -> None:
    process = crew.start()
    done = crew.final(crew.work("echo", {"page": 17}))

    assert done["state"] == "COMPLETED"
    assert done["result"]["output"]["input"] == {"page": 17}
    assert done["result"]["output"]["fence"] == done["fencing_token"]
    assert crew.worker()["granted_capabilities"] == ["extract"]
    lines = crew.client.workload_logs(done["workload_id"])["items"]
    assert [line["text"] for line in lines] == ["echoing"]
    process.send_signal(signal.SIGTERM)
    assert crew.ended(process) == 0


def test_a_handler_may_be_asynchronous(crew: Crew) -> None:
    crew.start()
    done = crew.final(crew.work("echo_async", [1]))

    assert done["result"]["output"] == {"input": [1], "attempt": 1}
    assert done["checkpoint"] == {"half": True}


def test_a_killed_worker_takes_its_name_over_at_once_and_goes_on_from_its_checkpoint(
    crew: Crew,
) -> None:
    """BC-028: a restarted process needs no wait for its former self to time out."""
    first = crew.start(FELTD_TEST_TIMEOUT_MS="60000", FELTD_TEST_LEASE_MS="60000")
    job = crew.work("steps", {"steps": 6, "pace_s": 0.2})
    crew.until(lambda: len(crew.seen("step")) >= 2, "two steps are done")
    first.kill()
    crew.ended(first)
    crew.start(FELTD_TEST_TIMEOUT_MS="60000", FELTD_TEST_LEASE_MS="60000")
    done = crew.final(job)

    assert done["state"] == "COMPLETED"
    assert done["result"]["output"]["first"] >= 2
    assert crew.ends(job) == ["worker_lost", "completed"]
    assert crew.worker()["incarnation"] == 2


def test_a_worker_that_loses_its_name_stops_with_3_and_never_fights_back(crew: Crew) -> None:
    first = crew.start()
    crew.ready()
    second = crew.start()

    assert crew.ended(first) == 3
    assert "another process took the name" in crew.log()
    crew.final(crew.work("echo"))
    assert second.poll() is None
    assert crew.worker()["incarnation"] == 2


def test_a_revoked_grant_stops_the_process_with_1_and_the_reason(crew: Crew) -> None:
    process = crew.start()
    crew.ready()
    crew.client.revoke_grant(crew.grant_id)

    assert crew.ended(process) == 1
    assert "UNAUTHENTICATED" in crew.log()
    assert "grant" in crew.log().splitlines()[-1]


def test_a_key_that_is_no_key_ends_the_process_with_1(crew: Crew) -> None:
    process = crew.start(FELTD_KEY="felt_s_000000000000_nonsense")

    assert crew.ended(process) == 1
    assert "UNAUTHENTICATED" in crew.log()


def test_an_operators_drain_lets_the_work_finish_and_ends_the_process_with_0(crew: Crew) -> None:
    process = crew.start()
    job = crew.work("steps", {"steps": 4, "pace_s": 0.2})
    crew.until(lambda: crew.seen("step"), "it has begun")
    answer = crew.client.drain(crew.worker()["worker_id"], {"reason": "new kernel"})

    assert not answer["safe_to_stop"]
    assert crew.ended(process) == 0
    assert crew.ends(job) == ["completed"]
    assert crew.worker()["offline_reason"] == "drained"
    assert crew.worker()["drain"]["reason"] == "new kernel"


def test_a_parked_worker_waits_for_its_resumption(crew: Crew) -> None:
    process = crew.start("w", "--on-drain", "park")
    worker_id = crew.ready()["worker_id"]
    crew.client.drain(worker_id)
    crew.until(lambda: "waiting to be resumed" in crew.log(), "it is parked")
    job = crew.work("echo")
    assert process.poll() is None
    assert crew.state(job) == "READY"
    crew.client.resume(worker_id)

    assert crew.final(job)["state"] == "COMPLETED"


def test_sigterm_lets_work_finish_within_the_grace(crew: Crew) -> None:
    process = crew.start()
    job = crew.work("steps", {"steps": 5, "pace_s": 0.2})
    crew.until(lambda: crew.seen("step"), "it has begun")
    process.send_signal(signal.SIGTERM)

    assert crew.ended(process) == 0
    assert crew.state(job) == "COMPLETED" or crew.ends(job) == ["released"]
    assert crew.worker()["lifecycle"] == "OFFLINE"


def test_sigterm_gives_back_what_does_not_finish(crew: Crew) -> None:
    """Also what does not listen: the process ends, and the work is free at once, unspent."""
    process = crew.start(FELTD_TEST_GRACE_MS="300", FELTD_TEST_LEASE_MS="60000")
    jobs = [crew.work("deaf", {"seconds": 60}), crew.work("hold_async")]
    crew.until(lambda: len(crew.seen("begun")) == 2, "both have begun")
    process.send_signal(signal.SIGTERM)

    assert crew.ended(process) == 0
    assert [crew.ends(job) for job in jobs] == [["released"], ["released"]]
    assert [crew.state(job) for job in jobs] == ["READY", "READY"]


def test_a_cancelled_workload_is_stopped_where_it_runs(crew: Crew) -> None:
    crew.start()
    jobs = [crew.work("hold"), crew.work("hold_async")]
    crew.until(lambda: len(crew.seen("begun")) == 2, "both have begun")
    for job in jobs:
        crew.client.cancel(job)

    assert [crew.final(job)["state"] for job in jobs] == ["CANCELLED", "CANCELLED"]
    assert {told["why"] for told in crew.seen("told")} == {"cancel"}


def test_a_daemon_that_is_killed_and_comes_back_finds_the_work_going_on(
    own: Daemon, crew_of: Callable[[Daemon], Crew]
) -> None:
    own.flags = (*own.flags, "--port", own.url.rpartition(":")[2])
    crew = crew_of(own)
    process = crew.start()
    job = crew.work("steps", {"steps": 12, "pace_s": 0.1}, retry_policy={"max_attempts": 9})
    crew.until(lambda: len(crew.seen("step")) >= 2, "it is in the middle")
    own.kill()
    own.start()
    done = crew.final(job)

    assert done["state"] == "COMPLETED"
    assert crew.final(crew.work("echo"))["state"] == "COMPLETED"
    assert process.poll() is None


def test_a_worker_stopped_past_its_lease_is_refused_and_goes_on_with_other_work(
    crew: Crew,
) -> None:
    slow = crew.start("slow", FELTD_TEST_TIMEOUT_MS="2000", FELTD_TEST_LEASE_MS="2000")
    job = crew.work("steps", {"steps": 4, "pace_s": 0.3})
    crew.until(lambda: crew.seen("step"), "it is in the middle")
    slow.send_signal(signal.SIGSTOP)
    crew.until(lambda: crew.state(job) == "READY", "the work is free again")
    crew.start("fast")
    done = crew.final(job)
    slow.send_signal(signal.SIGCONT)
    crew.until(lambda: crew.seen("fenced"), "the late write is refused")

    assert crew.seen("fenced")[0]["code"] == "WORKLOAD_STALE_FENCE"
    assert crew.seen("fenced")[0]["token"] < done["fencing_token"]
    assert crew.client.workload(job)["result"] == done["result"]
    crew.ready("slow")
    assert slow.poll() is None


def test_the_registrars_key_cannot_do_a_workers_calls(crew: Crew) -> None:
    crew.start()
    worker_id = crew.ready()["worker_id"]
    with pytest.raises(Refusal, match="FORBIDDEN"):
        crew.client.call("POST", f"/v1/workers/{worker_id}/claims", {}, bearer=crew.key)


def test_a_worker_may_be_started_before_its_daemon(
    own: Daemon, crew_of: Callable[[Daemon], Crew]
) -> None:
    crew = crew_of(own)
    job = crew.work("echo")
    own.flags = (*own.flags, "--port", own.url.rpartition(":")[2])
    own.stop()
    crew.start()
    early = crew.start("early")
    crew.until(lambda: "waiting for the daemon" in crew.log("early"), "it waits")
    early.send_signal(signal.SIGTERM)
    code = crew.ended(early)
    own.start()

    assert crew.final(job)["state"] == "COMPLETED"
    assert code == 0

"""A worker process lives, dies, is replaced, drained and revoked: real processes, a real daemon."""

import signal
from collections.abc import Callable
from datetime import datetime

import pytest

from feltd.worker import Refusal
from tests.daemon.running import Daemon
from tests.worker.crew import Crew

#: So rarely does a worker beat that whatever it notices in this story it did not learn by a beat.
RARELY = {
    "FELTD_TEST_INTERVAL_MS": "300000",
    "FELTD_TEST_TIMEOUT_MS": "600000",
    "FELTD_TEST_LEASE_MS": "3600000",
}


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
    assert "FELTD_KEY is no key of this daemon: 'feltd enroll' makes one" in crew.log()


@pytest.mark.parametrize("key", ["", "  "])
def test_a_key_that_is_not_set_is_said_to_be_so(crew: Crew, key: str) -> None:
    process = crew.start(FELTD_KEY=key)

    assert crew.ended(process) == 1
    assert "FELTD_KEY is not set: give it the key that 'feltd enroll' makes" in crew.log()


def test_a_capability_that_is_not_granted_is_said_at_the_start(crew: Crew) -> None:
    crew.start("w", "--capability", "ocr", "--capability", "extract")
    shown = crew.ready()

    assert "WARNING no work that needs it comes here: capability not granted: ocr; " in crew.log()
    assert "granted: extract" in crew.log()
    assert shown["granted_capabilities"] == ["extract"]


def test_a_worker_that_is_granted_nothing_it_asked_for_ends_with_1_and_takes_no_name(
    crew: Crew,
) -> None:
    first = crew.start()
    crew.ready()
    second = crew.start("w", "--capability", "ocr")

    assert crew.ended(second) == 1
    assert "no capability that was asked for is granted (not granted: ocr; granted: extract)" in (
        crew.log()
    )
    assert first.poll() is None
    assert crew.worker()["incarnation"] == 1


def test_the_log_is_in_utc_and_says_so(crew: Crew) -> None:
    crew.start(TZ="Asia/Tokyo")
    crew.ready()
    crew.until(lambda: "registered as w" in crew.log(), "it has said something")
    [line] = [line for line in crew.log().splitlines() if "registered as w" in line]
    stamp, level, _text = line.split(" ", 2)
    at_ms = datetime.fromisoformat(stamp).timestamp() * 1000

    assert (stamp[-5], stamp[-1], level) == (".", "Z", "INFO")
    assert abs(at_ms - crew.worker()["registered_at_ms"]) < 3_600_000


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


@pytest.mark.parametrize("busy", [True, False])
def test_the_end_of_a_drain_ends_the_process_without_another_beat(crew: Crew, busy: bool) -> None:
    """Safe to stop and stopped are the same moment, however rarely the worker beats."""
    process = crew.start(**RARELY)
    worker_id = crew.ready()["worker_id"]
    if busy:
        for _slot in range(2):
            crew.work("steps", {"steps": 3, "pace_s": 0.2})
        crew.until(lambda: crew.worker()["lifecycle"] == "BUSY", "its every slot is taken")
    crew.client.drain(worker_id, {"reason": "new kernel"})

    assert crew.ended(process) == 0
    last = crew.log().splitlines()[-1]
    assert "stopped: drained by service:" in last
    assert ": new kernel ('feltd worker resume w' ends the drain)" in last


def test_a_worker_that_begins_under_a_drain_ends_soon_and_says_whose_it_is(crew: Crew) -> None:
    first = crew.start()
    crew.client.drain(crew.ready()["worker_id"], {"reason": "new kernel"})
    assert crew.ended(first) == 0
    before = crew.log()
    second = crew.start("w", "--quiet", **RARELY)

    assert crew.ended(second) == 0
    [said] = crew.log()[len(before) :].splitlines()
    assert "WARNING no work will come: drained by service:" in said
    assert ": new kernel ('feltd worker resume w' ends the drain)" in said
    crew.client.resume(crew.worker()["worker_id"])
    crew.start()
    assert crew.final(crew.work("echo"))["state"] == "COMPLETED"


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

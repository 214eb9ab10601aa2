"""A runtime policy from the creation of the work to the end of its attempt: a real daemon."""

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.worker.crew import Crew
from tests.worker.programs import all_gone, pids_in

ONCE = {"max_attempts": 1}
AROUND = pytest.mark.parametrize(
    "around",
    [{}, pytest.param({"network_policy": "none"}, marks=pytest.mark.needs("bwrap"))],
    ids=["plain", "boxed"],
)


def ended(crew: Crew, **policy: Any) -> tuple[str, str]:
    """How the one attempt of a workload under this policy failed: kind and message."""
    done = crew.final(crew.work("anything", runtime_policy=policy, retry_policy=ONCE))
    return done["failure"]["kind"], done["failure"]["message"]


@AROUND
def test_a_bound_ends_the_attempt_with_its_own_kind(crew: Crew, around: dict[str, Any]) -> None:
    crew.start("w", "--exec", "while :; do :; done")

    assert ended(crew, max_duration_ms=300, **around)[0] == "timeout"
    assert ended(crew, max_cpu_millis=200, **around)[0] == "cpu_limit"


def test_what_cannot_be_enforced_is_not_run(crew: Crew, hidden: Path) -> None:
    began = crew.folder / "began"
    (hidden / "python").symlink_to(sys.executable)
    crew.start("w", "--exec", f"touch {began}", PATH=str(hidden))
    kind, message = ended(crew, filesystem_policy="none")

    assert kind == "policy_unenforceable"
    assert "filesystem_policy none cannot be enforced here: bubblewrap is not installed" in message
    assert not began.exists()


@pytest.mark.needs("bwrap")
def test_the_workers_own_flags_hold_for_work_that_asks_for_nothing(crew: Crew) -> None:
    crew.start(
        "w", "--exec", "env; ls /root || true", "--secrets", "none", "--filesystem", "scratch",
        "--network", "none", "--max-memory", "256MiB", "--max-duration", "1m", "--max-cpu", "30s",
    )  # fmt: skip
    done = crew.final(crew.work("anything", retry_policy=ONCE))
    output = str(done.get("result") or done["failure"])

    assert "HOME=/tmp" in output
    assert "FELTD_URL" not in output
    assert "FELTD_TEST_SEEN" not in output


def test_the_grant_of_the_worker_holds_for_work_that_asks_for_nothing(crew: Crew) -> None:
    _, key = crew.enroll(runtime_policy={"secret_policy": "none", "max_duration_ms": 400})
    crew.start("w", "--exec", "env; exec sleep 300", FELTD_KEY=key)
    kind, message = ended(crew)

    assert (kind, "max_duration_ms 400" in message) == ("timeout", True)


def test_a_handler_inside_the_worker_runs_under_what_it_can_keep_to(crew: Crew) -> None:
    crew.start()
    done = crew.final(crew.work("echo", 1, runtime_policy={"artifact_policy": "none"}))
    refused = crew.final(crew.work("echo", 1, runtime_policy={"network_policy": "none"}))

    assert done["state"] == "COMPLETED"
    assert refused["failure"]["kind"] == "policy_unenforceable"
    assert "network_policy none" in refused["failure"]["message"]


@pytest.mark.parametrize("handler", ["hold", "hold_async"])
def test_a_handler_inside_the_worker_is_told_when_its_duration_is_over(
    crew: Crew, handler: str
) -> None:
    crew.start()
    job = crew.work(handler, retry_policy=ONCE, runtime_policy={"max_duration_ms": 500})
    failure = crew.final(job)["failure"]

    assert failure["kind"] == "timeout"
    assert failure["message"] == "it ran longer than max_duration_ms 500"
    crew.until(lambda: [one["why"] for one in crew.seen("told")] == ["timeout"], "it is told")
    # The slot is free again: the handler listened.
    assert crew.final(crew.work("echo", 2))["state"] == "COMPLETED"


def test_a_handler_that_does_not_listen_keeps_its_slot_and_loses_its_claim(crew: Crew) -> None:
    crew.start("w", "--concurrency", "1")
    job = crew.work(
        "deaf", {"seconds": 2}, retry_policy=ONCE, runtime_policy={"max_duration_ms": 300}
    )
    after = crew.work("echo", 1)

    assert crew.final(job)["failure"]["kind"] == "timeout"
    [taken] = crew.final(after)["attempts"]
    [late] = crew.final(job)["attempts"]
    assert (late["end"], taken["end"]) == ("timeout", "completed")
    assert taken["issued_at_ms"] >= late["started_at_ms"] + 2_000


@AROUND
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_programs_end_with_a_worker_that_is_ended(
    crew: Crew, number: int, around: dict[str, Any]
) -> None:
    pids = crew.folder / "pids"
    process = crew.start(
        "w", "--exec", f"setsid sleep 300 & setsid sh -c 'echo $$ >> {pids}; sleep 300' & "
        f"echo $$ >> {pids}; sleep 300",
    )  # fmt: skip
    crew.work("anything", runtime_policy=around)
    family = pids_in(pids, 2)
    process.send_signal(number)
    crew.ended(process)

    if not around:
        all_gone(family)


def test_a_worker_told_to_stop_ends_its_programs_and_gives_the_work_back(crew: Crew) -> None:
    pids = crew.folder / "pids"
    command = (
        f"trap '' TERM; sleep 300 & echo $! >> {pids}; setsid sh -c 'echo $$ >> {pids}; sleep 300' "
        f"& echo $$ >> {pids}; sleep 300; sleep 300"
    )
    process = crew.start("w", "--grace", "200ms", "--exec", command)
    job = crew.work("anything")
    family = pids_in(pids, 3)
    process.send_signal(signal.SIGTERM)

    assert crew.ended(process) == 0
    all_gone(family)
    assert crew.ends(job) == ["released"]


def test_a_poisonous_program_ends_as_a_dead_letter_and_its_worker_lives_on(crew: Crew) -> None:
    """BC-047: work that takes all the memory is stopped before it takes the worker with it."""
    process = crew.start("w", "--exec", "x=a; while :; do x=$x$x; done", "--max-memory", "64MiB")
    for _ in range(2):
        assert ended(crew)[0] == "memory_limit"
    assert process.poll() is None

"""A client that knows only `next` is a correct client."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.worker.crew import Crew
from tests.worker.lossy import LOSE, PASS, SHED, Wire

CLIENT = Path(__file__).with_name("next_only.py")
LINES_MAX = 60


def test_it_is_sixty_lines_and_names_no_code() -> None:
    lines = [line for line in CLIENT.read_text().splitlines() if line.strip()]
    assert len(lines) <= LINES_MAX
    assert not any(word in CLIENT.read_text() for word in ("WORKER_", "WORKLOAD_", "MESH_"))


def test_it_survives_a_kill_a_stop_and_a_wire_that_loses_and_sheds(crew: Crew) -> None:
    """The faults of the demo: one killed mid-lease, one stopped past its lease and continued."""

    def judge(_kind: str, count: int) -> str:
        return LOSE if count % 7 == 3 else SHED if count % 7 == 5 else PASS

    with Wire(crew.daemon.url, judge) as wire:

        def begin(name: str) -> "subprocess.Popen[bytes]":
            with (crew.folder / f"{name}.log").open("ab") as log:
                process = subprocess.Popen(
                    (sys.executable, str(CLIENT), wire.url, crew.key, name), stderr=log
                )
            crew.processes[f"{name}-{process.pid}"] = process
            return process

        def busy(name: str) -> bool:
            worker_id = crew.worker(name).get("worker_id")
            held = [crew.client.workload(job) for job in jobs]
            return any(
                one["state"] == "CHECKPOINTED" and one["current_claim"]["worker_id"] == worker_id
                for one in held
            )

        policy = {"max_attempts": 9, "initial_backoff_ms": 50}
        jobs = [crew.work("steps", {"steps": 8}, retry_policy=policy) for _ in range(8)]
        killed, stopped, steady = (begin(name) for name in ("killed", "stopped", "steady"))
        crew.until(lambda: busy("killed"), "one is in the middle")
        killed.kill()
        crew.until(lambda: busy("stopped"), "another is in the middle")
        stopped.send_signal(signal.SIGSTOP)
        crew.until(lambda: crew.worker("stopped")["lifecycle"] == "OFFLINE", "it is lost")
        stopped.send_signal(signal.SIGCONT)
        done = [crew.final(job) for job in jobs]

        assert {one["state"] for one in done} == {"COMPLETED"}
        assert any("worker_lost" in crew.ends(job) for job in jobs)
        assert stopped.poll() is None
        assert steady.poll() is None
        crew.client.drain(crew.worker("steady")["worker_id"])
        assert crew.ended(steady) == 1
        assert "stop" in crew.log("steady")

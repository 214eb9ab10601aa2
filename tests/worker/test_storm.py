"""Everything at once: workers and daemon die under a wire that loses and sheds; none is lost."""

import os
import random
import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.daemon.running import Daemon
from tests.worker.crew import Crew
from tests.worker.lossy import LOSE, PASS, SHED, Wire

SEED = int(os.environ.get("FELTD_SEED", "20"))
JOBS = 60


@pytest.mark.timeout(240)
def test_a_storm_loses_nothing_and_breaks_no_promise(
    own: Daemon, crew_of: Callable[[Daemon], Crew]
) -> None:
    own.flags = (*own.flags, "--port", own.url.rpartition(":")[2])
    crew = crew_of(own)
    chance = random.Random(SEED)

    def judge(_kind: str, _count: int) -> str:
        return chance.choices((PASS, LOSE, SHED), (90, 6, 4))[0]

    with Wire(own.url, judge) as wire:
        names = ("north", "east", "south")
        running = {name: crew.start(name, url=wire.url) for name in names}
        policy = {"max_attempts": 50, "initial_backoff_ms": 50}
        given = {"steps": 5, "pace_s": 0.05}
        jobs = [crew.work("steps", given, retry_policy=policy) for _ in range(JOBS)]

        def done() -> int:
            return sum(crew.state(job) == "COMPLETED" for job in jobs)

        for share, blow in enumerate(("kill", "daemon", "stop", "kill", "daemon", "stop"), 1):
            crew.until(lambda share=share: done() >= share * JOBS // 8, "the work goes on")
            name = chance.choice(names)
            if blow == "daemon":
                own.kill()
                own.start()
            elif blow == "kill":
                running[name].kill()
                running[name] = crew.start(name, url=wire.url)
            else:
                _stopped_for_a_while(crew, name, running[name])
        finals = [crew.final(job) for job in jobs]

        assert {one["state"] for one in finals} == {"COMPLETED"}
        assert {one["result"]["output"]["steps"] for one in finals} == {5}
        for process in running.values():
            process.send_signal(signal.SIGTERM)
        codes = {name: crew.ended(process) for name, process in running.items()}
        assert codes == dict.fromkeys(names, 0), "\n".join(crew.log(name) for name in names)[
            -4_000:
        ]
    checked = own.check()
    assert checked.returncode == 0, checked.stdout


def _stopped_for_a_while(crew: Crew, name: str, process: "subprocess.Popen[bytes]") -> None:
    """SIGSTOP until the daemon has lost it, then SIGCONT."""
    crew.until(lambda: crew.worker(name).get("lifecycle") in ("READY", "BUSY"), f"{name} works")
    process.send_signal(signal.SIGSTOP)
    crew.until(lambda: crew.worker(name)["lifecycle"] == "OFFLINE", f"{name} is lost")
    process.send_signal(signal.SIGCONT)

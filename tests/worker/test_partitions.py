"""Five workers, each behind a wire of its own that parts it from the daemon at random.

After each reconciliation the process and the daemon hold the same claims: no lease is short enough
here to make a difference go away by itself.
"""

import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from feltd.worker import Client
from tests.daemon.running import Daemon
from tests.worker.crew import Crew
from tests.worker.parted import CLEAR, DEAF, MIXED, SLOW, TORN, Askable, Weather

SEED = int(os.environ.get("FELTD_SEED", "7"))
WORKERS = 5
#: A wire that falls silent holds every byte back; the others are weathers.
SILENT = "silent"
#: Work that waits at any time.
BACKLOG = 15
UNFINISHED = ("PENDING", "READY", "CLAIMED", "RUNNING", "CHECKPOINTED")
PATIENCE_S = 30.0
#: A busy machine may be slow to act on an answer; leases of 60 s outlast any such wait. Claims
#: that their worker does not know are reported after 5 s, so later rounds are counted apart.
SETTLED_S = 20.0
REPORTED_MS = 5_000


class Site:
    """One worker, its wire, and what happened to both."""

    def __init__(self, crew: Crew, number: int) -> None:
        self.name = f"site-{number}"
        self.crew = crew
        self.chance = random.Random(f"{SEED}/{number}")
        self.wire = Weather(crew.daemon.url, self.chance)
        self.client = Client(crew.daemon.url, crew.daemon.key)
        file = crew.folder / f"{self.name}.holds"
        self.process = crew.start(
            self.name,
            handlers="tests.worker.parted:worker",
            url=self.wire.url,
            FELTD_TEST_HOLDS=str(file),
        )
        self.asked = Askable(self.process.pid, file)
        self.rounds = 0
        self.kept = 0
        self.unequal_ms: list[int] = []
        self.fault: BaseException | None = None

    def live(self, rounds: int) -> None:
        """Part and mend, `rounds` times; what goes wrong is kept for the story's own thread."""
        try:
            self.until(lambda: bool(self.crew.worker(self.name)))
            self.id = self.crew.worker(self.name)["worker_id"]
            self.until(self.works)
            for _ in range(rounds):
                self.once()
                self.rounds += 1
        except BaseException as fault:
            self.fault = fault

    def once(self) -> None:
        """One partition, long enough that the daemon gives the worker up, and its end."""
        time.sleep(self.chance.uniform(0, 0.5))
        weather = self.chance.choice((SILENT, SILENT, TORN, DEAF, SLOW, MIXED))
        by_silence = weather in (SILENT, TORN) and self.chance.random() < 0.7
        before = self.wire.reconciled
        self.wire.cut() if weather == SILENT else self.wire.part(weather)
        if not by_silence:
            time.sleep(self.chance.uniform(0.05, 0.8))
            self.client.call("POST", f"/v1/workers/{self.id}/transition", {"to": "OFFLINE"})
        self.until(lambda: self.row()["lifecycle"] == "OFFLINE" or self.wire.reconciled > before)
        self.kept += len(self.row()["claims"])
        time.sleep(self.chance.uniform(0, 0.4))
        self.wire.lose_answers = self.chance.choice((0, 0, 0, 1, 2))
        self.wire.part(CLEAR)
        self.wire.mend()
        self.until(lambda: self.wire.reconciled > before)
        self.until(self.works)
        self.no_difference()

    def no_difference(self) -> None:
        """Both sides hold the same claims; looked at again while claims come and go."""
        begun = time.monotonic()
        while True:
            theirs = set(self.row()["claims"])
            mine = self.asked.holds()
            again = set(self.row()["claims"])
            if theirs == again == mine:
                break
            passed = time.monotonic() - begun
            assert passed < SETTLED_S, f"{self.name}: daemon {again}, process {mine}"
            time.sleep(0.01)
        self.unequal_ms.append(int((time.monotonic() - begun) * 1000))

    def works(self) -> bool:
        """Whether the daemon may give it work."""
        return self.row()["lifecycle"] in ("READY", "BUSY")

    def row(self) -> dict[str, Any]:
        assert self.process.poll() is None, self.crew.log(self.name)[-3_000:]
        return dict(self.client.worker(self.id))

    def until(self, done: Callable[[], bool]) -> None:
        ends = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < ends, self.crew.log(self.name)[-3_000:]
            time.sleep(0.02)

    def close(self) -> None:
        self.client.close()
        self.wire.__exit__()


def feed(crew: Crew, chance: random.Random) -> int:
    """Keep work waiting: short and long, that listens or not, that fails or not; how much came."""
    lacking = BACKLOG - len(crew.client.workloads(BACKLOG, state="READY"))
    for _ in range(lacking):
        given = {
            "nap_s": chance.choice((0.1, 0.5, 1.0, 2.0, 3.0)),
            "deaf": chance.random() < 0.15,
            "end": chance.choices(("well", "transient", "permanent"), (8, 2, 1))[0],
        }
        policy = {"max_attempts": 1_000, "initial_backoff_ms": 10, "max_backoff_ms": 500}
        lost = chance.choice(("lease", "lease", "end"))
        crew.work("nap", given, retry_policy=policy, on_worker_lost=lost)
    return lacking


def unfinished(crew: Crew) -> bool:
    """Whether anything has not ended yet."""
    return any(crew.client.workloads(1, state=state) for state in UNFINISHED)


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(10, marks=pytest.mark.timeout(120)),
        pytest.param(1_000, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)]),
    ],
)
def test_reconciling_leaves_no_difference(
    own: Daemon, crew_of: Callable[[Daemon], Crew], rounds: int
) -> None:
    crew = crew_of(own)
    chance, made, begun = random.Random(SEED), 0, time.monotonic()
    sites = [Site(crew, number) for number in range(WORKERS)]
    threads = [
        threading.Thread(target=site.live, args=(rounds // WORKERS,), daemon=True) for site in sites
    ]
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            made += feed(crew, chance)
            time.sleep(0.2)
        for site in sites:
            if site.fault is not None:
                raise site.fault
        crew.until(lambda: not unfinished(crew), "all work has ended")
    finally:
        for site in sites:
            site.close()

    assert sum(site.rounds for site in sites) == rounds
    late_ms = sorted(ms for site in sites for ms in site.unequal_ms)
    print(
        f"{rounds} rounds in {time.monotonic() - begun:.0f} s, {made} workloads,"
        f" {sum(site.kept for site in sites)} claims outlived their partition;"
        f" equal after {late_ms[len(late_ms) // 2]} ms, at most {late_ms[-1]} ms,"
        f" {sum(ms >= REPORTED_MS for ms in late_ms)} after {REPORTED_MS} ms or more"
    )
    own.stop()
    checked = own.check()
    assert checked.returncode == 0, checked.stdout

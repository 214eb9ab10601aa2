"""Many channels, much work, and everything that goes wrong with channels: nothing is lost or twice.

Seeded by FELTD_SEED. What each worker was told is written down as it comes; afterwards the daemon's
own rows say what became of it.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.channel.talk import Wire, channel, done
from tests.api.claims.conftest import Crew
from tests.daemon.running import Daemon, Edge

SEED = int(os.environ.get("FELTD_SEED", "20"))
WORKERS = 6
JOBS = 80


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon for one story; it may be killed."""
    running = Daemon(tmp_path / "feltd.db", "--tick-ms", "100")
    try:
        yield running.init().start()
    finally:
        running.close()


class Hand:
    """A worker that takes work by its channel, and what it was told there."""

    def __init__(self, edge: Edge, told: Counter[int]) -> None:
        self.edge = edge
        self.told = told
        self.held: dict[int, dict[str, Any]] = {}
        self.wire: Wire | None = None
        self.credit = 0

    def connect(self) -> Wire:
        """Its channel, opened if there is none; it knows nothing of former claims then."""
        if self.wire is None or self.wire.closed is not None:
            self.wire, self.held, self.credit = channel(self.edge), {}, 0
        return self.wire

    def take_in(self) -> None:
        """Read what has come."""
        wire = self.connect()
        for message in wire.waiting():
            wire.wait(lambda one, message=message: one is message)
            news = message.get("push", message)
            for claim in (*news.get("claims", ()), *news.get("assigned_claims", ())):
                self.told[claim["fencing_token"]] += 1
                self.held[claim["fencing_token"]] = claim
            for claim_id in news.get("fenced_claims", ()):
                self.held.pop(int(claim_id.removeprefix("claim_")), None)
            for outcome in message.get("outcomes", ()):
                if outcome["op"] in ("complete", "release"):
                    self.held.pop(int(outcome["claim_id"].removeprefix("claim_")), None)
        assert len(self.held) <= 8, "never more than its concurrency"


def step(hand: Hand, chance: random.Random, *, calm: bool) -> None:
    """Something that a worker does, or that befalls it."""
    wire = hand.connect()
    what = chance.random()
    claims = list(hand.held.values())
    chance.shuffle(claims)
    if hand.credit == 0 or what < 0.1:
        hand.credit = chance.randint(1, 8)
        order = {"credit": hand.credit, "lease_ms": 2_000, "start": True}
        wire.send({"id": "credit", "claim": order})
    elif what < 0.7:
        some = [done(claim, output="x") for claim in claims[: chance.randint(1, 4)]]
        frame: dict[str, Any] = {"id": "done", "complete": some}
        if chance.random() < 0.5:
            frame["claim"] = {"credit": hand.credit, "lease_ms": 2_000, "start": True}
        wire.send(frame)
    elif what < 0.8:
        wire.send({"id": "back", "release": [fenced(claim) for claim in claims[:1]]})
    elif what < 0.85:
        wire.send({"id": "one", "claim": {"max": 1, "lease_ms": 2_000, "start": True}})
    elif what < 0.92 and not calm:
        (wire.reset if chance.random() < 0.5 else wire.close)()
        hand.wire = None


def fenced(claim: dict[str, Any]) -> dict[str, Any]:
    """The item that gives a claim back."""
    names = ("claim_id", "worker_id", "fencing_token", "workload_id")
    return {name: claim[name] for name in names}


@pytest.mark.parametrize(
    "seed", [SEED, *(pytest.param(SEED + n, marks=pytest.mark.soak) for n in range(1, 11))]
)
def test_no_claim_is_told_twice_and_no_work_is_lost(daemon: Daemon, seed: int) -> None:
    chance, crew, told = random.Random(seed), Crew(daemon), Counter[int]()
    hands = [
        Hand(crew.worker(heartbeat_timeout_ms=6_000, heartbeat_interval_ms=2_000), told)
        for _ in range(WORKERS)
    ]
    jobs: list[str] = []
    turns = 0

    def finished() -> bool:
        rows = daemon.get("/v1/workloads?state=COMPLETED&limit=500")["items"]
        return len(rows) == JOBS

    ends_s = time.monotonic() + 60
    while not (len(jobs) == JOBS and turns % 25 == 0 and finished()):
        assert time.monotonic() < ends_s, "some work never came to its end"
        turns += 1
        if len(jobs) < JOBS and chance.random() < 0.5:
            jobs.append(crew.work(retry_policy={"max_attempts": 500, "initial_backoff_ms": 0}))
        if turns == 100:
            daemon.kill()
            daemon.start()
            for hand in hands:
                hand.wire = None
        hand = chance.choice(hands)
        try:
            hand.take_in()
            step(hand, chance, calm=turns > 300)
        except (OSError, AssertionError) as error:
            if isinstance(error, AssertionError) and "closed with" not in str(error):
                raise
            hand.wire = None
        time.sleep(0.004)

    for hand in hands:
        hand.take_in()
    print(f"{turns} turns, {sum(told.values())} claims told, seed {seed}")
    assert [token for token, times in told.items() if times > 1] == []
    checked = daemon.check()
    assert checked.returncode == 0, checked.stdout

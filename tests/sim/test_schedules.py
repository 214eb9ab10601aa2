"""Seeded schedules hold every promise, and between them they meet everything there is to meet.

`FELTD_SEED=123 python -m pytest tests/sim` replays one schedule and prints its steps;
`python -m pytest -m soak tests/sim` runs FELTD_SIM_SCHEDULES of them (20,000 unless it says
otherwise; `5000-9999` runs those, so that several processes can share the work).
"""

import os
from collections import Counter
from functools import cache

import pytest

from feltd.errors import TABLE
from tests.sim.calls import FENCED
from tests.sim.schedule import run
from tests.tidy.source import raised_codes

SCHEDULES = 200
PART = 20
SOAK = "20000"

#: Codes in the rules' text that no call of a schedule can be answered with, and why.
BEYOND = {
    "INTERNAL": "a claim that cannot be ended breaks a promise first",
    "QUOTA_EXCEEDED": "a schedule names two resources",
    "USER_EXISTS": "nobody logs in: people are in tests/identity/people",
    "USER_NOT_FOUND": "nobody logs in: people are in tests/identity/people",
    "STORAGE_UNAVAILABLE": "a file without its ledger is refused at start",
}

ENDS = (
    "completed",
    "transient",
    "execution_error",
    "timeout",
    "cancelled",
    "policy_unenforceable",
    "melted",
    "released",
    "evicted",
    "lease_expired",
    "worker_lost",
    "cancelled_by_force",
    "authority_lost",
    "restored",
    "queue_timeout",
    "total_timeout",
)

#: Why a pull comes back empty, and how keys end.
REASONS = (
    "WORKER_NOT_READY",
    "WORKER_DRAINING",
    "WORKER_UNHEALTHY",
    "WORKER_FULL",
    "WORKER_QUARANTINED",
    "HELD",
    "POOL_FULL",
    "KEY_FULL",
    "NO_WORK",
    "NO_MATCH",
    "REQUEST_REPEATED",
    "ended key taken_over",
    "ended key revoked",
    "ended key grant_ended",
    "ended key expired",
)
#: What the harness does to the daemon, and what it sees of it.
DEEDS = ("crash", "lost", "full", "credit", "restored start", "repeated end", "given")
DEEDS += ("fence raised",)

STATES = ("READY", "COMPLETED", "DEAD_LETTERED", "CANCELLED")


@cache
def part(number: int) -> Counter[str]:
    """What the schedules of one part have reached. Raises schedule.Failure."""
    reached: Counter[str] = Counter()
    for seed in range(number * PART, (number + 1) * PART):
        reached += run(seed).reached
    return reached


@pytest.mark.parametrize("number", range(SCHEDULES // PART))
def test_schedules_hold_every_promise(number: int) -> None:
    part(number)


@pytest.mark.timeout(600)
def test_every_refusal_and_every_end_is_reached() -> None:
    """A schedule that meets nothing proves nothing."""
    reached = sum((part(number) for number in range(SCHEDULES // PART)), Counter[str]())
    wanted = [
        code
        for code, places in sorted(raised_codes().items())
        if code in TABLE
        and code not in BEYOND
        and any(place.startswith(("feltd/mesh/", "feltd/identity/")) for place in places)
    ]
    wanted += [f"end {kind}" for kind in ENDS]
    wanted += [f"to {state}" for state in STATES]
    wanted += [f"{verb} in an exchange" for verb in FENCED]
    wanted += [*REASONS, *DEEDS]

    missed = [one for one in wanted if not reached[one]]

    assert not missed, f"never reached in {SCHEDULES} schedules: {', '.join(missed)}"


def test_a_schedule_is_decided_by_its_seed() -> None:
    assert run(7).trace == run(7).trace
    assert run(7).trace != run(8).trace


def test_replay(capsys: pytest.CaptureFixture[str]) -> None:
    ran = run(int(os.environ["FELTD_SEED"]))
    with capsys.disabled():
        print("\n" + "\n".join(ran.trace))


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_schedules_hold_every_promise() -> None:
    first, _, last = os.environ.get("FELTD_SIM_SCHEDULES", SOAK).rpartition("-")
    seeds = range(int(first), int(last) + 1) if first else range(int(last))
    for seed in seeds:
        run(seed)

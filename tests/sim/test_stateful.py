"""Seeded schedules over records, triggers, instants and compaction hold every promise.

`FELTD_SEED=123 python -m pytest tests/sim/test_stateful.py` replays one and prints its steps;
`python -m pytest -m soak tests/sim/test_stateful.py` runs FELTD_SIM_SCHEDULES of them.
"""

import os
from collections import Counter
from functools import cache

import pytest

from tests.sim.stateful import run

SCHEDULES = 40
PART = 10
SOAK = "10000"

#: What these schedules must have met between them.
REACHED = (
    *("crash", "lost", "full", "restored start", "CONSUMER_BEHIND", "RECORD_CONFLICT"),
    *("RECORD_NOT_FOUND", "TRIGGER_INVALID", "TRIGGER_UNAUTHORIZED", "TRIGGER_NOT_FOUND"),
    *("fired", "too deep", "an instant", "an overlap", "a run by hand", "failure 1", "failure 5"),
    *("pruned changes", "pruned events", "pruned audit", "pruned workloads", "pruned claims"),
)


@cache
def part(number: int) -> Counter[str]:
    """What the schedules of one part have reached. Raises schedule.Failure."""
    reached: Counter[str] = Counter()
    for seed in range(number * PART, (number + 1) * PART):
        reached += run(seed).reached
    return reached


@pytest.mark.parametrize("number", range(SCHEDULES // PART))
def test_schedules_of_state_hold_every_promise(number: int) -> None:
    part(number)


def test_everything_there_is_to_meet_is_met() -> None:
    reached = sum((part(number) for number in range(SCHEDULES // PART)), Counter[str]())
    missed = [one for one in REACHED if not reached[one]]
    assert not missed, f"never reached in {SCHEDULES} schedules: {', '.join(missed)}"


def test_a_schedule_of_state_is_decided_by_its_seed() -> None:
    assert run(7).trace == run(7).trace


def test_replay_of_state(capsys: pytest.CaptureFixture[str]) -> None:
    ran = run(int(os.environ["FELTD_SEED"]))
    with capsys.disabled():
        print("\n" + "\n".join(ran.trace))


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_schedules_of_state_hold_every_promise() -> None:
    first, _, last = os.environ.get("FELTD_SIM_SCHEDULES", SOAK).rpartition("-")
    seeds = range(int(first), int(last) + 1) if first else range(int(last))
    for seed in seeds:
        run(seed)

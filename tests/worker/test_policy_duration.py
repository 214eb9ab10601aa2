"""max_duration_ms: when it is over, every process of the attempt is gone, whatever it does."""

from pathlib import Path
from typing import Any

import pytest

from tests.worker.programs import BOXED, FAMILY, all_gone, failure, pids_in, run


@pytest.mark.parametrize(
    "around", [{}, pytest.param(BOXED, marks=pytest.mark.needs("bwrap"))], ids=["plain", "boxed"]
)
def test_the_whole_tree_is_killed_when_the_duration_is_over(
    tmp_path: Path, around: dict[str, Any]
) -> None:
    pids = tmp_path / "pids"
    command = FAMILY.format(pids=pids) + "trap '' TERM; while :; do sleep 1; done"
    kind, message = failure(command, max_duration_ms=700, **around)

    assert kind == "timeout"
    assert message == "ended, because it ran longer than max_duration_ms 700"
    if not around:
        # Inside a sandbox they are counted anew: the next story finds those by name.
        all_gone(pids_in(pids, 3))


@pytest.mark.needs("bwrap")
def test_nothing_of_a_sandbox_outlives_its_duration(tmp_path: Path) -> None:
    mark = f"299.{tmp_path.stat().st_ino}"
    command = f"setsid sleep {mark} & setsid setsid sleep {mark} & sleep {mark}"

    assert failure(command, max_duration_ms=500, **BOXED)[0] == "timeout"
    all_gone([pid for pid, words in _commands() if mark in words])


def test_what_it_said_before_is_kept() -> None:
    kind, message = failure("echo page 3 of 9 >&2; sleep 300", max_duration_ms=500)

    assert (kind, message.rpartition(": ")[2]) == ("timeout", "page 3 of 9")


def test_a_program_that_ends_in_time_is_left_alone() -> None:
    assert run("sleep 0.1; cat", b'{"page": 3}', max_duration_ms=60_000) == {"page": 3}


def _commands() -> list[tuple[int, str]]:
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                words = (place / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            found.append((int(place.name), words))
    return found

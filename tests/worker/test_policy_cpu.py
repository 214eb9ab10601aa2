"""max_cpu_millis: processor time of all the processes of an attempt together."""

from typing import Any

import pytest

from tests.worker.programs import BOXED, failure, run

BUSY = "while :; do :; done"
SAID = "ended, because it used more processor time than max_cpu_millis 200"


@pytest.mark.parametrize(
    "around", [{}, pytest.param(BOXED, marks=pytest.mark.needs("bwrap"))], ids=["plain", "boxed"]
)
@pytest.mark.parametrize(
    "command",
    [
        BUSY,
        # Each for itself stays below the kernel's bound, which is in whole seconds.
        f"({BUSY}) & ({BUSY}) & setsid sh -c '{BUSY}' & wait",
        # Children that come and go: their time is counted when they are gone.
        "while :; do perl -e '1 for 1..300000'; done",
        # The time of a process that its parent leaves behind.
        f"sh -c '({BUSY}) & exit 0'; sleep 300",
    ],
    ids=["alone", "together", "short-lived", "left-behind"],
)
def test_more_processor_time_ends_all_of_it(command: str, around: dict[str, Any]) -> None:
    assert failure(command, max_cpu_millis=200, **around) == ("cpu_limit", SAID)


def test_waiting_costs_no_processor_time() -> None:
    assert run("sleep 0.6; echo 1", max_cpu_millis=300) == 1


def test_the_kernel_keeps_the_bound_where_nobody_looks() -> None:
    """A process has at most the seconds that the millis round up to."""
    assert run("ulimit -t", max_cpu_millis=2_001) == 3

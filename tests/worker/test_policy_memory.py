"""max_memory_bytes: a hog is stopped, its failure says by what, and its neighbours live on."""

import resource
import sys
from typing import Any

import pytest

from tests.worker.programs import BOXED, failure, run

MIB = 2**20
LIMIT = 100 * MIB
TAKE = """perl -e 'my $x = "a" x {size}; {then}'"""
AROUND = pytest.mark.parametrize(
    "around", [{}, pytest.param(BOXED, marks=pytest.mark.needs("bwrap"))], ids=["plain", "boxed"]
)


def take(mib: int, then: str = "print 1") -> str:
    """A program that takes so much memory and then does something."""
    return TAKE.format(size=mib * MIB, then=then)


@AROUND
def test_one_process_gets_no_more_than_the_bound(around: dict[str, Any]) -> None:
    kind, message = failure(take(400), max_memory_bytes=LIMIT, **around)

    assert kind == "memory_limit"
    assert f"under max_memory_bytes {LIMIT}" in message
    assert "ut of memory" in message


@AROUND
def test_many_processes_get_no_more_than_the_bound_together(around: dict[str, Any]) -> None:
    together = " & ".join([take(40, "sleep 300")] * 4)
    kind, message = failure(f"{together} & wait", max_memory_bytes=LIMIT, **around)

    assert kind == "memory_limit"
    assert message == f"ended, because it used more memory than max_memory_bytes {LIMIT}"


def test_memory_that_processes_could_share_counts_too() -> None:
    """The kernel's bound is of private memory."""
    shared = f"""{sys.executable} -c 'import mmap, time
m = mmap.mmap(-1, {160 * MIB})
[m.write(b"x" * {MIB}) for _ in range(160)]
time.sleep(300)'"""

    assert failure(shared, max_memory_bytes=LIMIT)[0] == "memory_limit"


def test_a_crash_with_the_bound_in_hand_is_told_as_one_of_memory() -> None:
    """Some programs do not look whether they were given memory; this shell is one."""
    kind, message = failure("x=a; while :; do x=$x$x; done", max_memory_bytes=LIMIT)

    assert kind == "memory_limit"
    assert f"max_memory_bytes {LIMIT}" in message


@AROUND
@pytest.mark.parametrize("memory_bytes", [1, 4_096, 100_000])
def test_a_bound_that_nothing_can_begin_in_says_so(
    memory_bytes: int, around: dict[str, Any]
) -> None:
    assert failure("echo 1", max_memory_bytes=memory_bytes, **around)[0] == "memory_limit"


@AROUND
def test_a_bound_that_bounds_nothing_is_none(around: dict[str, Any]) -> None:
    most = 2**53 - 1
    bounds: dict[str, Any] = {
        "max_memory_bytes": most,
        "max_cpu_millis": most,
        "max_duration_ms": most,
    }

    assert run("echo 1", **bounds, **around) == 1


def test_a_crash_of_another_kind_is_none_of_memory() -> None:
    assert failure("kill -SEGV $$", max_memory_bytes=LIMIT) == (
        "execution_error", "killed by signal 11",
    )  # fmt: skip


def test_pages_that_a_fork_shares_are_counted_once() -> None:
    forks = "fork for 1..2; sleep 1; print 1 if $$ == getppid; exit 0"
    run(take(25, forks), max_memory_bytes=LIMIT)


def test_who_stays_below_notices_nothing() -> None:
    assert run(take(30), max_memory_bytes=LIMIT) == 1
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY

"""Nothing that a program starts outlives its attempt, nor its worker, however that ends."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from feltd.model.policy import RuntimePolicy
from feltd.worker.failures import OUTPUT_BYTES_MAX, Transient
from feltd.worker.runtimes import launched, launcher
from feltd.worker.runtimes.process import ProcessRuntime
from tests.worker.programs import (
    BOXED,
    CLAIM,
    FAMILY,
    alive,
    all_gone,
    attempt,
    failure,
    pids_in,
    run,
    until,
)

AROUND = pytest.mark.parametrize(
    "around", [{}, pytest.param(BOXED, marks=pytest.mark.needs("bwrap"))], ids=["plain", "boxed"]
)
HOST = """
import asyncio, sys
from feltd.worker.runtimes.process import ProcessRuntime
from tests.worker.programs import attempt
asyncio.run(attempt(ProcessRuntime(sys.argv[1]), **eval(sys.argv[2])))
"""


def below(pid: int) -> list[int]:
    """Every process below one, once there are enough of them."""
    until(lambda: len(launcher.descendants(pid)) >= 4, "it runs")
    return launcher.descendants(pid)


@AROUND
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_program_does_not_outlive_its_worker(
    tmp_path: Path, number: int, around: dict[str, Any]
) -> None:
    """A worker that is killed can tell nobody; the lifeline is the kernel's to cut."""
    command = "trap '' TERM HUP; setsid sleep 300 & sleep 300 & sleep 300"
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, command, repr(around)],
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    family = below(host.pid)
    host.send_signal(number)
    host.wait()

    all_gone(family)
    until(lambda: not list(tmp_path.iterdir()), "its folder is gone too")


def test_what_a_program_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = FAMILY.format(pids=pids) + f"until [ $(wc -w < {pids}) = 3 ]; do :; done; echo 1"

    assert run(command) == 1
    all_gone(pids_in(pids, 3))


def test_a_launcher_that_is_killed_takes_the_program_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = f"echo $PPID $$ > {pids}; sleep 300"

    async def story() -> None:
        running = asyncio.create_task(attempt(ProcessRuntime(command)))
        await asyncio.to_thread(pids_in, pids, 2)
        os.kill(pids_in(pids, 2)[0], signal.SIGKILL)
        with pytest.raises(Transient):
            await running

    asyncio.run(story())
    all_gone(pids_in(pids, 2))


async def cancelled(runtime: ProcessRuntime, ready: Path, **members: Any) -> None:
    """Begin an attempt, and cancel it when its program has written a word."""
    running = asyncio.create_task(attempt(runtime, **members))
    await asyncio.to_thread(until, ready.exists, "it runs")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@AROUND
def test_a_cancelled_program_is_asked_first(tmp_path: Path, around: dict[str, Any]) -> None:
    ready, told = tmp_path / "ready", tmp_path / "told"
    command = f"trap 'echo 1 > {told}; exit 0' TERM; touch {ready}; while :; do sleep 0.05; done"
    asyncio.run(cancelled(ProcessRuntime(command), ready, **around))

    assert told.read_text().strip() == "1"


@AROUND
def test_a_cancelled_program_that_does_not_listen_is_killed_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, around: dict[str, Any]
) -> None:
    monkeypatch.setattr(launched, "TERM_S", 0.2)
    ready = tmp_path / "ready"
    command = (
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 300; sleep 300' & "
        f"touch {ready}; sleep 300; sleep 300"
    )
    before = set(launcher.descendants(os.getpid()))
    asyncio.run(cancelled(ProcessRuntime(command), ready, **around))

    all_gone([pid for pid in launcher.descendants(os.getpid()) if pid not in before])


def test_timeout_ends_it_at_once_and_says_so(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    runtime = ProcessRuntime(FAMILY.format(pids=pids) + "sleep 300")

    async def story() -> str:
        await runtime.start(CLAIM, RuntimePolicy())
        running = asyncio.create_task(runtime.execute(CLAIM, b"null"))
        await asyncio.to_thread(pids_in, pids, 3)
        await runtime.timeout(CLAIM)
        finished = await running
        runtime.forget(CLAIM)
        return finished.end

    assert asyncio.run(story()) == "duration"
    all_gone(pids_in(pids, 3))


@AROUND
def test_a_program_that_never_stops_writing_is_stopped(around: dict[str, Any]) -> None:
    """The worker keeps no more of it than may be stored, and does not wait for the rest."""
    assert failure("yes", **around) == (
        "execution_error",
        f"stdout is over {OUTPUT_BYTES_MAX} bytes: store it, print a reference",
    )


def test_as_much_as_may_be_stored_is_kept() -> None:
    assert (
        len(run(f"head -c {OUTPUT_BYTES_MAX - 2} /dev/zero | tr '\\0' x")) == OUTPUT_BYTES_MAX - 2
    )


def test_a_flood_on_stderr_costs_the_worker_nothing() -> None:
    _, message = failure("head -c 100000000 /dev/zero | tr '\\0' '\\n' >&2; echo end >&2; exit 1")

    assert message == "exit code 1: end"


def test_a_program_need_not_read_its_input() -> None:
    assert run("exec <&-; echo 1", b'"' + b"x" * 250_000 + b'"') == 1


def test_no_folder_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run('echo 1 > "$FELTD_CHECKPOINT"; mkdir "$(dirname "$FELTD_CHECKPOINT")/more"')
    failure("exit 3")

    assert list(tmp_path.iterdir()) == []


def test_the_dead_are_seen_as_dead() -> None:
    child = subprocess.Popen(["true"])
    until(lambda: not alive(child.pid), "it ends")
    child.wait()

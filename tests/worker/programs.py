"""Programs under a policy: real processes, run by the process runtime, without a daemon."""

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feltd.model.policy import RuntimePolicy
from feltd.worker.command import result
from feltd.worker.failures import Permanent, Transient
from feltd.worker.runtimes.process import ProcessRuntime

PATIENCE_S = 20.0
#: What the programs of these stories are made of.
WORDS = ("sh", "sleep", "cat", "perl", "env", "head", "tr", "ls", "touch", "true", "kill")
#: Policies that change nothing but who stands around the program.
BOXED = {"network_policy": "loopback"}
CLAIM = {"claim_id": "claim_7", "workload_id": "workload_7", "fencing_token": 7}
#: A program that is not alone: a child, and one that left the process group and its parent.
FAMILY = (
    "sleep 300 & echo $! >> {pids}; setsid sh -c 'echo $$ >> {pids}; exec sleep 300' & "
    "echo $$ >> {pids}; "
)


def run(
    command: str, given: bytes = b"null", *, readable: tuple[str, ...] = (), **members: Any
) -> Any:
    """What a command comes to under a policy: its output, or Permanent, or Transient."""
    return asyncio.run(attempt(ProcessRuntime(command, readable), given, **members))


async def attempt(runtime: ProcessRuntime, given: bytes = b"null", **members: Any) -> Any:
    """One attempt from start to end."""
    policy = RuntimePolicy(**members)
    await runtime.start(CLAIM, policy)
    try:
        return result(await runtime.execute(CLAIM, given), policy)
    finally:
        runtime.forget(CLAIM)


def failure(command: str, **members: Any) -> tuple[str, str]:
    """The kind and the message a command fails with."""
    try:
        output = run(command, **members)
    except Transient as error:
        return "transient", str(error)
    except Permanent as error:
        return error.kind, str(error)
    raise AssertionError(f"it did not fail: {output!r}")


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet buried does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(done: Callable[[], Any], what: str) -> None:
    """Wait for something to become so."""
    ends = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < ends, f"never: {what}"
        time.sleep(0.02)


def pids_in(path: Path, count: int) -> list[int]:
    """The pids that a program wrote down, once there are so many."""
    until(lambda: path.exists() and len(path.read_text().split()) >= count, "it runs")
    return [int(one) for one in path.read_text().split()]


def all_gone(pids: list[int]) -> None:
    """Wait until none of these processes runs."""
    until(lambda: not any(alive(pid) for pid in pids), f"{pids} are gone")


@pytest.fixture
def hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH on which there is no bubblewrap; the folder, to put another one there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in (*WORDS, "setsid"):
        found = shutil.which(name)
        if found is not None:
            (folder / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def with_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's environment: its key, and something that is nobody's business."""
    monkeypatch.setenv("FELTD_KEY", "felt_s_the_key_of_the_worker")
    monkeypatch.setenv("DATABASE_URL", "postgres://me:hunter2@db")
    assert "FELTD_KEY" in os.environ

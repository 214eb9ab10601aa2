"""filesystem_policy: none and scratch see programs and nothing of the machine's own files."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from feltd.model.policy import RuntimePolicy
from feltd.worker.command import CheckpointFile, result
from feltd.worker.context import AsyncContext
from feltd.worker.runtimes.process import ProcessRuntime
from tests.worker.programs import CLAIM, failure, run

pytestmark = pytest.mark.needs("bwrap")

CLOSED = pytest.mark.parametrize("files", ["none", "scratch"])
MIB = 2**20


@CLOSED
def test_the_machines_files_are_not_there(tmp_path: Path, files: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    command = f"cat {secret} ~/.ssh/* /etc/shadow /root/*; ls -A /home /root /run /srv /var; true"

    assert run(f"({command}) 2>/dev/null", filesystem_policy=files) == ""


@CLOSED
def test_nothing_of_the_system_can_be_written(files: str) -> None:
    command = "for at in / /usr /usr/bin /etc /dev /proc; do touch $at/x && echo $at; done; true"

    assert run(f"({command}) 2>/dev/null", filesystem_policy=files) == ""


@CLOSED
def test_other_processes_are_not_seen(files: str) -> None:
    assert run("ls /proc | grep -c '^[0-9]'", filesystem_policy=files) < 8


def test_scratch_is_a_place_of_ones_own_that_goes_with_the_attempt() -> None:
    command = "ls -A; echo 1 > left; echo 2 > $TMPDIR/more; echo 3 > ~/most; cat left more most"

    for _ in range(2):
        assert run(f"{command}; pwd", filesystem_policy="scratch") == "1\n2\n3\n/tmp"


def test_none_has_no_such_place() -> None:
    command = 'touch left "$TMPDIR/more" /tmp/x /dev/shm/x 2>/dev/null || echo none'

    assert run(command, filesystem_policy="none") == "none"


def test_scratch_is_as_large_as_the_memory_that_is_allowed() -> None:
    """A file system in memory would be a way round the bound."""
    command = "head -c 90000000 /dev/zero > big; head -c 90000000 /dev/zero > /dev/shm/big"
    kind, message = failure(command, filesystem_policy="scratch", max_memory_bytes=64 * MIB)

    assert kind == "execution_error"
    assert "No space left" in message


@pytest.mark.parametrize("files", ["none", "scratch", "inherit"])
def test_a_checkpoint_goes_in_and_comes_out(files: str) -> None:
    """FELTD_CHECKPOINT works wherever the program is kept."""
    program = "F=$FELTD_CHECKPOINT; cat $F; echo '{\"page\": 18}' > $F.new && mv $F.new $F"
    output, stored = asyncio.run(with_checkpoint(program, {"page": 17}, files))

    assert output == {"page": 17}
    assert stored == [{"page": 18}]


@pytest.mark.parametrize("put", ["ln -s {secret} $F", "mkfifo $F", "mkdir $F"])
def test_only_a_file_is_a_checkpoint(tmp_path: Path, put: str) -> None:
    """What a program cannot read, the worker must not read for it."""
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"password": "hunter2"}))
    program = "F=$FELTD_CHECKPOINT; " + put.format(secret=secret)
    _, stored = asyncio.run(with_checkpoint(program, None, "scratch"))

    assert stored == []


def test_none_writes_nothing_larger_than_a_checkpoint() -> None:
    command = 'head -c 1000000 /dev/zero > "$FELTD_CHECKPOINT"'

    assert failure(command, filesystem_policy="none")[0] == "execution_error"


@CLOSED
def test_what_the_worker_shows_can_be_read_and_not_written(tmp_path: Path, files: str) -> None:
    (tmp_path / "model").write_text("weights")
    command = f"cat {tmp_path}/model; echo x > {tmp_path}/model || true"

    assert run(command, filesystem_policy=files, readable=(str(tmp_path),)) == "weights"
    assert (tmp_path / "model").read_text() == "weights"


def test_inherit_is_the_workers_own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page").write_text("17")

    assert run("cat page") == 17


class Paper:
    """What a checkpoint file needs of a context: the last state, and where the next goes."""

    def __init__(self, state: Any) -> None:
        self.checkpoint_state = state
        self.stored: list[Any] = []

    async def checkpoint(self, state: Any) -> None:
        self.stored.append(state)


async def with_checkpoint(program: str, state: Any, files: Any) -> tuple[Any, list[Any]]:
    """One attempt with a checkpoint before it: its output, and what it left."""
    runtime, policy, paper = (
        ProcessRuntime(program),
        RuntimePolicy(filesystem_policy=files),
        Paper(state),
    )
    file = CheckpointFile(await runtime.start(CLAIM, policy), cast(AsyncContext, paper))
    try:
        finished = await runtime.execute(CLAIM, b"null")
        await file.send()
    finally:
        runtime.forget(CLAIM)
    return result(finished, policy), paper.stored


@CLOSED
@pytest.mark.parametrize(
    "fill",
    [
        "for i in $(seq 9000); do head -c 200000 /dev/zero > /feltd/$i; done",
        "mkdir /feltd/a; cd /feltd/a; for i in $(seq 9000); do : > e$i; done",
    ],
)
def test_a_program_does_not_fill_the_disk_of_its_worker(files: str, fill: str) -> None:
    """Its checkpoint's folder is the only one of the machine that it may write to."""
    kind, message = failure(f"{fill}; sleep 300", filesystem_policy=files)

    assert kind == "disk_limit"
    assert "the folder of its checkpoint" in message

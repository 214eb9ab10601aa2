"""`--exec`: any program as a handler. Input on stdin, output from stdout, the exit code decides.

The program runs through /bin/sh in a process group of its own, which is ended as a whole when the
work shall stop. It is told its fence in the environment and never sees the worker's keys.
"""

import asyncio
import contextlib
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from feltd.worker.context import AsyncContext
from feltd.worker.failures import OUTPUT_BYTES_MAX, Fenced, Permanent, Transient
from feltd.worker.refusal import Refusal

#: sysexits' EX_TEMPFAIL: trying again may help.
TEMPORARY = 75
STDERR_BYTES_MAX = 2_048
#: Between SIGTERM and SIGKILL for a program that shall stop.
TERM_S = 5.0
#: How often the checkpoint file is looked at while the program runs.
CHECKPOINT_EVERY_S = 1.0
CHECKPOINT_BYTES_MAX = 256 * 1024
#: Not for the program: it could register workers or act as this one.
KEPT_BACK = ("FELTD_KEY",)


class Command:
    """A handler that runs `text` as a shell command, once for each claim."""

    def __init__(self, text: str) -> None:
        self.text = text

    async def __call__(self, ctx: AsyncContext) -> Any:
        """Run it; the output is stdout as JSON, else as a string.

        Raises Transient for exit code 75, Permanent with the last 2 KiB of stderr for any other.
        """
        with tempfile.TemporaryDirectory(prefix="feltd-") as folder:
            state = CheckpointFile(Path(folder) / "checkpoint.json", ctx)
            process = await asyncio.create_subprocess_shell(
                self.text,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment(ctx, state.path),
                start_new_session=True,
            )
            watching = asyncio.create_task(state.watch())
            try:
                code, output, errors = await _talk(process, msgspec.json.encode(ctx.input))
            finally:
                watching.cancel()
                await _ended(process)
            await state.send()
        return outcome(code, output, errors)


def environment(ctx: AsyncContext, checkpoint: Path) -> dict[str, str]:
    """The environment of the program: this process's own, without its keys, and the fence."""
    kept = {name: value for name, value in os.environ.items() if name not in KEPT_BACK}
    return kept | {
        "FELTD_WORKLOAD_ID": ctx.workload_id,
        "FELTD_ATTEMPT": str(ctx.attempt),
        "FELTD_FENCING_TOKEN": str(ctx.fence),
        "FELTD_EXPIRES_AT_MS": str(ctx.claim.get("expires_at_ms", "")),
        "FELTD_CHECKPOINT": str(checkpoint),
    }


def outcome(code: int, output: bytes, errors: bytes) -> Any:
    """What an exit code, a stdout and a stderr mean."""
    tail = errors[-STDERR_BYTES_MAX:].decode(errors="replace").strip()
    if code == TEMPORARY:
        raise Transient(tail or f"exit code {TEMPORARY}")
    if code != 0:
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        raise Permanent(f"{how}: {tail}" if tail else how)
    if len(output) > OUTPUT_BYTES_MAX:
        raise Permanent(f"stdout is over {OUTPUT_BYTES_MAX} bytes: store it, print a reference")
    try:
        return msgspec.json.decode(output)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return output.decode(errors="replace").replace("\x00", "").rstrip("\n")


class CheckpointFile:
    """The file behind FELTD_CHECKPOINT: the last attempt's state, and what the program writes."""

    def __init__(self, path: Path, ctx: AsyncContext) -> None:
        self.path = path
        self._ctx = ctx
        self._sent: bytes | None = None
        if ctx.checkpoint_state is not None:
            self._sent = msgspec.json.encode(ctx.checkpoint_state)
            path.write_bytes(self._sent)

    async def watch(self) -> None:
        """Store what the program writes, while it runs."""
        while True:
            await asyncio.sleep(CHECKPOINT_EVERY_S)
            with contextlib.suppress(ConnectionError):
                await self.send()

    async def send(self) -> None:
        """Store the file's content if it is whole JSON and new; half-written ones wait."""
        try:
            if self.path.stat().st_size > CHECKPOINT_BYTES_MAX:
                return
            content = self.path.read_bytes()
            if not content or content == self._sent:
                return
            state = msgspec.json.decode(content)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        try:
            await self._ctx.checkpoint(state)
        except Refusal as refused:
            self._ctx.log(f"the checkpoint was refused: {refused}", level="warning")
        except Fenced:
            return
        self._sent = content


async def _talk(process: asyncio.subprocess.Process, given: bytes) -> tuple[int, bytes, bytes]:
    """Feed stdin, keep a bounded stdout and the end of stderr, wait for the exit code."""
    assert process.stdin is not None  # all three are pipes
    assert process.stdout is not None
    assert process.stderr is not None
    _fed, output, errors, code = await asyncio.gather(
        _feed(process.stdin, given),
        _head(process.stdout, OUTPUT_BYTES_MAX + 1),
        _tail(process.stderr, STDERR_BYTES_MAX),
        process.wait(),
    )
    return code, output, errors


async def _feed(stdin: asyncio.StreamWriter, given: bytes) -> None:
    # A program need not read its input.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stdin.write(given)
        await stdin.drain()
    stdin.close()


async def _head(stream: asyncio.StreamReader, bytes_max: int) -> bytes:
    kept = bytearray()
    while chunk := await stream.read(65_536):
        kept += chunk[: max(0, bytes_max - len(kept))]
    return bytes(kept)


async def _tail(stream: asyncio.StreamReader, bytes_max: int) -> bytes:
    kept = bytearray()
    while chunk := await stream.read(65_536):
        kept += chunk
        del kept[:-bytes_max]
    return bytes(kept)


async def _ended(process: asyncio.subprocess.Process) -> None:
    """End the whole group: gently, then not; also what the program left behind."""
    for number, seconds in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, TERM_S)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        if process.returncode is not None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), seconds)
            return

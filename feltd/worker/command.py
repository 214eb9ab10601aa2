"""A runtime as a handler: `--exec` any program, `--wasm` a module, `--remote` an address.

Input goes in, output comes out, the exit code decides; all of it under the claim's policy within
the worker's own caps. What runs is told its fence and never sees the worker's keys.
"""

import asyncio
import contextlib
import os
import re
import signal
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from feltd.model.grant import RuntimeCaps
from feltd.model.policy import RuntimePolicy
from feltd.model.secret_text import covered
from feltd.worker.context import AsyncContext
from feltd.worker.failures import OUTPUT_BYTES_MAX, Fenced, Permanent, Transient
from feltd.worker.refusal import Refusal
from feltd.worker.runtimes.process import STDERR_BYTES_KEPT, ProcessRuntime
from feltd.worker.runtimes.runtime import Claim, Finished, Runtime, policy_of

#: sysexits' EX_TEMPFAIL: trying again may help.
TEMPORARY = 75
STDERR_BYTES_MAX = 2_048
#: How often the checkpoint file is looked at while the program runs.
CHECKPOINT_EVERY_S = 1.0
CHECKPOINT_BYTES_MAX = 256 * 1024
#: What programs say when the kernel gives them no more memory: they end as they like.
OUT_OF_MEMORY = re.compile(
    r"(?i)out ?of ?memory|cannot allocate|failed to map segment|memoryerror|bad_alloc"
    r"|memory exhausted|allocation failed"
)
#: How programs end that do not look whether they were given memory.
CRASHES = frozenset(-number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS))


class Program:
    """A handler that runs each claim in a runtime, under its policy within `caps`."""

    #: It keeps to the policy of the claim itself.
    enforces_policy = True

    def __init__(self, runtime: Runtime, caps: RuntimeCaps | None = None) -> None:
        self.runtime = runtime
        self.caps = caps

    async def __call__(self, ctx: AsyncContext) -> Any:
        """Run it; the output is stdout as JSON, else as a string.

        Raises Transient for exit code 75, Permanent with the last 2 KiB of stderr for any other,
        and with a kind of its own for a program that was ended at a bound: timeout, cpu_limit,
        memory_limit, disk_limit; policy_unenforceable before it started.
        """
        claim = ctx.claim
        policy = policy_of(claim, self.caps)
        path = await self.runtime.start(claim, policy)
        try:
            finished = await self._execute(ctx, claim, path)
        finally:
            self.runtime.forget(claim)
        return result(finished, policy)

    async def _execute(self, ctx: AsyncContext, claim: Claim, path: Path | None) -> Finished:
        given = msgspec.json.encode(ctx.input)
        if path is None:
            return await self.runtime.execute(claim, given)
        state = CheckpointFile(path, ctx)
        watching = asyncio.create_task(state.watch())
        try:
            finished = await self.runtime.execute(claim, given)
        finally:
            watching.cancel()
        await state.send()
        return finished


class Command(Program):
    """A handler that runs `text` as a shell command, once for each claim.

    `caps` are the worker's own, `readable` the paths that a program without the machine's files
    may still read.
    """

    def __init__(
        self, text: str, caps: RuntimeCaps | None = None, readable: Sequence[str] = ()
    ) -> None:
        super().__init__(ProcessRuntime(text, readable), caps)
        self.text = text


def result(finished: Finished, policy: RuntimePolicy) -> Any:
    """What the end of a program means under its policy."""
    tail = shown(finished.errors)
    if finished.end == "duration":
        bound = _bound("max_duration_ms", policy)
        raise Permanent(_ended(f"it ran longer than {bound}", tail), "timeout")
    if finished.end == "cpu":
        bound = _bound("max_cpu_millis", policy)
        raise Permanent(_ended(f"it used more processor time than {bound}", tail), "cpu_limit")
    if finished.end == "memory":
        bound = _bound("max_memory_bytes", policy)
        raise Permanent(_ended(f"it used more memory than {bound}", tail), "memory_limit")
    if finished.end == "disk":
        raise Permanent(_ended("it filled the folder of its checkpoint", tail), "disk_limit")
    if finished.end == "output":
        raise Permanent(f"stdout is over {OUTPUT_BYTES_MAX} bytes: store it, print a reference")
    if finished.end == "trap":
        raise Permanent(_ended(f"it trapped: {finished.why}", tail))
    if finished.end == "told":
        raise Transient("the program was told to end before it had")
    if policy.max_memory_bytes is not None and _starved(finished, policy.max_memory_bytes, tail):
        bound = _bound("max_memory_bytes", policy)
        how = f"{_how(finished.code)}, under {bound}"
        raise Permanent(f"{how}: {tail}" if tail else how, "memory_limit")
    return outcome(finished.code, finished.output, finished.errors)


def _bound(member: str, policy: RuntimePolicy) -> str:
    """A bound as a person reads it; a runtime may have one where the policy has none."""
    value = getattr(policy, member)
    return f"what its runtime allows without {member}" if value is None else f"{member} {value}"


def _starved(finished: Finished, memory_bytes: int, tail: str) -> bool:
    """Whether a failure looks like the work of the bound: the kernel refuses what is past it, and
    what follows is the program's own doing. It says so, or it crashes with half of the bound held.
    """
    if finished.code in (0, TEMPORARY):
        return False
    crashed = finished.code in CRASHES and finished.peak_bytes * 2 >= memory_bytes
    return crashed or OUT_OF_MEMORY.search(tail) is not None


def outcome(code: int, output: bytes, errors: bytes) -> Any:
    """What an exit code, a stdout and a stderr mean."""
    tail = shown(errors)
    if code == TEMPORARY:
        raise Transient(tail or f"exit code {TEMPORARY}")
    if code != 0:
        raise Permanent(f"{_how(code)}: {tail}" if tail else _how(code))
    if len(output) > OUTPUT_BYTES_MAX:
        raise Permanent(f"stdout is over {OUTPUT_BYTES_MAX} bytes: store it, print a reference")
    try:
        return msgspec.json.decode(output)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return output.decode(errors="replace").replace("\x00", "").rstrip("\n")


def shown(errors: bytes) -> str:
    """The last 2 KiB of stderr, searched for secrets before they are cut off.

    What was cut already begins in the middle of a word, which may be half a secret: it goes whole.
    """
    text = errors.decode(errors="replace")
    if len(errors) > STDERR_BYTES_KEPT:
        text = re.sub(r"\A\S*", "", text)
    if len(text.encode()) > STDERR_BYTES_MAX:
        text = covered(text)
    return text.encode()[-STDERR_BYTES_MAX:].decode(errors="ignore").strip()


def _read(path: Path) -> bytes:
    """The file as far as it is one and fits, else nothing.

    A program that sees only its own files could put a link there, for this process to follow.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(file, "rb") as reading:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return b""
        content = reading.read(CHECKPOINT_BYTES_MAX + 1)
    return content if len(content) <= CHECKPOINT_BYTES_MAX else b""


def _how(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def _ended(why: str, tail: str) -> str:
    return f"ended, because {why}: {tail}" if tail else f"ended, because {why}"


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
            content = _read(self.path)
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

"""One run of a pipeline from outside: a process that is fed, answered, timed, and ended.

The process bounds itself (child.py); here it is bounded once more by what nobody inside can move:
time, and how much it may say. It is killed the moment it is no longer wanted.
"""

import asyncio
import contextlib
import functools
import os
import platform
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

import feltd
from feltd.executor import child
from feltd.executor.child import LENGTH
from feltd.executor.records import Held, Records
from feltd.executor.steps import BYTES_MAX, OUTPUT_BYTES_MAX, SEARCH_LIMIT_MAX, Failed
from feltd.model.base import Name
from feltd.model.policy import RuntimePolicy
from feltd.model.record import QUERY_CHARS_MAX, Version
from feltd.worker.runtimes import sandbox
from feltd.worker.runtimes.launched import LAST

#: A step says a value, the last frame the output, which may take more. The daemon reads each of
#: them beside everything else it does: no program says more at once, whatever becomes of it.
FRAME_BYTES_MAX = OUTPUT_BYTES_MAX + 64 * 1024
DURATION_MS_MAX = 30_000
#: Ten times BYTES_MAX, which is what JSON takes in Python, and Python itself.
MEMORY_BYTES_MAX = 256 * 1024 * 1024
#: Kept of what a process complains before it dies, for the daemon's log.
COMPLAINT_BYTES_MAX = 2_048
#: A killed process is gone at once, but for one that a device holds.
REAP_S = 5.0
#: Starts the interpreter with the standard library and feltd, and nothing that is installed.
BEGIN = (
    f"import sys; sys.path.append({str(Path(feltd.__file__).parent.parent)!r}); "
    f"from {child.__name__} import main; main()"
)


class Bounds(NamedTuple):
    """What one run may take: the executor's own bounds, or the claim's where they are tighter."""

    duration_ms: int
    cpu_ms: int
    memory_bytes: int


def bounds_of(policy: RuntimePolicy) -> Bounds:
    """The bounds of a claim's policy. Network, files and secrets a pipeline never has any of."""
    return Bounds(
        duration_ms=min(DURATION_MS_MAX, policy.max_duration_ms),
        cpu_ms=min(DURATION_MS_MAX, policy.max_cpu_millis or DURATION_MS_MAX),
        memory_bytes=min(MEMORY_BYTES_MAX, policy.max_memory_bytes or MEMORY_BYTES_MAX),
    )


async def run(
    program: bytes, given: bytes, bounds: Bounds, held: Held, records: Records
) -> msgspec.Raw:
    """Run a pipeline, JSON, on its input, JSON, to its output. Raises Failed, and what
    `records.ask` raises.

    Cancelled, it kills the process before it lets go.
    """
    process = await _start(bounds)
    try:
        async with asyncio.timeout(bounds.duration_ms / 1_000):
            return await _converse(process, program, given, held, records)
    except TimeoutError:
        raise Failed(408, f"it ran longer than {bounds.duration_ms} ms") from None
    except (asyncio.IncompleteReadError, ConnectionError):
        raise await _died(process, bounds) from None
    finally:
        await _end(process)


async def _start(bounds: Bounds) -> asyncio.subprocess.Process:
    words = (bounds.memory_bytes, bounds.cpu_ms, os.getpid())
    return await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", LAST + BEGIN, *map(str, words), _no_sockets(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={},
        process_group=0,
    )  # fmt: skip


@functools.cache
def _no_sockets() -> str:
    """The filter that lets no socket through, as hexadecimal; '' where none is known."""
    if sys.platform != "linux" or platform.machine() not in sandbox.PROCESSORS:
        return ""
    return sandbox.socket_filter(RuntimePolicy(network_policy="none")).hex()


async def _converse(
    process: asyncio.subprocess.Process,
    program: bytes,
    given: bytes,
    held: Held,
    records: Records,
) -> msgspec.Raw:
    await _say(process, {"program": msgspec.Raw(program), "input": msgspec.Raw(given)})
    while True:
        said = await _hear(process)
        if said.failed is not None:
            raise Failed(said.failed.status, said.failed.why)
        if said.asks is None:
            return said.output
        asked: dict[str, Any] = msgspec.to_builtins(said.asks)
        await _say(process, {"answer": await records.ask(held, asked)})


class _Failure(msgspec.Struct):
    status: int
    why: str


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    """What a step asks: looked at once more, though the process has looked already."""

    op: Literal["get", "search", "put", "patch"]
    collection: Name
    id: Name | UnsetType = UNSET
    value: Any = UNSET
    if_version: Version | UnsetType | None = UNSET
    query: Annotated[str, Meta(min_length=1, max_length=QUERY_CHARS_MAX)] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=SEARCH_LIMIT_MAX)] | UnsetType = UNSET
    cursor: str | UnsetType | None = UNSET
    bytes_max: Annotated[int, Meta(ge=0, le=BYTES_MAX)] | UnsetType = UNSET


class _Said(msgspec.Struct):
    """A frame of the process."""

    asks: _Asked | None = None
    failed: _Failure | None = None
    output: msgspec.Raw = msgspec.Raw(b"null")


_FRAMES = msgspec.json.Decoder(_Said)


async def _say(process: asyncio.subprocess.Process, frame: Any) -> None:
    assert process.stdin is not None  # a pipe
    content = msgspec.json.encode(frame)
    # One that ended before it had read all of it may have said why.
    with contextlib.suppress(ConnectionError):
        process.stdin.write(LENGTH.pack(len(content)) + content)
        await process.stdin.drain()


async def _hear(process: asyncio.subprocess.Process) -> _Said:
    assert process.stdout is not None  # a pipe
    (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
    if length > FRAME_BYTES_MAX:
        raise Failed(413, f"it says {length} bytes at once, more than {FRAME_BYTES_MAX}")
    try:
        return _FRAMES.decode(await process.stdout.readexactly(length))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Failed(500, f"it says what cannot be read: {error}") from None


async def _died(process: asyncio.subprocess.Process, bounds: Bounds) -> Failed:
    """What the end of a process that said nothing means."""
    assert process.stderr is not None  # a pipe
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REAP_S):
            complaint = (await process.stderr.read(COMPLAINT_BYTES_MAX)).decode(errors="replace")
            code = await process.wait()
            if code == -signal.SIGPROF:
                return Failed(408, f"it used more than {bounds.cpu_ms} ms of processor time")
            if "MemoryError" in complaint:
                return Failed(413, f"it needs more than {bounds.memory_bytes} bytes of memory")
            last = complaint.strip().rpartition("\n")[2]
            return Failed(500, f"its process ended with {code}: {last or 'it said nothing'}")
    return Failed(500, "its process said nothing and did not end")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Nothing of it is left when this returns, whatever it was doing."""
    if process.stdin is not None:
        process.stdin.close()
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REAP_S):
                await asyncio.shield(process.wait())

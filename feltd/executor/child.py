"""The process a pipeline program runs in: it has its input, two pipes, and nothing else.

Before it reads a word of the program it gives up whatever it could do harm with: sockets, files,
further processes, memory and processor time beyond its bounds, and a life longer than the daemon's.
What it needs of the records it asks for on its pipe. The standard library alone: it starts with
every program.
"""

import ctypes
import errno
import json
import os
import resource
import signal
import struct
import sys
from typing import Any

from feltd.executor import pipeline
from feltd.executor.steps import Failed, Malformed, compiled

#: A frame is its length, four bytes, and so many bytes of JSON.
LENGTH = struct.Struct(">I")
#: stdin, stdout, stderr, and what Python opens to load the rest of itself.
FILES_MAX = 8
#: Of why a program failed; a name in it may be as long as the program.
WHY_CHARACTERS_MAX = 4_096
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
SECCOMP_MODE_FILTER = 2
FILTER_STEP_BYTES = 8


def main() -> None:
    """`MEMORY_BYTES CPU_MS PARENT [FILTER]`, then frames: the program and its input come in.

    Out go `{"asks": …}`, each answered by `{"answer": …}`, and at the end `{"output": …}` or
    `{"failed": {"status", "why"}}`.
    """
    memory_bytes, cpu_ms, parent = (int(one) for one in sys.argv[1:4])
    confine(memory_bytes, cpu_ms, parent, bytes.fromhex("".join(sys.argv[4:5])))
    end: dict[str, Any]
    try:
        end = {"output": _run(hear())}
    except Failed as failed:
        end = _failed(failed.status, failed.why)
    except MemoryError:
        end = _failed(413, "it needs more memory than it may have")
    except Exception as error:
        end = _failed(500, f"{type(error).__name__}: {error}")
    say(end)


def _failed(status: int, why: str) -> dict[str, Any]:
    return {"failed": {"status": status, "why": why[:WHY_CHARACTERS_MAX]}}


def _run(told: Any) -> list[Any]:
    try:
        steps = compiled(told["program"])
    except Malformed as error:
        raise Failed(422, str(error)) from None
    running = pipeline.run(steps, told["input"])
    try:
        asked = next(running)
        while True:
            say({"asks": asked})
            asked = running.send(hear()["answer"])
    except StopIteration as ended:
        output: list[Any] = ended.value
        return output


def say(frame: Any) -> None:
    """Write a frame."""
    content = pipeline.written(frame)
    _write(LENGTH.pack(len(content)) + content)


def hear() -> Any:
    """Read a frame; ends the process where nobody speaks any more."""
    (length,) = LENGTH.unpack(_read(LENGTH.size))
    return json.loads(_read(length))


def _write(content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(1, left) :]


def _read(length: int) -> bytes:
    parts = []
    while length:
        part = os.read(0, min(length, 1 << 20))
        if not part:
            os._exit(1)
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def confine(memory_bytes: int, cpu_ms: int, parent: int, socket_filter: bytes) -> None:
    """Take the bounds, for good. Raises OSError where the kernel does not give one of them."""
    for which, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, FILES_MAX),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_DATA, memory_bytes),
    ):
        hard = resource.getrlimit(which)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (bound, bound))
    # Processor time to the millisecond, which RLIMIT_CPU does not know.
    signal.setitimer(signal.ITIMER_PROF, cpu_ms / 1_000)
    if sys.platform != "linux":
        return
    kernel = ctypes.CDLL(None, use_errno=True)
    _control(kernel, PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    if socket_filter:
        _control(kernel, PR_SET_NO_NEW_PRIVS, 1)
        _take_filter(kernel, socket_filter)


def _take_filter(kernel: ctypes.CDLL, socket_filter: bytes) -> None:
    steps = ctypes.create_string_buffer(socket_filter, len(socket_filter))
    count = len(socket_filter) // FILTER_STEP_BYTES
    program = struct.pack("@HP", count, ctypes.addressof(steps))
    held = ctypes.create_string_buffer(program, len(program))
    try:
        _control(kernel, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(held))
    except OSError as error:
        # A kernel built without filters: no step asks for a socket anyway.
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise


def _control(kernel: ctypes.CDLL, option: int, value: int, place: int = 0) -> None:
    arguments = (ctypes.c_ulong(value), ctypes.c_ulong(place), ctypes.c_ulong(0), ctypes.c_ulong(0))
    if kernel.prctl(option, *arguments) != 0:
        raise OSError(ctypes.get_errno(), f"the kernel refuses prctl {option}")

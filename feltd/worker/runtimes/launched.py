"""A program behind the launcher: started, fed, heard, ended as a whole, for whichever runtime.

The launcher keeps the bounds and outlives neither side; here is the worker's end of its pipes. What
a program is and what it may do is decided by the runtime that describes it.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from feltd.worker.failures import OUTPUT_BYTES_MAX, Transient
from feltd.worker.runtimes import folder as attempt_folder
from feltd.worker.runtimes import launcher
from feltd.worker.runtimes.pipes import Pipes, keep_tail, keep_words
from feltd.worker.runtimes.runtime import Claim, Finished

#: Between SIGTERM and SIGKILL for a program that shall stop.
TERM_S = 5.0
#: After its last process has ended nobody writes any more: what is left is read by then.
DRAIN_S = 2.0
#: A launcher ends a program in time; one that does not is ended with it.
LATE_S = 5.0
REAP_S = 0.002
#: Kept of stderr while it runs, so that what is shown of it can be searched for secrets first.
STDERR_BYTES_KEPT = 64 * 1024
#: Steps back before it is anything: nice 10, and a tenth of a millisecond at a time where the
#: kernel lets a process choose, so that whoever wakes waits for no more. Never so far that a busy
#: machine would not let it end. Where a service may not say so it runs as everybody does.
LAST = """
import ctypes, os, platform, struct
ask = struct.pack('IIQiIQQQ', 48, 0, 0, 10, 0, 100000, 0, 0)
number = {'x86_64': 314, 'aarch64': 274}.get(platform.machine())
try:
    if number is None or ctypes.CDLL(None).syscall(number, 0, ask, 0):
        os.nice(10)
except (AttributeError, OSError):
    pass
"""
#: Starts the launcher and nothing of feltd beside it; imported, it need not be compiled each time.
BEGIN = (
    f"import sys; sys.path.append({str(Path(launcher.__file__).parent)!r}); "
    "import launcher; launcher.main()"
)


class Place(NamedTuple):
    """A program and where it runs: its bounds are the launcher's words, none where None.

    `closed` says that its folder is the one place of the machine it may write to; `fds` are left
    open for it. `last`: it comes after everything that is not, within the session of who started
    it, since a session of its own would be given as much of the processors as that one.
    """

    argv: list[str]
    env: dict[str, str]
    folder: Path
    duration_ms: int
    bounds: dict[str, int | str | None]
    closed: bool = False
    fds: tuple[int, ...] = ()
    last: bool = False

    @property
    def boxed(self) -> bool:
        """Whether bubblewrap stands around it."""
        return bool(self.bounds.get("sandbox"))


class Launched:
    """One program: its launcher, the lifeline to it, and what it has said."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.pipes = Pipes()
        self._why: str | None = None
        self._life = -1
        self._said: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def called_off(self) -> str | None:
        """Why it shall end, or not begin."""
        return self._why

    async def launch(self) -> None:
        """Start it. Only once; `close` goes with it whatever comes of it."""
        told, telling = os.pipe()
        holding, self._life = os.pipe()
        try:
            status = await self.pipes.reader(os.fdopen(told, "rb", buffering=0))
            self._verdict = asyncio.create_task(keep_words(status, self._said))
            self._process = self._spawn(holding, telling)
        finally:
            os.close(holding)
            os.close(telling)

    def _spawn(self, holding: int, telling: int) -> "subprocess.Popen[bytes]":
        place = self.place
        bounds = {
            "life": holding,
            "status": telling,
            "folder": place.folder,
            "term_ms": int(TERM_S * 1_000),
            "duration_ms": place.duration_ms,
            **place.bounds,
        }
        words = [f"{name}={value}" for name, value in bounds.items() if value is not None]
        begin = LAST + BEGIN if place.last else BEGIN
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", begin, *words, "--", *place.argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=place.env,
            pass_fds=(holding, telling, *place.fds),
            start_new_session=not place.last,
            process_group=0 if place.last else None,
        )

    async def talk(self, given: bytes) -> Finished:
        """Feed it, keep a bounded stdout and the end of stderr, wait for the launcher's word.

        Raises Transient where it could not be started, or was ended behind the launcher's back.
        """
        process = self._process
        assert process is not None
        assert process.stdin is not None  # all three are pipes
        assert process.stdout is not None
        assert process.stderr is not None
        output, errors = bytearray(), bytearray()
        written = await self.pipes.reader(process.stdout)
        complained = await self.pipes.reader(process.stderr)
        streams = [
            asyncio.create_task(self.pipes.feed(process.stdin, given)),
            asyncio.create_task(self._head(written, output)),
            asyncio.create_task(keep_tail(complained, errors, STDERR_BYTES_KEPT + 1)),
        ]
        watching = asyncio.create_task(self._watch_folder())
        try:
            await self._until_verdict()
            await asyncio.wait(streams, timeout=DRAIN_S)
        finally:
            for task in (watching, *streams):
                task.cancel()
        return self._finished(bytes(output), bytes(errors))

    async def _until_verdict(self) -> None:
        """Wait for the launcher's end; one that hangs past the duration is ended."""
        limit_s = self.place.duration_ms / 1_000 + LATE_S
        done, _ = await asyncio.wait([self._verdict], timeout=limit_s)
        if not done:
            self.end_now("duration")
            await asyncio.wait([self._verdict], timeout=LATE_S)
        self._bury()

    def _finished(self, output: bytes, errors: bytes) -> Finished:
        said = self._said
        if "failed" in said:
            raise Transient(f"the program could not be started: {said['failed']}")
        if "end" not in said and self._why is None:
            raise Transient("the program's launcher was killed, and the program with it")
        end = self._why or said["end"]
        if end == launcher.EXITED and said.get("began") == "0":
            if self.place.bounds.get("memory_bytes") is None or errors.startswith(b"bwrap: "):
                why = errors.decode(errors="replace").strip()[-500:]
                raise Transient(f"the program could not be started: {why}")
            # Not even the sandbox could begin in so little.
            end = launcher.MEMORY
        peak_bytes = int(said.get("peak_bytes", 0))
        return Finished(end, self._code(said.get("code", "")), output, errors, peak_bytes)

    def _code(self, said: str) -> int:
        """The exit code; a sandbox tells the end by a signal as a shell does."""
        code = int(said) if said.lstrip("-").isdigit() else -signal.SIGKILL
        return 128 - code if self.place.boxed and 128 < code < 128 + signal.NSIG else code

    async def _watch_folder(self) -> None:
        """End a closed program that fills the one folder of the machine it may write to."""
        if self.place.closed:
            await attempt_folder.overfull(self.place.folder)
            self.end_now("disk")

    async def _head(self, stream: asyncio.StreamReader, kept: bytearray) -> None:
        """Keep the beginning; a program that writes more than may be stored is ended."""
        while chunk := await stream.read(65_536):
            kept += chunk[: max(0, OUTPUT_BYTES_MAX + 1 - len(kept))]
            if len(kept) > OUTPUT_BYTES_MAX and self._why is None:
                self.end_now("output")

    def end_now(self, why: str) -> None:
        """Kill all of it, for this reason."""
        self._why = self._why or why
        self._say(launcher.KILL)

    async def end_gently(self) -> None:
        """SIGTERM, then SIGKILL; returns when the launcher has seen the last process go.

        One that has not been started is not started any more.
        """
        if self._process is None:
            self._why = self._why or launcher.TOLD
            return
        self._say(launcher.TERM)
        await asyncio.wait([self._verdict], timeout=TERM_S + LATE_S)

    async def close(self) -> None:
        """Whatever still runs ends with the lifeline.

        Interrupted, it leaves that to the launcher, which needs nobody for it.
        """
        if self._life >= 0:
            os.close(self._life)
            self._life = -1
        try:
            if self._process is not None:
                await asyncio.wait([self._verdict], timeout=LATE_S)
                self._bury()
                await self._reap()
        finally:
            self.pipes.close()

    async def _reap(self) -> None:
        """It has ended, or was killed: the moment until the kernel says so."""
        assert self._process is not None
        for _ in range(int(LATE_S / REAP_S)):
            if self._process.poll() is not None:
                return
            await asyncio.sleep(REAP_S)

    def _bury(self) -> None:
        """A launcher that was killed, or that hangs, leaves at least no group of processes.

        One that has said how the program ended has seen the last of it go.
        """
        if self._process is None or "end" in self._said or "failed" in self._said:
            return
        for pid in (self._process.pid, int(self._said.get("pid", 0))):
            if pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)

    def _say(self, word: bytes) -> None:
        # A launcher that has ended hears nothing.
        if self._life >= 0:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._life, word)


async def run(launched: Launched, given: bytes) -> Finished:
    """From its start to the end of its last process.

    Cancelled, it ends the program gently before it lets go.
    """
    if launched.called_off:
        return Finished(launched.called_off, -signal.SIGTERM, b"", b"")
    try:
        await launched.launch()
        return await launched.talk(given)
    except asyncio.CancelledError:
        await launched.end_gently()
        raise
    finally:
        await launched.close()


def told(claim: Claim) -> dict[str, str]:
    """What every program is told of its claim, in its environment."""
    return {
        "FELTD_WORKLOAD_ID": str(claim.get("workload_id", "")),
        "FELTD_ATTEMPT": str(claim.get("attempt_number") or 1),
        "FELTD_FENCING_TOKEN": str(claim.get("fencing_token", "")),
        "FELTD_EXPIRES_AT_MS": str(claim.get("expires_at_ms", "")),
    }

"""The process runtime: an attempt is a program and all it starts, bounded and ended as a whole.

Between worker and program stands launcher.py, which keeps time, processor and memory bounds and
outlives neither; network and files are bubblewrap's (sandbox.py). What this machine cannot enforce
is refused before a program starts.
"""

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from feltd.model.policy import RuntimePolicy
from feltd.worker.failures import OUTPUT_BYTES_MAX, Transient
from feltd.worker.runtimes import folder as attempt_folder
from feltd.worker.runtimes import launcher, sandbox
from feltd.worker.runtimes.pipes import Pipes, keep_tail, keep_words
from feltd.worker.runtimes.runtime import Claim, Finished, Unenforceable

#: Between SIGTERM and SIGKILL for a program that shall stop.
TERM_S = 5.0
#: After its last process has ended nobody writes any more: what is left is read by then.
DRAIN_S = 2.0
#: A launcher ends a program in time; one that does not is ended with it.
LATE_S = 5.0
REAP_S = 0.002
#: Kept of stderr while it runs, so that what is shown of it can be searched for secrets first.
STDERR_BYTES_KEPT = 64 * 1024
#: Under filesystem_policy none no file it writes may be larger: there is only its checkpoint.
STATE_BYTES_MAX = 256 * 1024
STATE_FILE = "checkpoint.json"
#: Not for the program: it could register workers or act as this one.
KEPT_BACK = ("FELTD_KEY",)
#: A program without the worker's environment finds programs here.
PLAIN_PATH = "/usr/local/bin:/usr/bin:/bin"
PR_SET_DUMPABLE = 4
#: Starts the launcher and nothing of feltd beside it; imported, it need not be compiled each time.
BEGIN = (
    f"import sys; sys.path.append({str(Path(launcher.__file__).parent)!r}); "
    "import launcher; launcher.main()"
)


class ProcessRuntime:
    """Runs one shell command for each claim. `readable` paths are shown to sandboxed programs."""

    def __init__(self, command: str, readable: Sequence[str] = ()) -> None:
        self.command = command
        self.readable = tuple(readable)
        self._runs: dict[str, _Run] = {}
        _hide_environment()

    def require(self, policy: RuntimePolicy) -> None:
        """Raise Unenforceable, naming the member and what to install, unless all of it can be."""
        if sys.platform != "linux":
            for member in ("max_cpu_millis", "max_memory_bytes"):
                if getattr(policy, member) is not None:
                    why = "it is bounded on Linux only"
                    raise Unenforceable(member, getattr(policy, member), why)
        for member in ("network_policy", "filesystem_policy"):
            value = getattr(policy, member)
            if value != "inherit":
                try:
                    sandbox.require()
                except sandbox.Hindered as hindered:
                    raise Unenforceable(member, value, str(hindered)) from hindered

    async def start(self, claim: Claim, policy: RuntimePolicy) -> Path:
        """Make its folder; the path of the checkpoint in it. Raises Unenforceable."""
        # The first sandbox is tried out, which takes a moment.
        await asyncio.to_thread(self.require, policy)
        folder = Path(tempfile.mkdtemp(prefix="feltd-"))
        self._runs[claim["claim_id"]] = _Run(claim, policy, folder)
        return folder / STATE_FILE

    async def execute(self, claim: Claim, given: bytes) -> Finished:
        """Run the command to the end of its last process.

        Cancelled, it ends the program as `cancel` does before it lets go.
        """
        run = self._runs[claim["claim_id"]]
        try:
            await run.launch(self.command, self.readable)
            return await run.talk(given)
        except asyncio.CancelledError:
            await run.end_gently()
            raise
        finally:
            await run.close()

    def forget(self, claim: Claim) -> None:
        """Remove its folder, when its checkpoint has been read."""
        if (run := self._runs.pop(claim["claim_id"], None)) is not None:
            shutil.rmtree(run.folder, ignore_errors=True)

    async def cancel(self, claim: Claim) -> None:
        """SIGTERM for each of its processes, SIGKILL for what is left after TERM_S."""
        if (run := self._runs.get(claim["claim_id"])) is not None:
            await run.end_gently()

    async def timeout(self, claim: Claim) -> None:
        """SIGKILL for each of its processes, now."""
        if (run := self._runs.get(claim["claim_id"])) is not None:
            run.end_now("duration")


class _Run:
    """One program: its launcher, the lifeline to it, and what it has said."""

    def __init__(self, claim: Claim, policy: RuntimePolicy, folder: Path) -> None:
        self.claim = claim
        self.policy = policy
        self.folder = folder
        self.pipes = Pipes()
        self._why: str | None = None
        self._life = -1
        self._said: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    async def launch(self, command: str, readable: Sequence[str]) -> None:
        told, telling = os.pipe()
        holding, self._life = os.pipe()
        try:
            status = await self.pipes.reader(os.fdopen(told, "rb", buffering=0))
            self._verdict = asyncio.create_task(keep_words(status, self._said))
            program = [*self._around(readable), "/bin/sh", "-c", command]
            self._process = self._spawn(program, holding, telling)
        finally:
            os.close(holding)
            os.close(telling)

    def _spawn(self, program: list[str], holding: int, telling: int) -> "subprocess.Popen[bytes]":
        pipes = {"life": holding, "status": telling, "folder": self.folder}
        bounds = {**pipes, **self._bounds()}
        words = [f"{name}={value}" for name, value in bounds.items() if value is not None]
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", BEGIN, *words, "--", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(self.claim, self.policy, self.folder),
            pass_fds=(holding, telling),
            start_new_session=True,
        )

    @property
    def _boxed(self) -> bool:
        policy = self.policy
        return policy.network_policy != "inherit" or policy.filesystem_policy != "inherit"

    def _bounds(self) -> dict[str, int | str | None]:
        policy = self.policy
        bounds: dict[str, int | str | None] = {
            "term_ms": int(TERM_S * 1_000),
            "cpu_ms": policy.max_cpu_millis,
            "memory_bytes": policy.max_memory_bytes,
            "duration_ms": policy.max_duration_ms,
        }
        if self._boxed:
            bounds["sandbox"] = 1
            bounds["filter"] = sandbox.socket_filter(policy).hex()
        if policy.filesystem_policy == "none":
            bounds["file_bytes"] = STATE_BYTES_MAX
        return bounds

    def _around(self, readable: Sequence[str]) -> list[str]:
        """The sandbox's own command line, before the program's."""
        if not self._boxed:
            return []
        folder = None if self.policy.filesystem_policy == "inherit" else self.folder
        return [sandbox.require(), *sandbox.arguments(self.policy, folder, readable)]

    async def talk(self, given: bytes) -> Finished:
        """Feed it, keep a bounded stdout and the end of stderr, wait for the launcher's word."""
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
        limit_s = self.policy.max_duration_ms / 1_000 + LATE_S
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
            if self.policy.max_memory_bytes is None or errors.startswith(b"bwrap: "):
                why = errors.decode(errors="replace").strip()[-500:]
                raise Transient(f"the program could not be started: {why}")
            # Not even the sandbox could begin in so little.
            end = launcher.MEMORY
        peak_bytes = int(said.get("peak_bytes", 0))
        return Finished(end, self._code(said.get("code", "")), output, errors, peak_bytes)

    def _code(self, said: str) -> int:
        """The exit code; a sandbox tells the end by a signal as a shell does."""
        code = int(said) if said.lstrip("-").isdigit() else -signal.SIGKILL
        return 128 - code if self._boxed and 128 < code < 128 + signal.NSIG else code

    async def _watch_folder(self) -> None:
        """End a closed program that fills the one folder of the machine it may write to."""
        if self.policy.filesystem_policy != "inherit":
            await attempt_folder.overfull(self.folder)
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
        """SIGTERM, then SIGKILL; returns when the launcher has seen the last process go."""
        if self._process is None:
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


def environment(claim: Claim, policy: RuntimePolicy, folder: Path) -> dict[str, str]:
    """The environment of the program: this process's own without its key, or next to nothing."""
    if policy.secret_policy == "inherit":
        kept = {name: value for name, value in os.environ.items() if name not in KEPT_BACK}
    else:
        kept = {
            "PATH": PLAIN_PATH,
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "HOME": os.environ.get("HOME", "/"),
        }
    if policy.filesystem_policy != "inherit":
        folder = Path(sandbox.STATE)
        place = sandbox.SCRATCH if policy.filesystem_policy == "scratch" else "/"
        kept |= {"HOME": place, "TMPDIR": place, "PWD": place}
    return kept | {
        "FELTD_WORKLOAD_ID": str(claim.get("workload_id", "")),
        "FELTD_ATTEMPT": str(claim.get("attempt_number") or 1),
        "FELTD_FENCING_TOKEN": str(claim.get("fencing_token", "")),
        "FELTD_EXPIRES_AT_MS": str(claim.get("expires_at_ms", "")),
        "FELTD_CHECKPOINT": str(folder / STATE_FILE),
    }


def _hide_environment() -> None:
    """Keep programs of the same user from reading the key out of /proc/<worker>/environ."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)

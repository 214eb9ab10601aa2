"""The process runtime: an attempt is a program and all it starts, bounded and ended as a whole.

Between worker and program stands launcher.py, which keeps time, processor and memory bounds and
outlives neither; network and files are bubblewrap's (sandbox.py). What this machine cannot enforce
is refused before a program starts.
"""

import asyncio
import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from feltd.model.policy import RuntimePolicy
from feltd.worker.runtimes import sandbox
from feltd.worker.runtimes.launched import STDERR_BYTES_KEPT, Launched, Place, run, told
from feltd.worker.runtimes.runtime import Claim, Finished, Unenforceable

__all__ = ["STDERR_BYTES_KEPT", "ProcessRuntime"]

#: Under filesystem_policy none no file it writes may be larger: there is only its checkpoint.
STATE_BYTES_MAX = 256 * 1024
STATE_FILE = "checkpoint.json"
#: Not for the program: it could register workers or act as this one.
KEPT_BACK = ("FELTD_KEY", "FELTD_KEY_FILE", "FELTD_REMOTE_TOKEN", "CREDENTIALS_DIRECTORY")
#: A program without the worker's environment finds programs here.
PLAIN_PATH = "/usr/local/bin:/usr/bin:/bin"
PR_SET_DUMPABLE = 4


class ProcessRuntime:
    """Runs one shell command for each claim. `readable` paths are shown to sandboxed programs."""

    def __init__(self, command: str, readable: Sequence[str] = ()) -> None:
        self.command = command
        self.readable = tuple(readable)
        self._runs: dict[str, Launched] = {}
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
        place = Place(
            argv=[*_around(policy, folder, self.readable), "/bin/sh", "-c", self.command],
            env=environment(claim, policy, folder),
            folder=folder,
            duration_ms=policy.max_duration_ms,
            bounds=_bounds(policy),
            closed=policy.filesystem_policy != "inherit",
        )
        self._runs[claim["claim_id"]] = Launched(place)
        return folder / STATE_FILE

    async def execute(self, claim: Claim, given: bytes) -> Finished:
        """Run the command to the end of its last process.

        Cancelled, it ends the program as `cancel` does before it lets go.
        """
        return await run(self._runs[claim["claim_id"]], given)

    def forget(self, claim: Claim) -> None:
        """Remove its folder, when its checkpoint has been read."""
        if (launched := self._runs.pop(claim["claim_id"], None)) is not None:
            shutil.rmtree(launched.place.folder, ignore_errors=True)

    async def cancel(self, claim: Claim) -> None:
        """SIGTERM for each of its processes, SIGKILL for what is left after TERM_S."""
        if (launched := self._runs.get(claim["claim_id"])) is not None:
            await launched.end_gently()

    async def timeout(self, claim: Claim) -> None:
        """SIGKILL for each of its processes, now."""
        if (launched := self._runs.get(claim["claim_id"])) is not None:
            launched.end_now("duration")


def _boxed(policy: RuntimePolicy) -> bool:
    return policy.network_policy != "inherit" or policy.filesystem_policy != "inherit"


def _bounds(policy: RuntimePolicy) -> dict[str, int | str | None]:
    bounds: dict[str, int | str | None] = {
        "cpu_ms": policy.max_cpu_millis,
        "memory_bytes": policy.max_memory_bytes,
    }
    if _boxed(policy):
        bounds["sandbox"] = 1
        bounds["filter"] = sandbox.socket_filter(policy).hex()
    if policy.filesystem_policy == "none":
        bounds["file_bytes"] = STATE_BYTES_MAX
    return bounds


def _around(policy: RuntimePolicy, folder: Path, readable: Sequence[str]) -> list[str]:
    """The sandbox's own command line, before the program's."""
    if not _boxed(policy):
        return []
    kept = None if policy.filesystem_policy == "inherit" else folder
    return [sandbox.require(), *sandbox.arguments(policy, kept, readable)]


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
    return kept | told(claim) | {"FELTD_CHECKPOINT": str(folder / STATE_FILE)}


def _hide_environment() -> None:
    """Keep programs of the same user from reading the key out of /proc/<worker>/environ."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)

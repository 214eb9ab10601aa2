"""The wasm runtime: an attempt is a WebAssembly program in a process of its own.

The program is a WASI command: its input on stdin, its output from stdout. It has no network, no
file and no variable of the worker's whatever the policy says, so that each policy about these is
kept. wasmtime is loaded in the child alone (wasm_guest.py), never here.
"""

import asyncio
import functools
import importlib.util
import platform
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import BinaryIO

from feltd.model.policy import RuntimePolicy
from feltd.worker.failures import Transient
from feltd.worker.runtimes import limits, sandbox
from feltd.worker.runtimes.launched import Launched, Place, run, told
from feltd.worker.runtimes.runtime import Claim, Finished, Malformed

NATIVE, PULLEY = "native", "pulley64"
#: The engine's last words in the folder of an attempt; what is compiled, while it is.
WORDS = "words"
PROGRAM = "program"
NOT_INSTALLED = "WebAssembly needs the extra: pip install 'feltd[wasm]'"
#: How an attempt ended that was ended from outside: the engine's own word comes second then.
ENDED_HERE = ("told", "output")
#: How a compiler dies of what it was given, and not of what happens around it.
OF_ITSELF = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE)


def available() -> bool:
    """Whether the extra `wasm` is installed; loads nothing of it."""
    return importlib.util.find_spec("wasmtime") is not None


class WasmRuntime:
    """Runs one module, given as bytes, for each claim; it is compiled once, by the first attempt.

    What it becomes is a file without a name, which ends with this object and takes no memory here.
    `target` is native, pulley64 (interpreted, for where a process may not run what it has written),
    or None: whichever works here. `last` is that of launched.Place.
    """

    def __init__(self, module: bytes, target: str | None = None, *, last: bool = False) -> None:
        self.module = module
        self.target = target
        self.last = last
        self._program: BinaryIO | None = None
        self._compiling = asyncio.Lock()
        self._runs: dict[str, Launched] = {}

    def require(self, policy: RuntimePolicy) -> None:
        """Every policy can be kept to: see limits.wasm_limits for the members that bound."""

    async def ready(self) -> None:
        """Compile the module, unless it is. Raises Malformed for what is no WASI command.

        No step of the module runs. A compilation that is called off leaves nothing.
        """
        if not available():
            raise Malformed(NOT_INSTALLED)
        if len(self.module) > limits.MODULE_BYTES_MAX:
            raise Malformed(f"the module has over {limits.MODULE_BYTES_MAX} bytes")
        async with self._compiling:
            if self._program is None:
                self._program = await self._compiled()

    async def start(self, claim: Claim, policy: RuntimePolicy) -> None:
        """Compile it if need be and make ready for this attempt; there is no checkpoint.

        Raises Malformed.
        """
        await self.ready()
        assert self._program is not None
        folder = Path(tempfile.mkdtemp(prefix="feltd-"))
        bounds = limits.wasm_limits(policy)
        words = {
            "target": self.target,
            "program": self._program.fileno(),
            "words": folder / WORDS,
            "table_elements": limits.TABLE_ELEMENTS_MAX,
            "tables": limits.TABLES_MAX,
            **bounds._asdict(),
        }
        place = Place(
            argv=_guest("run", words),
            env=told(claim),
            folder=folder,
            duration_ms=policy.max_duration_ms + limits.HOST_MS,
            bounds={
                "cpu_ms": bounds.cpu_ms and bounds.cpu_ms + limits.HOST_CPU_MS,
                "memory_bytes": bounds.memory_bytes + limits.HOST_BYTES,
            },
            fds=(self._program.fileno(),),
            last=self.last,
        )
        self._runs[claim["claim_id"]] = Launched(place)

    async def execute(self, claim: Claim, given: bytes) -> Finished:
        """Run the program to its end. Cancelled, it ends the program before it lets go."""
        launched = self._runs[claim["claim_id"]]
        launched.place.argv.append(f"began_s={time.monotonic()}")
        finished = await run(launched, given)
        return _told_by_engine(finished, launched)

    def forget(self, claim: Claim) -> None:
        """Remove its folder."""
        if (launched := self._runs.pop(claim["claim_id"], None)) is not None:
            shutil.rmtree(launched.place.folder, ignore_errors=True)

    async def cancel(self, claim: Claim) -> None:
        """End its process; it hears no signal, so nothing is waited for."""
        if (launched := self._runs.get(claim["claim_id"])) is not None:
            await launched.end_gently()

    async def timeout(self, claim: Claim) -> None:
        """End its process, now."""
        if (launched := self._runs.get(claim["claim_id"])) is not None:
            launched.end_now("duration")

    async def _compiled(self) -> BinaryIO:
        folder = Path(tempfile.mkdtemp(prefix="feltd-"))
        try:
            written, program = _file_of(folder)
            with written:
                launched = Launched(_compiler(folder, written.fileno(), self.target, self.last))
                finished = await run(launched, self.module)
            words = _words(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if finished.end == "exited" and words.get("end") == "compiled":
            self.target = words["target"]
            return program
        program.close()
        if words.get("end") == "malformed":
            raise Malformed(f"the module is not run: {words['why']}")
        if finished.end in ("cpu", "duration", "memory"):
            raise Malformed(f"the module takes too much to compile: {finished.end}")
        if finished.end == "exited" and finished.code in OF_ITSELF:
            # It would again: an allocator that gets no more ends its process so, too.
            raise Malformed(f"the module cannot be compiled: {_crash(finished, words)}")
        raise Transient(f"the module could not be compiled: {_crash(finished, words)}")


def _file_of(folder: Path) -> tuple[BinaryIO, BinaryIO]:
    """A new file, open to be written; and again to be read, since no program may write it."""
    return open(folder / PROGRAM, "xb"), open(folder / PROGRAM, "rb")


def _compiler(folder: Path, program: int, target: str | None, last: bool) -> Place:
    """The compilation, which is bounded as a program is: a module may be made to be slow."""
    return Place(
        argv=_guest("compile", {"target": target, "program": program, "words": folder / WORDS}),
        env={},
        folder=folder,
        duration_ms=limits.COMPILE_MS_MAX,
        bounds={
            "cpu_ms": limits.COMPILE_MS_MAX,
            "memory_bytes": limits.COMPILE_BYTES_MAX,
            "file_bytes": limits.COMPILED_BYTES_MAX,
        },
        fds=(program,),
        last=last,
    )


#: feltd.worker.runtimes.wasm_guest: it is loaded from here by the child, by its name alone.
_HERE = Path(__file__).parent


def _guest(mode: str, words: dict[str, object]) -> list[str]:
    """The engine's command line: nothing of feltd is loaded, of all packages wasmtime alone."""
    spec = importlib.util.find_spec("wasmtime")
    assert spec is not None
    assert spec.origin is not None  # it is an ordinary package
    places = [str(Path(spec.origin).parent.parent), str(_HERE)]
    begin = f"import sys; sys.path += {places!r}; import wasm_guest; wasm_guest.main()"
    all_words = {**words, "filter": _no_sockets()}
    said = [f"{name}={value}" for name, value in all_words.items() if value is not None]
    return [sys.executable, "-I", "-S", "-c", begin, mode, *said]


@functools.cache
def _no_sockets() -> str | None:
    """The filter that lets no socket to another machine through; None where none is known."""
    if sys.platform != "linux" or platform.machine() not in sandbox.PROCESSORS:
        return None
    alone = RuntimePolicy(network_policy="none", filesystem_policy="none")
    return sandbox.socket_filter(alone).hex()


def _words(folder: Path) -> dict[str, str]:
    """The engine's last words; {} where it was ended before it had any."""
    try:
        with open(folder / WORDS, "rb") as file:
            text = file.read(limits.WORDS_BYTES_MAX).decode(errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(" ") for line in text.splitlines())
    return {name: value for name, _, value in pairs}


def _told_by_engine(finished: Finished, launched: Launched) -> Finished:
    """How it ended: the launcher's word where it or this process ended it, else the engine's."""
    words = _words(launched.place.folder)
    if launched.called_off or finished.end in ENDED_HERE:
        return finished
    end = words.get("end")
    if end == "exited":
        return finished._replace(code=int(words["code"]))
    if end == "failed":
        raise Transient(f"the engine failed: {words['why']}")
    if end:
        return finished._replace(end=end, why=words.get("why", ""))
    if finished.end != "exited":
        return finished
    return finished._replace(end="trap", why=f"the engine ended: {_crash(finished, words)}")


def _crash(finished: Finished, words: dict[str, str]) -> str:
    said = finished.errors.decode(errors="replace").strip()[-500:]
    return words.get("why") or said or f"{finished.end}, code {finished.code}"

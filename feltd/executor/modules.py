"""WebAssembly programs: the runtime of every worker, within the bounds of the executor.

A module is compiled once for as long as it is remembered. It has its input and its output and
nothing else, the records least of all.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from feltd.executor.running import DURATION_MS_MAX, MEMORY_BYTES_MAX
from feltd.executor.steps import UNAVAILABLE, Failed, Malformed
from feltd.model.policy import RuntimePolicy
from feltd.worker.failures import Transient
from feltd.worker.runtimes import runtime
from feltd.worker.runtimes.runtime import Finished
from feltd.worker.runtimes.wasm import WasmRuntime

#: Compiled modules that are remembered; each takes some ten times its size.
REMEMBERED_MAX = 8
STATUS_OF_END = {"duration": 408, "cpu": 408, "memory": 413, "output": 413, "disk": 413}
BROKE = 500


class Modules:
    """The modules of one room."""

    def __init__(self) -> None:
        # In order of their last use.
        self._known: dict[bytes, WasmRuntime] = {}

    async def run(
        self, module: bytes, given: bytes, policy: RuntimePolicy, claim: Mapping[str, Any]
    ) -> Any:
        """Run a module on its input to its output: its stdout as JSON, else as a string.

        Raises Failed, and Malformed for what can never run here. Cancelled, it ends the program
        before it lets go.
        """
        place = self._place(module)
        try:
            await place.start(claim, bounded(policy))
            return _result(await place.execute(claim, given))
        except runtime.Malformed as error:
            raise Malformed(str(error)) from None
        except Transient as error:
            raise Failed(UNAVAILABLE, str(error)) from None
        finally:
            place.forget(claim)

    def _place(self, module: bytes) -> WasmRuntime:
        name = hashlib.sha256(module).digest()
        place = self._known.pop(name, None) or WasmRuntime(module, last=True)
        self._known[name] = place
        if len(self._known) > REMEMBERED_MAX:
            del self._known[next(iter(self._known))]
        return place


def bounded(policy: RuntimePolicy) -> RuntimePolicy:
    """The policy of a claim within the executor's own bounds."""
    return msgspec.structs.replace(
        policy,
        max_duration_ms=min(DURATION_MS_MAX, policy.max_duration_ms),
        max_memory_bytes=min(MEMORY_BYTES_MAX, policy.max_memory_bytes or MEMORY_BYTES_MAX),
    )


def _result(finished: Finished) -> Any:
    if finished.end != "exited" or finished.code != 0:
        how = f"it ended by {finished.end}, code {finished.code}"
        last = finished.errors.decode(errors="replace").strip()[-500:]
        said = finished.why or last
        raise Failed(STATUS_OF_END.get(finished.end, BROKE), f"{how}: {said}" if said else how)
    try:
        return msgspec.json.decode(finished.output)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return finished.output.decode(errors="replace").replace("\x00", "").rstrip("\n")

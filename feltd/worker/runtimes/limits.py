"""What the wasm and the remote runtime allow beside a policy: bounds of their own, in one place.

A policy's member bounds the program; what its runtime needs for itself comes on top, so that a
small bound stops the program and never the interpreter around it.
"""

from typing import NamedTuple

from feltd.model.policy import RuntimePolicy

#: A module as it is given, and what it may become compiled.
MODULE_BYTES_MAX = 16 * 1024**2
COMPILED_BYTES_MAX = 128 * 1024**2
COMPILE_MS_MAX = 60_000
COMPILE_BYTES_MAX = 1024**3
#: Linear memory where max_memory_bytes is not given.
LINEAR_BYTES = 1024**3
#: Elements of each of a module's few tables; one takes 8 bytes or 16.
TABLE_ELEMENTS_MAX = 1_000_000
TABLES_MAX = 4
#: More steps than any processor takes in a millisecond: what ends a program whose clocks stand.
FUEL_PER_MS = 5_000_000
FUEL_MAX = 2**62
#: The interpreter and the engine in it, beside the program: what the kernel is told is higher by
#: this, and lets the engine say first that a bound is met.
HOST_BYTES = 256 * 1024**2
HOST_CPU_MS = 2_000
HOST_MS = 500
#: What is left in a folder of an attempt by the engine itself: its last words.
WORDS_BYTES_MAX = 4_096

#: A remote handler is there or not; an answer of it may take as long as the policy says.
CONNECT_S = 10.0
#: How long a remote handler has to hear that a claim has ended.
DELETE_S = 5.0
#: Of an answer that is a failure so much is read, to be quoted.
REFUSAL_BYTES_MAX = 64 * 1024


class WasmLimits(NamedTuple):
    """What an engine is told of one attempt: bytes of linear memory, milliseconds, steps."""

    memory_bytes: int
    duration_ms: int
    cpu_ms: int | None
    fuel: int


def wasm_limits(policy: RuntimePolicy) -> WasmLimits:
    """The bounds of a policy as an engine keeps them; each is there, whatever the policy says."""
    busy_ms = min(policy.max_cpu_millis or policy.max_duration_ms, policy.max_duration_ms)
    return WasmLimits(
        memory_bytes=policy.max_memory_bytes or LINEAR_BYTES,
        duration_ms=policy.max_duration_ms,
        cpu_ms=policy.max_cpu_millis,
        fuel=min(FUEL_MAX, busy_ms * FUEL_PER_MS),
    )

"""WebAssembly programs of the stories, as text: each is a WASI command that does one thing."""

import functools

import pytest

from feltd.worker.runtimes.wasm import WasmRuntime, available

#: Where the extra is missing its stories are skipped by its name.
needs_wasm = pytest.mark.skipif(not available(), reason="needs the extra wasm")

WASI = "wasi_snapshot_preview1"
CALLS = {
    "fd_write": "i32 i32 i32 i32",
    "fd_read": "i32 i32 i32 i32",
    "fd_prestat_get": "i32 i32",
    "path_open": "i32 i32 i32 i32 i32 i64 i64 i32 i32",
    "sock_accept": "i32 i32 i32",
    "environ_sizes_get": "i32 i32",
    "environ_get": "i32 i32",
    "poll_oneoff": "i32 i32 i32 i32",
}
#: Writes `length` bytes from 1,024 to `fd`; the vector is at 0, the count comes to 8.
SAY = """(func $say (param $fd i32) (param $length i32)
  (i32.store (i32.const 0) (i32.const 1024)) (i32.store (i32.const 4) (local.get $length))
  (drop (call $fd_write (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 8))))"""
ALL_OF_IT = "(i32.const 1024) (i32.const 120) (i32.const 65536)"

ECHO = """(i32.store (i32.const 0) (i32.const 1024)) (i32.store (i32.const 4) (i32.const 60000))
  (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
  (call $say (i32.const 1) (i32.load (i32.const 8)))"""
SPIN = "(loop $more (br $more))"
#: One subscription to a clock, 300 s from now: the program is inside the engine meanwhile.
SLEEP = """(i32.store (i32.const 1040) (i32.const 1)) (i64.store (i32.const 1048)
  (i64.const 300000000000))
  (drop (call $poll_oneoff (i32.const 1024) (i32.const 2048) (i32.const 1) (i32.const 4096)))"""
#: Takes a mebibyte and fills it, until it gets no more.
EAT = """(loop $more
  (if (i32.eq (memory.grow (i32.const 16)) (i32.const -1)) (then unreachable))
  (memory.fill (i32.sub (i32.mul (memory.size) (i32.const 65536)) (i32.const 1048576))
    (i32.const 1) (i32.const 1048576))
  (br $more))"""
#: 1,600 times 64 KiB are 100 MiB; `fd` is 1 or 2.
FLOOD = f"""(local $i i32) (memory.fill {ALL_OF_IT})
  (loop $more (call $say (i32.const FD) (i32.const 65536))
  (local.set $i (i32.add (local.get $i) (i32.const 1)))
  (br_if $more (i32.lt_u (local.get $i) (i32.const 1600))))"""
ENVIRONMENT = """(drop (call $environ_sizes_get (i32.const 0) (i32.const 4)))
  (drop (call $environ_get (i32.const 70000) (i32.const 1024)))
  (call $say (i32.const 1) (i32.load (i32.const 4)))"""
#: A letter for each errno: I is 8, no such file.
WALLS = """(i32.store8 (i32.const 1024) (i32.add (i32.const 65)
    (call $fd_prestat_get (i32.const 3) (i32.const 0))))
  (i32.store8 (i32.const 1025) (i32.add (i32.const 65)
    (call $path_open (i32.const 3) (i32.const 0) (i32.const 2048) (i32.const 1) (i32.const 0)
      (i64.const 0) (i64.const 0) (i32.const 0) (i32.const 0))))
  (i32.store8 (i32.const 1026) (i32.add (i32.const 65)
    (call $sock_accept (i32.const 3) (i32.const 0) (i32.const 0))))
  (call $say (i32.const 1) (i32.const 3))"""


def leave(code: int) -> str:
    """A program that ends with this exit code."""
    return f"(call $proc_exit (i32.const {code}))"


def text(body: str, more: str = "") -> str:
    """The module around a `_start` of this body."""
    imports = "".join(
        f'(import "{WASI}" "{name}" (func ${name} (param {params}) (result i32)))'
        for name, params in CALLS.items()
    )
    imports += f'(import "{WASI}" "proc_exit" (func $proc_exit (param i32)))'
    memory = '(memory (export "memory") 2)'
    return f'(module {imports}{memory}{more}{SAY}(func (export "_start") {body}))'


def module(body: str) -> bytes:
    """The same, as bytes."""
    return binary(text(body))


def binary(source: str) -> bytes:
    """A module from its text."""
    import wasmtime

    return bytes(wasmtime.wat2wasm(source))


@functools.cache
def runtime(body: str, target: str | None = None) -> WasmRuntime:
    """The runtime of such a program; stories that run it share what was compiled."""
    return WasmRuntime(module(body), target)

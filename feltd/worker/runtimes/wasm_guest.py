"""The engine around one WebAssembly program: a process of its own, under the launcher.

It compiles a module, or runs one that was compiled: WASI with stdin, stdout and stderr, a clock and
randomness, and nothing else. No folder is opened to the program, no socket, no variable but those
it is told. It is the standard library and wasmtime alone, since it starts with every program.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import resource
import struct
import sys
import threading
import time

import wasmtime

#: The one set of imports that a program may have.
WASI = "wasi_snapshot_preview1"
START = "_start"
NATIVE, PULLEY = "native", "pulley64"
#: Between two looks at what the program has used.
LOOK_S = 0.01
WAIT_S_MAX = 3_600.0
#: Whoever waits for the program goes first: a worker, or a daemon that serves others meanwhile.
#: On top of what its launcher has stepped back: four loops at once then cost a claim half as much.
NICE = 10
#: A program inside a call of the engine, which sleeps, say, hears of its end never: it is ended.
HEARS_S = 0.05
ERRORS_BYTES_KEPT = 64 * 1024
FILES_MAX = 64
#: Where this process finds its open files by their numbers.
OPEN = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
WORD_CHARACTERS_MAX = 500
PR_SET_SECCOMP, SECCOMP_MODE_FILTER, PR_SET_NO_NEW_PRIVS = 22, 2, 38
FILTER_STEP_BYTES = 8
#: How an allocator ends a program that was given no more memory.
STARVING = (wasmtime.TrapCode.UNREACHABLE, wasmtime.TrapCode.MEMORY_OUT_OF_BOUNDS)


def main() -> None:
    """`compile NAME=VALUE…`: the module on stdin, compiled, into the open file of `program`.
    `run NAME=VALUE…`: run what such a file has.

    How that ended is in the file of `words`, a line for each name and value.
    """
    words = dict(word.split("=", 1) for word in sys.argv[2:])
    said = Said(words["words"])
    try:
        with contextlib.suppress(OSError):
            os.nice(NICE)
        _give_up_sockets(bytes.fromhex(words.get("filter", "")))
        if sys.argv[1] == "compile":
            compile_(words, said)
        else:
            Program(words, said).run()
    except BaseException as error:  # whatever it is, the last word says so
        said.say(end="failed", why=f"{type(error).__name__}: {error}")
    finally:
        # The engine has threads that do not end.
        os._exit(0)


class Said:
    """The last words, said once: whoever comes first is right."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._over = False

    def say(self, **words: object) -> None:
        """Write `name value` lines, unless something was said already; returns when it is."""
        lines = [f"{name} {_line(value)}\n" for name, value in words.items()]
        with self._lock:
            if not self._over:
                self._over = True
                os.write(self._file, "".join(lines).encode())


def _line(value: object) -> str:
    return " ".join(str(value).split())[:WORD_CHARACTERS_MAX]


def engine_for(target: str) -> wasmtime.Engine:
    """An engine that counts steps and can be interrupted, without what no limit reaches.

    Shared memories, a garbage collector's heap and a second memory would grow past the store's.
    """
    config = wasmtime.Config()
    config.consume_fuel = True
    config.epoch_interruption = True
    config.parallel_compilation = False
    # Images of memory would be files, and there are to be none.
    config.memory_init_cow = False
    config.wasm_threads = False
    config.wasm_multi_memory = False
    config.wasm_memory64 = False
    config.wasm_gc = False
    config.wasm_function_references = False
    config.wasm_exceptions = False
    if target == PULLEY:
        config.target = PULLEY
    return wasmtime.Engine(config)


def may_compile_to_memory() -> bool:
    """Whether this process may run what it has written: a service's settings may deny it."""
    size = mmap.PAGESIZE
    with mmap.mmap(-1, size, prot=mmap.PROT_READ | mmap.PROT_WRITE) as page:
        byte = ctypes.c_char.from_buffer(page)
        address = ctypes.c_void_p(ctypes.addressof(byte))
        kernel = ctypes.CDLL(None, use_errno=True)
        answer = kernel.mprotect(address, ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_EXEC)
        kernel.mprotect(address, ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE)
        del byte
    return int(answer) == 0


def compile_(words: "dict[str, str]", said: Said) -> None:
    """Compile a module that is a WASI command, without a step of it being run."""
    given = sys.stdin.buffer.read()
    target = words.get("target") or (NATIVE if may_compile_to_memory() else PULLEY)
    engine = engine_for(target)
    try:
        if not given.startswith(b"\x00asm"):
            raise wasmtime.WasmtimeError("it does not begin as a WebAssembly module does")
        module = wasmtime.Module(engine, given)
        _require_command(engine, module)
    except wasmtime.WasmtimeError as error:
        said.say(end="malformed", why=_first_cause(error))
        return
    compiled = memoryview(module.serialize())
    try:
        while compiled:
            compiled = compiled[os.write(int(words["program"]), compiled) :]
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        said.say(end="malformed", why="compiled, it is too large")
    said.say(end="compiled", target=target)


def _require_command(engine: wasmtime.Engine, module: wasmtime.Module) -> None:
    for one in module.imports:
        if one.module != WASI:
            raise wasmtime.WasmtimeError(f"it imports {one.module}.{one.name}: only {WASI} is here")
    linker = wasmtime.Linker(engine)
    linker.define_wasi()
    linker.instantiate_pre(module)
    for export in module.exports:
        kind = export.type
        if export.name == START and isinstance(kind, wasmtime.FuncType):
            if kind.params or kind.results:
                raise wasmtime.WasmtimeError(f"its {START} takes or gives something")
            return
    raise wasmtime.WasmtimeError(f"it exports no {START}: it is no WASI command")


def _first_cause(error: Exception) -> str:
    return str(error).strip() or type(error).__name__


class Program:
    """One run: its bounds are memory_bytes, duration_ms, cpu_ms, fuel."""

    def __init__(self, words: "dict[str, str]", said: Said) -> None:
        self.said = said
        self.words = words
        self.memory_bytes = int(words["memory_bytes"])
        self.fuel = int(words["fuel"])
        self.engine = engine_for(words["target"])
        program = int(words["program"])
        self.module = wasmtime.Module.deserialize_file(self.engine, f"{OPEN}/{program}")
        os.close(program)
        self.store = wasmtime.Store(self.engine)
        self.instance: wasmtime.Instance | None = None
        self.over = threading.Event()
        self.why = ""
        self.errors = Errors()

    def run(self) -> None:
        """From its first step to its last word."""
        _bound_files()
        self.store.set_fuel(self.fuel)
        self.store.set_epoch_deadline(1)
        self.store.set_limits(
            memory_size=self.memory_bytes,
            table_elements=int(self.words["table_elements"]),
            tables=int(self.words["tables"]),
            instances=1,
            memories=1,
        )
        self.store.set_wasi(self._wasi())
        linker = wasmtime.Linker(self.engine)
        linker.define_wasi()
        threading.Thread(target=self._watch, daemon=True).start()
        try:
            self.instance = linker.instantiate(self.store, self.module)
            start = self.instance.exports(self.store)[START]
            start(self.store)  # type: ignore[operator]
        except wasmtime.ExitTrap as left:
            self._end("exited", code=left.code)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            self._end(**self._trapped(error))
        else:
            self._end("exited", code=0)

    def _wasi(self) -> wasmtime.WasiConfig:
        wasi = wasmtime.WasiConfig()
        told = [(name, text) for name, text in os.environ.items() if name.startswith("FELTD_")]
        wasi.argv = ["program"]
        wasi.env = told
        wasi.inherit_stdin()
        wasi.inherit_stdout()
        wasi.inherit_stderr()
        return wasi

    def _trapped(self, error: Exception) -> "dict[str, str]":
        """What a trap means under the bounds."""
        text = str(error)
        why = next((line for line in text.splitlines() if "wasm trap:" in line), text)
        why = why.partition("wasm trap:")[2] or why
        code = error.trap_code if isinstance(error, wasmtime.Trap) else None
        if self.why:
            return {"end": self.why}
        if code == wasmtime.TrapCode.OUT_OF_FUEL:
            return {"end": "cpu"}
        if "exceeds memory limits" in text:
            return {"end": "memory"}
        if code in STARVING and self._memory_bytes() * 2 >= self.memory_bytes:
            return {"end": "memory"}
        return {"end": "trap", "why": why}

    def _memory_bytes(self) -> int:
        if self.instance is None:
            return 0
        memory = self.instance.exports(self.store).get("memory")
        return memory.data_len(self.store) if isinstance(memory, wasmtime.Memory) else 0

    def _watch(self) -> None:
        """End it when its time or its processor time is over, wherever it is."""
        began_s, used_s = float(self.words["began_s"]), time.process_time()
        ends_s = began_s + int(self.words["duration_ms"]) / 1_000
        cpu_s = int(self.words["cpu_ms"]) / 1_000 if "cpu_ms" in self.words else None
        while not self.why:
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                self.why = "duration"
            elif cpu_s is not None and time.process_time() - used_s >= cpu_s:
                self.why = "cpu"
            elif self.over.wait(min(left_s, WAIT_S_MAX if cpu_s is None else LOOK_S)):
                return
        self.engine.increment_epoch()
        if not self.over.wait(HEARS_S):
            self._end(self.why)
            os._exit(0)

    def _end(self, end: str, **words: object) -> None:
        self.over.set()
        self.errors.tell()
        self.said.say(end=end, **words)


class Errors:
    """The end of stderr, kept here: a program that floods it floods nobody else."""

    def __init__(self) -> None:
        self._out = os.dup(2)
        self._reading, writing = os.pipe()
        os.dup2(writing, 2)
        os.close(writing)
        self._kept = bytearray()
        self._lock = threading.Lock()
        self._told = False
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        while chunk := os.read(self._reading, 65_536):
            self._kept += chunk
            del self._kept[: -ERRORS_BYTES_KEPT - 1]

    def tell(self) -> None:
        """Pass it on, once; what is written later goes nowhere."""
        with self._lock:
            if self._told:
                return
            self._told = True
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 2)
            os.close(nowhere)
            self._thread.join(1.0)
            kept = memoryview(bytes(self._kept))
            with contextlib.suppress(OSError):
                while kept:
                    kept = kept[os.write(self._out, kept) :]


def _give_up_sockets(steps: bytes) -> None:
    """No socket to another machine for any thread that begins after this: WASI has none anyway."""
    if not steps:
        return
    program = ctypes.create_string_buffer(steps, len(steps))
    told = struct.pack("HP", len(steps) // FILTER_STEP_BYTES, ctypes.addressof(program))
    kernel = ctypes.CDLL(None, use_errno=True)
    kernel.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    kernel.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.create_string_buffer(told), 0, 0)


def _bound_files() -> None:
    """No more files than the engine needs, and none that grow: a second wall behind WASI's."""
    for which, most in ((resource.RLIMIT_NOFILE, FILES_MAX), (resource.RLIMIT_FSIZE, 65_536)):
        _, hard = resource.getrlimit(which)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (most, most))

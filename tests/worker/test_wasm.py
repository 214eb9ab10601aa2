"""A WebAssembly program: what it may be, what it sees, and how each bound of it ends it."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from feltd.cli.worker_run import run as worker_run
from feltd.model.policy import RuntimePolicy
from feltd.worker.command import result
from feltd.worker.failures import Permanent, Transient
from feltd.worker.runtimes import launcher, limits, wasm
from feltd.worker.runtimes.runtime import Finished, Malformed
from feltd.worker.runtimes.wasm import WasmRuntime
from tests.worker import modules
from tests.worker.modules import EAT, ECHO, ENVIRONMENT, FLOOD, SLEEP, SPIN, WALLS, text
from tests.worker.programs import CLAIM, all_gone, until

pytestmark = modules.needs_wasm

MIB = 2**20


async def ended(runtime: WasmRuntime, given: Any = None, **members: Any) -> Finished:
    """How one attempt ended."""
    await runtime.start(CLAIM, RuntimePolicy(**members))
    try:
        return await runtime.execute(CLAIM, msgspec.json.encode(given))
    finally:
        runtime.forget(CLAIM)


def finished(body: str, given: Any = None, **members: Any) -> Finished:
    """How a program with this `_start` ended."""
    return asyncio.run(ended(modules.runtime(body), given, **members))


def failure(body: str, **members: Any) -> tuple[str, str]:
    """The kind and the message that it fails with."""
    with pytest.raises((Permanent, Transient)) as failed:
        result(finished(body, **members), RuntimePolicy(**members))
    return getattr(failed.value, "kind", "transient"), str(failed.value)


def refused(module: bytes) -> str:
    """Why a module is not run at all."""
    with pytest.raises(Malformed) as malformed:
        asyncio.run(WasmRuntime(module).ready())
    return str(malformed.value)


# -- what it may be


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("(module)", "it exports no _start"),
        ('(module (func (export "_start") (param i32)))', "its _start takes or gives something"),
        ('(module (import "env" "gpu" (func)) (func (export "_start")))', "it imports env.gpu"),
        (
            f'(module (import "{modules.WASI}" "fork" (func)) (func (export "_start")))',
            "unknown import",
        ),
        ('(module (memory 1 2 shared) (func (export "_start")))', "threads"),
        ('(module (memory 1) (memory 1) (func (export "_start")))', "multiple memories"),
        ('(module (memory i64 1) (func (export "_start")))', "memory64"),
    ],
)
def test_what_is_no_command_or_has_no_bound_is_not_run(source: str, why: str) -> None:
    assert why in refused(modules.binary(source))


@pytest.mark.parametrize(
    "module", [b"", b"\x7fELF", b"(module)", b"\x00asm\x01\x00\x00\x00\xff", b"\x00asm" * 1_000]
)
def test_what_is_no_module_is_not_run(module: bytes) -> None:
    assert "the module is not run" in refused(module)


def test_a_module_has_a_size_and_a_time_to_be_compiled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COMPILE_MS_MAX", 1)
    assert "takes too much to compile" in refused(modules.module(ECHO))

    monkeypatch.setattr(limits, "COMPILE_MS_MAX", 60_000)
    monkeypatch.setattr(limits, "COMPILED_BYTES_MAX", 4_096)
    assert "compiled, it is too large" in refused(modules.module(ECHO))

    monkeypatch.setattr(limits, "MODULE_BYTES_MAX", 100)
    assert "over 100 bytes" in refused(modules.module(ECHO))


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wasm, "available", lambda: False)

    assert refused(b"") == "WebAssembly needs the extra: pip install 'feltd[wasm]'"


def test_a_module_that_needs_more_memory_than_a_compiler_gets_is_never_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "COMPILE_BYTES_MAX", 200 * 1024**2)
    step = "(loop (local.set {0} (i64.add (local.get {0}) (i64.const 1)))"
    opened = "".join(step.format(place % 1_000) for place in range(5_000))
    closed = "(br_if 0 (i64.eqz (local.get 0))))" * 5_000
    module = modules.module(f"(local {'i64 ' * 1_000}) {opened}{closed}")
    assert "cannot be compiled: memory allocation of" in refused(module)


def test_it_is_compiled_once_for_all_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = WasmRuntime(modules.module(ECHO))

    async def story() -> None:
        await asyncio.gather(runtime.ready(), runtime.ready())
        monkeypatch.setattr(wasm, "_compiler", None)
        assert (await ended(runtime, 1)).output == b"1"
        assert (await ended(runtime, 2)).output == b"2"

    asyncio.run(story())


# -- what it sees


def test_it_sees_its_claim_and_nothing_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FELTD_URL", "http://127.0.0.1:1")
    seen = finished(ENVIRONMENT).output.rstrip(b"\0").decode().split("\0")

    assert sorted(seen) == [
        "FELTD_ATTEMPT=1", "FELTD_EXPIRES_AT_MS=", "FELTD_FENCING_TOKEN=7",
        "FELTD_WORKLOAD_ID=workload_7",
    ]  # fmt: skip


def test_it_has_no_folder_no_file_and_no_socket() -> None:
    """I: the errno of a descriptor that is not open."""
    assert finished(WALLS, filesystem_policy="inherit").output == b"III"


def test_the_engine_around_it_has_given_up_sockets_and_files() -> None:
    """The second wall, behind the one that the engine itself is."""

    async def story() -> tuple[str, str]:
        runtime = modules.runtime(SLEEP)
        before = set(launcher.descendants(os.getpid()))
        running = asyncio.create_task(ended(runtime))

        def engine() -> Path | None:
            found = [pid for pid in launcher.descendants(os.getpid()) if pid not in before]
            bounded = [Path(f"/proc/{pid}") for pid in found[1:]]
            settled = [one for one in bounded if " 64 " in _line(one / "limits", "Max open files")]
            return settled[0] if settled else None

        await asyncio.to_thread(until, engine, "it runs")
        process = engine()
        assert process is not None
        said = _line(process / "status", "Seccomp"), _line(process / "limits", "Max file size")
        await runtime.cancel(CLAIM)
        assert (await running).end == "told"
        return said

    seccomp, size = asyncio.run(story())
    assert seccomp.split() == ["Seccomp:", "2"]
    assert size.split()[3] == "65536"


def _line(path: Path, name: str) -> str:
    try:
        return next((line for line in path.read_text().splitlines() if line.startswith(name)), "")
    except OSError:
        return ""


# -- how it ends


def test_an_exit_code_that_wasi_does_not_know_is_a_failure() -> None:
    end = finished(modules.leave(134))

    assert (end.end, "invalid exit status" in end.why) == ("trap", True)


@pytest.mark.parametrize("code", [0, 1, 75, 125])
def test_its_exit_code_is_its_own(code: int) -> None:
    assert finished(modules.leave(code))[:2] == ("exited", code)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("unreachable", "unreachable"),
        ("(drop (i32.div_u (i32.const 1) (i32.const 0)))", "integer divide by zero"),
        ("(drop (i32.load (i32.const 99999999)))", "out of bounds memory access"),
        ("(call $self)", "call stack exhausted"),
    ],
)
def test_a_trap_fails_the_attempt_and_says_which(body: str, why: str) -> None:
    runtime = WasmRuntime(modules.binary(text(body, "(func $self (call $self))")))
    end = asyncio.run(ended(runtime))

    assert (end.end, why in end.why) == ("trap", True)
    with pytest.raises(Permanent, match=why) as failed:
        result(end, RuntimePolicy())
    assert failed.value.kind == "execution_error"


def test_bounds_of_any_size_are_understood() -> None:
    most = 2**53 - 1
    largest = {"max_cpu_millis": most, "max_memory_bytes": most, "max_duration_ms": most}
    assert finished(ECHO, 1, **largest).output == b"1"
    assert finished(ECHO, 1, max_duration_ms=most).errors == b""

    assert finished(ECHO, 1, max_memory_bytes=1).end == "memory"
    assert finished(SPIN, 1, max_cpu_millis=1).end == "cpu"
    assert finished(ECHO, 1, max_duration_ms=1).end == "duration"


def test_memory_ends_at_the_bound_to_the_page() -> None:
    """Two pages of 64 KiB are what the program begins with."""
    assert finished(ECHO, 1, max_memory_bytes=131_072).output == b"1"
    failed, message = failure(ECHO, max_memory_bytes=131_071)

    assert failed == "memory_limit"
    assert "max_memory_bytes 131071" in message


def test_memory_has_a_bound_where_the_policy_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINEAR_BYTES", 32 * MIB)
    failed, message = failure(EAT)

    assert failed == "memory_limit"
    assert "what its runtime allows without max_memory_bytes" in message


def test_tables_cannot_hold_what_memory_may_not() -> None:
    body = """(if (i32.eq (table.grow (ref.null func) (i32.const 1000000000)) (i32.const -1))
      (then (call $proc_exit (i32.const 7))))"""
    runtime = WasmRuntime(modules.binary(text(body, "(table 1 funcref)")))

    assert asyncio.run(ended(runtime)).code == 7


def test_a_program_whose_clocks_stand_runs_out_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FUEL_PER_MS", 1)

    assert finished(SPIN).end == "cpu"


def test_what_the_module_does_before_its_start_is_bounded_too() -> None:
    early = "(func $early (loop $more (br $more))) (start $early)"
    runtime = WasmRuntime(modules.binary(text("", early)))

    assert asyncio.run(ended(runtime, max_duration_ms=200)).end == "duration"


def test_a_flood_of_complaints_keeps_its_end_and_reaches_nobody() -> None:
    """100 MB of stderr: the worker reads 64 KiB of it."""
    body = FLOOD.replace("FD", "2") + modules.leave(3)
    end = finished(body)

    assert (end.end, end.code) == ("exited", 3)
    assert len(end.errors) <= 64 * 1024 + 1
    assert set(end.errors) == {ord("x")}


def test_the_end_of_the_worker_is_the_end_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "sleep.wasm").write_bytes(modules.module(SLEEP))
    story = (
        "import asyncio, sys, pathlib\n"
        "from tests.worker.test_wasm import ended, WasmRuntime\n"
        "asyncio.run(ended(WasmRuntime(pathlib.Path(sys.argv[1]).read_bytes())))\n"
    )
    host = subprocess.Popen(
        [sys.executable, "-c", story, str(tmp_path / "sleep.wasm")],
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )

    def running() -> bool:
        found = list(tmp_path.glob("feltd-*/words"))
        return bool(found) and not (found[0].parent / "program").exists()

    try:
        until(running, "it runs")
        family = launcher.descendants(host.pid)
    finally:
        host.kill()
        host.wait()
    all_gone(family)
    until(lambda: not list(tmp_path.glob("feltd-*")), "its folder is gone")


# -- where a process may not run what it has written


def test_interpreted_it_means_the_same() -> None:
    runtime = modules.runtime(ECHO, "pulley64")
    assert asyncio.run(ended(runtime, {"page": 7})).output == b'{"page":7}'

    spinning = modules.runtime(SPIN, "pulley64")
    assert asyncio.run(ended(spinning, max_cpu_millis=200)).end == "cpu"


PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1


def _denies() -> bool:
    """Whether this kernel can deny it; asked in a child, since it is for good."""
    asked = f"import ctypes, sys; sys.exit(ctypes.CDLL(None).prctl({PR_SET_MDWE}, 1, 0, 0, 0))"
    return subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0


def test_where_compiling_to_memory_is_denied_it_is_interpreted(tmp_path: Path) -> None:
    """As under MemoryDenyWriteExecute; a kernel before 6.3 has another way to deny it."""
    (tmp_path / "echo.wasm").write_bytes(modules.module(ECHO))
    deny = f"ctypes.CDLL(None).prctl({PR_SET_MDWE}, {PR_MDWE_REFUSE_EXEC_GAIN}, 0, 0, 0)"
    story = (
        "import asyncio, ctypes, sys, pathlib\n"
        "from tests.worker.test_wasm import ended, WasmRuntime\n"
        f"{deny}\n"
        "runtime = WasmRuntime(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "print(asyncio.run(ended(runtime, 7)).output.decode(), runtime.target)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", story, str(tmp_path / "echo.wasm")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert ran.stdout.split() == ["7", "pulley64" if _denies() else "native"]


# -- at the command line


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--wasm", "{module}", "--exec", "true"], "give one of MODULE:HANDLERS"),
        (["--wasm", "{module}", "--readable", "/etc"], "--readable goes with --exec"),
        (["--wasm", "{nothing}"], "does not exist"),
        (["--wasm", "{text}"], "does not begin as a WebAssembly module does"),
    ],
)
def test_a_module_that_could_run_no_claim_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], said: str
) -> None:
    monkeypatch.setenv("FELTD_URL", "http://127.0.0.1:1")
    (tmp_path / "echo.wasm").write_bytes(modules.module(ECHO))
    (tmp_path / "echo.wat").write_text("(module)")
    places = {
        "module": tmp_path / "echo.wasm", "text": tmp_path / "echo.wat",
        "nothing": tmp_path / "no.wasm",
    }  # fmt: skip
    ran = CliRunner().invoke(worker_run, [one.format(**places) for one in flags])

    assert ran.exit_code == 2
    assert said in " ".join(ran.output.split())

"""One contract, three runtimes: a program, a WebAssembly module, a remote handler.

Each keeps to every member of a policy or refuses the attempt before anything of it has begun.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from feltd.model.policy import RuntimePolicy
from feltd.worker.command import result
from feltd.worker.failures import OUTPUT_BYTES_MAX, Permanent, Transient
from feltd.worker.runtimes import launcher
from feltd.worker.runtimes.process import ProcessRuntime
from feltd.worker.runtimes.remote import RemoteRuntime
from feltd.worker.runtimes.runtime import Runtime, Unenforceable
from tests.worker import modules
from tests.worker.programs import CLAIM, until
from tests.worker.remotes import FLOOD_BYTES, Remote, serving

MIB = 2**20
TEMPFAIL = 75

#: What each kind of runtime runs for a deed; a remote handler has a path for it.
COMMANDS = {
    "echo": "cat",
    "spin": "while :; do :; done",
    "sleep": "sleep 300",
    "eat": """perl -e 'my $x = "a" x (400 * 1048576); print 1'""",
    "flood": "head -c 104857600 /dev/zero",
    "fail": "echo 'no such page' >&2; exit 3",
    "later": f"exit {TEMPFAIL}",
}
MODULES = {
    "echo": modules.ECHO,
    "spin": modules.SPIN,
    "sleep": modules.SLEEP,
    "eat": modules.EAT,
    "flood": modules.FLOOD.replace("FD", "1"),
    "fail": modules.leave(3),
    "later": modules.leave(TEMPFAIL),
}
REMOTES = {
    "echo": "echo", "sleep": "sleep", "spin": "sleep", "flood": "flood", "fail": "said",
    "later": "said",
}  # fmt: skip
GIVEN = {"fail": {"status": 422, "text": "no such page"}, "later": {"status": 503}}

#: The members of a policy, each with a value that asks for something.
TIGHT: list[tuple[str, Any]] = [
    ("max_cpu_millis", 60_000),
    ("max_memory_bytes", 512 * MIB),
    ("max_duration_ms", 60_000),
    ("network_policy", "none"),
    ("network_policy", "loopback"),
    ("filesystem_policy", "none"),
    ("filesystem_policy", "scratch"),
    ("secret_policy", "none"),
    ("artifact_policy", "none"),
]
#: What a remote handler can be kept to from here; the others can be kept to all of them.
REMOTE_KEEPS = ("max_duration_ms", "artifact_policy")


class Kind:
    """A kind of runtime, and what can be seen of the attempts it runs."""

    def __init__(self, name: str, folder: Path, remote: Remote | None = None) -> None:
        self.name = name
        self.folder = folder
        self.remote = remote
        self.before = set(launcher.descendants(os.getpid()))

    def make(self, deed: str) -> Runtime:
        """A runtime that does this."""
        if self.remote is not None:
            return RemoteRuntime(f"{self.remote.url}/{REMOTES[deed]}")
        if self.name == "wasm":
            return modules.runtime(MODULES[deed])
        return ProcessRuntime(COMMANDS[deed])

    def given(self, deed: str) -> Any:
        """The input of its attempt."""
        return GIVEN.get(deed, {"page": 7}) if self.remote is not None else {"page": 7}

    def began(self) -> bool:
        """Whether anything of an attempt runs, or ran."""
        if self.remote is not None:
            return bool(self.remote.heard)
        return len(self.running()) > 1

    def running(self) -> set[int]:
        """The processes of attempts: a launcher, and what it has started."""
        return set(launcher.descendants(os.getpid())) - self.before

    def left(self) -> Any:
        """What an attempt has left behind, which is nothing."""
        return self.running() or list(self.folder.iterdir())

    def told_of_the_end(self) -> None:
        """A remote handler hears it; a program is gone."""
        if self.remote is not None:
            path = self.remote.until("DELETE").path
            assert path.endswith(f"/{CLAIM['claim_id']}")
        until(lambda: not self.left(), "nothing is left")


@pytest.fixture(params=["process", pytest.param("wasm", marks=modules.needs_wasm), "remote"])
def kind(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Kind]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if request.param != "remote":
        yield Kind(request.param, tmp_path)
        return
    with serving() as remote:
        yield Kind("remote", tmp_path, remote)


async def attempt(runtime: Runtime, given: Any, **members: Any) -> Any:
    """One attempt from start to end; what it comes to."""
    policy = RuntimePolicy(**members)
    await runtime.start(CLAIM, policy)
    try:
        return result(await runtime.execute(CLAIM, msgspec.json.encode(given)), policy)
    finally:
        runtime.forget(CLAIM)


def run(kind: Kind, deed: str, **members: Any) -> Any:
    return asyncio.run(attempt(kind.make(deed), kind.given(deed), **members))


def failure(kind: Kind, deed: str, **members: Any) -> tuple[str, str]:
    """The kind and the message that a deed fails with."""
    with pytest.raises((Permanent, Transient)) as failed:
        run(kind, deed, **members)
    until(lambda: not kind.left(), "nothing is left")
    return getattr(failed.value, "kind", "transient"), str(failed.value)


def test_input_goes_in_and_output_comes_out(kind: Kind) -> None:
    assert run(kind, "echo") == {"page": 7}
    until(lambda: not kind.left(), "nothing is left")


def test_a_failure_is_of_the_work_or_of_the_moment(kind: Kind) -> None:
    assert failure(kind, "fail")[0] == "execution_error"
    assert failure(kind, "later")[0] == "transient"


Stop = Callable[[Runtime], Any]


async def stopped(kind: Kind, deed: str, stop: Stop) -> str:
    """How an attempt ends that is stopped once it runs."""
    runtime = kind.make(deed)
    await runtime.start(CLAIM, RuntimePolicy())
    running = asyncio.create_task(runtime.execute(CLAIM, b"{}"))
    try:
        await asyncio.to_thread(until, kind.began, "it runs")
        await stop(runtime)
        return (await running).end
    finally:
        runtime.forget(CLAIM)


@pytest.mark.parametrize("deed", ["spin", "sleep"])
def test_cancel_ends_it_and_nothing_is_left(kind: Kind, deed: str) -> None:
    assert asyncio.run(stopped(kind, deed, lambda runtime: runtime.cancel(CLAIM))) == "told"
    kind.told_of_the_end()


def test_timeout_ends_it_as_its_duration_would(kind: Kind) -> None:
    assert asyncio.run(stopped(kind, "sleep", lambda one: one.timeout(CLAIM))) == "duration"
    kind.told_of_the_end()


def test_a_task_that_is_cancelled_takes_its_attempt_along(kind: Kind) -> None:
    async def story() -> None:
        running = asyncio.create_task(attempt(kind.make("sleep"), {}))
        await asyncio.to_thread(until, kind.began, "it runs")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(story())
    kind.told_of_the_end()


@pytest.mark.parametrize(("verb", "end"), [("cancel", "told"), ("timeout", "duration")])
def test_what_was_called_off_does_not_begin(kind: Kind, verb: str, end: str) -> None:
    async def story() -> str:
        runtime = kind.make("echo")
        await runtime.start(CLAIM, RuntimePolicy())
        try:
            await getattr(runtime, verb)(CLAIM)
            return (await runtime.execute(CLAIM, b"{}")).end
        finally:
            runtime.forget(CLAIM)

    assert asyncio.run(story()) == end
    assert not kind.began()
    assert not kind.left()


def test_a_claim_that_nobody_runs_is_stopped_in_vain(kind: Kind) -> None:
    async def story() -> None:
        runtime = kind.make("echo")
        await runtime.cancel(CLAIM)
        await runtime.timeout(CLAIM)
        runtime.forget(CLAIM)

    asyncio.run(story())


@pytest.mark.parametrize("deed", ["spin", "sleep"])
def test_max_duration_ends_it(kind: Kind, deed: str) -> None:
    failed, message = failure(kind, deed, max_duration_ms=300)

    assert failed == "timeout"
    assert "max_duration_ms 300" in message


def test_a_hundred_megabytes_of_output_are_not_read(kind: Kind) -> None:
    failed, message = failure(kind, "flood")

    assert failed == "execution_error"
    assert f"over {OUTPUT_BYTES_MAX} bytes" in message
    if kind.remote is not None:
        until(lambda: kind.remote and kind.remote.asked("DELETE"), "it is told")
        assert kind.remote.sent_bytes < FLOOD_BYTES


def test_memory_is_bounded_or_nothing_begins(kind: Kind) -> None:
    if kind.name == "remote":
        with pytest.raises(Unenforceable):
            run(kind, "echo", max_memory_bytes=64 * MIB)
        assert not kind.began()
        return
    failed, message = failure(kind, "eat", max_memory_bytes=64 * MIB)

    assert failed == "memory_limit"
    assert f"max_memory_bytes {64 * MIB}" in message


def test_processor_time_is_bounded_or_nothing_begins(kind: Kind) -> None:
    if kind.name == "remote":
        with pytest.raises(Unenforceable):
            run(kind, "echo", max_cpu_millis=200)
        assert not kind.began()
        return
    failed, message = failure(kind, "spin", max_cpu_millis=200)

    assert failed == "cpu_limit"
    assert "max_cpu_millis 200" in message


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize(("member", "value"), TIGHT)
def test_each_member_is_kept_to_or_refused_before_anything_begins(
    kind: Kind, member: str, value: Any
) -> None:
    policy = {member: value}
    if kind.name != "remote" or member in REMOTE_KEEPS:
        kind.make("echo").require(RuntimePolicy(**policy))
        assert run(kind, "echo", **policy) == {"page": 7}
        return
    with pytest.raises(Unenforceable) as refused:
        run(kind, "echo", **policy)

    assert refused.value.kind == "policy_unenforceable"
    assert refused.value.member == member
    assert not kind.began()


def test_nothing_of_the_workers_environment_is_told(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may have the rest of it; nobody has the keys."""
    monkeypatch.setenv("FELTD_KEY", "felt_s_the_key_of_the_worker")
    monkeypatch.setenv("FELTD_REMOTE_TOKEN", "the token for somebody else")
    if kind.remote is not None:
        run(kind, "echo")
        told = str(kind.remote.heard)
    elif kind.name == "wasm":
        told = asyncio.run(attempt(modules.runtime(modules.ENVIRONMENT), None))
        assert "HOME" not in told
    else:
        told = asyncio.run(attempt(ProcessRuntime("env"), None))

    assert CLAIM["workload_id"] in told
    assert "felt_s_the_key" not in told
    assert "the token for" not in told

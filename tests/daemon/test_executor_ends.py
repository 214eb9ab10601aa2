"""However a program of the daemon's own worker ends, it ends, and takes nothing else with it."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import capabilities
from tests.daemon.capabilities import (
    ask,
    ended,
    executor,
    failure,
    lives,
    output,
    pipeline,
    processes,
    until,
    wasm,
)
from tests.daemon.conftest import TICK
from tests.daemon.running import Daemon, Mesh, people
from tests.worker import modules
from tests.worker.modules import needs_wasm

WORKER = ("--worker",)
#: Each commit takes so long that a program of many writes is met in the middle.
SLOW = {"FELTD_TEST_SLOW_COMMIT_MS": "25"}
NUMBERS: list[int] = list(range(2_000))


def opened(folder: Path, **env: str) -> Iterator[tuple[Daemon, Mesh]]:
    """A daemon that may execute for tenant t, application a; shared, so stories use own names."""
    daemon = Daemon(folder / "feltd.db", *TICK, *WORKER, "--max-in-flight", "4", env=env)
    daemon.init().start()
    try:
        capabilities.grant(daemon)
        yield daemon, people(daemon)
    finally:
        daemon.close()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Mesh]]:
    yield from opened(tmp_path_factory.mktemp("executor"))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Mesh]]:
    """One whose commits are slow."""
    yield from opened(tmp_path_factory.mktemp("slow"), **SLOW)


def long_one(daemon: Daemon, name: str) -> None:
    """A program that writes a record for each number it is given."""
    pipeline(
        daemon,
        name,
        {
            "op": "put",
            "each": {"$": "input"},
            "collection": name,
            "id": "one",
            "value": {"n": {"$": "item"}},
        },
        {"op": "emit", "value": "all of them"},
    )


def call_off(daemon: Daemon, *workload_ids: str) -> None:
    """End work by force, and wait until its programs are gone."""
    for one in workload_ids:
        daemon.post(f"/v1/workloads/{one}/cancel", {"force": True})
    until(lambda: not processes(daemon))


def written(daemon: Daemon, name: str) -> int:
    """How often the program has written."""
    answer = daemon.call("GET", f"/v1/collections/{name}/records/one", **capabilities.TENANT)
    return int(answer.body["version"]) if answer.status == 200 else 0


def test_a_program_that_grows_without_end_ends_at_its_bounds(shop: tuple[Daemon, Mesh]) -> None:
    daemon, mesh = shop
    steps: list[dict[str, Any]] = [{"op": "emit", "name": "s0", "value": "x" * 1_000}]
    for n in range(1, 60):
        steps.append({"op": "emit", "name": f"s{n}", "value": [{"$": f"steps.s{n - 1}"}] * 2})
    pipeline(daemon, "grow", *steps)
    assert failure(daemon, ask(daemon, mesh, "grow")) == "capability grow failed with status 413"


def test_the_bounds_of_a_claim_count_where_they_are_tighter(shop: tuple[Daemon, Mesh]) -> None:
    daemon, mesh = shop
    long_one(daemon, "long")
    for policy, given, status in (
        ({"max_duration_ms": 150}, NUMBERS, 408),
        ({"max_cpu_millis": 15}, NUMBERS, 408),
        # Less than Python itself has: the first large piece is one too many.
        ({"max_memory_bytes": 2_000_000}, ["x" * 200_000], 413),
    ):
        one = ask(daemon, mesh, "long", given, runtime_policy=policy)
        assert failure(daemon, one) == f"capability long failed with status {status}", policy
    assert processes(daemon) == []


def test_programs_come_after_the_daemon(shop: tuple[Daemon, Mesh]) -> None:
    """In its own session: one of theirs would get as much of the processors as the daemon's."""
    daemon, mesh = shop
    long_one(daemon, "behind")
    one = ask(daemon, mesh, "behind", NUMBERS)
    (pid,) = until(lambda: written(daemon, "behind") > 0 and processes(daemon))
    assert os.getpriority(os.PRIO_PROCESS, pid) >= 10
    assert os.getsid(pid) == os.getsid(daemon.pid)
    assert os.getpgid(pid) == pid
    call_off(daemon, one)


def test_a_program_has_no_socket_no_file_and_no_environment(shop: tuple[Daemon, Mesh]) -> None:
    daemon, mesh = shop
    policy = {"network_policy": "none", "filesystem_policy": "none", "secret_policy": "none"}
    pipeline(daemon, "closed", {"op": "emit", "value": {"$": "input"}})
    assert output(daemon, ask(daemon, mesh, "closed", 1, runtime_policy=policy)) == [1]


@needs_wasm
def test_wasm_programs_run_and_end_as_pipelines_do(shop: tuple[Daemon, Mesh]) -> None:
    daemon, mesh = shop
    for name, body in (
        ("echo", modules.ECHO),
        ("spin", modules.SPIN),
        ("eat", modules.EAT),
        ("flood", modules.FLOOD.replace("FD", "1")),
        ("leave", modules.leave(3)),
    ):
        wasm(daemon, name, modules.module(body))
    short = {"max_duration_ms": 1_500}
    asked = {
        name: ask(daemon, mesh, name, {"n": 1}, runtime_policy=short if name == "spin" else {})
        for name in ("spin", "eat", "flood", "leave", "echo")
    }
    answers = [daemon.call("GET", f"/v1/workloads/{one}").status for one in asked.values()]
    assert answers == [200] * len(asked)
    assert output(daemon, asked["echo"]) == {"n": 1}
    for name, status in (("spin", 408), ("eat", 413), ("flood", 413), ("leave", 500)):
        told = failure(daemon, asked[name])
        assert told == f"capability {name} failed with status {status}", name


@needs_wasm
def test_a_module_that_is_none_is_given_back_and_not_offered_again(
    shop: tuple[Daemon, Mesh],
) -> None:
    daemon, mesh = shop
    wasm(daemon, "torn", modules.module(modules.ECHO)[:40])
    left = ask(daemon, mesh, "torn")
    until(lambda: "torn" not in (executor(daemon) or {})["workload_kinds"])
    shown = until(lambda: _given_back(daemon, left))
    assert [attempt["end"] for attempt in shown["attempts"]] == ["released"]
    assert not any(attempt["spent"] for attempt in shown["attempts"])
    wasm(daemon, "torn", modules.module(modules.ECHO))
    assert output(daemon, left) is None


def _given_back(daemon: Daemon, workload_id: str) -> dict[str, Any] | None:
    shown = daemon.get(f"/v1/workloads/{workload_id}")
    return shown if shown["state"] == "READY" and shown["attempts"] else None


def test_the_death_of_a_programs_process_is_the_failure_of_that_program_alone(
    slow: tuple[Daemon, Mesh],
) -> None:
    daemon, mesh = slow
    long_one(daemon, "dies")
    one = ask(daemon, mesh, "dies", NUMBERS)
    (pid,) = until(lambda: written(daemon, "dies") > 2 and processes(daemon))
    os.kill(pid, signal.SIGKILL)
    assert failure(daemon, one) == "capability dies failed with status 500"
    assert output(daemon, ask(daemon, mesh, "identity", 1)) == 1


def test_nothing_is_held_while_programs_run(slow: tuple[Daemon, Mesh]) -> None:
    """As many programs as there are permits: if each had one, everybody was shut out."""
    daemon, mesh = slow
    names = [f"long-{number}" for number in range(4)]
    for name in names:
        long_one(daemon, name)
    running = [ask(daemon, mesh, name, NUMBERS) for name in names]
    until(lambda: all(written(daemon, name) > 1 for name in names))
    before = [written(daemon, name) for name in names]
    answers = [daemon.call("GET", f"/v1/workloads/{one}").status for one in running * 5]
    for number in range(3):
        capabilities.put(daemon, "beside", str(number), number)
    assert answers == [200] * 20
    for name, stood in zip(names, before, strict=True):
        assert written(daemon, name) > stood
    call_off(daemon, *running)


def test_the_end_of_the_daemon_is_the_end_of_its_programs_and_they_are_run_again(
    daemons: Callable[..., Daemon],
) -> None:
    daemon = daemons("feltd.db", *WORKER, **SLOW).start()
    capabilities.grant(daemon)
    mesh = people(daemon)
    long_one(daemon, "long")
    one = ask(daemon, mesh, "long", NUMBERS[:200])
    (pid,) = until(lambda: written(daemon, "long") > 2 and processes(daemon))
    daemon.kill()
    until(lambda: not lives(pid))
    daemon.start(env={"FELTD_TEST_SLOW_COMMIT_MS": "0"})
    assert output(daemon, one) == ["all of them"]
    assert [attempt["end"] for attempt in ended(daemon, one)["attempts"]] == [
        "worker_lost",
        "completed",
    ]
    assert daemon.stop() == 0
    assert daemon.check().returncode == 0


def test_a_stop_in_order_gives_back_what_does_not_finish(daemons: Callable[..., Daemon]) -> None:
    daemon = daemons("feltd.db", *WORKER, "--graceful-ms", "4000", **SLOW).start()
    capabilities.grant(daemon)
    mesh = people(daemon)
    long_one(daemon, "long")
    one = ask(daemon, mesh, "long", NUMBERS[:400])
    (pid,) = until(lambda: written(daemon, "long") > 2 and processes(daemon))
    assert daemon.stop() == 0
    assert not lives(pid)
    daemon.start(env={"FELTD_TEST_SLOW_COMMIT_MS": "0"})
    assert output(daemon, one) == ["all of them"]
    assert [attempt["end"] for attempt in ended(daemon, one)["attempts"]] == [
        "released",
        "completed",
    ]


def test_the_end_of_the_grant_is_the_end_of_the_program(slow: tuple[Daemon, Mesh]) -> None:
    daemon, mesh = slow
    grant_id = (executor(daemon) or {})["authorization_grant_id"]
    long_one(daemon, "long")
    one = ask(daemon, mesh, "long", NUMBERS)
    (pid,) = until(lambda: written(daemon, "long") > 2 and processes(daemon))
    daemon.post(f"/v1/grants/{grant_id}/revoke", {"reason": "enough"})
    stood = written(daemon, "long")
    until(lambda: not lives(pid))
    time.sleep(0.2)
    assert written(daemon, "long") == stood
    shown = daemon.get(f"/v1/workloads/{one}")
    assert (shown["state"], shown["attempts"][0]["end"]) == ("READY", "authority_lost")
    capabilities.grant(daemon)
    until(lambda: written(daemon, "long") > stood)
    call_off(daemon, one)


def test_a_cancelled_program_stops_and_writes_no_more(slow: tuple[Daemon, Mesh]) -> None:
    daemon, mesh = slow
    long_one(daemon, "off")
    one = ask(daemon, mesh, "off", NUMBERS)
    (pid,) = until(lambda: written(daemon, "off") > 2 and processes(daemon))
    daemon.post(f"/v1/workloads/{one}/cancel", {"force": True})
    stood = written(daemon, "off")
    until(lambda: not lives(pid))
    assert written(daemon, "off") == stood
    assert ended(daemon, one)["state"] == "CANCELLED"

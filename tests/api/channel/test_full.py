"""A channel of a full daemon, and of one whose client is silent."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.channel.conftest import Opens
from tests.api.channel.talk import Wire, channel
from tests.api.claims.conftest import Crew, Waiting, eventually
from tests.api.transport.kit import serving
from tests.daemon.running import Daemon, Edge


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with room for two calls, one of them ordinary, whose commits take 200 ms."""
    running = Daemon(tmp_path / "feltd.db", "--max-in-flight", "2", "--request-deadline-ms", "150")
    try:
        yield running.init()
    finally:
        running.close()


def beat_of(worker: Edge) -> dict[str, Any]:
    """A heartbeat as a frame carries it."""
    return {
        "worker_id": worker.id,
        "version": "1",
        "capability_version": worker.capability_version,
        "capacity": {"concurrency": 8},
        "health": "HEALTHY",
    }


def test_of_a_full_daemon_a_frame_loses_its_claim_part_and_no_more(slow: Daemon) -> None:
    crew = Crew(slow.start("--request-deadline-ms", "10000"))
    worker, busy = crew.worker(), crew.worker()
    slow.stop()
    slow.start("--request-deadline-ms", "10000", env={"FELTD_TEST_SLOW_COMMIT_MS": "200"})
    job = crew.work()
    wire = channel(worker)
    codes: set[str] = set()

    def crowded() -> bool:
        first = Waiting(lambda: busy.call("claims", {"request_id": "x", "workload_kinds": ["no"]}))
        time.sleep(0.05)  # it is at work for 200 ms
        answer = wire.ask(heartbeat=beat_of(worker), claim={"credit": 1})
        first.answer()
        assert answer["outcomes"][0]["ok"], "what keeps a worker alive is taken in"
        if answer["claims"]:
            claim = answer["claims"][0]
            fence = {name: claim[name] for name in ("claim_id", "worker_id", "fencing_token")}
            wire.ask(release=[fence | {"workload_id": job}], claim={"credit": 0})
        codes.update(one["code"] for one in answer["reasons"])
        return "SERVICE_OVERLOADED" in codes

    eventually(crowded)
    # What was shed is made up for as soon as the daemon has room.
    (claim,) = wire.pushed("claims")
    assert claim["workload_id"] == job
    wire.close()


def test_of_a_full_daemon_a_frame_that_only_asks_is_refused(slow: Daemon) -> None:
    crew = Crew(slow.start("--request-deadline-ms", "10000"))
    worker, busy = crew.worker(), crew.worker()
    slow.stop()
    slow.start("--request-deadline-ms", "10000", env={"FELTD_TEST_SLOW_COMMIT_MS": "200"})
    wire = channel(worker)
    answers: list[dict[str, Any]] = []

    def refused() -> bool:
        first = Waiting(lambda: busy.call("claims", {}))
        time.sleep(0.05)
        answers.append(wire.ask(claim={}))
        first.answer()
        return answers[-1].get("code") == "SERVICE_OVERLOADED"

    eventually(refused)
    told = answers[-1]
    assert (told["status"], told["next"], told["committed"]) == (503, "repeat", False)
    assert told["retry_after_s"] >= 1
    wire.close()


def test_a_frame_has_the_deadline_of_an_exchange(slow: Daemon) -> None:
    crew = Crew(slow.start())
    worker = crew.worker()
    slow.stop()
    slow.start(env={"FELTD_TEST_SLOW_COMMIT_MS": "400"})
    wire = channel(worker)
    answers: list[dict[str, Any]] = []

    def late() -> bool:
        wire.send_both({"id": 1, "heartbeat": beat_of(worker)}, {"id": 2, "claim": {}})
        answers.extend((wire.answer(1), wire.answer(2)))
        return any(one.get("code") == "SERVICE_OVERLOADED" for one in answers)

    eventually(late)
    wire.close()


def test_a_credit_larger_than_one_transaction_gives_is_filled_up(crew: Crew, opens: Opens) -> None:
    for _ in range(12):
        body = [
            {
                "definition_id": "extract",
                "idempotency_key": f"many-{time.monotonic_ns()}-{number}",
                "capability_snapshot": ["documents.extract"],
            }
            for number in range(100)
        ]
        crew.daemon.post("/v1/workloads/batch", {"workloads": body}, key=crew.submitter_key)
    wires = [opens(crew.worker(capacity={"concurrency": 300})) for _ in range(4)]
    given: list[str] = []
    for wire in wires:
        given += claims_of(wire, 280)

    assert len(given) == len(set(given)) == 4 * 280
    for wire in wires:
        assert wire.quiet(0.05)


def claims_of(wire: Wire, credit: int) -> list[str]:
    """What comes of a credit, the answer and the pushes after it."""
    answer = wire.ask(claim={"credit": credit, "lease_ms": 60_000})
    found = [claim["claim_id"] for claim in answer["claims"]]
    while len(found) < credit:
        found += [claim["claim_id"] for claim in wire.pushed("claims")]
    return found


async def endless(scope: Any, receive: Any, send: Any) -> None:
    """A WebSocket application that only listens."""
    if scope["type"] == "lifespan":
        for said in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{said}.complete"})
        return
    await receive()
    await send({"type": "websocket.accept", "subprotocol": "feltd.v1"})
    message = await receive()
    while message["type"] == "websocket.receive":
        message = await receive()


@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
def test_a_client_that_answers_pings_stays_and_a_silent_one_is_closed(loop_kind: str) -> None:
    with serving(loop_kind, app=endless, ping_ms=50) as house:
        lively = Wire.open(("127.0.0.1", house.port), "/")
        silent = Wire.open(("127.0.0.1", house.port), "/")
        silent.answers_pings = False

        while lively.pings < 12:
            assert lively.quiet(0.02)
            assert lively.closed is None
        assert silent.ended() == (4408, "silent for 0 s")
        assert silent.pings in (2, 3)
        lively.close()


def test_a_client_that_says_anything_is_not_silent() -> None:
    with serving(app=endless, ping_ms=60) as house:
        wire = Wire.open(("127.0.0.1", house.port), "/")
        wire.answers_pings = False
        for _ in range(12):  # four times as long as it may be silent
            wire.send({})
            assert wire.quiet(0.04)
        assert wire.closed is None
        assert wire.ended()[0] == 4408


def test_a_client_that_says_goodbye_is_answered(crew: Crew, opens: Opens) -> None:
    assert opens(crew.worker()).bye()[0] == 1000

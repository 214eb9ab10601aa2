"""Workers whose work comes over a channel: what is pushed reaches them, and HTTP is there too."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

from feltd.worker import Refusal, Unreachable
from feltd.worker.channel import Channel
from tests.daemon.running import Daemon
from tests.worker.crew import Crew
from tests.worker.lossy import Wire

#: By channel, and beating so rarely that whatever it notices was pushed.
PUSHED = {
    "FELTD_TEST_CHANNEL": "1",
    "FELTD_TEST_INTERVAL_MS": "300000",
    "FELTD_TEST_TIMEOUT_MS": "600000",
    "FELTD_TEST_LEASE_MS": "3600000",
}


def metric(crew: Crew, line: str) -> float:
    """The number behind the metric whose line begins so."""
    for text in str(crew.daemon.get("/metrics")).splitlines():
        if text.startswith(line):
            return float(text.rsplit(" ", 1)[1])
    return 0.0


def test_work_comes_over_the_channel_and_nobody_polls(
    own: Daemon, crew_of: Callable[[Daemon], Crew]
) -> None:
    crew = crew_of(own)
    process = crew.start(**PUSHED)
    crew.ready()
    jobs = [crew.work("echo", {"page": number}) for number in range(20)]

    for job in jobs:
        assert crew.final(job)["state"] == "COMPLETED"
        assert crew.ends(job) == ["completed"]
    assert metric(crew, "feltd_channels ") == 1
    assert metric(crew, "feltd_long_polls ") == 0
    assert metric(crew, 'feltd_requests_total{operation="exchange"') == 0
    process.send_signal(signal.SIGTERM)
    assert crew.ended(process) == 0
    crew.until(lambda: metric(crew, "feltd_channels ") == 0, "its channel is closed")


def test_a_cancel_and_an_eviction_reach_the_handler_at_once(crew: Crew) -> None:
    crew.start(**PUSHED)
    cancelled, evicted = crew.work("hold"), crew.work("hold_async")
    crew.until(lambda: len(crew.seen("begun")) == 2, "both have begun")

    crew.client.cancel(cancelled)
    claim = crew.client.workload(evicted)["current_claim"]["claim_id"]
    crew.client.evict(claim, reason="the host is replaced", to="DEAD_LETTERED")

    crew.until(lambda: len(crew.seen("told")) == 2, "both were told")
    told = {one["workload_id"]: one["why"] for one in crew.seen("told")}
    assert told == {cancelled: "cancel", evicted: "lost"}
    assert crew.final(cancelled)["state"] == "CANCELLED"


def test_a_drain_is_obeyed_without_a_beat(crew: Crew) -> None:
    """BC-035."""
    process = crew.start(**PUSHED)
    worker_id = crew.ready()["worker_id"]

    crew.client.drain(worker_id, {"reason": "new kernel"})

    assert crew.ended(process) == 0
    assert "stopped: drained by service:" in crew.log()


def test_a_taken_over_worker_learns_it_by_its_channel(crew: Crew) -> None:
    first = crew.start(**PUSHED)
    crew.ready()
    crew.until(lambda: "channel open" in crew.log(), "the channel is open")

    crew.start("w", **PUSHED)

    assert crew.ended(first) == 3


def test_a_handler_that_outlives_its_claim_keeps_its_slot(crew: Crew) -> None:
    crew.start(**PUSHED)
    deaf = crew.work("deaf", {"seconds": 4})
    crew.until(lambda: crew.seen("begun"), "it has begun")
    claim = crew.client.workload(deaf)["current_claim"]["claim_id"]
    crew.client.evict(claim, reason="it does not listen", to="DEAD_LETTERED")
    crew.until(lambda: "lost claim_" in crew.log(), "the worker knows")

    held = [crew.work("hold") for _ in range(2)]
    crew.until(lambda: len(crew.seen("begun")) == 2, "one of them has begun")

    # Of two slots one is not free, whatever the daemon thinks: the other piece goes back.
    crew.until(lambda: sorted(map(crew.state, held)) == ["READY", "RUNNING"], "one waits")
    crew.until(lambda: len(crew.seen("begun")) == 3, "the other has begun")


def test_a_killed_daemon_is_found_again(own: Daemon, crew_of: Callable[[Daemon], Crew]) -> None:
    crew = crew_of(own)
    port = own.url.rsplit(":", 1)[1]
    crew.start(FELTD_TEST_CHANNEL="1", FELTD_TEST_LEASE_MS="30000")
    crew.ready()
    crew.final(crew.work("echo"))
    running = crew.work("steps", {"steps": 8, "pace_s": 0.2})
    crew.until(lambda: crew.seen("step"), "it is at work")

    own.kill()
    own.start("--port", port)

    assert crew.final(running)["state"] == "COMPLETED"
    assert crew.ends(running) == ["completed"]
    crew.until(lambda: crew.log().count("channel open") == 2, "there is a channel again")
    assert crew.final(crew.work("echo"))["state"] == "COMPLETED"


def test_behind_what_lets_no_channel_through_work_is_polled_for(crew: Crew) -> None:
    with Wire(crew.daemon.url) as wire:
        crew.start(url=wire.url, **PUSHED)
        done = crew.final(crew.work("echo"))

    assert done["state"] == "COMPLETED"
    assert "channel open" not in crew.log()


@pytest.mark.anyio
async def test_a_channel_that_is_refused_says_why(crew: Crew) -> None:
    news: list[Any] = []
    worker_id = "worker_000000000000000000000000"
    with pytest.raises(Refusal) as wrong:
        await Channel.open(crew.daemon.url, worker_id, "felt_w_nobody", news.append)
    with pytest.raises(Refusal) as foreign:
        await Channel.open(crew.daemon.url, worker_id, crew.daemon.key, news.append)
    with pytest.raises(Unreachable):
        await Channel.open("http://127.0.0.1:9", worker_id, None, news.append)

    assert (wrong.value.status, wrong.value.next) == (401, "stop")
    assert (foreign.value.status, foreign.value.code) == (403, "FORBIDDEN")
    assert news == []

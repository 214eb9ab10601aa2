"""Channels and pages that listen: they go away without a word, and nobody else waits for that."""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from tests.api.channel.talk import Wire, channel
from tests.api.channel.test_full import endless
from tests.api.claims.conftest import Crew
from tests.api.claims.test_polls import operations
from tests.api.events.listening import gauge
from tests.api.transport.kit import serving
from tests.daemon.running import Daemon

CHANNELS = 24
JOBS = 48
STREAMS = "feltd_streams"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon of this file. Its keeper hardly runs, so that what is waited for must be told."""
    made = Daemon(tmp_path_factory.mktemp("streams") / "feltd.db", "--tick-ms", "60000")
    try:
        yield made.init().start()
    finally:
        made.close()


def until(what: Callable[[], object]) -> None:
    """Wait until it holds; the test's own time limit ends a wait without end."""
    while not what():
        time.sleep(0.02)


def test_work_that_comes_as_channels_break_goes_to_those_that_are_left(daemon: Daemon) -> None:
    """BC-033, BC-057: half of the channels vanish as work comes; the rest have it at once.

    What was pushed to one as it vanished stays its worker's, who learns of it when he is back.
    """
    crew = Crew(daemon)
    workers = [crew.worker(capacity={"concurrency": 8}) for _ in range(CHANNELS)]
    wires = [channel(worker) for worker in workers]
    leaving, staying = wires[::2], wires[1::2]
    gone = {worker.id for worker in workers[::2]}
    try:
        for wire in wires:
            assert wire.ask(claim={"credit": 8, "lease_ms": 60_000, "start": True})["claims"] == []
        early = [crew.work() for _ in range(JOBS // 4)]
        for wire in leaving:
            wire.reset()
        late = [crew.work() for _ in range(JOBS)]

        held = {}
        for job in early + late:
            until(lambda job=job: crew.state(job) == "RUNNING")
            # What a channel had not sent yet when it vanished was given back, and taken again.
            held[job] = daemon.get(f"/v1/workloads/{job}")["attempts"][-1]["worker_id"]
    finally:
        for wire in staying:
            wire.close()
    assert not [job for job in late if held[job] in gone]
    assert len({held[job] for job in late}) > 1


def test_a_page_that_listens_and_goes_away_leaves_nothing(daemon: Daemon) -> None:
    """BC-101: closed, cut, or half closed; its seat is free again at once."""
    before = gauge(daemon, STREAMS)
    for way in ("close", "cut", "half"):
        address = urlsplit(daemon.url)
        lines = [socket.create_connection((address.hostname, address.port), 20) for _ in range(4)]
        for line in lines:
            line.sendall(
                b"GET /console/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
                + daemon.key.encode() + b"\r\n\r\n"
            )  # fmt: skip
            assert line.recv(64).startswith(b"HTTP/1.1 200")
        assert gauge(daemon, STREAMS) == before + 4
        for line in lines:
            if way == "cut":
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if way == "half":
                line.shutdown(socket.SHUT_WR)
            else:
                line.close()
        until(lambda: gauge(daemon, STREAMS) == before)
        for line in lines:
            line.close()


def test_one_channel_of_many_is_asked_for_each_workload(daemon: Daemon) -> None:
    """BC-057: 24 channels with credit wait; the writer is asked about once for each workload."""
    crew = Crew(daemon)
    wires = [channel(crew.worker()) for _ in range(CHANNELS)]
    try:
        for wire in wires:
            assert wire.ask(claim={"credit": 4})["claims"] == []
        before = operations(crew)
        for _ in range(10):
            job = crew.work()
            until(lambda job=job: crew.state(job) == "CLAIMED")
        spent = operations(crew) - before
    finally:
        for wire in wires:
            wire.close()
    # A creation, a claim, one look of the next in the row, and a few looks besides; not 24 each.
    assert 20 <= spent <= 60


def test_nobody_is_silent_for_the_time_in_which_the_daemon_was_frozen() -> None:
    """BC-015: longer than a client may be silent; whoever answered before goes on after it."""
    with serving(app=endless, ping_ms=50) as house:
        lively = [Wire.open(("127.0.0.1", house.port), "/") for _ in range(3)]
        silent = Wire.open(("127.0.0.1", house.port), "/")
        while min(wire.pings for wire in lively) < 2:
            for wire in (*lively, silent):
                wire.quiet(0.01)
        house.loop.call_soon_threadsafe(time.sleep, 0.6)
        before = [wire.pings for wire in lively]
        silent.answers_pings = False

        while any(wire.pings < was + 8 for wire, was in zip(lively, before, strict=True)):
            for wire in lively:
                assert wire.quiet(0.01)
                assert wire.closed is None
        assert silent.ended()[0] == 4408
        for wire in lively:
            wire.close()

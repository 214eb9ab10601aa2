"""Whoever follows the feed knows the mesh, however often the line and the daemon break."""

import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from tests.api.events.listening import reader
from tests.daemon.bustle import Bustle
from tests.daemon.cutting import Follower, Line, by_client, by_stream, wait
from tests.daemon.running import Daemon, Edge, people
from tests.mesh.rebuilt import WORKLOADS, Known, stored

#: Dead workers are found fast, so that what they held comes back within the test.
FLAGS = ("--heartbeat-interval-ms", "1000", "--heartbeat-timeout-ms", "2000")
VERBS = ("create", "start", "checkpoint", "complete", "fail", "give up", "release")
DEEDS = ("cancel", "cancel by force", "requeue", "evict", "edit", "bulk", "hold", "lift")
#: What happens by itself: a lease lapses, a timeout passes, a dependency ends.
BY_ITSELF = ("recover", "time_out", "settle")

Daemons = Callable[..., Daemon]


def rows(daemon: Daemon) -> tuple[int, dict[str, Known]]:
    """What the file says, and up to which event."""
    with closing(sqlite3.connect(f"file:{daemon.data}?mode=ro", uri=True)) as file:
        file.row_factory = sqlite3.Row
        file.execute("BEGIN")
        head = file.execute("SELECT max(seq) FROM events").fetchone()[0]
        return head, stored(file.execute(WORKLOADS).fetchall())


def agrees(daemon: Daemon, follower: Follower) -> bool:
    """Whether a follower has heard all that is written and knows every workload as it stands."""
    head, told = rows(daemon)
    return follower.known.seq == head and follower.known.workloads == told


def kinds(daemon: Daemon) -> set[str]:
    with closing(sqlite3.connect(f"file:{daemon.data}?mode=ro", uri=True)) as file:
        return {kind for (kind,) in file.execute("SELECT DISTINCT kind FROM events")}


@pytest.mark.parametrize(
    ("cuts", "kills"),
    [(100, 4), pytest.param(2_000, 40, marks=[pytest.mark.soak, pytest.mark.timeout(900)])],
)
def test_a_follower_rebuilds_every_workload_through_cuts_and_restarts(
    daemons: Daemons, cuts: int, kills: int
) -> None:
    """One follower by stream and one by long polls; every verb, SIGKILL, and lines that break."""
    rng = random.Random(cuts)
    daemon = daemons("feltd.db", *FLAGS).start()
    crew, mine = people(daemon), reader(daemon, "t")
    edges = [Edge(daemon, name, crew.registrar_key) for name in ("one", "two", "three")]
    line = Line(lambda: daemon.url)
    followers = [Follower(by_stream(line.url, mine.key)), Follower(by_client(line.url, mine.key))]
    bustle = Bustle(daemon, crew, edges, cuts)
    try:
        for part in range(kills):
            while followers[0].opened <= cuts * (part + 1) / kills:
                time.sleep(rng.random() * 0.1)
                line.cut()
            daemon.kill()
            daemon.start()
        wait(lambda: not missing(bustle), f"each verb was used: {bustle.done}")
        wait(lambda: set(BY_ITSELF) <= kinds(daemon), "each of it happened")
        bustle.end()
        wait(lambda: not held(daemon), "nothing is held any more")
        # What depends on the last ends may still end by itself, and both hear of that too.
        wait(lambda: all(agrees(daemon, one) for one in followers), "both know what the file says")
    finally:
        bustle.end()
        for follower in followers:
            follower.stop()
        line.close()

    assert followers[0].opened > cuts
    assert line.cuts >= cuts
    for follower in followers:
        assert follower.known.wrong == []
    assert daemon.stop() == 0
    assert daemon.check().returncode == 0


def missing(bustle: Bustle) -> list[str]:
    """Verbs nobody has used yet."""
    return [verb for verb in (*VERBS, *DEEDS) if not bustle.done[verb]]


def held(daemon: Daemon) -> bool:
    """Whether a claim lives."""
    return bool(daemon.get("/v1/claims?live=true&limit=1")["items"])

"""The daemon is killed at work, and nothing that was acknowledged is missing (BC-007)."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPException
from typing import Any

import pytest

from tests.daemon.load import Load, crew
from tests.daemon.running import Daemon, people

KILLS_IN_A_TEST_RUN = 4
KILLS_BY_HAND = 50


def killed_under_load(daemon: Daemon, kills: int) -> None:
    daemon.start()
    mesh = people(daemon)
    timing = {"heartbeat_interval_ms": 1_000, "heartbeat_timeout_ms": 3_000}
    edges = crew(daemon, mesh, 3, **timing)
    load = Load(daemon, mesh, edges[:2], edges[2])
    load.begin()
    try:
        for number in range(kills):
            wanted = len(load.completed) + 20
            until_s = time.monotonic() + 20
            while len(load.completed) < wanted and time.monotonic() < until_s:
                time.sleep(0.01 + number % 7 * 0.003)
            daemon.kill()
            daemon.start()
        time.sleep(0.5)
        failed = failures(daemon)
    finally:
        load.end()
    assert load.wrong == []
    assert failed == [], "nobody is failed for the daemon's own absence"
    assert load.renewals > 0
    for workload_id in load.created:
        daemon.get(f"/v1/workloads/{workload_id}", key=mesh.submitter_key)
    for workload_id, token in load.completed.items():
        found = daemon.get(f"/v1/workloads/{workload_id}", key=mesh.submitter_key)
        assert found["state"] == "COMPLETED"
        assert found["result"]["fencing_token"] == token == found["result"]["output"]
    for given in load.tokens:
        assert given == sorted(set(given)), "each worker's tokens only grow"
    assert daemon.check().returncode == 0, daemon.check().stdout
    assert daemon.stop() == 0
    assert daemon.check().returncode == 0


def failures(daemon: Daemon) -> list[tuple[object, ...]]:
    """Every worker ever failed, and every claim that ended otherwise than by its worker."""
    with closing(sqlite3.connect(f"file:{daemon.data}?mode=ro", uri=True)) as shell:
        found = shell.execute("SELECT worker_id FROM events WHERE kind = 'detect_failures'")
        ended = shell.execute("SELECT workload_id FROM claims WHERE end_kind <> 'completed'")
        return found.fetchall() + ended.fetchall()


def test_killed_under_load_it_loses_nothing_it_acknowledged(
    daemons: Callable[..., Daemon],
) -> None:
    killed_under_load(daemons(), KILLS_IN_A_TEST_RUN)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_killed_fifty_times_it_loses_nothing_it_acknowledged(
    daemons: Callable[..., Daemon],
) -> None:
    killed_under_load(daemons(), KILLS_BY_HAND)


@pytest.mark.parametrize("point", ["before", "after"])
def test_killed_around_any_commit_of_a_life_it_can_be_repeated(
    daemons: Callable[..., Daemon], point: str
) -> None:
    """Each step of one workload's life is cut off at its commit, and repeated word for word."""
    daemon = daemons()
    daemon.start()
    mesh = people(daemon)
    edge = crew(daemon, mesh, 1)[0]
    body = {"definition_id": "extract", "idempotency_key": "one", "input": 1}
    claim: dict[str, Any] = {}
    steps: list[Callable[[], Any]] = [
        lambda: daemon.call("POST", "/v1/workloads", body, key=mesh.submitter_key),
        lambda: edge.call("claims", {"max": 1, "request_id": "r"}),
        lambda: edge.fenced("start", claim),
        lambda: edge.fenced("checkpoint", claim, data={"page": 1}),
        lambda: edge.fenced("complete", claim, output="done"),
    ]
    for step in steps:
        daemon.stop()
        # The start's own commits come first: the next one is the step's.
        daemon.start(env={"FELTD_TEST_CRASH_AT": f"{point}:1"})
        with pytest.raises((OSError, HTTPException)):
            step()
        assert daemon.wait() == -9
        daemon.start()
        answer = step()
        assert answer.status in (200, 201), answer
        if "claims" in answer.body:
            claim.update(answer.body["claims"][0])
    seen = daemon.get("/v1/workloads", key=mesh.submitter_key)["items"]
    assert [one["state"] for one in seen] == ["COMPLETED"]
    assert len(daemon.get("/v1/claims")["items"]) == 1
    assert daemon.check().returncode == 0, daemon.check().stdout

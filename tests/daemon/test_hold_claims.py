"""--hold-claims: the daemon starts with everything held, and says so, until a person lifts it."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.running import PATIENCE_S, Daemon, Edge, create, feltd, people


@pytest.fixture
def daemon(tmp_path: Path) -> Any:
    running = Daemon(tmp_path / "feltd.db", "--tick-ms", "50")
    yield running.init()
    running.close()


def reasons(daemon: Daemon) -> list[str]:
    return [one["code"] for one in daemon.get("/health")["reasons"]]


def test_a_restart_holds_what_waits_and_lets_go_on_what_runs(daemon: Daemon) -> None:
    daemon.start()
    mesh = people(daemon)
    edge = Edge(daemon, "edge", mesh.registrar_key)
    assert edge.beat().status == 200
    ids = [create(daemon, mesh, key)["workload_id"] for key in ("first", "second")]
    (claim,) = edge.pull(start=True)
    (waiting,) = (one for one in ids if one != claim["workload_id"])
    daemon.kill()

    daemon.start("--hold-claims")
    assert daemon.told_at_start.startswith(f"{daemon.url} (nothing is claimed: hold_at_start")
    assert "feltd hold delete" in daemon.told_at_start
    assert "CLAIMS_HELD" in reasons(daemon)
    assert edge.beat().status == 200
    empty = edge.call("claims", {})
    assert (empty.body["claims"], empty.body["reasons"][0]["code"]) == ([], "HELD")
    by_id = daemon.call("POST", f"/v1/workloads/{waiting}/claim", {}, key=edge.key)
    assert (by_id.status, by_id.body["code"]) == (409, "MESH_PLACEMENT_DENIED")
    assert by_id.body["rules"] == ["held"]
    # What ran goes on and ends as ever.
    assert edge.fenced("complete", claim).body["state"] == "COMPLETED"

    taken: list[list[dict[str, Any]]] = []
    parked = threading.Thread(target=lambda: taken.append(edge.pull(wait_ms=20_000)))
    parked.start()
    until(lambda: "feltd_long_polls 1" in daemon.get("/metrics").replace(".0", ""))
    lifted = feltd("hold", "delete", "hold_at_start", "--data", str(daemon.data))
    assert lifted.returncode == 0, lifted.stderr
    # Well before the next look of itself that a parked poll takes.
    parked.join(PATIENCE_S)
    assert [one["workload_id"] for one in taken[0]] == [waiting]
    assert "CLAIMS_HELD" not in reasons(daemon)
    assert daemon.check().returncode == 0


def test_the_hold_outlives_a_start_without_the_flag_and_is_never_two(daemon: Daemon) -> None:
    daemon.start("--hold-claims").stop()
    daemon.start("--hold-claims").stop()
    daemon.start()

    assert "hold_at_start" in daemon.told_at_start
    listed = daemon.get("/v1/holds")["items"]
    assert [(one["hold_id"], one["scope"]) for one in listed] == [("hold_at_start", "all")]
    assert daemon.call("DELETE", "/v1/holds/hold_at_start").status == 204
    daemon.stop()
    daemon.start()
    assert daemon.told_at_start == daemon.url
    assert "CLAIMS_HELD" not in reasons(daemon)


def test_a_hold_is_placed_and_lifted_while_no_daemon_runs(daemon: Daemon) -> None:
    at = ("--data", str(daemon.data))
    placed = feltd("hold", "create", "all", "--reason", "the disk\nis moved", "--json", *at)
    assert placed.returncode == 0, placed.stderr
    hold_id = json.loads(placed.stdout)["hold_id"]

    daemon.start()
    assert hold_id in daemon.told_at_start
    assert "the disk is moved" in daemon.told_at_start
    daemon.stop()
    lifted = feltd("hold", "delete", hold_id, *at)
    assert (lifted.returncode, lifted.stdout) == (0, f"hold lifted: {hold_id}\n")
    assert json.loads(feltd("hold", "list", "--json", *at).stdout) == []


def until(met: Callable[[], bool]) -> None:
    """Wait until something is so."""
    ends = time.monotonic() + PATIENCE_S
    while not met():
        assert time.monotonic() < ends
        time.sleep(0.02)

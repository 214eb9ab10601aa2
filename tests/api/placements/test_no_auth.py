"""With --no-auth everybody is the worker he names, unless he gives work away."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.daemon.running import Answer, Daemon


@pytest.fixture(scope="module")
def open_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(tmp_path_factory.mktemp("open") / "feltd.db", "--no-auth").init().start()
    running.key = ""
    try:
        yield running
    finally:
        running.close()


def worker(daemon: Daemon, name: str) -> str:
    body = {"name": name, "runtime": "process", "version": "1", "capacity": {"concurrency": 9}}
    told = daemon.post("/v1/workers", body)["worker"]
    beat(daemon, str(told["worker_id"]), told["capability_version"])
    return str(told["worker_id"])


def beat(daemon: Daemon, worker_id: str, capability_version: int = 1) -> Any:
    body = {
        "worker_id": worker_id,
        "version": "1",
        "capability_version": capability_version,
        "capacity": {"concurrency": 9},
        "health": "HEALTHY",
    }
    return daemon.call("POST", f"/v1/workers/{worker_id}/heartbeat", body).body


def claim(daemon: Daemon, key: str, **body: Any) -> Answer:
    made = {"definition_id": "x", "idempotency_key": key}
    job = daemon.post("/v1/workloads", made)["workload_id"]
    return daemon.call("POST", f"/v1/workloads/{job}/claim", body)


def test_a_named_worker_takes_and_a_placement_or_no_name_gives(open_daemon: Daemon) -> None:
    worker_id = worker(open_daemon, "edge")

    taken = claim(open_daemon, "taken", worker_id=worker_id)
    assert taken.status == 201
    assert beat(open_daemon, worker_id)["assigned_claims"] == []
    given = claim(open_daemon, "given", worker_id=worker_id, placement={})
    chosen = claim(open_daemon, "chosen")

    assert (given.status, chosen.status) == (201, 201)
    told = [one["claim_id"] for one in beat(open_daemon, worker_id)["assigned_claims"]]
    assert told == [given.body["claim_id"], chosen.body["claim_id"]]
    listed = open_daemon.get(f"/v1/claims?worker_id={worker_id}")["items"]
    assert [one["how"] for one in listed] == ["directed", "directed", "id"]


def test_a_sink_asks_without_a_key(open_daemon: Daemon) -> None:
    worker(open_daemon, "sinks")
    held = claim(open_daemon, "fenced").body
    token = {"fencing_token": held["fencing_token"]}

    valid = open_daemon.post(f"/v1/claims/{held['claim_id']}/validate", token)
    assert valid["tenant_id"] == "default"
    assert open_daemon.post("/v1/fences/r", token)["highest"] == held["fencing_token"]

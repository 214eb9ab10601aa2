"""Dead letters are brought back in bulk while the daemon is killed: none is lost, none twice."""

import http.client
import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.daemon.running import Daemon, Edge, people

JOBS = 600
BODY = {"action": "requeue", "filter": {"state": "DEAD_LETTERED", "tenant_id": "t"}}


def die(edge: Edge, submitter_key: str) -> None:
    """JOBS workloads that failed for good."""
    for first in range(0, JOBS, 200):
        items = [
            {"definition_id": "extract", "idempotency_key": f"job-{first + number}"}
            for number in range(200)
        ]
        edge.daemon.post("/v1/workloads/batch", {"workloads": items}, key=submitter_key)
        claims = edge.pull(max=200, start=True)
        fails = [
            {name: held[name] for name in ("workload_id", "claim_id", "worker_id", "fencing_token")}
            | {"kind": "execution_error", "message": "no"}
            for held in claims
        ]
        answer = edge.call("exchange", {"fail": fails})
        assert {one["ok"] for one in answer.body["outcomes"]} == {True}


def counts(daemon: Daemon) -> dict[str, int]:
    found: dict[str, int] = {}
    for state in ("READY", "DEAD_LETTERED"):
        body: dict[str, Any] = {"action": "cancel", "filter": {"state": state}, "dry_run": True}
        found[state] = daemon.post("/v1/workloads/bulk", body)["matched"]
    return found


def test_bulk_requeue_under_kill_9_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """BC-050."""
    daemon = Daemon(tmp_path / "feltd.db").init().start()
    try:
        crew = people(daemon)
        edge = Edge(daemon, "edge", crew.registrar_key, capacity={"concurrency": 200})
        assert edge.beat(capacity={"concurrency": 200}).status == 200
        die(edge, crew.submitter_key)
        assert counts(daemon) == {"READY": 0, "DEAD_LETTERED": JOBS}

        def ask() -> None:
            # The answer may be lost with the daemon.
            with suppress(OSError, http.client.HTTPException, AssertionError):
                daemon.post("/v1/workloads/bulk", BODY)

        for patience_s in (0.0, 0.02, 0.06):
            asking = threading.Thread(target=ask)
            asking.start()
            asking.join(patience_s)
            daemon.kill()
            asking.join()
            daemon.start()
            assert sum(counts(daemon).values()) == JOBS
        for _ in range(3):
            if daemon.post("/v1/workloads/bulk", BODY)["remaining"] == 0:
                break
        assert counts(daemon) == {"READY": JOBS, "DEAD_LETTERED": 0}
        assert daemon.post("/v1/workloads/bulk", BODY) == {"changed": 0, "remaining": 0}
        checked = daemon.check()
        assert checked.returncode == 0, checked.stdout
        assert json.loads(checked.stdout)
    finally:
        daemon.close()

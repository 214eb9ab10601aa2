"""An earlier copy of the file put back: it shows, its claims end, and tokens grow."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.load import crew
from tests.daemon.running import PATIENCE_S, Daemon, Edge, Mesh, create, people


def copied(daemon: Daemon, folder: Path) -> None:
    """A copy of the whole database, made while nobody serves it."""
    folder.mkdir()
    for end in ("", "-wal"):
        file = daemon.data.with_name(daemon.data.name + end)
        if file.exists():
            shutil.copy(file, folder / file.name)


def put_back(daemon: Daemon, folder: Path) -> None:
    for end in ("", "-wal", "-shm"):
        daemon.data.with_name(daemon.data.name + end).unlink(missing_ok=True)
    for file in folder.iterdir():
        shutil.copy(file, daemon.data.parent / file.name)


class Past:
    """A database with a live claim, copied, and lived on after the copy."""

    def __init__(self, daemon: Daemon, tmp_path: Path) -> None:
        self.daemon = daemon
        daemon.start()
        self.mesh: Mesh = people(daemon)
        self.worker, self.drained = crew(daemon, self.mesh, 2)
        self.waiting = create(daemon, self.mesh, "one")["workload_id"]
        self.claim: dict[str, Any] = self.worker.pull(start=True)[0]
        daemon.post(f"/v1/workers/{self.drained.id}/drain", {"reason": "upgrade"})
        daemon.stop()
        copied(daemon, tmp_path / "copy")
        daemon.start()
        self.greatest = self.live_on()

    def live_on(self) -> int:
        """More work after the copy; the greatest token ever seen."""
        assert self.worker.beat().status == 200
        assert self.worker.fenced("complete", self.claim, output=1).status == 200
        for number in range(5):
            create(self.daemon, self.mesh, f"later-{number}")
        claims = self.worker.pull(max=5, start=True)
        self.daemon.stop()
        return max(claim["fencing_token"] for claim in claims)


@pytest.mark.parametrize("sidecar", ["kept", "lost"])
def test_a_copy_put_back_ends_its_claims_and_issues_greater_tokens(
    daemons: Callable[..., Daemon], tmp_path: Path, sidecar: str
) -> None:
    daemon = daemons()
    past = Past(daemon, tmp_path)
    mark = daemon.data.with_name(daemon.data.name + ".mark")
    before = json.loads(mark.read_text())
    put_back(daemon, tmp_path / "copy")
    if sidecar == "lost":
        mark.unlink()
        # Only the wall clock is left to say which tokens there were; a start may be ahead of it.
        while time.time() * 1e6 <= past.greatest:
            time.sleep(0.05)

    daemon.start()

    told = daemon.get("/health")
    assert (told["status"], told["storage"]) == ("degraded", "recovered-incomplete-write")
    missing = told["storage_detail"]["missing_commits"]
    assert missing is None if sidecar == "lost" else missing > 0
    assert "STORAGE_RECOVERED" in {reason["code"] for reason in told["reasons"]}
    assert daemon.call("GET", "/health/ready").status == 200
    strict = daemon.call("GET", "/health/ready?strict=true")
    assert (strict.status, strict.headers["retry-after"]) == (503, "1")

    found = daemon.get(f"/v1/workloads/{past.waiting}", key=past.mesh.submitter_key)
    assert found["state"] == "READY"
    assert [one["end"] for one in found["attempts"]] == ["restored"]
    assert found["attempts"][0]["spent"] is False
    stale = past.worker.fenced("complete", past.claim, output=1)
    assert (stale.status, stale.body["code"]) == (409, "WORKLOAD_STALE_FENCE")

    lifecycles = {one["name"]: one for one in daemon.get("/v1/workers")["items"]}
    assert lifecycles["edge-0"]["lifecycle"] == "RECOVERING"
    assert lifecycles["edge-0"]["offline_reason"] == "restored"
    assert lifecycles["edge-1"]["lifecycle"] == "OFFLINE"
    assert lifecycles["edge-1"]["offline_reason"] == "drained"

    claim = reconciled(past.worker)
    assert claim["fencing_token"] > past.greatest
    if sidecar == "kept":
        assert claim["fencing_token"] > before["ceiling"]
    assert daemon.call("POST", "/v1/health/acknowledge").status == 204
    assert daemon.call("GET", "/health/ready?strict=true").status == 200
    assert "STORAGE_RECOVERED" not in {one["code"] for one in daemon.get("/health")["reasons"]}
    assert daemon.check().returncode == 0, daemon.check().stdout

    daemon.stop()
    daemon.start()
    assert daemon.get("/health")["storage"] == "clean", "the next start goes on from here"


def reconciled(worker: Edge) -> dict[str, Any]:
    """The worker reconciles as it must, and takes the work again."""
    refused = worker.beat()
    assert (refused.status, refused.body["code"]) == (409, "WORKER_RECOVERY_REQUIRED")
    assert refused.body["next"] == "reconcile"
    answer = worker.call(
        "reconcile",
        {
            "worker_id": worker.id,
            "worker_version": "1",
            "capability_version": worker.capability_version,
        },
    )
    assert answer.status == 200, answer
    assert answer.body["worker"]["lifecycle"] == "READY"
    assert worker.beat().status == 200
    return worker.pull()[0]


def test_a_copy_that_went_its_own_way_is_known_by_its_audit_chain(
    daemons: Callable[..., Daemon], tmp_path: Path
) -> None:
    """As many commits as the mark says, but other ones."""
    daemon = daemons()
    past = Past(daemon, tmp_path)
    mark = daemon.data.with_name(daemon.data.name + ".mark")
    known = json.loads(mark.read_text())
    put_back(daemon, tmp_path / "copy")
    daemon.start()
    for number in range(known["commit_seq"] + 5):
        create(daemon, past.mesh, f"other-{number}")
    daemon.stop()
    mark.write_text(json.dumps(known))
    daemon.start()
    assert daemon.get("/health")["storage_detail"] == {"missing_commits": None}


def test_a_copy_beside_the_wal_of_another_file_is_refused_with_the_way_out(
    daemons: Callable[..., Daemon], tmp_path: Path
) -> None:
    """The pages of two histories: whatever SQLite makes of them, nothing is served."""
    daemon = daemons()
    past = Past(daemon, tmp_path)
    daemon.start()
    for number in range(20):
        create(daemon, past.mesh, f"last-{number}")
    daemon.kill()
    shutil.copy(tmp_path / "copy" / daemon.data.name, daemon.data)
    assert daemon.spawn().wait(PATIENCE_S) == 1
    told = daemon.told()
    assert "Traceback" not in told
    assert told.splitlines()[-1].startswith(f"error: {daemon.data} ")
    assert "backup in" in told.splitlines()[-1]


def test_a_start_after_kill_is_a_continuation(daemons: Callable[..., Daemon]) -> None:
    daemon = daemons()
    daemon.start()
    mesh = people(daemon)
    worker = crew(daemon, mesh, 1)[0]
    create(daemon, mesh, "one")
    claim = worker.pull(start=True)[0]
    daemon.kill()
    daemon.start()
    told = daemon.get("/health")
    assert (told["last_stop"], "missing_commits" in told.get("storage_detail", {})) == (
        "unclean",
        False,
    )
    assert worker.fenced("complete", claim, output=1).status == 200

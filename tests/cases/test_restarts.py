"""The daemon is killed between two steps: nothing of either step is lost, nor half of it kept."""

import contextlib
import os
import re
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.load import crew
from tests.daemon.running import Daemon, Edge, Mesh, create, people

AT_ONCE = {"initial_backoff_ms": 0, "jitter": 0}


def staffed(daemons: Callable[..., Daemon], **timing: int) -> tuple[Daemon, Mesh, Edge]:
    """A running daemon, its people, and one worker."""
    daemon = daemons().start()
    mesh = people(daemon)
    return daemon, mesh, crew(daemon, mesh, 1, **timing)[0]


def until(what: Callable[[], object]) -> None:
    """Wait until it holds; the test's own time limit ends a wait without end."""
    while not what():
        time.sleep(0.02)


def open_files(daemon: Daemon) -> list[tuple[str, int]]:
    """What the process has open, each with the flags it was opened with."""
    found = []
    for one in Path(f"/proc/{daemon.pid}/fd").iterdir():
        # Connections come and go meanwhile.
        with contextlib.suppress(OSError):
            told = Path(f"/proc/{daemon.pid}/fdinfo/{one.name}").read_text()
            flags = re.search(r"flags:\s*(\d+)", told)
            assert flags is not None
            found.append((os.readlink(one), int(flags[1], 8)))
    return found


def test_recovered_work_is_still_there_after_a_kill(daemons: Callable[..., Daemon]) -> None:
    """BC-008: what recovery decided stands in the file before anybody is told of it."""
    daemon, mesh, edge = staffed(daemons)
    job = create(daemon, mesh, "one", input={"page": 1}, retry_policy=AT_ONCE)["workload_id"]
    (lost,) = edge.pull(lease_ms=1_000, start=True)

    def shown() -> dict[str, Any]:
        found: dict[str, Any] = daemon.get(f"/v1/workloads/{job}", key=mesh.submitter_key)
        return found

    until(lambda: shown()["state"] == "READY")
    daemon.kill()
    daemon.start()

    assert (shown()["state"], shown()["input"]) == ("READY", {"page": 1})
    (again,) = edge.pull()
    assert (again["workload_id"], again["attempt_number"]) == (job, 2)
    assert again["input"] == {"page": 1}
    assert again["fencing_token"] > lost["fencing_token"]
    assert [one["end"] for one in shown()["attempts"] if "end" in one] == ["lease_expired"]
    assert daemon.check().returncode == 0, daemon.check().stdout


def test_slots_are_counted_the_same_after_a_kill(daemons: Callable[..., Daemon]) -> None:
    """BC-012: a worker that holds two of two holds two after a restart, and none once it ended."""
    daemon, mesh, edge = staffed(daemons)
    two = {"concurrency": 2}
    edge = Edge(daemon, "two", mesh.registrar_key, capacity=two)
    assert edge.beat(capacity=two).status == 200
    for number in range(5):
        create(daemon, mesh, f"k{number}")
    held = edge.pull(max=5, start=True)
    assert len(held) == 2
    daemon.kill()
    daemon.start()

    def active() -> int:
        return int(daemon.get(f"/v1/workers/{edge.id}")["capacity"]["active"])

    assert active() == 2
    assert edge.pull() == []
    for claim in held:
        assert edge.fenced("complete", claim, output=1).status == 200
    assert active() == 0
    assert len(edge.pull(max=5)) == 2
    assert active() == 2


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize(("point", "kept"), [("before", 0), ("after", 50)])
def test_a_batch_cut_off_by_a_kill_is_there_whole_or_not_at_all(
    daemons: Callable[..., Daemon], point: str, kept: int, atomic: bool
) -> None:
    """BC-010: fifty items, the daemon killed around the commit that holds them."""
    daemon, mesh, _ = staffed(daemons)
    daemon.stop()
    items = [{"definition_id": "extract", "idempotency_key": f"k{number}"} for number in range(50)]
    body = {"workloads": items, "atomic": atomic}

    def send() -> Any:
        return daemon.call("POST", "/v1/workloads/batch", body, key=mesh.submitter_key)

    daemon.start(env={"FELTD_TEST_CRASH_AT": f"{point}:1"})
    with pytest.raises((OSError, HTTPException)):
        send()
    assert daemon.wait() == -9
    daemon.start()

    def stored() -> set[str]:
        listed = daemon.get("/v1/workloads?limit=500", key=mesh.submitter_key)["items"]
        return {one["idempotency_key"] for one in listed}

    assert len(stored()) == kept
    answer = send()
    assert answer.status == 200
    assert [one["created"] for one in answer.body["items"]] == [not kept] * 50
    assert len(stored()) == 50
    assert daemon.check().returncode == 0, daemon.check().stdout


@pytest.mark.needs("sqlite3")
def test_an_operators_look_at_a_live_file_costs_nothing_that_was_acknowledged(
    daemons: Callable[..., Daemon],
) -> None:
    """BC-071: the whole daemon at work, a shell that comes and goes, then a kill.

    Whatever the daemon did with the path of its database by then, it still holds SQLite's locks:
    else the shell, believing it is the last to leave, takes the -wal away.
    """
    daemon, mesh, edge = staffed(daemons)
    # Everything of the daemon that could want to look at its file by name.
    for path in ("/health", "/health/ready", "/v1/readiness", "/metrics", "/v1/auth/me"):
        assert daemon.call("GET", path).status == 200
    assert daemon.check().returncode == 0
    stored: list[str] = []
    for number in range(50):
        stored.append(create(daemon, mesh, f"k{number}")["workload_id"])
        if number % 10 == 0:
            ran = subprocess.run(
                ["sqlite3", str(daemon.data), "SELECT count(*) FROM workloads"],
                capture_output=True,
                text=True,
                check=True,
                timeout=30,
            )
            assert int(ran.stdout) == number + 1
    (claim,) = edge.pull(start=True)
    assert edge.fenced("complete", claim, output=1).status == 200
    files = [file for file, _ in open_files(daemon)]
    assert f"{daemon.data}-wal" in files
    assert not [file for file in files if file.endswith("(deleted)")]
    daemon.kill()
    daemon.start()

    assert len(daemon.get("/v1/workloads?limit=500", key=mesh.submitter_key)["items"]) == 50
    shown = daemon.get(f"/v1/workloads/{claim['workload_id']}", key=mesh.submitter_key)
    assert shown["state"] == "COMPLETED"
    assert set(stored) >= {shown["workload_id"]}


def test_one_connection_writes_and_the_rest_read(daemons: Callable[..., Daemon]) -> None:
    """BC-073: beside the writer nothing of feltd opens the file for writing."""
    daemon, _, _ = staffed(daemons)

    ways = [flags & os.O_ACCMODE for file, flags in open_files(daemon) if file == str(daemon.data)]
    assert len(ways) > 1
    assert ways.count(os.O_RDONLY) == len(ways) - 1, "one connection writes and checkpoints"
    told = daemon.get("/health")["sqlite"]
    assert told["version"] == sqlite3.sqlite_version
    assert told["wal_reset_affected"] in (True, False)
    with closing(sqlite3.connect(daemon.data)) as shell:
        before = shell.execute("PRAGMA data_version").fetchone()
        assert daemon.check().returncode == 0
        assert shell.execute("PRAGMA data_version").fetchone() == before

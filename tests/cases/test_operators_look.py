"""What people and their programs do around a daemon costs nothing that was acknowledged."""

import os
import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.cases.test_restarts import open_files
from tests.daemon.load import crew
from tests.daemon.running import Daemon, create, feltd, people

PASSWORD = "a horse, a battery, a staple"
PAGES = ("", "/workloads", "/workers", "/audit", "/keys", "/users", "/signing-keys", "/events")


def looks(daemon: Daemon) -> None:
    """Everything of the daemon, and of its commands, that could want to look at the file."""
    body = {"username": "ada", "password": PASSWORD, "roles": {"*": "admin"}}
    daemon.post("/v1/users", body)
    daemon.post("/v1/auth/login", {"username": "ada", "password": PASSWORD}, key="")
    for path in ("/v1/diagnostics", "/v1/audit", "/v1/readiness", "/metrics", "/v1/backups"):
        assert daemon.call("GET", path).status == 200, path
    for page in PAGES:
        assert daemon.call("GET", f"/console{page}", Accept="text/html").status == 200, page
    env = {"FELTD_URL": daemon.url, "FELTD_KEY": daemon.key}
    at = ("--data", str(daemon.data))
    for verb in (
        ("doctor", *at), ("sql", "SELECT count(*) FROM workloads", *at), ("backup", "create", *at),
    ):  # fmt: skip
        ran = feltd(*verb, env=env)
        assert "Traceback" not in ran.stderr, (verb, ran.stderr)


@pytest.mark.needs("sqlite3")
def test_whatever_looks_at_a_daemon_leaves_its_locks_and_its_one_writer(
    daemons: Callable[..., Daemon],
) -> None:
    """BC-071, BC-073: backups, diagnostics, pages, doctor, SQL, a mirror, SIGHUP; then a kill."""
    daemon = daemons()
    mirror = daemon.data.with_name("audit.jsonl")
    daemon.start("--audit", str(mirror))
    mesh = people(daemon)
    edge = crew(daemon, mesh, 1)[0]
    made = daemon.post("/v1/backups")["path"]
    os.kill(daemon.pid, signal.SIGHUP)
    looks(daemon)
    stored = []
    for number in range(30):
        stored.append(create(daemon, mesh, f"k{number}")["workload_id"])
        if number % 10 == 0:
            subprocess.run(
                ["sqlite3", str(daemon.data), "SELECT count(*) FROM workloads"],
                capture_output=True, check=True, timeout=30,
            )  # fmt: skip
    (claim,) = edge.pull(start=True)
    assert edge.fenced("complete", claim, output=1).status == 200
    files = open_files(daemon)
    assert f"{daemon.data}-wal" in [file for file, _ in files]
    assert not [file for file, _ in files if file.endswith("(deleted)")]
    ways = [flags & os.O_ACCMODE for file, flags in files if file == str(daemon.data)]
    assert ways.count(os.O_RDONLY) == len(ways) - 1, "one connection writes and checkpoints"
    assert not [file for file, _ in files if file == made], "a backup is nobody's once it is made"
    daemon.kill()
    daemon.start("--audit", str(mirror))

    listed = daemon.get("/v1/workloads?limit=500", key=mesh.submitter_key)["items"]
    assert {one["workload_id"] for one in listed} == set(stored)
    told = feltd("check", "--data", str(daemon.data), "--audit", str(mirror))
    assert told.returncode == 0, told.stdout + told.stderr

"""A disk that fills, a reader that never ends, a clock that steps: told, and got over."""

import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from feltd.api import health as health_of
from feltd.clock import LeaseClock
from feltd.daemon import chores as chores_of
from feltd.daemon.chores import Chores
from tests.daemon.load import crew
from tests.daemon.running import PATIENCE_S, Daemon, create, people

DISK_BYTES = 24 * 1024 * 1024
ON_A_SMALL_DISK = """
mount -t tmpfs -o size={size} tmpfs {folder} || exit 9
{python} -m feltd init --data {folder}/feltd.db --key-file {folder}/key || exit 8
exec {python} -m feltd serve --data {folder}/feltd.db --port 0 --tick-ms 50 {flags}
"""


class SmallDisk(Daemon):
    """A daemon in a mount namespace of its own, whose database lies on a small tmpfs."""

    def __init__(self, folder: Path, flags: str = "") -> None:
        super().__init__(folder.parent / "small")
        folder.mkdir()
        script = ON_A_SMALL_DISK.format(
            size=DISK_BYTES, folder=folder, python=sys.executable, flags=flags
        )
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        lines = iter(self.process.stdout.readline, "")
        self.url = next((line.strip() for line in lines if line.startswith("http")), "")
        assert self.url, self.told()
        self.inside = Path(f"/proc/{self.pid}/root{folder}")
        self.key = (self.inside / "key").read_text().strip()

    def fill(self) -> None:
        """Take every free byte."""
        with (self.inside / "filler").open("ab", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(bytes(65_536))

    def free(self) -> None:
        """Give them back."""
        (self.inside / "filler").unlink()


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    daemon = SmallDisk(tmp_path / "disk")
    yield daemon
    daemon.close()


@pytest.mark.needs("unshare")
def test_a_full_disk_loses_nothing_and_is_got_over(small_disk: SmallDisk) -> None:
    """BC-078."""
    mesh = people(small_disk)
    edge = crew(small_disk, mesh, 1, heartbeat_interval_ms=1_000, heartbeat_timeout_ms=4_000)[0]
    stored = [create(small_disk, mesh, "before")["workload_id"]]
    claim = edge.pull(lease_ms=4_000, start=True)[0]
    small_disk.fill()
    number, refused = 0, None
    while refused is None:
        number += 1
        body = {"definition_id": "extract", "idempotency_key": f"k{number}", "input": "x" * 99_999}
        answer = small_disk.call("POST", "/v1/workloads", body, key=mesh.submitter_key)
        if answer.status == 201:
            stored.append(answer.body["workload_id"])
        else:
            refused = answer
    assert (refused.status, refused.body["code"]) == (503, "STORAGE_FULL")
    assert refused.body["committed"] is False
    for workload_id in stored:
        small_disk.get(f"/v1/workloads/{workload_id}", key=mesh.submitter_key)
    while small_disk.get("/health")["status"] == "healthy":
        time.sleep(0.05)
    codes = {reason["code"] for reason in small_disk.get("/health")["reasons"]}
    assert codes & {"DISK_LOW", "STORAGE_FAILING", "KEEPER_FAILING"}
    full_until_s = time.monotonic() + 5.5
    while time.monotonic() < full_until_s:
        assert edge.beat().status in (200, 503)
        assert edge.fenced("renew", claim, lease_ms=4_000).status in (200, 503)
        time.sleep(0.1)

    small_disk.free()

    until_s = time.monotonic() + PATIENCE_S
    while "STORAGE_FAILING" in {one["code"] for one in small_disk.get("/health")["reasons"]}:
        assert time.monotonic() < until_s, "an idle daemon must find out by itself"
        time.sleep(0.05)
    body = {"definition_id": "extract", "idempotency_key": "after"}
    while True:
        answer = small_disk.call("POST", "/v1/workloads", body, key=mesh.submitter_key)
        if answer.status == 201:
            break
        assert time.monotonic() < until_s, answer
        time.sleep(0.05)
    assert edge.beat().status == 200, "nobody was judged while nothing could be written"
    assert edge.fenced("complete", claim, output=1).status == 200
    shown = {one["workload_id"] for one in all_workloads(small_disk, mesh.submitter_key)}
    assert shown == {*stored, answer.body["workload_id"]}
    assert small_disk.stop() == 0


def all_workloads(daemon: Daemon, key: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    cursor = ""
    while True:
        more = f"&cursor={cursor}" if cursor else ""
        page = daemon.get(f"/v1/workloads?limit=10{more}", key=key)
        items += page["items"]
        cursor = page.get("next_cursor") or ""
        if not cursor:
            return items


def test_a_reader_that_never_ends_grows_the_wal_and_its_end_shrinks_it(daemon: Daemon) -> None:
    """BC-074."""
    mesh = people(daemon)
    shell = sqlite3.connect(daemon.data)
    shell.execute("BEGIN")
    shell.execute("SELECT count(*) FROM workloads").fetchall()
    wal = daemon.data.with_name(daemon.data.name + "-wal")
    number = 0
    while wal.stat().st_size < 6 * 1024 * 1024:
        number += 1
        create(daemon, mesh, f"k{number}", input="x" * 200_000)
    lines = daemon.get("/metrics").splitlines()
    gauge = next(line for line in lines if line.startswith("feltd_wal_bytes "))
    assert float(gauge.split()[1]) >= 6 * 1024 * 1024
    shell.close()
    while wal.stat().st_size > 4 * 1024 * 1024:
        number += 1
        create(daemon, mesh, f"k{number}", input="x" * 200_000)
    assert daemon.stop() == 0
    assert not wal.exists() or wal.stat().st_size == 0


@pytest.mark.anyio
async def test_a_large_wal_and_a_low_disk_are_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    health = health_of.Health(health_of.Finding(), LeaseClock())
    writer = SimpleNamespace(broken=None, trouble=None, wal_bytes=health_of.WAL_BYTES_MAX + 1)
    config = SimpleNamespace(path=Path("/tmp/x"), audit_path=None, keyring_path=Path("/tmp/y"))
    context = SimpleNamespace(keyring=None)
    parts = SimpleNamespace(writer=writer, health=health, config=config, context=context)
    chores = Chores(parts)  # type: ignore[arg-type]
    monkeypatch.setattr(chores_of, "free_bytes", lambda path: 1)
    await chores.probe()
    assert {one.code for one in health.look()["reasons"]} == {"WAL_LARGE", "DISK_LOW"}
    writer.wal_bytes = 0
    monkeypatch.setattr(chores_of, "free_bytes", lambda path: 2**40)
    await chores.probe()
    assert health.look()["status"] == "healthy"


def test_a_step_of_the_wall_clock_moves_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """BC-024: a day forward, then two hours back."""
    clock = LeaseClock()
    before = clock.now()
    real = health_of.wall_ms()
    for step_ms in (86_400_000, -7_200_000):
        monkeypatch.setattr("feltd.clock.wall_ms", lambda step_ms=step_ms: real + step_ms)
        now = clock.now()
        assert 0 <= now.lease_ms - before.lease_ms < 60_000
        assert now.wall_ms == real + step_ms
        health = health_of.Health(health_of.Finding(), clock)
        assert health.look()["clock"] == "unhealthy"
        assert now.lease_from_wall(now.wall_ms + 5) == now.lease_ms + 5
    monkeypatch.undo()
    assert clock.healthy()
    assert clock.now().lease_ms >= before.lease_ms


def test_a_lease_clock_never_starts_before_the_stored_mark() -> None:
    ahead = health_of.wall_ms() + 3_600_000
    clock = LeaseClock(ahead)
    assert clock.now().lease_ms >= ahead
    assert not clock.healthy()


def test_a_lock_held_by_a_shell_stalls_readiness_and_not_liveness(daemon: Daemon) -> None:
    shell = sqlite3.connect(daemon.data, isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")
    try:
        answer = daemon.call("GET", "/health/ready")
        while answer.status == 200:
            time.sleep(0.2)
            answer = daemon.call("GET", "/health/ready")
        assert (answer.status, answer.body["code"]) == (503, "STORAGE_STALLED")
        assert answer.body["error"] == "storage probe exceeded the server deadline"
        assert answer.body["ready"] is False
        assert answer.body["probe_ms"] >= 0
        assert daemon.call("GET", "/health").status == 200
        refused = daemon.call("POST", "/v1/keys", {"name": "k", "tenants": ["t"]})
        assert (refused.status, refused.body["code"]) == (503, "STORAGE_BUSY")
        assert refused.body["committed"] is False
        readiness = daemon.call("GET", "/v1/readiness")
        assert (readiness.status, readiness.body["code"]) == (503, "STORAGE_PROBE_FAILED")
        assert readiness.body["detail"] == "readiness check temporarily unavailable"
        assert '"event": "readiness worker failed"' in daemon.told()
    finally:
        shell.execute("ROLLBACK")
        shell.close()
    while daemon.call("GET", "/health/ready").status != 200:
        time.sleep(0.05)
    people(daemon)

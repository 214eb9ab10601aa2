"""A real daemon clears what is past its time, by itself and by hand, whatever happens to it."""

import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest

from tests.daemon.running import PATIENCE_S, Daemon, Edge, Mesh, create, people

#: Nothing here waits for days.
SHORT = (
    "--retain-workloads-ms", "1000",
    "--retain-changes-ms", "1000",
    "--consumer-limit-ms", "1000",
    "--retain-events-ms", "2000",
)  # fmt: skip
#: A chore that does not come round while a story lasts.
BY_HAND = ("--compact-every-ms", "3600000")


def count(daemon: Daemon, table: str) -> int:
    """Rows of a table, read beside the daemon."""
    with closing(sqlite3.connect(f"file:{daemon.data}?mode=ro", uri=True)) as shell:
        asked = f"SELECT count(*) FROM {table}"  # noqa: S608
        return int(shell.execute(asked).fetchone()[0])


def until(met: Callable[[], Any]) -> Any:
    """Wait until something is so."""
    ends = time.monotonic() + PATIENCE_S
    while not (found := met()):
        assert time.monotonic() < ends, "it never came"
        time.sleep(0.05)
    return found


def work_done(daemon: Daemon, mesh: Mesh, times: int) -> list[str]:
    """So many workloads, created and completed."""
    edge = Edge(daemon, f"edge-{count(daemon, 'workers')}", mesh.registrar_key)
    assert edge.beat().status == 200
    made = [create(daemon, mesh, f"w{number}")["workload_id"] for number in range(times)]
    done: list[str] = []
    while len(done) < times:
        for claim in edge.pull(max=8, start=True):
            assert edge.fenced("complete", claim).status == 200
            done.append(claim["workload_id"])
    assert sorted(done) == sorted(made)
    return made


def changed(daemon: Daemon, times: int) -> None:
    """So many changes of one record."""
    for number in range(times):
        path = "/v1/collections/orders/records/r"
        answer = daemon.call("PUT", path, {"n": number}, X_Feltd_Tenant="t")
        assert answer.status in (200, 201), answer


def ended_by_itself(daemon: Daemon) -> bool:
    """Whether the process was killed, in time."""
    with suppress(subprocess.TimeoutExpired):
        return daemon.wait() == -signal.SIGKILL
    return False


def clear(daemon: Daemon) -> dict[str, int]:
    """Compact by hand until nothing is left of it; what went."""
    pruned: dict[str, int] = {}
    while True:
        outcome = daemon.post("/v1/compactions", {})
        for table, rows in outcome["pruned"].items():
            pruned[table] = pruned.get(table, 0) + rows
        if not outcome["more"]:
            return pruned


def test_the_chore_clears_by_itself_and_counts_what_it_cleared(
    daemons: Callable[..., Daemon],
) -> None:
    daemon = daemons("feltd.db", *SHORT, "--compact-every-ms", "200").start()
    mesh = people(daemon)
    work_done(daemon, mesh, 3)
    changed(daemon, 5)
    until(lambda: count(daemon, "workloads") == 0 and count(daemon, "changes") == 0)
    metrics = daemon.call("GET", "/metrics").body
    assert 'feltd_operations_compacted_total{table="workloads"} 3.0' in metrics
    assert 'feltd_operations_compacted_total{table="changes"} 5.0' in metrics
    assert "feltd_log_rewritten_total" in metrics
    again = create(daemon, mesh, "w0")
    assert (again["pruned"], again["state"]) == (True, "COMPLETED")
    answer = daemon.call("GET", "/v1/changes?after=0", X_Feltd_Tenant="t")
    assert (answer.status, answer.body["code"], answer.body["oldest"]) == (
        410,
        "CHANGES_COMPACTED",
        6,
    )
    until(lambda: daemon.call("GET", "/v1/events?after=0").status == 410)
    health = daemon.get("/health")
    assert health["keeper"] == "healthy", health
    assert daemon.check().returncode == 0, daemon.check().stdout
    assert daemon.stop() == 0
    assert "compaction" not in daemon.told()
    assert daemon.check().returncode == 0


def test_a_silent_consumer_is_dropped_and_told_where_the_log_begins(
    daemons: Callable[..., Daemon],
) -> None:
    daemon = daemons("feltd.db", *SHORT, *BY_HAND).start()
    changed(daemon, 4)
    path = "/v1/consumers/mirror"
    assert daemon.call("PUT", path, {"ack": 1}, X_Feltd_Tenant="t").status == 201
    # Its limit is not past yet: it is waited for.
    assert "changes" not in clear(daemon)
    time.sleep(1.1)
    assert clear(daemon)["changes"] == 4
    answer = daemon.call("PUT", path, {"ack": 2}, X_Feltd_Tenant="t")
    assert (answer.status, answer.body["code"]) == (410, "CHANGES_COMPACTED")
    assert (answer.body["oldest"], answer.body["head"]) == (5, 4)


@pytest.mark.parametrize(
    "points",
    [
        ("after:1", "before:2"),
        pytest.param(
            tuple(f"{when}:{n}" for n in (1, 2, 3) for when in ("before", "after")),
            marks=pytest.mark.soak,
        ),
    ],
)
def test_a_kill_in_the_middle_of_compaction_loses_nothing(
    daemons: Callable[..., Daemon], points: tuple[str, ...]
) -> None:
    daemon = daemons("feltd.db", *SHORT, *BY_HAND).start()
    mesh = people(daemon)
    kept = create(daemon, mesh, "kept")["workload_id"]
    changed(daemon, 60 if len(points) < 3 else 400)
    cancelled = [create(daemon, mesh, f"c{number}")["workload_id"] for number in range(40)]
    for workload_id in cancelled:
        daemon.post(f"/v1/workloads/{workload_id}/cancel", {}, key=mesh.submitter_key)
    daemon.stop()
    time.sleep(1.1)
    for point in points:
        daemon.start("--compact-every-ms", "100", env={"FELTD_TEST_CRASH_AT": point})
        assert ended_by_itself(daemon), "it was to die while it cleared"
        assert daemon.check().returncode == 0, daemon.check().stdout
    daemon.start("--compact-every-ms", "100")
    until(lambda: count(daemon, "tombstones") == 40 and count(daemon, "changes") == 0)
    assert daemon.get(f"/v1/workloads/{kept}", key=mesh.submitter_key)["state"] == "READY"
    for number, workload_id in enumerate(cancelled):
        assert create(daemon, mesh, f"c{number}")["workload_id"] == workload_id
    assert daemon.get("/v1/collections/orders/records/r", X_Feltd_Tenant="t")["value"]["n"] in (
        59,
        399,
    )
    assert daemon.check().returncode == 0, daemon.check().stdout


def test_the_file_and_its_log_shrink_again(daemons: Callable[..., Daemon]) -> None:
    """BC-074: after compaction the write-ahead log is small, and the space is given back."""
    daemon = daemons("feltd.db", *SHORT, *BY_HAND).start()
    path = "/v1/collections/big/records/r"
    for number in range(40):
        body = {"n": number, "text": "x" * 200_000}
        assert daemon.call("PUT", path, body, X_Feltd_Tenant="t").status in (200, 201)
    time.sleep(1.1)
    with closing(sqlite3.connect(f"file:{daemon.data}?mode=ro", uri=True)) as shell:
        before = shell.execute("PRAGMA page_count").fetchone()[0] * 4_096
    outcome = daemon.post("/v1/compactions", {})
    while outcome["more"]:
        outcome = daemon.post("/v1/compactions", {})
    assert count(daemon, "changes") == 0
    assert daemon.stop() == 0
    assert daemon.data.stat().st_size < before / 3
    assert not daemon.data.with_name("feltd.db-wal").exists()
    assert daemon.check().returncode == 0


def test_an_open_read_beside_delays_the_checkpoint_and_nothing_else(
    daemons: Callable[..., Daemon],
) -> None:
    daemon = daemons("feltd.db", *SHORT, *BY_HAND).start()
    changed(daemon, 50)
    time.sleep(1.1)
    with closing(sqlite3.connect(f"file:{daemon.data}?mode=ro", uri=True)) as shell:
        shell.execute("BEGIN")
        seen = shell.execute("SELECT count(*) FROM changes").fetchone()[0]
        assert clear(daemon)["changes"] == 50
        assert shell.execute("SELECT count(*) FROM changes").fetchone()[0] == seen == 50
    assert count(daemon, "changes") == 0


@pytest.mark.parametrize("scopes", [["workloads:operate"], ["state:write"]])
def test_only_an_operator_of_the_whole_daemon_compacts(daemon: Daemon, scopes: list[str]) -> None:
    for body in ({"scopes": scopes}, {"scopes": ["daemon:operate"], "tenants": ["t"]}):
        made = daemon.call("POST", "/v1/keys", {"name": "k", "tenants": ["*"], **body})
        if made.status == 201:
            answer = daemon.call("POST", "/v1/compactions", {}, key=made.body["secret"])
            assert (answer.status, answer.body["code"]) == (403, "FORBIDDEN")
    answer = daemon.call("POST", "/v1/compactions", {"dry_run": 1})
    assert (answer.status, answer.body["code"]) == (422, "REQUEST_INVALID")
    answer = daemon.call("POST", "/v1/compactions", {"wet_run": True})
    assert answer.status == 422


def test_a_dry_run_tells_and_clears_nothing(daemons: Callable[..., Daemon]) -> None:
    daemon = daemons("feltd.db", *SHORT, *BY_HAND).start()
    mesh = people(daemon)
    work_done(daemon, mesh, 2)
    changed(daemon, 3)
    time.sleep(1.1)
    told = daemon.post("/v1/compactions", {"dry_run": True})
    assert told["dry_run"] is True
    assert (told["pruned"]["workloads"], told["pruned"]["changes"]) == (2, 3)
    assert (count(daemon, "workloads"), count(daemon, "changes")) == (2, 3)
    cleared = clear(daemon)
    assert (cleared["workloads"], cleared["claims"], cleared["changes"]) == (2, 2, 3)
    with closing(sqlite3.connect(f"file:{daemon.data}?mode=ro", uri=True)) as shell:
        acts = shell.execute("SELECT actor FROM audit WHERE action = 'compact'").fetchall()
        events = shell.execute("SELECT actor FROM events WHERE kind = 'compact'").fetchall()
    assert len(acts) == 1
    assert events == [("service:feltd",)]

"""A daemon at work: it says when it is ready, sheds, stops in time, and sees what others do."""

import contextlib
import http.client
import json
import os
import shlex
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.daemon.load import Load, crew
from tests.daemon.running import FELTD, PATIENCE_S, Daemon, Edge, create, people

SLOW = {"FELTD_TEST_SLOW_COMMIT_MS": "1200"}


def test_one_line_on_stdout_names_the_address_and_the_log_is_json_in_utc(
    daemons: Callable[..., Daemon],
) -> None:
    """BC-027: no behaviour and no log stamp depends on TZ."""
    daemon = daemons(TZ="America/New_York")
    daemon.start()
    assert daemon.url.startswith("http://127.0.0.1:")
    told = daemon.get("/v1/auth/me")
    assert told["subject"]["kind"] == "service"
    assert daemon.stop() == 0
    lines = [json.loads(line) for line in daemon.told().splitlines()]
    assert [line["event"] for line in lines] == ["serving", "stopping", "stopped"]
    assert all(line["at"].endswith("Z") for line in lines)
    hour = time.strftime("%Y-%m-%dT", time.gmtime())
    assert lines[-1]["at"].startswith(hour)


def test_a_stop_does_not_wait_for_the_next_word_to_the_watchdog(
    daemons: Callable[..., Daemon],
) -> None:
    """That word would come in five minutes, and the stop may take ten."""
    daemon = daemons("feltd.db", "--graceful-ms", "600000", WATCHDOG_USEC="600000000")
    daemon.start()
    assert daemon.stop() == 0


@pytest.mark.parametrize("closed", [False, True])
def test_a_daemon_whose_address_nobody_reads_serves(
    daemons: Callable[..., Daemon], closed: bool
) -> None:
    """Its stdout is a pipe that nobody reads, or closed."""
    daemon = daemons()
    reading, writing = os.pipe()
    os.close(reading)
    serve = shlex.join([*FELTD, "serve", "--data", str(daemon.data), "--port", "0"])
    command = f"exec {serve} {'>&-' if closed else ''}"
    with daemon.log.open("a") as log:
        process = subprocess.Popen(["/bin/sh", "-c", command], stdout=writing, stderr=log)
    os.close(writing)
    try:
        while '"event": "serving"' not in daemon.told():
            assert process.poll() is None, daemon.told()
            time.sleep(0.01)
        (told,) = (json.loads(line) for line in daemon.told().splitlines())
        daemon.url = told["url"]
        assert daemon.get("/health")["status"] == "healthy"
        process.terminate()
        assert process.wait(PATIENCE_S) == 0, daemon.told()
    finally:
        process.kill()


def test_a_listening_socket_can_be_handed_in(daemons: Callable[..., Daemon]) -> None:
    daemon = daemons()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        os.set_inheritable(listening.fileno(), True)
        arguments = [sys.executable, "-m", "feltd", "serve", "--data", str(daemon.data)]
        arguments += ["--fd", str(listening.fileno())]
        with daemon.log.open("a") as log:
            daemon.process = subprocess.Popen(
                arguments,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                pass_fds=[listening.fileno()],
            )
        assert daemon.process.stdout is not None
        daemon.url = daemon.process.stdout.readline().strip()
        assert daemon.url.endswith(f":{listening.getsockname()[1]}")
        assert daemon.get("/health")["status"] == "healthy"
        assert daemon.stop() == 0


def test_the_local_socket_is_the_operators_and_needs_no_key(daemon: Daemon) -> None:
    path = f"{daemon.data}.sock"
    assert os.stat(path).st_mode & 0o777 == 0o600
    with socket.socket(socket.AF_UNIX) as local:
        local.connect(path)
        local.sendall(b"GET /v1/keys HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert local.recv(4_096).startswith(b"HTTP/1.1 200")
    assert daemon.call("GET", "/v1/keys", key="").status == 401
    daemon.stop()
    assert not os.path.exists(path)


def test_sigterm_under_load_stops_in_time_and_leaves_a_clean_mark(
    daemons: Callable[..., Daemon],
) -> None:
    daemon = daemons()
    daemon.start()
    mesh = people(daemon)
    edges = crew(daemon, mesh, 3)
    load = Load(daemon, mesh, edges[:2], edges[2])
    load.begin()
    try:
        while len(load.completed) < 20:
            time.sleep(0.01)
        assert daemon.stop() == 0
        mark = json.loads(daemon.data.with_name(daemon.data.name + ".mark").read_text())
        assert mark["clean"] is True
        assert daemon.check().returncode == 0, daemon.check().stdout
        assert "longer than graceful_ms" not in daemon.told()
        daemon.start()
        assert daemon.get("/health")["last_stop"] == "clean"
    finally:
        load.end()
    assert load.wrong == []


def test_parked_polls_are_woken_by_a_stop(daemons: Callable[..., Daemon]) -> None:
    daemon = daemons()
    daemon.start()
    mesh = people(daemon)
    edges = crew(daemon, mesh, 8)
    with ThreadPoolExecutor(8) as threads:
        waits = [threads.submit(edge.call, "claims", {"wait_ms": 30_000}) for edge in edges]
        while "feltd_long_polls 8.0" not in daemon.get("/metrics"):
            time.sleep(0.01)
        assert "feltd_in_flight 0.0" in daemon.get("/metrics"), "a parked poll holds no permit"
        assert daemon.stop() == 0
        answers = [wait.result() for wait in waits]
    assert {answer.status for answer in answers} == {200}
    assert all(answer.body["claims"] == [] for answer in answers)


def test_what_is_over_the_limit_is_shed_while_health_and_heartbeats_go_on(
    daemons: Callable[..., Daemon],
) -> None:
    """48 ordinary calls held at work by slow commits: the 49th is refused at once."""
    daemon = daemons()
    daemon.start()
    mesh = people(daemon)
    edge = crew(daemon, mesh, 1)[0]
    daemon.stop()
    daemon.start(env=SLOW)
    with ThreadPoolExecutor(64) as threads:
        held = [threads.submit(create, daemon, mesh, f"k{n}") for n in range(48)]
        while "feltd_in_flight 48.0" not in daemon.get("/metrics"):
            assert not all(one.done() for one in held)
        body = {"definition_id": "extract", "idempotency_key": "over"}
        over = daemon.call("POST", "/v1/workloads", body, key=mesh.submitter_key)
        assert not any(one.done() for one in held), "it waited for no commit"
        assert (over.status, over.body["code"]) == (503, "SERVICE_OVERLOADED")
        assert (over.body["committed"], over.headers["retry-after"]) == (False, "1")
        assert daemon.get("/health")["fabric"] == "healthy"
        assert edge.beat().status == 200
        assert all(one.result()["state"] == "READY" for one in held)
    shed = 'feltd_requests_shed_total{reason="in_flight"} 1.0'
    assert shed in daemon.get("/metrics")


def test_clients_that_vanish_hold_nothing(daemons: Callable[..., Daemon]) -> None:
    """BC-068: deadlines and disconnects at any point leave no transaction open."""
    daemon = daemons("feltd.db", "--request-deadline-ms", "100")
    daemon.start()
    mesh = people(daemon)
    edge = crew(daemon, mesh, 1)[0]
    daemon.stop()
    daemon.start(env={"FELTD_TEST_SLOW_COMMIT_MS": "60"})
    address = urlsplit(daemon.url)
    asked = json.dumps({"definition_id": "extract", "idempotency_key": "gone"})
    for number in range(60):
        line = http.client.HTTPConnection(address.hostname or "", address.port, timeout=5)
        headers = {
            "Authorization": f"Bearer {mesh.submitter_key}",
            "Content-Type": "application/json",
        }
        line.request("POST", "/v1/workloads", asked.replace("gone", f"gone-{number}"), headers)
        time.sleep(number % 5 * 0.004)
        line.close()
    shell = sqlite3.connect(daemon.data, timeout=2)
    shell.execute("BEGIN IMMEDIATE")
    shell.execute("ROLLBACK")
    shell.close()
    daemon.stop()
    daemon.start()
    create(daemon, mesh, "mine", priority=1000)
    assert len(edge.pull()) == 1
    assert "feltd_in_flight 0.0" in daemon.get("/metrics")
    assert daemon.check().returncode == 0


def test_nobody_fails_for_the_time_in_which_the_daemon_was_away(
    daemons: Callable[..., Daemon],
) -> None:
    """BC-015: stopped for longer than every timeout and lease, then started again."""
    daemon = daemons()
    daemon.start()
    mesh = people(daemon)
    edges = crew(daemon, mesh, 4, heartbeat_interval_ms=1_000, heartbeat_timeout_ms=2_000)
    for edge in edges:
        create(daemon, mesh, edge.id)
    claims = [edge.pull(lease_ms=2_500, start=True)[0] for edge in edges]
    daemon.kill()
    time.sleep(3.5)
    daemon.start()
    assert daemon.get("/health")["membership"] == "recovering"
    time.sleep(0.5)
    found = daemon.get("/v1/workers")["items"]
    assert {one["lifecycle"] for one in found} == {"READY"}
    for edge, claim in zip(edges, claims, strict=True):
        assert edge.beat().status == 200
        assert edge.fenced("renew", claim).status == 200
        assert edge.fenced("complete", claim, output=1).status == 200
    assert 'feltd_attempts_ended_total{end="completed"} 4.0' in daemon.get("/metrics")


def test_nobody_fails_for_the_time_in_which_the_daemon_was_frozen(
    daemons: Callable[..., Daemon],
) -> None:
    daemon = daemons()
    daemon.start()
    mesh = people(daemon)
    edge = crew(daemon, mesh, 1, heartbeat_interval_ms=1_000, heartbeat_timeout_ms=2_000)[0]
    create(daemon, mesh, "one")
    claim = edge.pull(lease_ms=2_500, start=True)[0]
    assert daemon.process is not None
    os.kill(daemon.pid, 19)
    time.sleep(4)
    os.kill(daemon.pid, 18)
    assert edge.beat().status == 200
    assert edge.fenced("complete", claim, output=1).status == 200
    assert daemon.get("/v1/workers")["items"][0]["lifecycle"] == "READY"


def test_a_silent_worker_does_fail_and_its_work_goes_to_another(
    daemons: Callable[..., Daemon],
) -> None:
    daemon = daemons()
    daemon.start()
    mesh = people(daemon)
    lost = crew(daemon, mesh, 1, heartbeat_interval_ms=1_000, heartbeat_timeout_ms=2_000)[0]
    created = create(daemon, mesh, "one", retry_policy={"initial_backoff_ms": 0, "jitter": 0})
    claim = lost.pull(start=True)[0]
    while daemon.get(f"/v1/workers/{lost.id}")["lifecycle"] != "OFFLINE":
        time.sleep(0.05)
    other = Edge(daemon, "other", mesh.registrar_key)
    assert other.beat().status == 200
    taken = other.pull(wait_ms=5_000, start=True)[0]
    assert taken["workload_id"] == created["workload_id"]
    assert taken["fencing_token"] > claim["fencing_token"]
    stale = lost.fenced("complete", claim, output="late")
    assert (stale.status, stale.body["code"]) == (409, "WORKLOAD_STALE_FENCE")
    assert other.fenced("complete", taken, output="mine").status == 200
    stale_again = lost.fenced("complete", claim, output="late")
    assert stale_again.body["code"] == "WORKLOAD_STALE_FENCE"
    metrics = daemon.get("/metrics")
    assert 'feltd_fence_refusals_total{code="WORKLOAD_STALE_FENCE"} 2.0' in metrics


def test_a_foreign_write_is_audited_and_checked(daemon: Daemon) -> None:
    mesh = people(daemon)
    crew(daemon, mesh, 1)
    shell = sqlite3.connect(daemon.data, timeout=5)
    shell.execute("UPDATE workers SET granted_capabilities = '[\"root\"]'")
    shell.commit()
    codes: set[str] = set()
    while "FOREIGN_WRITE" not in codes:
        codes = {reason["code"] for reason in daemon.get("/health")["reasons"]}
        time.sleep(0.02)
    rows = shell.execute("SELECT count(*) FROM audit WHERE action = 'foreign_write'").fetchone()
    assert rows[0] >= 1
    shell.close()
    broken = json.loads(daemon.check().stdout)["broken"]
    assert [one["id"] for one in broken] == ["I12"]
    assert daemon.check().returncode == 1


def test_a_file_replaced_under_the_daemon_ends_it(daemon: Daemon) -> None:
    people(daemon)
    daemon.data.rename(daemon.data.with_name("moved.db"))
    with contextlib.suppress(OSError, http.client.HTTPException):
        answer = daemon.call("POST", "/v1/keys", {"name": "k", "tenants": ["t"]})
        assert answer.status == 503
    assert daemon.wait() == 1
    assert "the daemon cannot go on" in daemon.told()


def test_check_reads_beside_a_live_daemon(daemon: Daemon) -> None:
    mesh = people(daemon)
    crew(daemon, mesh, 2)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            create(daemon, mesh, f"k{number}")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            ran = daemon.check()
            assert ran.returncode == 0, ran.stdout
    finally:
        stop.set()
        writer.join()
    assert daemon.get("/health")["status"] in ("healthy", "degraded")


def test_readiness_asks_for_a_key_and_writes_once_a_second(daemon: Daemon) -> None:
    assert daemon.call("GET", "/v1/readiness", key="").status == 401
    told = daemon.get("/v1/readiness")
    assert (told["status"], told["authority"], told["storage"]) == ("ready", "sqlite", "clean")
    with ThreadPoolExecutor(8) as threads:
        many = list(threads.map(lambda _: daemon.get("/v1/readiness"), range(32)))
    assert {one["instance_id"] for one in many} == {told["instance_id"]}
    assert max(one["state_version"] for one in many) - told["state_version"] <= 32
    assert daemon.get("/health/ready")["durable_format"].startswith("feltd-sqlite/")


def test_metrics_want_a_key_unless_they_are_open(daemons: Callable[..., Daemon]) -> None:
    daemon = daemons()
    daemon.start()
    assert daemon.call("GET", "/metrics", key="").status == 401
    scraped = daemon.call("GET", "/metrics")
    assert scraped.headers["content-type"].startswith("text/plain; version=0.0.4")
    names = {line.split("{")[0].split(" ")[0] for line in scraped.body.splitlines()}
    assert {"feltd_wal_bytes", "feltd_workers", "feltd_writer_queue", "feltd_storage_clean"} < names
    daemon.stop()
    daemon.start("--metrics-open")
    assert daemon.call("GET", "/metrics", key="").status == 200


def test_the_audit_file_follows_the_chain_over_restarts(
    daemons: Callable[..., Daemon], tmp_path: Path
) -> None:
    file = tmp_path / "audit.jsonl"
    daemon = daemons("feltd.db", "--audit", str(file))
    for _ in range(2):
        daemon.start()
        people(daemon)
        with closing(sqlite3.connect(daemon.data)) as shell:
            last = shell.execute("SELECT max(seq) FROM audit").fetchone()[0]
        while len(lines := file.read_text().splitlines()) < last:
            time.sleep(0.02)
        daemon.kill()
        with file.open("a") as torn:
            torn.write('{"seq": 99')
    rows = [json.loads(line) for line in lines]
    assert [row["seq"] for row in rows] == list(range(1, last + 1))
    assert [row["prev_hash"] for row in rows[1:]] == [row["hash"] for row in rows[:-1]]
    assert file.stat().st_mode & 0o777 == 0o600
    daemon.start()
    assert daemon.get("/health")["keeper"] == "healthy"
    file.write_text("not ours\n")
    while "KEEPER_FAILING" not in {one["code"] for one in daemon.get("/health")["reasons"]}:
        people(daemon)
        daemon.kill()
        daemon.start()
    assert file.read_text() == "not ours\n"

"""Things that come at the same moment, to a whole daemon: each has one outcome."""

import json
import random
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from feltd.identity import bearer
from tests.daemon.load import crew
from tests.daemon.running import Answer, Daemon, Edge, people

WORK = 120
#: Around the end of a lease, milliseconds.
SPREAD_MS = 400
LEASE_MS = 1_500


def test_a_completion_and_the_end_of_its_lease_have_one_outcome(
    daemons: Callable[..., Daemon],
) -> None:
    """BC-001: 120 completions at random around the end of the leases, the keeper at work."""
    daemon = daemons().start()
    mesh = people(daemon)
    many = {"concurrency": WORK}
    edge = Edge(daemon, "many", mesh.registrar_key, capacity=many)
    assert edge.beat(capacity=many).status == 200
    policy = {"initial_backoff_ms": 600_000}
    body = [
        {"definition_id": "extract", "idempotency_key": f"k{number}", "retry_policy": policy}
        for number in range(WORK)
    ]
    daemon.post("/v1/workloads/batch", {"workloads": body}, key=mesh.submitter_key)
    held = edge.pull(max=WORK, lease_ms=LEASE_MS, start=True)
    ends_s = time.monotonic() + LEASE_MS / 1_000
    chance = random.Random(7)
    offsets = [chance.uniform(-SPREAD_MS, SPREAD_MS) / 1_000 for _ in held[:-1]] + [0.5]

    def finish(claim: dict[str, Any], offset_s: float) -> Answer:
        time.sleep(max(0.0, ends_s + offset_s - time.monotonic()))
        return edge.fenced("complete", claim, output={"of": claim["workload_id"]})

    with ThreadPoolExecutor(WORK) as threads:
        answers = dict(
            zip(
                (claim["workload_id"] for claim in held),
                threads.map(finish, held, offsets),
                strict=True,
            )
        )
    while edge.beat(capacity=many).body["worker"]["claims"]:
        time.sleep(0.05)
    for job, answer in answers.items():
        shown = daemon.get(f"/v1/workloads/{job}", key=mesh.submitter_key)
        ends = [attempt["end"] for attempt in shown["attempts"]]
        if answer.status == 200:
            assert (shown["state"], ends) == ("COMPLETED", ["completed"])
            assert shown["result"]["output"] == {"of": job}
        else:
            assert (answer.status, answer.body["code"]) == (409, "WORKLOAD_STALE_FENCE")
            assert (shown["state"], ends) == ("READY", ["lease_expired"])
            assert "result" not in shown
            lasted_ms = shown["attempts"][0]["ended_at_ms"] - shown["attempts"][0]["issued_at_ms"]
            assert lasted_ms >= LEASE_MS, "nobody took it back before its time"
    assert {answer.status for answer in answers.values()} >= {409}
    assert daemon.check().returncode == 0, daemon.check().stdout


SCRATCH = """
import sqlite3, sys, time
shell = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=5)
shell.execute("PRAGMA wal_autocheckpoint = 0")
shell.execute("CREATE TABLE scratch (a)")
print("ready", flush=True)
while True:
    shell.execute("INSERT INTO scratch VALUES (1)")
    shell.execute("DELETE FROM scratch")
    time.sleep(0.005)
"""


def test_an_operator_who_writes_all_the_time_costs_waiting_and_no_failure(
    daemons: Callable[..., Daemon],
) -> None:
    """BC-066: claims go on while a shell inserts and deletes every 5 ms."""
    daemon = daemons().start()
    mesh = people(daemon)
    edge = crew(daemon, mesh, 1)[0]
    odd: list[Answer] = []

    def again(call: Callable[[], Answer]) -> Answer:
        while (answer := call()).status == 503:
            assert (answer.body["next"], answer.body["committed"]) == ("repeat", False)
        if answer.status >= 500:
            odd.append(answer)
        return answer

    with subprocess.Popen(
        [sys.executable, "-c", SCRATCH, str(daemon.data)], stdout=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "ready\n"
        try:
            for number in range(60):
                body = {"definition_id": "extract", "idempotency_key": f"k{number}"}
                again(
                    lambda body=body: daemon.call(  # type: ignore[misc]
                        "POST", "/v1/workloads", body, key=mesh.submitter_key
                    )
                )
                pulled = again(
                    lambda number=number: edge.call(  # type: ignore[misc]
                        "claims", {"request_id": f"r{number}", "start": True}
                    )
                )
                (claim,) = pulled.body["claims"]
                done = again(lambda claim=claim: edge.fenced("complete", claim, output=1))  # type: ignore[misc]
                assert done.status == 200
        finally:
            shell.kill()
    assert odd == []
    with closing(sqlite3.connect(daemon.data)) as operator:
        found = operator.execute("SELECT state, count(*) FROM workloads GROUP BY state").fetchall()
    assert found == [("COMPLETED", 60)]
    assert daemon.check().returncode == 0, daemon.check().stdout


def threads_of(daemon: Daemon) -> int:
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    return int(status.split("Threads:")[1].split()[0])


def test_a_flood_of_wrong_keys_costs_no_thread_and_nobody_else_anything(
    daemons: Callable[..., Daemon],
) -> None:
    """BC-091: 200 callers with wrong keys, who leave at once; workers are served meanwhile."""
    daemon = daemons().start()
    mesh = people(daemon)
    edge = crew(daemon, mesh, 1)[0]
    address = urlsplit(daemon.url)
    before = threads_of(daemon)
    # The right id with a wrong secret, and an id that was never given.
    known = edge.key[:20] + "x" * 43
    unknown = "felt_w_000000000000_" + "x" * 43
    keys = [text + bearer.checksum(text.encode()) for text in (known, unknown)]
    stop = threading.Event()

    def storm(number: int) -> None:
        raw = json.dumps({}).encode()
        head = (
            f"POST /v1/workers/{edge.id}/claims HTTP/1.1\r\nHost: {address.netloc}\r\n"
            f"Authorization: Bearer {keys[number % 2]}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
        )
        with socket.create_connection((address.hostname, address.port), 20) as line:
            line.sendall(head.encode() + raw)
            time.sleep(0.005)
            if number % 2:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    beats: list[int] = []

    def beat() -> None:
        while not stop.is_set():
            beats.append(edge.beat().status)

    worker = threading.Thread(target=beat)
    worker.start()
    with ThreadPoolExecutor(50) as crowd:
        list(crowd.map(storm, range(200)))
    refused = daemon.call("POST", f"/v1/workers/{edge.id}/claims", {}, key=keys[0])
    stop.set()
    worker.join()

    assert (refused.status, refused.body["code"]) == (401, "UNAUTHENTICATED")
    assert set(beats) == {200}
    assert threads_of(daemon) <= before
    assert "feltd_in_flight 0.0" in daemon.get("/metrics")


def test_a_call_that_came_too_late_changed_nothing_and_one_that_began_is_answered(
    daemons: Callable[..., Daemon],
) -> None:
    """BC-036: a deadline of 100 ms, and commits that take 2.5 s."""
    daemon = daemons("feltd.db", "--request-deadline-ms", "100", "--tick-ms", "60000").start()
    mesh = people(daemon)
    daemon.stop()
    daemon.start(env={"FELTD_TEST_SLOW_COMMIT_MS": "2500"})

    def post(key: str) -> Answer:
        body = {"definition_id": "extract", "idempotency_key": key}
        return daemon.call("POST", "/v1/workloads", body, key=mesh.submitter_key)

    def repeated(key: str) -> Answer:
        while (answer := post(key)).status == 503:
            assert answer.body["committed"] is False
        return answer

    with ThreadPoolExecutor(1) as thread:
        begun = thread.submit(post, "begun")
        while "feltd_in_flight 1.0" not in daemon.get("/metrics"):
            time.sleep(0.01)
        time.sleep(0.3)  # past its deadline: by now it has begun, or is refused
        late = post("late")
        first = begun.result()

    assert first.status == 201, first
    assert (late.status, late.body["code"]) == (503, "SERVICE_OVERLOADED")
    assert late.body["detail"] == "request exceeded the server deadline"
    assert (late.body["committed"], late.body["next"]) == (False, "repeat")
    listed = daemon.get("/v1/workloads", key=mesh.submitter_key)["items"]
    assert [one["idempotency_key"] for one in listed] == ["begun"]
    again, made = repeated("begun"), repeated("late")
    assert (again.status, again.body["workload_id"]) == (200, first.body["workload_id"])
    assert made.status == 201

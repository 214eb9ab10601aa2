"""Every code of the table is an answer that a client of a running daemon can get.

Each scene brings a daemon into one condition and keeps the refusals it gives. What was told is then
held against the table: no code is missing, none is told in another way than the table says.
"""

import http.client
import json
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from feltd.errors import NEXTS, TABLE
from tests.daemon.running import PATIENCE_S, Answer, Daemon, Edge, Mesh, create, people
from tests.daemon.test_storage import SmallDisk

#: What a route may say of one row in place of the table's word.
OTHER_NEXT = {"WORKLOAD_NOT_FOUND": "drop_claim", "WORKER_RECOVERY_REQUIRED": "stop"}
#: A keeper that does not come round while a story lasts.
STILL = ("--tick-ms", "60000")
PAGE_BYTES = 4_096


class Told:
    """The refusals that were heard, by code; each is asked for by name."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}

    def expect(self, code: str, answer: Answer) -> Answer:
        """Keep a refusal that must carry this code."""
        got = answer.body["code"] if isinstance(answer.body, dict) else answer.body
        assert got == code, answer
        self.answers[code] = answer
        return answer


@contextmanager
def running(folder: Path, name: str, *flags: str, **env: str) -> Iterator[Daemon]:
    """A daemon of its own database for one scene."""
    daemon = Daemon(folder / f"{name}.db", *flags, env=env)
    try:
        yield daemon.init().start()
    finally:
        daemon.close()


def raw(daemon: Daemon, method: str, path: str, body: bytes, **headers: str) -> Answer:
    """A call whose body is these bytes, however wrong."""
    address = urlsplit(daemon.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
    sent = {"Authorization": f"Bearer {daemon.key}", "Content-Type": "application/json"}
    sent |= {name.replace("_", "-"): text for name, text in headers.items()}
    try:
        connection.request(method, path, body, sent)
        got = connection.getresponse()
        members = {name.lower(): one for name, one in got.headers.items()}
        return Answer(got.status, json.loads(got.read()), members)
    finally:
        connection.close()


def shell(daemon: Daemon, sql: str, *params: object) -> None:
    """A statement typed by hand."""
    with closing(sqlite3.connect(daemon.data, timeout=5)) as conn, conn:
        assert conn.execute(sql, params).rowcount, sql


class Scene:
    """A daemon with a crew, and the calls of the stories."""

    def __init__(self, daemon: Daemon, told: Told) -> None:
        self.daemon = daemon
        self.told = told
        self.mesh: Mesh = people(daemon)
        self.edge = self.ready("edge")

    def ready(self, name: str, **body: Any) -> Edge:
        """A worker that has beaten once."""
        edge = Edge(self.daemon, name, self.mesh.registrar_key, **body)
        assert edge.beat().status == 200
        return edge

    def call(self, code: str, method: str, path: str, body: Any = None, **named: Any) -> Answer:
        """A call by the admin, unless `key` says who, that is refused with this code."""
        return self.told.expect(code, self.daemon.call(method, path, body, **named))

    def register(self, code: str, **members: Any) -> Answer:
        """A registration that is refused with this code."""
        body = self.edge.body | members
        return self.call(code, "POST", "/v1/workers", body, key=self.mesh.registrar_key)

    def creates(self, code: str, **members: Any) -> Answer:
        """A creation that is refused with this code."""
        body = {"definition_id": "extract", "idempotency_key": "refused"} | members
        return self.call(code, "POST", "/v1/workloads", body, key=self.mesh.submitter_key)

    def claims(self, code: str, job: str, by: Edge) -> Answer:
        """A claim by id that is refused with this code."""
        return self.call(code, "POST", f"/v1/workloads/{job}/claim", {}, key=by.key)

    def work(self, key: str, **members: Any) -> str:
        """A new workload."""
        return str(create(self.daemon, self.mesh, key, **members)["workload_id"])


def who_asks_wrongly(scene: Scene) -> None:
    """Requests that are refused for what they are."""
    told, daemon = scene.told, scene.daemon
    told.expect("REQUEST_MALFORMED", raw(daemon, "POST", "/v1/keys", b"{"))
    told.expect("REQUEST_TOO_LARGE", raw(daemon, "POST", "/v1/keys", b" " * (1_048_577)))
    plain = raw(daemon, "POST", "/v1/keys", b"{}", Content_Type="text/plain")
    told.expect("MEDIA_TYPE_UNSUPPORTED", plain)
    scene.call("REQUEST_INVALID", "GET", "/v1/keys?limit=0")
    scene.call("PROTOCOL_UNSUPPORTED", "GET", "/v1/keys", Feltd_Protocol="2")
    scene.call(
        "UPGRADE_REQUIRED", "GET", f"/v1/workers/{scene.edge.id}/channel", key=scene.edge.key
    )
    scene.call("UNAUTHENTICATED", "GET", "/v1/keys", key="")
    scene.call("FORBIDDEN", "GET", "/v1/keys", key=scene.mesh.submitter_key)
    scene.call("ROUTE_NOT_FOUND", "GET", "/v1/nowhere")
    scene.call("METHOD_NOT_ALLOWED", "PUT", "/v1/keys")
    # A reader that saw more than there is: the database was put back to an earlier state.
    scene.call("EVENTS_COMPACTED", "GET", "/v1/events?after=9007199254740991")
    scene.call("KEY_NOT_FOUND", "DELETE", "/v1/keys/000000000000")
    scene.call("CLAIM_NOT_FOUND", "POST", "/v1/claims/claim_1/evict", {"reason": "x"})


def grants(scene: Scene) -> None:
    """Grants that do not fit, are not there, or are over."""
    asked: dict[str, Any] = {
        "subject": {"kind": "service", "id": "crew"},
        "tenant_id": "t",
        "application_id": "a",
        "capabilities": ["workload:capability:x"],
        "resources": [],
        "expires_at_ms": int(time.time() * 1_000) + 3_600_000,
    }
    scene.call("GRANT_NOT_FOUND", "GET", "/v1/grants/grant_made_up")
    scene.call("GRANT_INVALID", "POST", "/v1/grants", asked | {"expires_at_ms": 1})
    parent = scene.daemon.post("/v1/grants", asked)["grant"]["id"]
    scene.daemon.post(f"/v1/grants/{parent}/revoke", {"reason": "over"})
    scene.call("GRANT_DENIED", "POST", "/v1/grants", asked | {"parent_grant": parent})


def workers(scene: Scene) -> None:
    """Workers that do not fit, are not there, or say what is not so."""
    edge = scene.edge
    scene.register("WORKER_INVALID", capacity={"concurrency": 0})
    scene.register("WORKER_UNAUTHORIZED", application_id="other")
    scene.register("WORKER_BUSY", process_id="another")
    scene.call("WORKER_NOT_FOUND", "GET", "/v1/workers/worker_0")
    scene.told.expect("WORKER_HEARTBEAT_REJECTED", edge.beat(version="2"))
    scene.told.expect("WORKER_CLOCK_INVALID", edge.beat(timestamp_at_ms=1))
    other = {"worker_id": edge.id, "worker_version": "2", "capability_version": 1}
    scene.told.expect("WORKER_RECONCILIATION_DENIED", edge.call("reconcile", other))
    path = f"/v1/workers/{edge.id}/transition"
    scene.call("WORKER_TRANSITION_DENIED", "POST", path, {"to": "BUSY"})
    gone = scene.ready("gone")
    scene.daemon.post(f"/v1/workers/{gone.id}/transition", {"to": "OFFLINE"})
    scene.told.expect("WORKER_RECOVERY_REQUIRED", gone.beat())


def workloads(scene: Scene) -> None:
    """Work that is not made, not found, or not to be had."""
    scene.creates("WORKLOAD_INVALID", priority="high")
    scene.creates("WORKLOAD_UNAUTHORIZED", capability_snapshot=["documents.sign"])
    job = scene.work("one")
    scene.creates("WORKLOAD_IDEMPOTENCY_CONFLICT", idempotency_key="one", input="another")
    scene.creates("WORKLOAD_SECRET_IN_TEXT", labels={"note": "password=hunter2hunter2"})
    scene.creates("WORKLOAD_DEPENDENCY_INVALID", dependencies=["workload_0"])
    scene.call("GROUP_NOT_FOUND", "GET", "/v1/groups/made-up", X_Feltd_Tenant="t")
    scene.call("WORKLOAD_NOT_FOUND", "GET", "/v1/workloads/workload_0")
    scene.call("WORKLOAD_TRANSITION_DENIED", "POST", f"/v1/workloads/{job}/requeue", {})
    later = scene.work("later", not_before_at_ms=2**52)
    scene.claims("WORKLOAD_NOT_YET_ELIGIBLE", later, scene.edge)
    unfit = scene.ready("unfit", capabilities=[])
    scene.claims("WORKLOAD_CAPABILITY_DENIED", job, unfit)
    small = scene.ready("small", capacity={"concurrency": 1})
    (held,) = small.pull(start=True)
    assert held["workload_id"] == job
    scene.claims("WORKLOAD_NOT_READY", job, scene.edge)
    scene.claims("MESH_PLACEMENT_DENIED", scene.work("two"), small)
    scene.told.expect("MESH_CLAIM_SCOPE_DENIED", scene.edge.fenced("renew", held))
    made_up = held | {"worker_id": scene.edge.id}
    scene.told.expect("WORKLOAD_STALE_FENCE", scene.edge.fenced("renew", made_up))
    # No call leaves a live claim without live authority: revoking ends it. A hand at the shell can.
    shell(
        scene.daemon, "UPDATE workers SET authority_live = 0 WHERE worker_id = ?", held["worker_id"]
    )
    scene.told.expect("MESH_CAPABILITY_DENIED", small.fenced("renew", held))


def given_work_and_sinks(scene: Scene) -> None:
    """Work that nobody can be given, and tokens that come too late or from nowhere."""
    unfit = scene.work("unplaceable", placement={"required_labels": {"zone": "nowhere"}})
    scene.call("MESH_NO_ELIGIBLE_WORKER", "POST", f"/v1/workloads/{unfit}/claim", {})
    scene.call("PLACEMENT_NOT_FOUND", "GET", "/v1/placements/placement_0")
    path = "/v1/claims/claim_1/validate"
    scene.call("MESH_STALE_FENCE", "POST", path, {"fencing_token": 1})
    token = {"fencing_token": scene.edge.pull()[0]["fencing_token"], "tenant_id": "t"}
    scene.daemon.post("/v1/fences/one", token)
    shell(scene.daemon, "UPDATE fence_counts SET fences = 1000000")
    scene.call("QUOTA_EXCEEDED", "POST", "/v1/fences/two", token)
    shell(scene.daemon, "UPDATE fence_counts SET fences = 1")


def pools_and_holds(scene: Scene) -> None:
    """Pools and holds that are there in another way, or not at all."""
    pool = {"pool_id": "gpu", "tenant_id": "t", "name": "GPU"}
    scene.daemon.post("/v1/pools", pool)
    scene.call("WORKER_POOL_EXISTS", "POST", "/v1/pools", pool | {"max_concurrency": 1})
    scene.creates("WORKER_POOL_NOT_FOUND", placement={"pool_id": "made-up"})
    scene.call("HOLD_NOT_FOUND", "DELETE", "/v1/holds/hold_made_up")


def records(scene: Scene) -> None:
    """Records, consumers and a log that are not as somebody thinks."""
    at, of_t = "/v1/collections/orders/records/o-1", {"X_Feltd_Tenant": "t"}
    scene.call("RECORD_NOT_FOUND", "GET", at, **of_t)
    scene.call("RECORD_INVALID", "PUT", at, 2**53, **of_t)
    assert scene.daemon.call("PUT", at, 1, **of_t).status == 201
    scene.call("RECORD_CONFLICT", "PUT", at, 2, If_None_Match="*", **of_t)
    scene.call("CONSUMER_NOT_FOUND", "GET", "/v1/consumers/copy", **of_t)
    scene.daemon.call("PUT", "/v1/consumers/copy", {"ack": 1}, **of_t)
    scene.call("CONSUMER_BEHIND", "PUT", "/v1/consumers/copy", {"ack": 0}, **of_t)
    scene.call("CHANGES_COMPACTED", "GET", "/v1/changes?after=9", **of_t)


def who_logs_in(scene: Scene) -> None:
    """A user who is there already, one who is not, and somebody who guesses."""
    user = {"username": "ada", "password": "a long enough one", "roles": {"t": "viewer"}}
    scene.daemon.post("/v1/users", user)
    scene.call("USER_EXISTS", "POST", "/v1/users", user)
    scene.call("USER_NOT_FOUND", "POST", "/v1/users/nobody/disable", {})
    guess = {"username": "ada", "password": "another long one"}
    for _ in range(10):
        answer = scene.daemon.call("POST", "/v1/auth/login", guess, key="")
    scene.told.expect("LOGIN_THROTTLED", answer)


TRIGGER = {
    "trigger_id": "ship",
    "tenant_id": "t",
    "source_collection": "orders",
    "change_kind": "any",
    "target_capability": "extract",
}


def triggers(scene: Scene) -> None:
    """Triggers that say nonsense, may not, are not there, or come too late; after `records`."""
    by = {"scopes": ["triggers:write", "state:read"], "tenants": ["t"], "identity_id": "crew"}
    key = scene.daemon.post("/v1/keys", {"name": "definer", **by})["secret"]
    scene.call("TRIGGER_INVALID", "POST", "/v1/triggers", TRIGGER | {"priority": "high"}, key=key)
    scene.call("TRIGGER_UNAUTHORIZED", "POST", "/v1/triggers", TRIGGER, key=key)
    scene.call("TRIGGER_NOT_FOUND", "POST", "/v1/triggers/ship/enable", {}, key=key)
    token = scene.daemon.post(
        "/v1/grants",
        {
            "subject": {"kind": "service", "id": "crew"},
            "tenant_id": "t",
            "application_id": "a",
            "capabilities": [],
            "resources": [],
            "expires_at_ms": int(time.time() * 1_000) + 86_400_000,
        },
    )["token"]
    shell(scene.daemon, "DELETE FROM consumers")
    shell(scene.daemon, "UPDATE change_logs SET floor_seq = 1 WHERE tenant_id = ?", "t")
    late = TRIGGER | {"authorization_grant": token, "start": 0}
    scene.call("TRIGGER_STATE_REPLAY_FAILED", "POST", "/v1/triggers", late, key=key)


def a_fault(scene: Scene) -> None:
    """A row that no rule would have written meets a rule that relies on it."""
    job = scene.work("spoiled")
    answer = scene.daemon.call("POST", f"/v1/workloads/{job}/claim", {}, key=scene.edge.key)
    shell(scene.daemon, "UPDATE workloads SET retry_policy = '{:}' WHERE workload_id = ?", job)
    failed = scene.edge.fenced("fail", answer.body, kind="transient", message="m", start=True)
    scene.told.expect("INTERNAL", failed)


def a_slow_body(folder: Path, told: Told) -> None:
    """A body that never comes."""
    with running(folder, "slow-body", "--body-deadline-ms", "100") as daemon:
        told.expect("REQUEST_TIMEOUT", raw(daemon, "POST", "/v1/keys", b"{", Content_Length="1000"))


def too_many(folder: Path, told: Told) -> None:
    """One call may be at work, and is; then the daemon stops before it has an answer."""
    flags = ("--max-in-flight", "1", "--graceful-ms", "1000")
    with running(folder, "busy", *flags, FELTD_TEST_SLOW_COMMIT_MS="3000") as daemon:
        body = {"name": "k", "tenants": ["t"]}
        held: list[Answer] = []
        caller = threading.Thread(target=lambda: held.append(daemon.call("POST", "/v1/keys", body)))
        caller.start()
        while "feltd_in_flight 1.0" not in daemon.get("/metrics"):
            time.sleep(0.01)
        told.expect("SERVICE_OVERLOADED", daemon.call("POST", "/v1/keys", body))
        time.sleep(0.3)  # its write has begun
        os.kill(daemon.pid, signal.SIGTERM)
        caller.join(PATIENCE_S)
        told.expect("OUTCOME_UNKNOWN", held[0])


def a_lock(folder: Path, told: Told) -> None:
    """Another program holds the lock that every write needs."""
    with (
        running(folder, "locked", *STILL) as daemon,
        closing(sqlite3.connect(daemon.data, isolation_level=None)) as conn,
    ):
        conn.execute("BEGIN IMMEDIATE")
        told.expect(
            "STORAGE_BUSY", daemon.call("POST", "/v1/keys", {"name": "k", "tenants": ["t"]})
        )
        told.expect("STORAGE_PROBE_FAILED", daemon.call("GET", "/v1/readiness"))
        # Who joins a write nearly given up is told of the lock; who begins one, of the stall.
        until_s = time.monotonic() + PATIENCE_S
        ready = daemon.call("GET", "/health/ready")
        while ready.body.get("code") != "STORAGE_STALLED" and time.monotonic() < until_s:
            time.sleep(0.1)
            ready = daemon.call("GET", "/health/ready")
        told.expect("STORAGE_STALLED", ready)
        conn.execute("ROLLBACK")


def a_damaged_page(folder: Path, told: Told) -> None:
    """A page that only the creation of work reads is damaged; nothing is written from then on."""
    with running(folder, "damaged", *STILL) as daemon:
        scene = Scene(daemon, told)
        assert daemon.stop() == 0
        with closing(sqlite3.connect(f"file:{daemon.data}?mode=ro", uri=True)) as conn:
            pages = conn.execute("SELECT rootpage FROM sqlite_schema WHERE tbl_name = 'tombstones'")
            damaged = [page for (page,) in pages.fetchall() if page]
        with daemon.data.open("r+b") as file:
            for page in damaged:
                file.seek((page - 1) * PAGE_BYTES)
                file.write(b"\xff" * PAGE_BYTES)
        daemon.start()
        scene.creates("WORKLOAD_STORAGE_FAILURE")
        scene.register("MESH_STORAGE_FAILURE", version="2")
        scene.call("TRIGGER_STORAGE_FAILURE", "POST", "/v1/triggers", TRIGGER)
        body = {"name": "k", "tenants": ["t"]}
        told.expect("STORAGE_UNAVAILABLE", daemon.call("POST", "/v1/keys", body))
        assert daemon.call("GET", "/health/ready").body["code"] == "STORAGE_UNAVAILABLE"
        assert daemon.get("/health")["status"] in ("healthy", "degraded")


def a_full_disk(folder: Path, told: Told) -> None:
    """A disk without a free byte."""
    daemon = SmallDisk(folder / "disk")
    try:
        daemon.fill()
        answer = Answer(200, {}, {})
        for number in range(1_000):
            body = {"name": f"k{number}" + "x" * 100, "tenants": ["t"]}
            answer = daemon.call("POST", "/v1/keys", body)
            if answer.status != 201:
                break
        told.expect("STORAGE_FULL", answer)
    finally:
        daemon.close()


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """What daemons told in every scene."""
    folder, told = tmp_path_factory.mktemp("codes"), Told()
    with running(folder, "plain", *STILL) as daemon:
        scene = Scene(daemon, told)
        scenes: tuple[Callable[[Scene], None], ...] = (
            who_asks_wrongly,
            grants,
            workers,
            workloads,
            given_work_and_sinks,
            pools_and_holds,
            records,
            triggers,
            who_logs_in,
            a_fault,
        )
        for play in scenes:
            play(scene)
    for alone in (a_slow_body, too_many, a_lock, a_damaged_page, a_full_disk):
        alone(folder, told)
    return told.answers


@pytest.mark.needs("unshare")
def test_every_code_is_an_answer_of_a_daemon(answers: dict[str, Answer]) -> None:
    assert set(answers) == set(TABLE)


@pytest.mark.needs("unshare")
@pytest.mark.parametrize("code", TABLE)
def test_a_refusal_is_told_as_the_table_says(answers: dict[str, Answer], code: str) -> None:
    answer, row = answers[code], TABLE[code]
    body = answer.body

    assert answer.status == row.status
    if "ready" in body:
        # The probe's own short form, which has no `next`.
        assert body.keys() == {"ready", "error", "code", "probe_ms"}
        return
    assert body["next"] in {row.next, OTHER_NEXT.get(code)} & set(NEXTS)
    assert answer.headers["content-type"] == "application/problem+json"
    assert (body["type"], body["title"], body["status"]) == (
        f"/errors/{code}",
        row.title,
        row.status,
    )
    assert body["detail"] == body["error"]
    assert body["request_id"] == answer.headers["x-request-id"]
    if row.status == 503:
        assert int(answer.headers["retry-after"]) >= 1
        assert body["committed"] == ("unknown" if code == "OUTCOME_UNKNOWN" else False)


def test_every_code_explains_itself_to_whoever_asks(tmp_path: Path) -> None:
    with running(tmp_path, "explains") as daemon:
        for code, row in TABLE.items():
            told = daemon.get(f"/errors/{code}", key="")
            assert (told["code"], told["status"], told["next"]) == (code, row.status, row.next)
            assert told["cause"]
            assert told["next_step"]

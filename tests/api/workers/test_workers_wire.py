"""Workers over HTTP, by real keys: what is sent, and what comes back."""

import time
from typing import Any

import pytest

from feltd.api.workers import ROUTES
from tests.daemon.running import Answer, Daemon, Edge, Mesh, create


def register(daemon: Daemon, crew: Mesh, **members: Any) -> Answer:
    told = {
        "name": "plain",
        "runtime": "process",
        "version": "1",
        "capacity": {"concurrency": 2},
        **members,
    }
    return daemon.call("POST", "/v1/workers", told, key=crew.registrar_key)


def operate(daemon: Daemon, edge: Edge, verb: str, body: object = None) -> Answer:
    return daemon.call("POST", f"/v1/workers/{edge.id}/{verb}", body)


def test_a_registration_is_201_then_200_and_shows_the_worker(daemon: Daemon, crew: Mesh) -> None:
    first = register(daemon, crew, name="edge", runtime="edge", labels={"b": "2", "a": "1"})
    again = register(daemon, crew, name="edge", runtime="edge", labels={"a": "1", "b": "2"})

    assert (first.status, again.status) == (201, 200)
    worker = first.body["worker"]
    assert worker["worker_id"] == "worker_cce6afc4b175e9a47f212537"
    assert worker["contract_version"] == 1
    assert (worker["tenant_id"], worker["application_id"]) == ("t", "a")
    assert worker["lifecycle"] == "REGISTERED"
    assert worker["health"] == "UNKNOWN"
    assert worker["granted_capabilities"] == ["documents.extract"]
    assert worker["capacity"] == {"concurrency": 2, "active": 0}
    assert worker["resource_profile"] == {
        "cpu_millis": None,
        "memory_bytes": None,
        "disk_bytes": None,
        "gpu_count": None,
    }
    assert list(worker["labels"]) == ["a", "b"]
    assert worker["claims"] == []
    assert "worker_key" not in first.body
    assert abs(first.body["wall_time_ms"] - time.time() * 1_000) < 60_000


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"capacity": {"concurrency": 0}}, "/capacity/concurrency"),
        ({"capacity": {"concurrency": -1}}, "/capacity/concurrency"),
        ({"capacity": {"concurrency": 2**63}}, "/capacity/concurrency"),
        ({"name": "a:b"}, "/name"),
        ({"name": "."}, "/name"),
        ({"runtime": "mainframe"}, "/runtime"),
        ({"colour": "red"}, "/colour"),
        ({"heartbeat_interval_ms": 999}, "/heartbeat_interval_ms"),
        ({"heartbeat_timeout_ms": 3_600_001}, "/heartbeat_timeout_ms"),
        (
            {"heartbeat_interval_ms": 2_000, "heartbeat_timeout_ms": 3_000},
            "/heartbeat_timeout_ms",
        ),
        ({"labels": {"a": "x" * 257}}, "/labels"),
        ({"capabilities": ["a b"]}, "/capabilities"),
        ({"workload_kinds": ["a#b#c"]}, "/workload_kinds"),
        ({"resource_profile": {"gpu_count": -1}}, "/resource_profile/gpu_count"),
    ],
)
def test_a_registration_that_does_not_fit_is_422_with_its_pointer(
    daemon: Daemon, crew: Mesh, members: dict[str, Any], pointer: str
) -> None:
    answer = register(daemon, crew, **members)

    assert (answer.status, answer.body["code"]) == (422, "WORKER_INVALID")
    assert answer.body["errors"][0]["pointer"].startswith(pointer)
    assert answer.body["next"] == "fix_request"


def test_the_seeds_texts_are_kept(daemon: Daemon, crew: Mesh) -> None:
    zero = register(daemon, crew, capacity={"concurrency": 0})
    scope = register(daemon, crew, tenant_id="elsewhere")
    absent = daemon.call("GET", "/v1/workers/worker_0")

    assert zero.body["error"] == "concurrency must be positive"
    assert (scope.status, scope.body["error"]) == (403, "registration grant scope mismatch")
    assert (absent.status, absent.body["error"]) == (404, "worker not found")


def test_a_token_that_was_not_made_here_registers_nobody(daemon: Daemon, crew: Mesh) -> None:
    answer = register(daemon, crew, authorization_grant="k1.forged.token")

    assert (answer.status, answer.body["code"]) == (403, "WORKER_UNAUTHORIZED")


def test_another_process_needs_takeover(daemon: Daemon, crew: Mesh) -> None:
    old = Edge(daemon, "restarted", crew.registrar_key)
    assert old.beat().status == 200
    create(daemon, crew, "restarted-1")
    [held] = old.pull(start=True)

    busy = register(daemon, crew, name="restarted", process_id="next")
    new = Edge(daemon, "restarted", crew.registrar_key, process_id="next", takeover=True)

    assert (busy.status, busy.body["code"]) == (409, "WORKER_BUSY")
    assert busy.body["heard_ms_ago"] >= 0
    assert new.id == old.id
    gone = old.beat()
    assert (gone.status, gone.body["code"]) == (401, "UNAUTHENTICATED")
    assert gone.body["reasons"][0]["code"] == "taken_over"
    shown = daemon.get(f"/v1/workers/{new.id}?recent=20")
    assert (shown["incarnation"], shown["claims"]) == (2, [])
    assert [(one["claim_id"], one["end"]) for one in shown["recent"]] == [
        (held["claim_id"], "worker_lost")
    ]


def test_a_beat_answers_the_differences(daemon: Daemon, crew: Mesh) -> None:
    edge = Edge(daemon, "beating", crew.registrar_key)
    edge.beat()
    create(daemon, crew, "beating-1")
    [held] = edge.pull(lease_ms=5_000)

    answer = edge.beat(
        running_claims=[held["claim_id"], "claim_1"],
        renew_leases=True,
        lease_ms=60_000,
        timestamp_at_ms=int(time.time() * 1_000),
        progress={held["claim_id"]: {"done": 1}},
        reported={"load": 1, "note": "warm"},
    )

    assert answer.status == 200
    body = answer.body
    assert body["fenced_claims"] == ["claim_1"]
    assert body["unknown_claims"] == body["cancel_claims"] == body["assigned_claims"] == []
    assert body["renewed"][held["claim_id"]] > held["expires_at_ms"]
    assert body["worker"]["lifecycle"] == "READY"
    assert body["worker"]["reported"]["note"] == "warm"
    assert "capacity_mismatch" not in body
    assert body["grant_expires_at_ms"] > body["wall_time_ms"]


def test_refused_beats_say_what_comes_next(daemon: Daemon, crew: Mesh) -> None:
    edge = Edge(daemon, "refused", crew.registrar_key)
    clock = edge.beat(timestamp_at_ms=1)
    version = edge.beat(version="2")
    unfit = edge.beat(health="FINE")
    unknown = edge.beat(colour="red")

    assert (clock.status, clock.body["code"], clock.body["next"]) == (
        409,
        "WORKER_CLOCK_INVALID",
        "fix_clock",
    )
    assert clock.body["wall_time_ms"] > 0
    assert clock.body["server_time_ms"] > 0
    assert (version.status, version.body["next"]) == (409, "register")
    assert (unfit.status, unfit.body["errors"][0]["pointer"]) == (422, "/health")
    assert (unknown.status, unknown.body["errors"][0]["pointer"]) == (422, "/colour")


def test_a_worker_key_is_good_for_its_own_worker_alone(daemon: Daemon, crew: Mesh) -> None:
    one, two = Edge(daemon, "one", crew.registrar_key), Edge(daemon, "two", crew.registrar_key)
    for verb in ("heartbeat", "reconcile", "drain", "recover", "resume", "transition"):
        answer = daemon.call("POST", f"/v1/workers/{two.id}/{verb}", {}, key=one.key)
        assert answer.status == 403, verb
    assert daemon.call("GET", f"/v1/workers/{two.id}", key=one.key).status == 403
    assert daemon.call("GET", f"/v1/workers/{one.id}", key=one.key).status == 200
    assert daemon.call("GET", "/v1/workers", key=one.key).status == 403
    assert daemon.call("DELETE", f"/v1/workers/{one.id}", key=one.key).status == 403
    # A service's key beats for nobody, whatever its scopes.
    assert daemon.call("POST", f"/v1/workers/{one.id}/heartbeat", {}).status == 403


def test_drain_resume_recover_transition_remove(daemon: Daemon, crew: Mesh) -> None:
    edge = Edge(daemon, "drained", crew.registrar_key)
    edge.beat()
    create(daemon, crew, "drained-1")
    [held] = edge.pull(start=True)

    drained = operate(daemon, edge, "drain", {"reason": "upgrade", "no_renew_after_ms": 60_000})
    busy = daemon.call("DELETE", f"/v1/workers/{edge.id}")
    done = edge.fenced("complete", held)
    stop = edge.beat()
    resumed = operate(daemon, edge, "resume")
    denied = operate(daemon, edge, "transition", {"to": "BUSY"})
    back = edge.call(
        "reconcile",
        {
            "worker_id": edge.id,
            "worker_version": "1",
            "capability_version": edge.capability_version,
        },
    )
    ended = operate(daemon, edge, "transition", {"to": "OFFLINE"})
    recovered = operate(daemon, edge, "recover")
    removed = daemon.call("DELETE", f"/v1/workers/{edge.id}")
    again = daemon.call("DELETE", f"/v1/workers/{edge.id}")

    assert drained.status == 200
    assert drained.body["worker"]["lifecycle"] == "DRAINING"
    assert drained.body["worker"]["drain"]["reason"] == "upgrade"
    assert drained.body["outstanding_claims"] == [
        {
            "claim_id": held["claim_id"],
            "workload_id": held["workload_id"],
            "expires_at_ms": held["expires_at_ms"],
        }
    ]
    assert drained.body["safe_to_stop"] is False
    assert drained.body["safe_at_ms"] > held["expires_at_ms"]
    assert (busy.status, busy.body["error"]) == (
        409,
        "worker with active claims cannot be removed",
    )
    assert done.status == 200
    assert (stop.status, stop.body["next"], stop.body["offline_reason"]) == (
        409,
        "stop",
        "drained",
    )
    assert resumed.body["lifecycle"] == "RECOVERING"
    assert (denied.status, denied.body["error"]) == (409, "Recovering cannot transition to Busy")
    assert back.body["worker"]["lifecycle"] == "READY"
    assert ended.body["offline_reason"] == "transition"
    assert recovered.body["lifecycle"] == "RECOVERING"
    assert (removed.status, removed.body, again.status) == (204, "", 404)


def test_a_worker_drains_itself(daemon: Daemon, crew: Mesh) -> None:
    edge = Edge(daemon, "leaving", crew.registrar_key)
    edge.beat()

    answer = edge.call("drain", {})

    assert answer.status == 200
    assert (answer.body["safe_to_stop"], answer.body["worker"]["offline_reason"]) == (True, "left")


def test_results_come_back_after_an_outage(daemon: Daemon, crew: Mesh) -> None:
    edge = Edge(daemon, "returning", crew.registrar_key)
    edge.beat()
    job = create(daemon, crew, "returning-1")
    [held] = edge.pull(start=True)
    told = {
        "worker_id": edge.id,
        "worker_version": "1",
        "capability_version": edge.capability_version,
        "known_claims": [held["claim_id"]],
        "results": [
            {
                "attempt_id": held["attempt_id"],
                "claim_id": held["claim_id"],
                "fencing_token": held["fencing_token"],
                "outcome": "completed",
                "result": {"output": {"pages": 3}, "resource_usage": {"pages": 3}},
            }
        ],
    }

    answer = edge.call("reconcile", told)
    large = {**told["results"][0], "result": {"output": "x" * 800_000}}
    too_large = edge.call("reconcile", {**told, "results": [large]})
    deep: Any = []
    for _ in range(40):
        deep = [deep]
    nested = {**told["results"][0], "result": {"output": deep}}
    too_deep = edge.call("reconcile", {**told, "results": [nested]})

    assert answer.body["accepted_results"] == [held["attempt_id"]]
    assert answer.body["authoritative_claims"] == []
    shown = daemon.get(f"/v1/workloads/{job['workload_id']}", key=crew.submitter_key)
    assert (shown["state"], shown["result"]["output"]) == ("COMPLETED", {"pages": 3})
    for refused in (too_large, too_deep):
        assert (refused.status, refused.body["code"]) == (422, "WORKER_INVALID")
        assert refused.body["errors"][0]["pointer"].startswith("/results/0/result/output")


def test_workers_are_listed_page_by_page(daemon: Daemon, crew: Mesh) -> None:
    names = [f"page-{n}" for n in range(5)]
    for name in names:
        Edge(daemon, name, crew.registrar_key, labels={"set": "pages"})
    seen: list[str] = []
    cursor = ""
    while True:
        page = daemon.get(f"/v1/workers?label=set=pages&limit=2{cursor}")
        seen += [worker["name"] for worker in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"

    assert seen == names[::-1]
    elsewhere = daemon.call("GET", f"/v1/workers?limit=2{cursor}")
    assert (elsewhere.status, elsewhere.body["code"]) == (400, "REQUEST_MALFORMED")


@pytest.mark.parametrize(
    "query",
    ["colour=red", "limit=0", "limit=501", "lifecycle=ASLEEP", "health=FINE", "label=zone"],
)
def test_a_query_that_does_not_fit_is_422(daemon: Daemon, query: str) -> None:
    answer = daemon.call("GET", f"/v1/workers?{query}")

    assert (answer.status, answer.body["code"]) == (422, "REQUEST_INVALID")
    assert answer.body["errors"][0]["pointer"] == "/" + query.split("=")[0]


def test_recent_is_bounded(daemon: Daemon, crew: Mesh) -> None:
    edge = Edge(daemon, "recent", crew.registrar_key)

    assert daemon.get(f"/v1/workers/{edge.id}?recent=100")["recent"] == []
    assert daemon.call("GET", f"/v1/workers/{edge.id}?recent=101").status == 422


def test_a_worker_that_falls_silent_is_failed_by_the_keeper(daemon: Daemon, crew: Mesh) -> None:
    edge = Edge(
        daemon,
        "silent",
        crew.registrar_key,
        heartbeat_interval_ms=1_000,
        heartbeat_timeout_ms=2_000,
    )
    edge.beat()
    create(daemon, crew, "silent-1")
    [held] = edge.pull(start=True)
    until_s = time.monotonic() + 30
    while daemon.get(f"/v1/workers/{edge.id}")["lifecycle"] != "OFFLINE":
        assert time.monotonic() < until_s
        time.sleep(0.1)

    shown = daemon.get(f"/v1/workers/{edge.id}?recent=1")

    assert (shown["health"], shown["offline_reason"]) == ("UNHEALTHY", "failed")
    assert shown["recent"][0]["end"] == "worker_lost"
    assert edge.fenced("complete", held).body["code"] == "WORKLOAD_STALE_FENCE"
    assert edge.beat().body["code"] == "WORKER_RECOVERY_REQUIRED"


def test_operator_calls_answer_a_repeated_idempotency_key_alike(daemon: Daemon, crew: Mesh) -> None:
    edge = Edge(daemon, "once", crew.registrar_key)
    edge.beat()
    path = f"/v1/workers/{edge.id}/transition"
    first = daemon.call("POST", path, {"to": "OFFLINE"}, Idempotency_Key="k-1")
    daemon.call("POST", f"/v1/workers/{edge.id}/recover", {})
    again = daemon.call("POST", path, {"to": "OFFLINE"}, Idempotency_Key="k-1")

    assert first.body == again.body
    assert daemon.get(f"/v1/workers/{edge.id}")["lifecycle"] == "RECOVERING"


def test_calls_that_keep_leases_alive_are_shed_last() -> None:
    admission = {route.operation: route.admission for route in ROUTES}

    assert {admission[name] for name in ("heartbeat", "reconcile", "drain")} == {"keep_alive"}
    assert admission["register_worker"] == "handler"


def test_the_rows_hold_every_promise_afterwards(daemon: Daemon) -> None:
    ran = daemon.check()

    assert ran.returncode == 0, ran.stdout


def test_a_beat_tells_when_the_key_of_the_worker_ends(daemon: Daemon, crew: Mesh) -> None:
    """The key it got ends with the registrar's, so it is told that instant."""
    me = daemon.call("GET", "/v1/auth/me", key=crew.registrar_key).body
    ends_at_ms = int(time.time() * 1_000) + 86_400_000
    made = daemon.post(
        "/v1/keys",
        {
            "name": "short",
            "scopes": ["workers:register"],
            "tenants": ["t"],
            "identity_id": "crew",
            "grant_id": me["grant"]["id"],
            "expires_at_ms": ends_at_ms,
        },
    )
    edge = Edge(daemon, "short-lived", made["secret"])
    assert edge.beat().body["key_expires_at_ms"] == ends_at_ms
    assert "key_expires_at_ms" not in Edge(daemon, "lasting", crew.registrar_key).beat().body

"""Workloads over HTTP: what comes in, what is refused with which pointer, who sees and waits."""

import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.daemon.running import Answer, Daemon, Edge, Mesh, create

WRONG_INTEGERS = (2**63, 2**64, 10**23, -(2**63) - 1, True, "5", 1.5)


def asked(key: str, **members: Any) -> dict[str, Any]:
    return {"definition_id": "extract", "idempotency_key": key} | members


def post(daemon: Daemon, crew: Mesh, body: object, path: str = "/v1/workloads") -> Answer:
    return daemon.call("POST", path, body, key=crew.submitter_key)


def listed(daemon: Daemon, crew: Mesh, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = daemon.get(f"/v1/workloads?{query}", key=crew.submitter_key)
    return found


def claimed(daemon: Daemon, edge: Edge, workload_id: str) -> dict[str, Any]:
    answer = daemon.call("POST", f"/v1/workloads/{workload_id}/claim", {}, key=edge.key)
    assert answer.status == 201, answer
    held: dict[str, Any] = answer.body
    return held


def test_fifty_at_once_with_one_key_make_one_workload(daemon: Daemon, crew: Mesh) -> None:
    """BC-037, half of the connections cut before the answer."""
    address = urlsplit(daemon.url)

    def cut(body: dict[str, Any]) -> None:
        connection = http.client.HTTPConnection(address.hostname or "", address.port)
        sent = {"Authorization": f"Bearer {crew.submitter_key}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/workloads", json.dumps(body), sent)
        connection.close()

    for round_ in range(4):
        body = asked(f"parallel-{round_}", input=round_)
        with ThreadPoolExecutor(16) as pool:
            cuts = [pool.submit(cut, body) for _ in range(25)]
            answers = list(pool.map(lambda _, b=body: post(daemon, crew, b), range(25)))
            assert all(one.exception() is None for one in cuts)
        assert len({answer.body["workload_id"] for answer in answers}) == 1
        assert [answer.status for answer in answers].count(201) <= 1
        assert {answer.status for answer in answers} <= {200, 201}
        found = listed(daemon, crew, "limit=500")["items"]
        assert [one["idempotency_key"] for one in found].count(f"parallel-{round_}") == 1


@pytest.mark.parametrize(
    "member",
    [
        "priority",
        "not_before_at_ms",
        "created_at_ms",
        "retry_policy/max_attempts",
        "retry_policy/initial_backoff_ms",
        "retry_policy/max_backoff_ms",
        "resources/cpu_millis",
    ],
)
def test_integers_out_of_bounds_are_refused_by_name(
    daemon: Daemon, crew: Mesh, member: str
) -> None:
    """BC-025, BC-082."""
    before = listed(daemon, crew, "limit=1")["items"]
    for value in WRONG_INTEGERS:
        name, _, inner = member.partition("/")
        body = asked("integers", **{name: {inner: value} if inner else value})
        answer = post(daemon, crew, body)
        assert (answer.status, answer.body["code"]) == (422, "WORKLOAD_INVALID"), value
        assert answer.body["errors"][0]["pointer"] == f"/{member}", value
    assert listed(daemon, crew, "limit=1")["items"] == before


def test_the_trace_of_a_request_goes_with_its_work(daemon: Daemon, crew: Mesh, edge: Edge) -> None:
    trace = f"00-{'ab' * 16}-{'cd' * 8}-01"
    made = daemon.call(
        "POST", "/v1/workloads", asked("traced"), key=crew.submitter_key, traceparent=trace
    )
    assert made.body["traceparent"] == trace
    held = claimed(daemon, edge, made.body["workload_id"])
    assert held["traceparent"] == trace
    assert edge.fenced("complete", held, start=True).status == 200


def test_a_whole_float_is_an_integer(daemon: Daemon, crew: Mesh) -> None:
    """BC-082."""
    assert post(daemon, crew, asked("whole", priority=1.0)).body["priority"] == 1


def test_backoff_is_bounded_whatever_the_policy(daemon: Daemon, crew: Mesh, edge: Edge) -> None:
    """BC-025: base 60 s, factor 10, 100 attempts."""
    policy = {"initial_backoff_ms": 60_000, "multiplier": 10, "max_attempts": 100, "jitter": 1}
    job = create(daemon, crew, "backoff", retry_policy=policy)
    held = claimed(daemon, edge, job["workload_id"])
    told = edge.fenced("fail", held, kind="transient", message="x", start=True).body
    assert told["state"] == "READY"
    shown = daemon.get(f"/v1/workloads/{job['workload_id']}", key=crew.submitter_key)
    ended_ms = shown["attempts"][0]["ended_at_ms"]
    assert 60_000 <= told["eligible_at_ms"] - ended_ms <= 120_000


@pytest.mark.parametrize(
    ("member", "told"),
    [
        ("depends_on", "no such member"),
        ("label", "no such member; there is labels"),
        ("workload_id", "no such member"),
        ("extra", "no such member"),
    ],
)
def test_unknown_members_are_refused_by_name(
    daemon: Daemon, crew: Mesh, member: str, told: str
) -> None:
    """BC-055: nothing is stored that is not understood, and nobody names his own id."""
    answer = post(daemon, crew, asked("unknown", **{member: []}))
    assert answer.status == 422
    (error,) = answer.body["errors"]
    assert error["pointer"] == f"/{member}"
    assert error["detail"].startswith(told)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"idempotency_key": "k"}, "/definition_id"),
        (asked(""), "/idempotency_key"),
        (asked("x" * 201), "/idempotency_key"),
        (asked("k", definition_id="a b"), "/definition_id"),
        (asked("k", definition_id=".."), "/definition_id"),
        (asked("k", labels={"a b": "c"}), "/labels"),
        (asked("k", labels={f"k{n}": "v" for n in range(65)}), "/labels"),
        (asked("k", labels={"k": "v" * 257}), "/labels"),
        (asked("k", capability_snapshot=[f"c{n}" for n in range(257)]), "/capability_snapshot"),
        (asked("k", input={"a": [2**53]}), "/input/a/0"),
        (asked("k", input="x" * 262_143), "/input"),
        (asked("k", placement={"affinities": {}}), "/placement/affinities"),
        (asked("k", retry_policy={"jitter": 1.1}), "/retry_policy/jitter"),
        (asked("k", retry_policy={"multiplier": 0.5}), "/retry_policy/multiplier"),
        (asked("k", on_worker_lost="never"), "/on_worker_lost"),
        (asked("k", requested_by={"kind": "human", "id": "boss"}), "/requested_by"),
    ],
)
def test_what_does_not_fit_is_refused_by_place(
    daemon: Daemon, crew: Mesh, body: dict[str, Any], pointer: str
) -> None:
    answer = post(daemon, crew, body)
    assert (answer.status, answer.body["code"]) == (422, "WORKLOAD_INVALID")
    assert answer.body["errors"][0]["pointer"].startswith(pointer)


def test_a_grant_bounds_what_may_be_asked(daemon: Daemon, crew: Mesh) -> None:
    for body in (
        asked("k", priority=901),
        asked("k", capability_snapshot=["documents.sign"]),
        asked("k", tenant_id="t", application_id="b"),
        asked("k", authorization_grant="k1.e30.AAAA"),
    ):
        answer = post(daemon, crew, body)
        assert (answer.status, answer.body["code"]) == (403, "WORKLOAD_UNAUTHORIZED"), body
    named = daemon.call(
        "POST", "/v1/workloads", asked("k"), key=crew.submitter_key, X_Feltd_Tenant="other"
    )
    assert named.status == 403
    queried = post(daemon, crew, asked("k"), "/v1/workloads?tenant_id=other")
    assert (queried.status, queried.body["code"]) == (403, "FORBIDDEN")
    both = post(daemon, crew, asked("k", tenant_id="other"), "/v1/workloads?tenant_id=t")
    assert both.body["errors"][0]["detail"] == "the query and the body name different tenants"
    admin = post(daemon, Mesh(daemon.key, ""), asked("k", tenant_id="t", application_id="a"))
    assert admin.body["code"] == "WORKLOAD_UNAUTHORIZED"


def test_a_query_that_a_call_does_not_know_is_refused_and_nothing_done(
    daemon: Daemon, crew: Mesh
) -> None:
    job = create(daemon, crew, "dry")["workload_id"]
    for method, path, name in (
        ("POST", f"/v1/workloads/{job}/cancel", "dry_run"),
        ("GET", f"/v1/workloads/{job}/events", "wait_ms"),
        ("GET", f"/v1/workloads/{job}/late-results", "wait_ms"),
        ("GET", "/v1/auth/me", "verbose"),
    ):
        answer = daemon.call(method, f"{path}?{name}=1", key=crew.submitter_key)
        assert (answer.status, answer.body["code"]) == (422, "REQUEST_INVALID"), path
        assert answer.body["errors"] == [
            {"pointer": f"/{name}", "detail": "no such query parameter"}
        ]
    assert daemon.get(f"/v1/workloads/{job}", key=crew.submitter_key)["state"] == "READY"
    assert daemon.call("GET", "/health?verbose", key="").status == 200


def test_a_batch_answers_item_by_item(daemon: Daemon, crew: Mesh) -> None:
    """BC-010."""
    items = [asked("b1"), asked("b2", priority="high"), asked("b1"), 7, asked("b3", more=1)]
    answer = post(daemon, crew, {"workloads": items}, "/v1/workloads/batch")
    assert answer.status == 200
    first, unfit, again, number, unknown = answer.body["items"]
    assert first == {"workload_id": first["workload_id"], "state": "READY", "created": True}
    assert again == first | {"created": False}
    assert unfit["errors"][0]["pointer"] == "/priority"
    assert number["code"] == "WORKLOAD_INVALID"
    assert unknown["errors"][0]["pointer"] == "/more"
    whole = post(daemon, crew, {"workloads": items, "atomic": True}, "/v1/workloads/batch")
    assert whole.status == 422
    assert whole.body["errors"][0]["pointer"] == "/workloads/1/priority"
    fifty = [asked(f"atomic-{n}") for n in range(49)]
    bad = post(
        daemon, crew, {"workloads": [*fifty, asked("")], "atomic": True}, "/v1/workloads/batch"
    )
    assert bad.status == 422
    keys = {one["idempotency_key"] for one in listed(daemon, crew, "limit=500")["items"]}
    assert not keys & {one["idempotency_key"] for one in fifty}
    for empty in ({"workloads": []}, {"workloads": [asked("k")] * 1_001}, {}):
        assert post(daemon, crew, empty, "/v1/workloads/batch").status == 422


def test_a_list_goes_on_with_its_own_cursor_only(daemon: Daemon, crew: Mesh) -> None:
    """BC-097."""
    for number in range(7):
        create(daemon, crew, f"page-{number}", labels={"story": "pages"})
    found: list[str] = []
    query = "label=story%3Dpages&limit=3"
    page = listed(daemon, crew, query)
    cursor = page["next_cursor"]
    while True:
        found += [one["idempotency_key"] for one in page["items"]]
        if page["next_cursor"] is None:
            break
        page = listed(daemon, crew, f"{query}&cursor={page['next_cursor']}")
    assert found == [f"page-{number}" for number in reversed(range(7))]
    for path in (
        f"/v1/workloads?limit=3&cursor={cursor}",
        "/v1/workloads?cursor=made-up",
        f"/v1/workloads?{query}&cursor={cursor[:-4]}AAAA",
    ):
        answer = daemon.call("GET", path, key=crew.submitter_key)
        assert (answer.status, answer.body["code"]) == (400, "REQUEST_MALFORMED")
    foreign = daemon.call("GET", f"/v1/workloads?{query}&cursor={cursor}")
    assert foreign.status == 400
    for bad in ("limit=0", "limit=501", "state=DONE", "label=x", "unknown=1", "created_after_ms=x"):
        answer = daemon.call("GET", f"/v1/workloads?{bad}", key=crew.submitter_key)
        assert (answer.status, answer.body["code"]) == (422, "REQUEST_INVALID"), bad


def test_what_is_not_ones_own_answers_as_what_is_not_there(
    daemon: Daemon, crew: Mesh, edge: Edge
) -> None:
    job = create(daemon, crew, "foreign")["workload_id"]
    scopes = ["workloads:read", "workloads:operate", "workloads:create"]
    other = daemon.post("/v1/keys", {"name": "other", "scopes": scopes, "tenants": ["u"]})["secret"]
    for method, path, body in (
        ("GET", "/v1/workloads/{}", None),
        ("GET", "/v1/workloads/{}/events", None),
        ("GET", "/v1/workloads/{}/logs", None),
        ("GET", "/v1/workloads/{}/late-results", None),
        ("POST", "/v1/workloads/{}/cancel", {}),
        ("POST", "/v1/workloads/{}/requeue", {}),
    ):
        for key in (other, edge.key) if method == "GET" else (other,):
            real = daemon.call(method, path.format(job), body, key=key)
            made_up = daemon.call(method, path.format("workload_0"), body, key=key)
            assert real.status == made_up.status == 404
            del real.body["request_id"], made_up.body["request_id"]
            assert real.body == made_up.body
    assert daemon.call("POST", f"/v1/workloads/{job}/cancel", {}, key=edge.key).status in (403, 404)
    assert daemon.get(f"/v1/workloads/{job}", key=crew.submitter_key)["state"] == "READY"
    assert daemon.get("/v1/workloads", key=other)["items"] == []


def test_who_waits_is_answered_when_the_workload_ends(
    daemon: Daemon, crew: Mesh, edge: Edge
) -> None:
    job = create(daemon, crew, "awaited")["workload_id"]
    held = claimed(daemon, edge, job)
    answers: list[Any] = []
    path = f"/v1/workloads/{job}?wait_ms=25000"
    waiter = threading.Thread(
        target=lambda: answers.append(daemon.get(path, key=crew.submitter_key))
    )
    waiter.start()
    done = edge.fenced("complete", held, output={"pages": 2}, start=True)
    assert done.status == 200
    waiter.join(20)
    assert answers[0]["state"] == "COMPLETED"
    assert answers[0]["result"]["output"] == {"pages": 2}
    assert answers[0]["attempts"][0]["end"] == "completed"


def test_a_wait_that_is_over_shows_what_stands(daemon: Daemon, crew: Mesh) -> None:
    job = create(daemon, crew, "not yet", not_before_at_ms=2**52)["workload_id"]
    shown = daemon.get(f"/v1/workloads/{job}?wait_ms=50", key=crew.submitter_key)
    assert shown["state"] == "READY"
    assert "result" not in shown


def test_a_key_that_ends_ends_its_wait(daemon: Daemon, crew: Mesh) -> None:
    job = create(daemon, crew, "revoked wait", not_before_at_ms=2**52)["workload_id"]
    key = daemon.post(
        "/v1/keys", {"name": "reader", "scopes": ["workloads:read"], "tenants": ["t"]}
    )
    answers: list[Answer] = []
    path = f"/v1/workloads/{job}?wait_ms=25000"
    waiter = threading.Thread(
        target=lambda: answers.append(daemon.call("GET", path, key=key["secret"]))
    )
    waiter.start()
    while True:
        # Revoked only once it waits: a call that has not begun is refused at the door anyway.
        if daemon.call("GET", "/metrics").body.count("feltd_long_polls 1.0"):
            break
    assert daemon.call("DELETE", f"/v1/keys/{key['key_id']}").status == 204
    waiter.join(20)
    assert (answers[0].status, answers[0].body["code"]) == (401, "UNAUTHENTICATED")


def test_logs_are_followed(daemon: Daemon, crew: Mesh, edge: Edge) -> None:
    job = create(daemon, crew, "logs")["workload_id"]
    held = claimed(daemon, edge, job)
    answers: list[Any] = []
    path = f"/v1/workloads/{job}/logs"
    waiter = threading.Thread(
        target=lambda: answers.append(daemon.get(f"{path}?wait_ms=20000", key=crew.submitter_key))
    )
    waiter.start()
    assert edge.fenced("log", held, lines=["one", {"text": "two", "level": "debug"}]).status == 200
    waiter.join(20)
    lines = answers[0]["items"]
    assert [line["text"] for line in lines] == ["one", "two"]
    after = daemon.get(f"{path}?after={lines[0]['seq']}", key=crew.submitter_key)
    assert [line["text"] for line in after["items"]] == ["two"]
    assert edge.fenced("release", held).status == 200


def test_a_cancelled_workload_stays_so_and_a_dead_one_comes_back_once(
    daemon: Daemon, crew: Mesh, edge: Edge
) -> None:
    job = create(daemon, crew, "dead", retry_policy={"max_attempts": 1})["workload_id"]
    held = claimed(daemon, edge, job)
    assert edge.fenced("fail", held, kind="broken", message="no", start=True).status == 200
    path = f"/v1/workloads/{job}/requeue"
    named = {"key": crew.submitter_key, "Idempotency_Key": "once"}
    first = daemon.call("POST", path, {"input": None, "priority": 3}, **named)
    again = daemon.call("POST", path, {"input": None, "priority": 3}, **named)
    assert first.status == again.status == 200
    assert first.body == again.body
    assert (first.body["state"], first.body["priority"]) == ("READY", 3)
    late = daemon.call("POST", path, {}, key=crew.submitter_key)
    assert (late.status, late.body["code"]) == (409, "WORKLOAD_TRANSITION_DENIED")
    for _ in range(2):
        gone = daemon.call(
            "POST", f"/v1/workloads/{job}/cancel", {"reason": "enough"}, key=crew.submitter_key
        )
        assert (gone.status, gone.body["state"]) == (200, "CANCELLED")
    kinds = [
        event["kind"]
        for event in daemon.get(f"/v1/workloads/{job}/events", key=crew.submitter_key)["items"]
    ]
    assert kinds[0] == "create"
    assert kinds[-2:] == ["requeue", "cancel"]
    repeated = post(
        daemon,
        crew,
        asked("dead", retry_policy={"max_attempts": 1}, capability_snapshot=["documents.extract"]),
    )
    assert (repeated.status, repeated.body["state"]) == (200, "CANCELLED")


def test_the_file_holds_its_promises_afterwards(daemon: Daemon) -> None:
    checked = daemon.check()
    assert checked.returncode == 0, checked.stdout

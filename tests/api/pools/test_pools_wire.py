"""Pools, holds and quarantine over HTTP, by real keys: what is sent, and what comes back."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from tests.daemon.running import PATIENCE_S, Answer, Daemon, Edge, Mesh, create

_numbers = count(1)


def pool(daemon: Daemon, pool_id: str, *, tenant: str = "t", **members: Any) -> Answer:
    body = {"pool_id": pool_id, "tenant_id": tenant, "name": "the pool", **members}
    return daemon.call("POST", "/v1/pools", body)


def hold(daemon: Daemon, scope: str, value: str | None = None, **members: Any) -> Answer:
    whose = {} if scope == "all" else {"tenant_id": "t"}
    told = {"scope": scope, "value": value, "reason": "a release", **whose, **members}
    return daemon.call("POST", "/v1/holds", told)


def edge(daemon: Daemon, crew: Mesh, **members: Any) -> Edge:
    worker = Edge(daemon, f"edge-{next(_numbers)}", crew.registrar_key, **members)
    assert worker.beat().status == 200
    return worker


def work(daemon: Daemon, crew: Mesh, **members: Any) -> str:
    asked = {"definition_id": f"only-{next(_numbers)}", **members}
    made = create(daemon, crew, f"key-{next(_numbers)}", **asked)
    return str(made["workload_id"])


@contextmanager
def parked(daemon: Daemon, worker: Edge) -> Iterator[Callable[[], Any]]:
    """A pull of a worker that waits within the block; called, what it was answered."""
    answers: list[Answer] = []
    waiting = long_polls(daemon) + 1
    thread = threading.Thread(
        target=lambda: answers.append(worker.call("claims", {"wait_ms": 20_000}))
    )
    thread.start()
    ends = time.monotonic() + PATIENCE_S
    while long_polls(daemon) < waiting:
        assert time.monotonic() < ends
        time.sleep(0.01)

    def answered() -> Any:
        thread.join(PATIENCE_S)
        return answers[0].body

    yield answered
    thread.join(PATIENCE_S)


def long_polls(daemon: Daemon) -> int:
    lines = daemon.get("/metrics").splitlines()
    return int(float(next(line.split()[1] for line in lines if line.startswith("feltd_long_p"))))


def listed(daemon: Daemon, path: str, **named: Any) -> list[Any]:
    items: list[Any] = daemon.get(path, **named)["items"]
    return items


# -- pools


def test_a_pool_is_201_then_200_and_another_under_its_id_is_refused(daemon: Daemon) -> None:
    first = pool(daemon, "gpu", capabilities=["b", "a"], max_concurrency=4)
    again = pool(daemon, "gpu", capabilities=["a", "b"], max_concurrency=4)

    assert (first.status, again.status) == (201, 200)
    assert first.body == again.body
    assert first.body == {
        "pool_id": "gpu",
        "tenant_id": "t",
        "application_id": None,
        "name": "the pool",
        "capabilities": ["a", "b"],
        "required_labels": {},
        "worker_ids": [],
        "listed": False,
        "max_concurrency": 4,
        "created_at_ms": first.body["created_at_ms"],
        "members": 0,
        "active": 0,
    }
    other = pool(daemon, "gpu", max_concurrency=5)
    assert (other.status, other.body["code"]) == (409, "WORKER_POOL_EXISTS")
    assert daemon.get("/v1/pools/gpu?tenant_id=t") == first.body


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"pool_id": "a:b"}, "/pool_id"),
        ({"pool_id": ".."}, "/pool_id"),
        ({"name": ""}, "/name"),
        ({"name": "a\nb"}, "/name"),
        ({"capabilities": ["a b"]}, "/capabilities/0"),
        ({"required_labels": {"": "x"}}, "/required_labels/"),
        ({"worker_ids": ["x"] * 257}, "/worker_ids"),
        ({"max_concurrency": 0}, "/max_concurrency"),
        ({"max_concurrency": 2**53}, "/max_concurrency"),
        ({"members": 3}, "/members"),
        ({"tenant_id": "x:y"}, "/tenant_id"),
    ],
)
def test_what_does_not_fit_is_pointed_at(
    daemon: Daemon, members: dict[str, Any], pointer: str
) -> None:
    body = {"pool_id": "odd", "tenant_id": "t", "name": "odd", **members}
    answer = daemon.call("POST", "/v1/pools", body)

    assert (answer.status, answer.body["code"]) == (422, "WORKER_INVALID"), answer
    assert answer.body["errors"][0]["pointer"].startswith(pointer)


def test_a_pool_is_changed_and_deleted_and_deleting_again_is_no_error(daemon: Daemon) -> None:
    pool(daemon, "short")
    body = {"pool_id": "short", "name": "shorter", "max_concurrency": 1}
    by = {"X_Feltd_Tenant": "t"}

    changed = daemon.call("PUT", "/v1/pools/short", body, **by)
    assert (changed.status, changed.body["name"], changed.body["max_concurrency"]) == (
        200,
        "shorter",
        1,
    )
    misnamed = daemon.call("PUT", "/v1/pools/short", {**body, "pool_id": "long"}, **by)
    assert (misnamed.status, misnamed.body["code"]) == (422, "WORKER_INVALID")
    for _ in range(2):
        assert daemon.call("DELETE", "/v1/pools/short", **by).status == 204
    for method, told in (("GET", None), ("PUT", body)):
        gone = daemon.call(method, "/v1/pools/short", told, **by)
        assert (gone.status, gone.body["code"]) == (404, "WORKER_POOL_NOT_FOUND")
    never = daemon.call("DELETE", "/v1/pools/never", **by)
    assert (never.status, never.body["code"]) == (404, "WORKER_POOL_NOT_FOUND")


def test_a_key_of_several_tenants_says_which(daemon: Daemon) -> None:
    unsaid = daemon.call("GET", "/v1/pools/gpu")
    assert (unsaid.status, unsaid.body["errors"][0]["pointer"]) == (422, "/tenant_id")


def test_members_are_listed_and_counted(daemon: Daemon, crew: Mesh) -> None:
    zone = f"z{next(_numbers)}"
    member, _ = edge(daemon, crew, labels={"zone": zone}), edge(daemon, crew)
    made = pool(daemon, zone, required_labels={"zone": zone}, application_id="a")

    assert made.body["members"] == 1
    found = listed(daemon, f"/v1/workers?pool_id={zone}&tenant_id=t")
    assert [worker["worker_id"] for worker in found] == [member.id]
    items = listed(daemon, "/v1/pools?limit=500")
    assert next(one["members"] for one in items if one["pool_id"] == zone) == 1
    unknown = daemon.call("GET", "/v1/workers?pool_id=nope&tenant_id=t")
    assert (unknown.status, unknown.body["code"]) == (404, "WORKER_POOL_NOT_FOUND")


def test_an_unknown_pool_and_anothers_pool_or_worker_answer_alike(
    daemon: Daemon, crew: Mesh
) -> None:
    pool(daemon, "theirs", tenant="u")
    made_up, theirs = (
        daemon.call(
            "POST",
            "/v1/workloads",
            {"definition_id": "d", "idempotency_key": name, "placement": {"pool_id": name}},
            key=crew.submitter_key,
        )
        for name in ("never-made", "theirs")
    )
    assert (made_up.status, made_up.body["code"]) == (404, "WORKER_POOL_NOT_FOUND")
    assert _same(made_up) == _same(theirs)

    ours = edge(daemon, crew)
    real = pool(daemon, "q", tenant="u", worker_ids=[ours.id])
    false = pool(daemon, "q", tenant="u", worker_ids=["worker_000000000000000000000000"])
    assert (real.status, real.body["code"], real.body["next"]) == (
        404,
        "WORKER_NOT_FOUND",
        "fix_request",
    )
    assert {**_same(real), "detail": "", "error": ""} == {**_same(false), "detail": "", "error": ""}


def _same(answer: Answer) -> dict[str, Any]:
    return {name: one for name, one in answer.body.items() if name != "request_id"}


def test_pages_of_pools_end_and_skip_none(daemon: Daemon) -> None:
    for number in range(5):
        pool(daemon, f"page-{number}", tenant="v")

    seen: list[str] = []
    cursor = ""
    while True:
        page = daemon.get(f"/v1/pools?tenant_id=v&limit=2{cursor}")
        seen += [one["pool_id"] for one in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == [f"page-{number}" for number in reversed(range(5))]


def test_a_change_of_a_pool_wakes_the_member_that_waits(daemon: Daemon, crew: Mesh) -> None:
    """Workers alike in all else wait together: the one that is no member may look first."""
    outsider, member = edge(daemon, crew), edge(daemon, crew)
    pool(daemon, "wake", worker_ids=[outsider.id])
    with parked(daemon, member) as answered:
        job = work(daemon, crew, placement={"pool_id": "wake"}, definition_id="wake")
        assert [one["workload_id"] for one in outsider.pull()] == [job]
        job = work(daemon, crew, placement={"pool_id": "wake"}, definition_id="wake")
        body = {"pool_id": "wake", "name": "the pool", "worker_ids": [member.id]}
        began_s = time.monotonic()
        changed = daemon.call("PUT", "/v1/pools/wake", body, X_Feltd_Tenant="t")
        assert changed.status == 200
        assert [one["workload_id"] for one in answered()["claims"]] == [job]
        assert time.monotonic() - began_s < LOOK_AGAIN_S


#: Sooner than a parked poll looks by itself.
LOOK_AGAIN_S = 4.5


def test_work_for_one_of_many_alike_wakes_that_one(daemon: Daemon, crew: Mesh) -> None:
    outsiders = [edge(daemon, crew) for _ in range(3)]
    member = edge(daemon, crew)
    pool(daemon, "one-of-many", worker_ids=[member.id])
    with (
        parked(daemon, outsiders[0]),
        parked(daemon, outsiders[1]),
        parked(daemon, outsiders[2]),
        parked(daemon, member) as answered,
    ):
        began_s = time.monotonic()
        job = work(daemon, crew, placement={"pool_id": "one-of-many"})
        assert [one["workload_id"] for one in answered()["claims"]] == [job]
        assert time.monotonic() - began_s < LOOK_AGAIN_S
        for outsider in outsiders:
            daemon.call("POST", f"/v1/workers/{outsider.id}/drain", {})


# -- holds


def test_a_hold_is_placed_listed_and_lifted(daemon: Daemon) -> None:
    placed = hold(daemon, "application", "elsewhere")
    assert placed.status == 201
    assert placed.body == {
        "hold_id": placed.body["hold_id"],
        "scope": "application",
        "value": "elsewhere",
        "reason": "a release",
        "tenant_id": "t",
        "held_by": placed.body["held_by"],
        "held_at_ms": placed.body["held_at_ms"],
    }
    assert placed.body in listed(daemon, "/v1/holds")
    path = f"/v1/holds/{placed.body['hold_id']}"
    for _ in range(2):
        assert daemon.call("DELETE", path).status == 204
    assert placed.body not in listed(daemon, "/v1/holds?tenant_id=t")
    never = daemon.call("DELETE", "/v1/holds/hold_never")
    assert (never.status, never.body["code"], never.body["next"]) == (
        404,
        "HOLD_NOT_FOUND",
        "fix_request",
    )
    assert daemon.get("/errors/HOLD_NOT_FOUND")


def test_one_hold_comes_of_a_call_that_is_sent_again(daemon: Daemon) -> None:
    body = {"scope": "definition", "value": "x", "tenant_id": "t", "reason": "once"}
    first = daemon.call("POST", "/v1/holds", body, Idempotency_Key="hold-once")
    again = daemon.call("POST", "/v1/holds", body, Idempotency_Key="hold-once")

    assert first.body == again.body
    ids = [one["hold_id"] for one in listed(daemon, "/v1/holds?tenant_id=t&limit=500")]
    assert ids.count(first.body["hold_id"]) == 1
    daemon.call("DELETE", f"/v1/holds/{first.body['hold_id']}")


def test_a_tenant_is_held_by_its_name(daemon: Daemon) -> None:
    body = {"scope": "tenant", "value": "w", "reason": "the invoice is open"}
    placed = daemon.call("POST", "/v1/holds", body)

    assert (placed.status, placed.body["tenant_id"]) == (201, "w")
    other = daemon.call("POST", "/v1/holds", {**body, "tenant_id": "t"})
    assert (other.status, other.body["errors"][0]["pointer"]) == (422, "/value")


def test_everybodys_work_is_held_by_nobody_but_who_has_every_tenant(
    daemon: Daemon, crew: Mesh
) -> None:
    refused = daemon.call(
        "POST", "/v1/holds", {"scope": "all", "reason": "mine"}, key=crew.submitter_key
    )
    assert (refused.status, refused.body["code"]) == (403, "FORBIDDEN")


def test_lifting_a_hold_wakes_who_waits_at_once(daemon: Daemon, crew: Mesh) -> None:
    worker = edge(daemon, crew)
    held = hold(daemon, "definition", "stopped").body["hold_id"]
    job = work(daemon, crew, definition_id="stopped")

    empty = worker.call("claims", {}).body
    assert empty["reasons"][0]["code"] == "HELD"
    with parked(daemon, worker) as answered:
        began_s = time.monotonic()
        assert daemon.call("DELETE", f"/v1/holds/{held}").status == 204
        assert [one["workload_id"] for one in answered()["claims"]] == [job]
        assert time.monotonic() - began_s < LOOK_AGAIN_S


def test_a_hold_that_is_over_wakes_who_waits(daemon: Daemon, crew: Mesh) -> None:
    worker = edge(daemon, crew)
    until_at_ms = int(time.time() * 1_000) + 1_000
    assert hold(daemon, "definition", "later", until_at_ms=until_at_ms).status == 201
    job = work(daemon, crew, definition_id="later")

    with parked(daemon, worker) as answered:
        assert [one["workload_id"] for one in answered()["claims"]] == [job]
    past = hold(daemon, "tenant", until_at_ms=1)
    assert (past.status, past.body["errors"][0]["pointer"]) == (422, "/until_at_ms")


# -- quarantine


def test_a_parked_pull_of_a_quarantined_worker_ends_at_once(daemon: Daemon, crew: Mesh) -> None:
    worker = edge(daemon, crew)
    path = f"/v1/workers/{worker.id}"
    with parked(daemon, worker) as answered:
        confined = daemon.call("POST", f"{path}/quarantine", {"reason": "its disk fails"})
        assert confined.status == 200
        assert confined.body["quarantine"]["reason"] == "its disk fails"
        told = answered()
    assert (told["claims"], told["reasons"][0]["code"]) == ([], "WORKER_QUARANTINED")
    again = worker.call("claims", {"wait_ms": 20_000}).body
    assert again["reasons"][0]["code"] == "WORKER_QUARANTINED"
    assert worker.beat().body["worker"]["quarantine"]["by"]
    exchanged = worker.call("exchange", {"claim": {"max": 1, "lease_ms": 30_000}})
    assert exchanged.body["reasons"][0]["code"] == "WORKER_QUARANTINED"

    for _ in range(2):
        assert "quarantine" not in daemon.post(f"{path}/unquarantine")
    job = work(daemon, crew)
    assert [one["workload_id"] for one in worker.pull()] == [job]


def test_a_worker_does_not_free_itself(daemon: Daemon, crew: Mesh) -> None:
    worker = edge(daemon, crew)
    for verb, body in (("quarantine", {"reason": "x"}), ("unquarantine", {})):
        answer = worker.call(verb, body)
        assert (answer.status, answer.body["code"]) == (403, "FORBIDDEN")
    bare = daemon.call("POST", f"/v1/workers/{worker.id}/quarantine", {})
    assert (bare.status, bare.body["code"]) == (422, "WORKER_INVALID")


def test_every_promise_is_kept_at_the_end(daemon: Daemon) -> None:
    checked = daemon.check()
    assert checked.returncode == 0, checked.stdout

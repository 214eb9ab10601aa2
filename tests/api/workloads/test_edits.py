"""Changes to standing work over HTTP: edits, timeouts that fire, chunks of a bulk change."""

from pathlib import Path
from typing import Any

import pytest

from tests.daemon.running import Answer, Daemon, Edge, Mesh, create, people


def made(daemon: Daemon, crew: Mesh, key: str, **members: Any) -> str:
    body = {"definition_id": "extract", "idempotency_key": key} | members
    answer = daemon.call("POST", "/v1/workloads", body, key=crew.submitter_key)
    assert answer.status in (200, 201), answer
    return str(answer.body["workload_id"])


def patch(daemon: Daemon, job: str, body: object, key: str | None = None) -> Answer:
    return daemon.call("PATCH", f"/v1/workloads/{job}", body, key=key or daemon.key)


def bulk(daemon: Daemon, body: object, key: str | None = None, **headers: str) -> Answer:
    return daemon.call("POST", "/v1/workloads/bulk", body, key=key or daemon.key, **headers)


def waited(daemon: Daemon, job: str) -> dict[str, Any]:
    found: dict[str, Any] = daemon.get(f"/v1/workloads/{job}?wait_ms=20000", key=daemon.key)
    return found


def test_an_edit_is_shown_and_repeats(daemon: Daemon, crew: Mesh) -> None:
    job = made(daemon, crew, "edit-1", timeouts={"queue_ms": 600_000}, labels={"a": "1"})
    body = {"priority": 7, "timeouts": {"total_ms": 900_000}, "labels": {"a": None, "b": "2"}}
    for _ in range(2):
        answer = patch(daemon, job, body)
        assert answer.status == 200, answer
        assert answer.body["priority"] == 7
        assert answer.body["timeouts"] == {"queue_ms": 600_000, "total_ms": 900_000}
        assert answer.body["labels"] == {"b": "2"}
    told = daemon.get(f"/v1/workloads/{job}/events", key=daemon.key)["items"]
    assert [one["kind"] for one in told] == ["create", "edit"]
    assert patch(daemon, job, {}).status == 200


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"priority": 1_001}, "/priority"),
        ({"definition_id": "other"}, "/definition_id"),
        ({"timeouts": 5}, "/timeouts"),
        ({"timeouts": {"queue_ms": -1}}, "/timeouts/queue_ms"),
        ({"placement": {"where": "here"}}, "/placement"),
    ],
)
def test_what_cannot_be_edited_is_refused_by_place(
    daemon: Daemon, crew: Mesh, body: dict[str, Any], pointer: str
) -> None:
    job = made(daemon, crew, "edit-refused")
    answer = patch(daemon, job, body)
    assert (answer.status, answer.body["code"]) == (422, "WORKLOAD_INVALID"), answer
    assert answer.body["errors"][0]["pointer"] == pointer


def test_what_is_held_is_not_edited(daemon: Daemon, crew: Mesh, edge: Edge) -> None:
    job = made(daemon, crew, "edit-held")
    held = daemon.call("POST", f"/v1/workloads/{job}/claim", {}, key=edge.key)
    assert held.status == 201, held
    answer = patch(daemon, job, {"priority": 1})
    assert (answer.status, answer.body["code"]) == (409, "WORKLOAD_TRANSITION_DENIED")
    fence = {name: held.body[name] for name in ("claim_id", "worker_id", "fencing_token")}
    daemon.call("POST", f"/v1/workloads/{job}/complete", fence | {"start": True}, key=edge.key)


def test_an_edit_takes_the_scope_of_an_operator(daemon: Daemon, crew: Mesh) -> None:
    job = made(daemon, crew, "edit-scope")
    assert patch(daemon, job, {"priority": 1}, crew.registrar_key).body["code"] == "FORBIDDEN"
    beyond = patch(daemon, job, {"priority": 901}, crew.submitter_key)
    assert (beyond.status, beyond.body["code"]) == (403, "WORKLOAD_UNAUTHORIZED")
    assert patch(daemon, "workload_x", {"priority": 1}).body["code"] == "WORKLOAD_NOT_FOUND"


def test_a_timeout_fires_without_anybody_calling(daemon: Daemon, crew: Mesh) -> None:
    """The keeper's timer ends it; who waits for it is answered."""
    job = made(daemon, crew, "timeout-1", timeouts={"queue_ms": 300})
    found = waited(daemon, job)
    assert found["state"] == "DEAD_LETTERED"
    assert found["failure"]["kind"] == "queue_timeout"
    requeued = daemon.call("POST", f"/v1/workloads/{job}/requeue", {}, key=daemon.key)
    assert requeued.body["state"] == "READY"
    assert waited(daemon, job)["failure"]["kind"] == "queue_timeout"


def test_no_timeout_waits_for_the_tick(tmp_path: Path) -> None:
    slow = Daemon(tmp_path / "feltd.db", "--tick-ms", "60000").init().start()
    try:
        crew = people(slow)
        job = made(slow, crew, "timer", timeouts={"queue_ms": 200})
        assert waited(slow, job)["state"] == "DEAD_LETTERED"
    finally:
        slow.close()


def test_total_cuts_what_runs(daemon: Daemon, crew: Mesh, edge: Edge) -> None:
    job = made(daemon, crew, "timeout-2", timeouts={"total_ms": 400})
    held = daemon.call("POST", f"/v1/workloads/{job}/claim", {}, key=edge.key)
    assert held.body["timeouts"] == {"total_ms": 400}
    fence = {name: held.body[name] for name in ("claim_id", "worker_id", "fencing_token")}
    daemon.call("POST", f"/v1/workloads/{job}/start", fence, key=edge.key)
    found = waited(daemon, job)
    assert (found["state"], found["failure"]["kind"]) == ("DEAD_LETTERED", "total_timeout")
    late = daemon.call("POST", f"/v1/workloads/{job}/complete", fence, key=edge.key)
    assert (late.status, late.body["next"]) == (409, "drop_claim")


def test_a_bulk_change_is_counted_then_done_in_chunks(daemon: Daemon, crew: Mesh) -> None:
    items = [
        {"definition_id": "extract", "idempotency_key": f"bulk-{n}", "group": "bulk"}
        for n in range(620)
    ]
    daemon.call("POST", "/v1/workloads/batch", {"workloads": items}, key=crew.submitter_key)
    body = {"action": "cancel", "filter": {"group": "bulk", "tenant_id": "t"}}
    dry = bulk(daemon, body | {"dry_run": True})
    assert dry.body == {"changed": 0, "remaining": 620, "matched": 620}
    assert bulk(daemon, body).body == {"changed": 500, "remaining": 120}
    assert bulk(daemon, body).body == {"changed": 120, "remaining": 0}
    assert bulk(daemon, body).body == {"changed": 0, "remaining": 0}
    listed = daemon.get("/v1/workloads?group=bulk&limit=500", key=crew.submitter_key)["items"]
    assert {one["state"] for one in listed} == {"CANCELLED"}


def test_a_repeat_with_the_same_key_is_the_same_chunk(daemon: Daemon, crew: Mesh) -> None:
    job = create(daemon, crew, "bulk-once", group="once")
    body = {"action": "cancel", "filter": {"group": "once"}}
    first = bulk(daemon, body, Idempotency_Key="bulk-once-1")
    again = bulk(daemon, body, Idempotency_Key="bulk-once-1")
    assert first.body == again.body == {"changed": 1, "remaining": 0}, job


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"action": "explode", "filter": {}}, "/action"),
        ({"action": "cancel"}, "/filter"),
        ({"action": "reprioritise", "filter": {}}, "/priority"),
        ({"action": "cancel", "filter": {}, "priority": 1}, "/priority"),
        ({"action": "cancel", "filter": {"label": "x"}}, "/filter/label"),
        ({"action": "cancel", "filter": {"state": "LOST"}}, "/filter/state"),
        ({"action": "cancel", "filter": {"input": 1}}, "/filter/input"),
    ],
)
def test_a_bulk_change_that_does_not_fit_is_refused(
    daemon: Daemon, body: dict[str, Any], pointer: str
) -> None:
    answer = bulk(daemon, body)
    assert (answer.status, answer.body["code"]) == (422, "WORKLOAD_INVALID"), answer
    assert answer.body["errors"][0]["pointer"] == pointer


def test_dead_letters_are_grouped(daemon: Daemon, crew: Mesh) -> None:
    job = made(daemon, crew, "dead-1", timeouts={"total_ms": 1})
    assert waited(daemon, job)["state"] == "DEAD_LETTERED"
    found = daemon.get("/v1/dead-letters", key=daemon.key)
    kinds = {one["failure_kind"]: one for one in found["items"]}
    assert kinds["total_timeout"]["workloads"] >= 1
    assert kinds["total_timeout"]["newest_workload_id"] == job
    assert found["capped"] is False
    assert daemon.call("GET", "/v1/dead-letters?x=1", None, key=daemon.key).status == 422

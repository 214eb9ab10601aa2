"""Giving work, trying it out and looking back, over HTTP with real keys."""

from typing import Any

import pytest

from tests.api.claims.conftest import Crew, Waiting, eventually
from tests.daemon.running import Answer, Daemon


def key(daemon: Daemon, *scopes: str, tenants: tuple[str, ...] = ("t",)) -> str:
    body = {"name": "k", "scopes": list(scopes), "tenants": list(tenants)}
    return str(daemon.post("/v1/keys", body)["secret"])


def give(daemon: Daemon, job: str, bearer: str, **body: Any) -> Answer:
    return daemon.call("POST", f"/v1/workloads/{job}/claim", body, key=bearer)


def ids(claims: list[dict[str, Any]]) -> list[str]:
    return [claim["claim_id"] for claim in claims]


def test_an_operator_gives_work_and_the_worker_hears_of_it_and_does_it(
    daemon: Daemon, crew: Crew
) -> None:
    edge, job = crew.worker(), crew.work(input={"page": 1})
    operator = key(daemon, "workloads:operate", "workers:read")

    given = give(daemon, job, operator, worker_id=edge.id, lease_ms=60_000)
    assert given.status == 201
    assert give(daemon, job, operator, worker_id=edge.id).status == 200

    told = edge.beat().body["assigned_claims"]
    assert ids(told) == [given.body["claim_id"]]
    assert told[0]["input"] == {"page": 1}
    assert edge.beat(running_claims=ids(told)).body["assigned_claims"] == []
    assert edge.fenced("complete", told[0], start=True).status == 200
    assert crew.state(job) == "COMPLETED"

    page = daemon.get(f"/v1/placements?workload_id={job}", key=operator)
    (decision,) = page["items"]
    assert decision["claim_id"] == given.body["claim_id"]
    assert "inputs" not in decision
    whole = daemon.get(f"/v1/placements/{decision['decision_id']}", key=operator)
    assert whole["agrees"] is True
    assert whole["inputs"]["work"]["workload_id"] == job
    assert daemon.get(f"/v1/placements?worker_id={edge.id}", key=operator)["items"] == [decision]


def test_given_work_ends_the_wait_of_an_exchange_at_once(daemon: Daemon, crew: Crew) -> None:
    edge = crew.worker()
    blocked = {"workload_kinds": ["nothing-of-this-kind"]}
    before = crew.parked()
    claim = {"wait_ms": 25_000, **blocked}
    waiting = Waiting(lambda: edge.call("exchange", {"claim": claim}))
    eventually(lambda: crew.parked() > before)

    job = crew.work()
    given = give(daemon, job, daemon.key, worker_id=edge.id)

    answer = waiting.answer()
    assert answer.status == 200
    assert ids(answer.body["assigned_claims"]) == [given.body["claim_id"]]
    # One that begins while it is untold does not wait either.
    again = edge.call("exchange", {"claim": claim})
    assert ids(again.body["assigned_claims"]) == [given.body["claim_id"]]


def test_a_refused_gift_stays_decided_although_the_call_was_refused(
    daemon: Daemon, crew: Crew
) -> None:
    edge, other = crew.worker(capacity={"concurrency": 1}), crew.work()
    assert give(daemon, other, daemon.key, worker_id=edge.id).status == 201
    job = crew.work()

    refused = give(daemon, job, daemon.key, worker_id=edge.id)
    nobody = give(daemon, job, daemon.key)

    assert (refused.status, refused.body["code"]) == (409, "MESH_PLACEMENT_DENIED")
    assert (refused.body["next"], refused.body["rules"]) == ("pull", ["full"])
    assert (nobody.status, nobody.body["code"]) == (409, "MESH_NO_ELIGIBLE_WORKER")
    assert nobody.body["next"] == "ask_operator"
    assert nobody.body["reasons"][0]["worker_id"] == edge.id
    kept = daemon.get(f"/v1/placements/{refused.body['decision_id']}")
    assert kept["reason"] == "no worker satisfies placement policy"
    assert kept["refused"] == [{"worker_id": edge.id, "rule": "full", "rules": ["full"]}]
    # Both read the one worker of the application, so both are one decision.
    assert nobody.body["decision_id"] == refused.body["decision_id"]


def test_a_dry_run_needs_only_reading_and_gives_nothing(daemon: Daemon, crew: Crew) -> None:
    edge, job = crew.worker(labels={"zone": "a"}), crew.work()
    reader = key(daemon, "workloads:read")
    path = f"/v1/workloads/{job}/placement"

    found = daemon.call("POST", path, {}, key=reader)
    none = daemon.call("POST", path, {"required_labels": {"zone": "b"}}, key=reader)

    assert (found.status, found.body["selected_worker"]) == (200, edge.id)
    assert found.body["eligible_workers"] == [edge.id]
    assert found.body["reason"] == "deterministic capability and capacity match"
    assert "selected_worker" not in none.body
    assert none.body["refused"] == [
        {"worker_id": edge.id, "rule": "required_labels", "rules": ["required_labels"]}
    ]
    assert crew.state(job) == "READY"
    assert daemon.get(f"/v1/placements?workload_id={job}")["items"] == []
    assert daemon.call("POST", path, {"required_labels": 1}, key=reader).status == 422
    assert daemon.call("POST", path, {"nonsense": 1}, key=reader).status == 422


def test_who_may_not_give_is_told_so(daemon: Daemon, crew: Crew) -> None:
    edge, job = crew.worker(), crew.work()
    reader = key(daemon, "workloads:read", "workers:read")
    stranger = key(daemon, "workloads:operate", "workers:read", tenants=("u",))

    assert give(daemon, job, reader, worker_id=edge.id).status == 403
    foreign, made_up = give(daemon, job, stranger), give(daemon, "workload_none", stranger)
    assert (foreign.status, foreign.body["detail"]) == (404, made_up.body["detail"])
    narrowing = give(daemon, job, edge.key, placement={})
    assert (narrowing.status, narrowing.body["code"]) == (422, "WORKLOAD_INVALID")


def test_decisions_of_another_tenant_are_not_there(daemon: Daemon, crew: Crew) -> None:
    edge, job = crew.worker(), crew.work()
    assert give(daemon, job, daemon.key, worker_id=edge.id).status == 201
    stranger = key(daemon, "workers:read", tenants=("u",))
    kept = daemon.get(f"/v1/placements?workload_id={job}")["items"][0]["decision_id"]

    foreign = daemon.call("GET", f"/v1/placements/{kept}", key=stranger)
    made_up = daemon.call("GET", "/v1/placements/placement_999999", key=stranger)

    assert (foreign.status, foreign.body["code"]) == (404, "PLACEMENT_NOT_FOUND")
    assert foreign.body["detail"] == made_up.body["detail"]
    assert daemon.get("/v1/placements", key=stranger)["items"] == []


@pytest.mark.parametrize("limit", [1, 3])
def test_the_list_pages_without_gap_or_repeat(daemon: Daemon, crew: Crew, limit: int) -> None:
    edge = crew.worker(capacity={"concurrency": 9})
    for _ in range(4):
        assert give(daemon, crew.work(), daemon.key, worker_id=edge.id).status == 201
    seen: list[str] = []
    cursor = ""
    while True:
        path = f"/v1/placements?worker_id={edge.id}&limit={limit}{cursor}"
        page = daemon.get(path)
        seen += [one["decision_id"] for one in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    numbers = [int(one.removeprefix("placement_")) for one in seen]
    assert len(numbers) == 4
    assert numbers == sorted(set(numbers), reverse=True)

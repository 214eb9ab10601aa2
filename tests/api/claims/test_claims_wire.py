"""Claims as transcripts: every verb over HTTP with real keys."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.api.claims.conftest import Crew, Raw, Waiting, eventually
from tests.daemon.running import Daemon

VERBS: dict[str, dict[str, Any]] = {
    "start": {},
    "renew": {"lease_ms": 30_000},
    "checkpoint": {"data": {"page": 1}},
    "log": {"lines": ["x"]},
    "complete": {"output": {"by": "late"}},
    "fail": {"kind": "transient", "message": "m"},
    "release": {},
}


def test_a_late_worker_is_refused_on_every_verb_and_the_winner_is_answered_again(
    crew: Crew,
) -> None:
    """BC-002: A claims with a short lease, B claims the same work and completes it."""
    late, fast = crew.worker(), crew.worker()
    job = crew.work(retry_policy={"initial_backoff_ms": 0})
    (old,) = late.pull(lease_ms=1_000, start=True)
    assert old["workload_id"] == job
    eventually(lambda: crew.state(job) == "READY")
    (new,) = fast.pull(start=True)
    assert new["workload_id"] == job
    assert new["fencing_token"] > old["fencing_token"]
    done = fast.fenced("complete", new, output={"by": "fast"})
    assert done.status == 200, done
    before = crew.daemon.get(f"/v1/workloads/{job}")

    for verb, body in VERBS.items():
        answer = late.fenced(verb, old, **body)
        assert (answer.status, answer.body["code"]) == (409, "WORKLOAD_STALE_FENCE"), verb
        assert answer.body["next"] == "drop_claim"
    assert crew.daemon.get(f"/v1/workloads/{job}") == before
    assert fast.fenced("complete", new, output={"by": "fast"}).body == done.body
    other = fast.fenced("complete", new, output={"by": "else"})
    assert (other.status, other.body["recorded"]) == (409, True)
    told = late.beat(running_claims=[old["claim_id"]]).body
    assert told["fenced_claims"] == [old["claim_id"]]


def test_an_attempt_from_claim_to_result(crew: Crew) -> None:
    worker = crew.worker()
    job = crew.work(input={"pages": 2})

    claimed = crew.daemon.call("POST", f"/v1/workloads/{job}/claim", {}, key=worker.key)
    assert claimed.status == 201
    claim = claimed.body
    again = crew.daemon.call("POST", f"/v1/workloads/{job}/claim", {}, key=worker.key)
    assert (again.status, again.body["claim_id"]) == (200, claim["claim_id"])
    assert claim["input"] == {"pages": 2}

    assert worker.fenced("start", claim).body["state"] == "RUNNING"
    assert worker.fenced("log", claim, lines=["page 1", {"text": "page 2"}]).status == 200
    kept = worker.fenced("checkpoint", claim, data={"page": 1}, progress={"done": 1, "total": 2})
    assert kept.body["state"] == "CHECKPOINTED"
    renewed = worker.fenced("renew", claim, lease_ms=60_000).body
    assert renewed["expires_at_ms"] >= kept.body["expires_at_ms"]
    done = worker.fenced("complete", claim, output={"words": 7}, artifacts=["s3://x/1"]).body
    assert done == {
        "workload_id": job,
        "state": "COMPLETED",
        "claim_id": claim["claim_id"],
        "fencing_token": claim["fencing_token"],
        "result_id": f"result_{job}_{claim['fencing_token']}",
        "cancel_requested": False,
    }


@pytest.mark.parametrize(
    ("verb", "body", "pointer"),
    [
        ("start", {"fencing_token": "7"}, "/fencing_token"),
        ("start", {"extra": 1}, "/extra"),
        ("renew", {"lease_ms": 10}, "/lease_ms"),
        ("checkpoint", {"data": {"n": 2**60}}, "/data"),
        ("complete", {"output": 2**60}, "/output"),
        ("complete", {"artifacts": [1]}, "/artifacts/0"),
        ("fail", {"kind": "Upper", "message": "m"}, "/kind"),
        ("fail", {"kind": "lease_expired", "message": "m"}, "/kind"),
        ("log", {"lines": []}, "/lines"),
    ],
)
def test_what_does_not_fit_is_pointed_at(
    crew: Crew, verb: str, body: dict[str, Any], pointer: str
) -> None:
    worker = crew.worker()
    crew.work()
    (claim,) = worker.pull(start=verb != "start")

    answer = worker.fenced(verb, claim, **body)

    assert (answer.status, answer.body["code"]) == (422, "WORKLOAD_INVALID")
    assert answer.body["errors"][0]["pointer"].startswith(pointer)
    worker.fenced("release", claim)
    crew.daemon.post(f"/v1/workloads/{claim['workload_id']}/cancel")


def test_what_is_too_large_is_refused_and_the_claim_lives_on(crew: Crew) -> None:
    worker = crew.worker()
    crew.work()
    (claim,) = worker.pull(start=True)

    large = worker.fenced("complete", claim, output="x" * (768 * 1024))
    assert (large.status, large.body["errors"][0]["pointer"]) == (422, "/output")
    huge = worker.fenced("checkpoint", claim, data="x" * (2 * 1024 * 1024))
    assert (huge.status, huge.body["code"]) == (413, "REQUEST_TOO_LARGE")
    assert worker.fenced("complete", claim, output="x" * 1_000).status == 200


def test_only_a_worker_pulls_and_only_for_itself(crew: Crew) -> None:
    worker, other = crew.worker(), crew.worker()
    path = f"/v1/workers/{worker.id}/claims"

    assert crew.daemon.call("POST", path, {}, key=other.key).status == 403
    assert crew.daemon.call("POST", path, {}).status == 403
    assert crew.daemon.call("POST", path, {}, key=crew.submitter_key).status == 403


def test_the_same_pull_is_answered_with_its_own_claims(crew: Crew) -> None:
    worker = crew.worker()
    jobs = {crew.work(), crew.work()}

    (first,) = worker.pull(request_id="poll-1")
    (again,) = worker.pull(request_id="poll-1")
    (next_,) = worker.pull(request_id="poll-2")

    assert again["claim_id"] == first["claim_id"]
    assert {first["workload_id"], next_["workload_id"]} == jobs
    for claim in (first, next_):
        assert worker.fenced("complete", claim, start=True).status == 200


def test_an_operator_evicts_and_lists(crew: Crew) -> None:
    worker = crew.worker()
    crew.work()
    (claim,) = worker.pull()
    listed = crew.daemon.get(f"/v1/claims?worker_id={worker.id}&live=true")
    assert [one["claim_id"] for one in listed["items"]] == [claim["claim_id"]]

    path = f"/v1/claims/{claim['claim_id']}/evict"
    assert crew.daemon.call("POST", path, {}).status == 422
    evicted = crew.daemon.post(path, {"reason": "the host is replaced", "to": "DEAD_LETTERED"})

    assert evicted["state"] == "DEAD_LETTERED"
    assert crew.daemon.post(path, {"reason": "again"})["state"] == "DEAD_LETTERED"
    made_up = crew.daemon.call("POST", "/v1/claims/claim_1/evict", {"reason": "x"})
    assert (made_up.status, made_up.body["code"]) == (404, "CLAIM_NOT_FOUND")
    (gone,) = crew.daemon.get(f"/v1/claims?worker_id={worker.id}")["items"]
    assert (gone["live"], gone["end"]) == (False, "evicted")
    assert worker.fenced("renew", claim).body["code"] == "WORKLOAD_STALE_FENCE"


def test_lists_page_without_a_gap_and_refuse_foreign_cursors(crew: Crew) -> None:
    worker = crew.worker()
    for _ in range(5):
        crew.work()
    taken = {claim["claim_id"] for claim in worker.pull(max=5)}
    path = f"/v1/claims?worker_id={worker.id}&limit=2"

    seen: list[str] = []
    page = crew.daemon.get(path)
    cursor = page["next_cursor"]
    while True:
        seen += [one["claim_id"] for one in page["items"]]
        if page["next_cursor"] is None:
            break
        page = crew.daemon.get(f"{path}&cursor={page['next_cursor']}")

    assert (set(seen), len(seen)) == (taken, 5)
    assert crew.daemon.call("GET", f"/v1/claims?cursor={cursor}").status == 400
    assert crew.daemon.call("GET", "/v1/claims?cursor=nonsense").status == 400
    assert crew.daemon.call("GET", "/v1/claims?limit=0").status == 422


def test_an_exchange_over_the_wire(crew: Crew) -> None:
    worker = crew.worker()
    crew.work()
    (claim,) = worker.pull(start=True)
    next_ = crew.work()
    fence = {name: claim[name] for name in ("claim_id", "worker_id", "fencing_token")}
    item = {**fence, "workload_id": claim["workload_id"]}

    answer = worker.call(
        "exchange",
        {
            "renew": [item],
            "complete": [{**item, "output": 2**60}, {**item, "output": {"n": 1}}],
            "claim": {"max": 1, "lease_ms": 30_000, "wait_ms": 0, "request_id": "x-1"},
        },
    )

    assert answer.status == 200, answer
    assert [(one["op"], one["ok"], one.get("code")) for one in answer.body["outcomes"]] == [
        ("renew", True, None),
        ("complete", False, "WORKLOAD_INVALID"),
        ("complete", True, None),
    ]
    assert [one["workload_id"] for one in answer.body["claims"]] == [next_]
    assert set(answer.body) >= {
        "outcomes",
        "claims",
        "assigned_claims",
        "fenced_claims",
        "unknown_claims",
        "cancel_claims",
        "lifecycle",
        "reasons",
        "server_time_ms",
    }
    worker.fenced("complete", answer.body["claims"][0], start=True)


def test_an_exchange_carries_at_most_256_items(crew: Crew) -> None:
    worker = crew.worker()
    item = {
        "claim_id": "claim_1",
        "worker_id": worker.id,
        "fencing_token": 1,
        "workload_id": "workload_1",
    }

    many = worker.call("exchange", {"start": [item] * 128, "renew": [item] * 129})
    enough = worker.call("exchange", {"start": [item] * 128, "renew": [item] * 128})

    assert (many.status, many.body["code"]) == (422, "WORKLOAD_INVALID")
    assert enough.status == 200
    assert {one["code"] for one in enough.body["outcomes"]} == {"WORKLOAD_NOT_FOUND"}


def test_a_complete_whose_answer_was_lost_is_answered_when_repeated(crew: Crew) -> None:
    """BC-036."""
    worker = crew.worker()
    job = crew.work()
    (claim,) = worker.pull(start=True)
    fence = {name: claim[name] for name in ("claim_id", "worker_id", "fencing_token")}
    body = {**fence, "output": {"n": 1}}
    lost = Raw(crew.daemon, f"/v1/workloads/{job}/complete", body, worker.key)
    eventually(lambda: crew.state(job) == "COMPLETED")
    lost.reset()

    again = worker.fenced("complete", claim, output={"n": 1})

    assert (again.status, again.body["state"]) == (200, "COMPLETED")
    assert again.body["result_id"] == f"result_{job}_{claim['fencing_token']}"


def test_a_full_daemon_sheds_the_claim_part_alone(tmp_path: Path) -> None:
    """What keeps leases alive is taken in while ordinary calls hold all of their share."""
    daemon = Daemon(tmp_path / "feltd.db", "--max-in-flight", "2").init()
    daemon.start()
    crew = Crew(daemon)
    worker = crew.worker()
    daemon.stop()
    daemon.start(env={"FELTD_TEST_SLOW_COMMIT_MS": "200"})
    try:
        reasons: set[str] = set()

        def crowded() -> bool:
            busy = Waiting(lambda: worker.call("claims", {"request_id": "x"}))
            time.sleep(0.05)  # it is at work for 200 ms
            answer = worker.call(
                "exchange",
                {
                    "heartbeat": {
                        "worker_id": worker.id,
                        "version": "1",
                        "capability_version": worker.capability_version,
                        "capacity": {"concurrency": 8},
                        "health": "HEALTHY",
                    },
                    "claim": {"wait_ms": 50},
                },
            )
            busy.answer()
            assert answer.status == 200, answer
            assert answer.body["outcomes"][0]["ok"]
            reasons.update(one["code"] for one in answer.body["reasons"])
            return "SERVICE_OVERLOADED" in reasons

        crew.work()
        eventually(crowded)
    finally:
        daemon.close()

"""Polls that wait behind a gate: woken when a key, a rate or a pool has room, or a wait is over."""

import time

from tests.api.claims.conftest import Crew


def jobs(answer: dict[str, list[dict[str, str]]]) -> list[str]:
    return [one["workload_id"] for one in answer["claims"]]


def test_the_end_of_a_claim_wakes_who_waits_for_its_key(crew: Crew) -> None:
    worker, other = crew.worker(), crew.worker()
    first, second = (crew.work(concurrency={"key": "disk", "limit": 1}) for _ in range(2))
    (held,) = worker.pull(start=True)
    waiting = crew.poll(other)
    assert not waiting.over

    worker.fenced("complete", held)

    assert held["workload_id"] == first
    assert jobs(waiting.answer().body) == [second]


def test_a_rate_wakes_who_waits_at_its_instant(crew: Crew) -> None:
    worker = crew.worker()
    rate = {"key": "api", "limit": 1, "period_ms": 700}
    first, second = crew.work(rate=rate), crew.work(rate=rate)
    assert [claim["workload_id"] for claim in worker.pull()] == [first]

    (claim,) = crew.poll(worker).answer().body["claims"]

    assert claim["workload_id"] == second
    issued = [crew.daemon.get(f"/v1/workloads/{job}")["attempts"][0] for job in (first, second)]
    assert issued[1]["issued_at_ms"] - issued[0]["issued_at_ms"] >= 700


def test_a_raised_limit_wakes_who_waits(crew: Crew) -> None:
    worker = crew.worker()
    crew.work(concurrency={"key": "disk", "limit": 1})
    second = crew.work(concurrency={"key": "disk", "limit": 1})
    worker.pull()
    waiting = crew.poll(worker)

    crew.work(concurrency={"key": "disk", "limit": 2})

    assert jobs(waiting.answer().body) == [second]


def test_a_raised_ceiling_wakes_who_waits(crew: Crew) -> None:
    worker = crew.worker()
    pool = {
        "pool_id": f"gpu-{crew.application_id}",
        "name": "gpu",
        "tenant_id": "t",
        "application_id": crew.application_id,
        "max_concurrency": 1,
    }
    crew.daemon.post("/v1/pools", pool)
    placement = {"pool_id": pool["pool_id"]}
    _, second = crew.work(placement=placement), crew.work(placement=placement)
    worker.pull()
    waiting = crew.poll(worker)

    answer = crew.daemon.call("PUT", f"/v1/pools/{pool['pool_id']}", pool | {"max_concurrency": 2})

    assert answer.status == 200
    assert jobs(waiting.answer().body) == [second]


def test_a_pool_that_lists_its_members_reaches_them_past_others_of_the_same_offer(
    crew: Crew,
) -> None:
    stranger, member = crew.worker(), crew.worker()
    pool = {
        "pool_id": f"own-{crew.application_id}",
        "name": "own",
        "tenant_id": "t",
        "application_id": crew.application_id,
        "worker_ids": [member.id],
    }
    crew.daemon.post("/v1/pools", pool)
    ahead, waiting = crew.poll(stranger), crew.poll(member)

    job = crew.work(placement={"pool_id": pool["pool_id"]})

    assert jobs(waiting.answer().body) == [job]
    assert not ahead.over


def test_a_poll_takes_what_was_left_for_a_better_match_when_the_wait_is_over(crew: Crew) -> None:
    plain = crew.worker()
    crew.worker(labels={"disk": "ssd"})
    began = time.monotonic()
    job = crew.work(placement={"affinity": {"disk": "ssd"}, "affinity_wait_ms": 600})
    waiting = crew.poll(plain)

    assert jobs(waiting.answer().body) == [job]
    assert time.monotonic() - began >= 0.6


def test_a_poll_that_waits_for_a_better_match_ends_when_it_is_over(crew: Crew) -> None:
    plain = crew.worker()
    crew.worker(labels={"disk": "ssd"})
    crew.work(placement={"affinity": {"disk": "ssd"}, "affinity_wait_ms": 3_600_000})

    answer = crew.poll(plain, wait_ms=1_300).answer()

    assert answer.body["claims"] == []
    assert [one["code"] for one in answer.body["reasons"]] == ["NO_MATCH"]


def test_an_exchange_waits_for_it_as_well(crew: Crew) -> None:
    plain = crew.worker()
    crew.worker(labels={"disk": "ssd"})
    job = crew.work(placement={"affinity": {"disk": "ssd"}, "affinity_wait_ms": 400})

    answer = plain.call("exchange", {"claim": {"wait_ms": 20_000}})

    assert answer.status == 200
    assert jobs(answer.body) == [job]

"""Stories of work that leans towards some workers: left for a better match, but not for long."""

from typing import Any

import pytest

from feltd.mesh import affinity, claims
from feltd.model.base import Ask
from feltd.model.claim import Pull
from tests.mesh.pools import stories
from tests.mesh.world import Mesh

WAIT_MS = 2_000
LEANS = {"affinity": {"disk": "ssd", "zone": "z1"}}


def worker(mesh: Mesh, name: str, **members: Any) -> str:
    return mesh.worker(name, **{"capacity": {"concurrency": 2}, **members})


def plain(mesh: Mesh, name: str = "plain") -> str:
    return worker(mesh, name)


def better(mesh: Mesh, name: str = "better", **members: Any) -> str:
    return worker(mesh, name, **{"labels": {"disk": "ssd"}, **members})


def taken(mesh: Mesh, by: str, **members: Any) -> list[str]:
    return [claim.workload_id for claim in mesh.pull(by, **members).claims]


def wait(mesh: Mesh, ms: int) -> None:
    mesh.later(ms)
    mesh.conn.execute("UPDATE workers SET last_seen_at_ms = ?", [mesh.now.lease_ms])


def again_ms(mesh: Mesh, by: str) -> int | None:
    ask = Ask(caller=mesh.open, body=Pull(), id=by)
    post, pulled = mesh.run(claims.pull_for, ask)
    assert not pulled.claims
    return post.again_ms


def met(mesh: Mesh, job: str) -> tuple[int, str, int]:
    row = mesh.row("SELECT affinity, how, rank FROM claims WHERE workload_id = :id", id=job)
    return row["affinity"], row["how"], row["rank"]


def test_work_is_left_for_the_better_match_while_it_is_young(mesh: Mesh) -> None:
    one, other = plain(mesh), better(mesh)
    job = mesh.workload(placement=LEANS)
    told = mesh.pull(one)
    assert [reason.code for reason in told.reasons] == ["NO_MATCH"]
    assert "affinity" in told.reasons[0].detail
    assert taken(mesh, other) == [job]
    assert met(mesh, job) == (1, "pull", mesh.now.lease_ms)


def test_after_the_wait_anybody_may_take_it(mesh: Mesh) -> None:
    one, _ = plain(mesh), better(mesh)
    job = mesh.workload(placement=LEANS)
    wait(mesh, WAIT_MS - 1)
    assert taken(mesh, one) == []
    wait(mesh, 1)
    assert taken(mesh, one) == [job]
    assert met(mesh, job)[0] == 0


def test_the_wait_is_the_works_own(mesh: Mesh) -> None:
    one, _ = plain(mesh), better(mesh)
    mesh.workload(placement={**LEANS, "affinity_wait_ms": 60_000})
    at_once = mesh.workload(placement={**LEANS, "affinity_wait_ms": 0})
    assert taken(mesh, one, max=2) == [at_once]
    wait(mesh, 59_999)
    assert taken(mesh, one) == []


def test_what_waited_for_its_backoff_is_young_again(mesh: Mesh) -> None:
    one, other = plain(mesh), better(mesh)
    job = mesh.workload(placement=LEANS, retry_policy={"initial_backoff_ms": 5_000, "jitter": 0})
    mesh.say("fail", mesh.claims(job, by=other))
    wait(mesh, 5_000)
    mesh.promote()
    assert taken(mesh, one) == []
    assert taken(mesh, other) == [job]


def test_who_has_every_label_takes_it_and_who_has_most_leaves_it_to_nobody_equal(
    mesh: Mesh,
) -> None:
    best = worker(mesh, "best", labels={"disk": "ssd", "zone": "z1"})
    one, other = better(mesh, "one"), better(mesh, "other")
    job = mesh.workload(placement=LEANS)
    assert taken(mesh, one) == taken(mesh, other) == []
    assert taken(mesh, best) == [job]
    second = mesh.workload(placement={"affinity": {"disk": "ssd"}})
    assert taken(mesh, other) == [second]


def full(mesh: Mesh, other: str) -> None:
    for _ in range(2):
        mesh.claims(mesh.workload(priority=-9), by=other)


def silent(mesh: Mesh, other: str) -> None:
    mesh.conn.execute("UPDATE workers SET last_seen_at_ms = 0 WHERE worker_id = ?", [other])


def unhealthy(mesh: Mesh, other: str) -> None:
    mesh.conn.execute("UPDATE workers SET health = 'DEGRADED' WHERE worker_id = ?", [other])


def quarantined(mesh: Mesh, other: str) -> None:
    stories.confine(mesh, other)


def unable(mesh: Mesh, other: str) -> None:
    better(mesh, capabilities=["mail.send"])


def picky(mesh: Mesh, other: str) -> None:
    better(mesh, workload_kinds=["resize"])


def draining(mesh: Mesh, other: str) -> None:
    mesh.conn.execute(
        "UPDATE workers SET drain_by = 'x:y', drain_at_ms = 1, drain_until = 'resumed'"
        " WHERE worker_id = ?",
        [other],
    )


@pytest.mark.parametrize("state", [full, silent, unhealthy, quarantined, draining, unable, picky])
def test_nothing_is_left_for_who_could_not_take_it(mesh: Mesh, state: Any) -> None:
    one, other = plain(mesh), better(mesh)
    state(mesh, other)
    job = mesh.workload(placement=LEANS, capability_snapshot=["docs.extract"])
    assert taken(mesh, one) == [job]


def test_nothing_is_left_for_a_worker_of_another_application(mesh: Mesh) -> None:
    one = plain(mesh)
    better(mesh, application_id="mail")
    job = mesh.workload(placement=LEANS)
    assert taken(mesh, one) == [job]


def test_nothing_is_left_for_who_is_no_member_of_the_pool(mesh: Mesh) -> None:
    one, _ = plain(mesh), better(mesh)
    stories.make(mesh, worker_ids=[one])
    job = mesh.workload(placement={**LEANS, "pool_id": "gpu"})
    assert taken(mesh, one) == [job]


def test_work_behind_it_comes_meanwhile(mesh: Mesh) -> None:
    one, _ = plain(mesh), better(mesh)
    left = [mesh.workload(definition_id=f"kind{n}", placement=LEANS, priority=5) for n in range(12)]
    others = [mesh.workload(definition_id=f"other{n}") for n in range(12)]
    assert taken(mesh, one, max=9) == others[:2]
    assert not set(left) & set(others)


def test_a_poll_looks_again_when_the_wait_is_over(mesh: Mesh) -> None:
    one, _ = plain(mesh), better(mesh)
    assert again_ms(mesh, one) is None
    mesh.workload(placement={**LEANS, "affinity_wait_ms": 700})
    assert again_ms(mesh, one) == 700
    wait(mesh, 400)
    assert again_ms(mesh, one) == 300


def test_a_poll_looks_now_and_then_whether_the_better_match_is_still_there(mesh: Mesh) -> None:
    one, other = plain(mesh), better(mesh)
    job = mesh.workload(placement={**LEANS, "affinity_wait_ms": 3_600_000})
    assert again_ms(mesh, one) == 1_000
    wait(mesh, 1_000)
    silent(mesh, other)
    assert taken(mesh, one) == [job]


def test_a_pull_compares_within_bounds_and_leaves_nothing_beyond(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(affinity, "COMPARED_MAX", 0)
    one, _ = plain(mesh), better(mesh)
    jobs = [mesh.workload(definition_id=f"kind{n}", placement=LEANS) for n in range(3)]
    assert taken(mesh, one) == jobs[1:2]


def test_a_claim_by_id_takes_it_and_remembers_what_it_met(mesh: Mesh) -> None:
    one, other = plain(mesh), better(mesh)
    jobs = [mesh.workload(placement=LEANS) for _ in range(2)]
    mesh.claims(jobs[0], by=one)
    mesh.claims(jobs[1], by=other)
    assert met(mesh, jobs[0])[:2] == (0, "id")
    assert met(mesh, jobs[1])[:2] == (1, "id")


def test_work_without_affinity_looks_at_no_other_worker(mesh: Mesh) -> None:
    one, _ = plain(mesh), better(mesh)
    mesh.workload()
    mesh.workload()
    taken(mesh, one)
    taken(mesh, one)
    before = mesh.statements
    mesh.workload(placement=LEANS, priority=-99)
    mesh.workload()
    mesh.pull(one)
    assert mesh.statements <= before + 3  # the new kind is compared once

"""Why, told of each state: what keeps a workload as it is, in its order, with what helps."""

from typing import Any

import pytest
from msgspec import convert

from feltd.mesh import cancel, directed, drain, misfits, unfinished
from feltd.model.base import Caller, Subject
from feltd.model.claim import ClaimById
from feltd.model.worker import DrainRequest
from feltd.model.workload import Cancel
from tests.mesh.dependencies import stories as others
from tests.mesh.pools import stories as pools
from tests.mesh.why import stories
from tests.mesh.world import Mesh


def first(mesh: Mesh, job: str) -> Any:
    return stories.of(mesh, job).reasons[0]


def told(mesh: Mesh, job: str) -> list[str]:
    return stories.codes(stories.of(mesh, job))


# -- PENDING ---------------------------------------------------------------------------------


def test_each_unfinished_dependency_is_named_with_its_state(mesh: Mesh) -> None:
    parents = [mesh.workload(definition_id=f"part{n}") for n in range(2)]
    child = others.after(mesh, *parents)
    found = stories.of(mesh, child).reasons
    assert [one.code for one in found[:2]] == ["DEPENDENCY_UNFINISHED"] * 2
    for parent, one in zip(sorted(parents), found[:2], strict=True):
        assert parent in one.detail
        assert "READY" in one.detail
        assert one.remedy.endswith(f"feltd why {parent}")
    assert found[2].code == "NO_WORKER"
    assert found[2].detail.startswith("then: ")


def test_many_dependencies_are_told_up_to_a_bound(mesh: Mesh) -> None:
    child = others.after(mesh, *(mesh.workload() for _ in range(unfinished.TOLD_MAX + 3)))
    codes = told(mesh, child)
    assert codes.count("DEPENDENCY_UNFINISHED") == unfinished.TOLD_MAX
    (more,) = [one for one in stories.of(mesh, child).reasons if one.code == "DEPENDENCIES_MORE"]
    assert "3" in more.detail


def test_a_group_that_is_waited_for_is_counted(mesh: Mesh) -> None:
    for _ in range(2):
        mesh.workload(group="night")
    others.seal(mesh)
    child = others.after(mesh, "group:night")
    one = first(mesh, child)
    assert one.code == "DEPENDENCY_UNFINISHED"
    assert "2 workloads unfinished" in one.detail
    assert "feltd group show night --tenant acme" in one.remedy


def test_a_child_whose_parents_are_gone_but_for_the_keeper_is_about_to_be_told(mesh: Mesh) -> None:
    parent, worker = mesh.workload(), mesh.worker()
    child = others.after(mesh, parent)
    mesh.hand("UPDATE workloads SET awaited = 0 WHERE workload_id = :id", id=parent)
    others.done(mesh, parent, worker)
    assert told(mesh, child)[0] == "SETTLING"


# -- READY, not due --------------------------------------------------------------------------


def test_an_instant_and_a_backoff_are_told_with_the_way_round_them(mesh: Mesh) -> None:
    worker = mesh.worker()
    later = mesh.workload(not_before_at_ms=mesh.now.wall_ms + 90_000)
    one = first(mesh, later)
    assert (one.code, one.remedy) == ("NOT_BEFORE", f"feltd workload run-now {later}")
    assert "in 90s" in one.detail

    flaky = mesh.workload(retry_policy={"initial_backoff_ms": 60_000, "jitter": 0})
    mesh.say("fail", mesh.claims(flaky, worker, start=True))
    one = first(mesh, flaky)
    assert (one.code, one.remedy) == ("BACKOFF", f"feltd workload run-now {flaky}")
    mesh.later(61_000)
    assert told(mesh, flaky)[0] == "DUE"


def test_a_timeout_is_told_before_it_ends_the_work_and_after(mesh: Mesh) -> None:
    job = mesh.workload(timeouts={"queue_ms": 5_000})
    ahead = stories.of(mesh, job).reasons[-1]
    assert ahead.code == "TIMEOUT_AHEAD"
    assert "queue_ms of 5s" in ahead.detail
    assert "--set timeouts.queue_ms=null" in ahead.remedy
    behind = mesh.workload()
    mesh.worker()
    mesh.later(6_000)
    assert told(mesh, job)[0] == "TIMEOUT_PASSED"
    assert told(mesh, behind) == ["TIMEOUT_PASSED"]
    assert job in first(mesh, behind).detail


# -- READY, kept from everybody --------------------------------------------------------------


def test_a_hold_is_told_with_who_holds_why_and_until_when(mesh: Mesh) -> None:
    mesh.worker()
    job = mesh.workload()
    until_at_ms = mesh.now.wall_ms + 7_200_000
    hold = pools.hold(mesh, "application", "docs", until_at_ms=until_at_ms)
    one = first(mesh, job)
    assert (one.code, one.remedy) == ("HELD", f"feltd hold delete {hold.hold_id}")
    for part in (hold.hold_id, "application docs", hold.held_by, hold.reason, "in 2h"):
        assert part in one.detail
    assert [(b.code, b.workloads) for b in stories.waiting(mesh).items[0].blocked] == [("HELD", 1)]


def test_everybodys_hold_is_told_in_full_to_who_may_see_it_alone(mesh: Mesh) -> None:
    mesh.worker()
    job = mesh.workload()
    hold = pools.hold(mesh, "all", reason="the disk is moved")
    assert "the disk is moved" in first(mesh, job).detail
    (one,) = stories.of(mesh, job, pools.person("acme")).reasons
    assert one.code == "HELD"
    for hidden in (hold.hold_id, "the disk is moved"):
        assert hidden not in one.detail + one.remedy


def test_a_pool_that_is_gone_is_told_once_and_not_of_each_worker(mesh: Mesh) -> None:
    mesh.worker()
    pools.make(mesh)
    job = mesh.workload(placement={"pool_id": "gpu"})
    pools.drop(mesh)
    assert told(mesh, job) == ["WORKER_POOL_NOT_FOUND"]
    assert first(mesh, job).remedy == "feltd pool create gpu --tenant acme"
    (item,) = stories.waiting(mesh).items
    assert (item.eligible_workers, item.free_slots) == (0, 0)


def test_a_full_key_and_a_full_pool_name_who_fills_them(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 4})
    pools.make(mesh, max_concurrency=1)
    both = {
        "concurrency": {"key": "printer", "limit": 1},
        "placement": {"pool_id": "gpu"},
    }
    holder, job = mesh.workload(**both), mesh.workload(**both)
    mesh.claims(holder, worker)
    pool, key = stories.of(mesh, job).reasons
    assert (pool.code, key.code) == ("POOL_FULL", "KEY_FULL")
    assert holder in pool.detail
    assert holder in key.detail
    assert "--max-concurrency 2" in pool.remedy
    assert "--set concurrency.limit=2" in key.remedy


def test_a_full_rate_says_when_it_opens(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 4})
    rate = {"rate": {"key": "mail", "limit": 1, "period_ms": 600_000}}
    once, job = mesh.workload(**rate), mesh.workload(**rate)
    mesh.claims(once, worker)
    one = first(mesh, job)
    assert one.code == "RATE_FULL"
    assert "one claim in 10m" in one.detail
    assert "in 10m" in one.detail
    mesh.later(600_000)
    mesh.run(lambda tx, _, now: tx.change("UPDATE workers SET last_seen_at_ms = 2000000000000"))
    assert told(mesh, job)[0] == "OPENING"


# -- READY, and the workers ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "code", "part"),
    [
        ({"capability_snapshot": ["sign"]}, "NO_CAPABILITY", "sign"),
        ({"placement": {"required_labels": {"zone": "b"}}}, "LABEL_DIFFERS", "zone=b"),
        ({"placement": {"anti_affinity": {"zone": "a"}}}, "LABEL_AVOIDED", "zone=a"),
        ({"resources": {"memory_bytes": 4_096}}, "RESOURCES_SHORT", "4,096 of 1,024"),
        ({"definition_id": "other"}, "DEFINITION_NOT_TAKEN", "extract"),
    ],
)
def test_a_worker_that_does_not_fit_says_what_it_lacks(
    mesh: Mesh, asked: dict[str, Any], code: str, part: str
) -> None:
    worker = mesh.worker(
        labels={"zone": "a"},
        resource_profile={"memory_bytes": 1_024},
        workload_kinds=["extract"],
    )
    found = stories.of(mesh, mesh.workload(**asked)).reasons
    assert found[0].code in ("NO_MATCH", "NO_CAPABILITY")
    (one,) = [one for one in found if one.code == code]
    assert part in one.detail
    assert one.worker_id in (None, worker)


def test_the_first_failing_rule_of_a_worker_is_told_and_the_others_by_name(mesh: Mesh) -> None:
    worker = mesh.worker(labels={"zone": "a"})
    pools.confine(mesh, worker)
    job = mesh.workload(placement={"required_labels": {"zone": "b"}})
    one = stories.of(mesh, job).reasons[-1]
    assert (one.code, one.worker_id) == ("WORKER_QUARANTINED", worker)
    assert one.detail.endswith("also required_labels")
    assert one.remedy == f"feltd worker unquarantine {worker}"


def test_workers_that_would_fit_come_before_those_that_do_not(mesh: Mesh) -> None:
    mesh.worker("a-misfit", workload_kinds=["other"])
    fits = mesh.worker("z-drained")
    mesh.ask(drain.drain, convert({"reason": "new kernel"}, DrainRequest), fits)
    codes = told(mesh, mesh.workload())
    assert codes == ["WORKER_DRAINING", "DEFINITION_NOT_TAKEN"]


def test_many_workers_are_told_by_rule(mesh: Mesh) -> None:
    for number in range(misfits.ONE_BY_ONE_MAX + 2):
        mesh.worker(f"w{number}", workload_kinds=["other"])
    mesh.worker("odd", labels={"zone": "a"}, workload_kinds=["extract"])
    job = mesh.workload(placement={"required_labels": {"zone": "b"}})
    found = stories.of(mesh, job).reasons
    assert [one.code for one in found[1:]] == ["DEFINITION_NOT_TAKEN", "LABEL_DIFFERS"]
    assert f"{misfits.ONE_BY_ONE_MAX + 2} workers" in found[1].detail


def test_workers_nobody_hears_are_told_together_with_the_last_word(mesh: Mesh) -> None:
    mesh.worker("one")
    mesh.later(1_000)
    mesh.worker("two")
    mesh.later(3_600_000)
    one = first(mesh, mesh.workload())
    assert one.code == "NO_FRESH_WORKER"
    assert "the last was two" in one.detail


def test_better_ranked_work_is_counted_and_the_worker_that_could_take_it_named(mesh: Mesh) -> None:
    worker = mesh.worker()
    for _ in range(3):
        mesh.workload(priority=5)
    mesh.workload(priority=9, definition_id="other", capability_snapshot=["sign"])
    job = mesh.workload()
    behind, could = stories.of(mesh, job).reasons
    assert (behind.code, could.code, could.worker_id) == ("BEHIND", "CLAIMABLE", worker)
    assert "3 better ranked workloads" in behind.detail
    assert f"feltd workload edit {job} --priority 10" in behind.remedy


def test_work_with_affinity_is_left_for_the_better_worker_for_a_while(mesh: Mesh) -> None:
    plain, near = mesh.worker("plain"), mesh.worker("near", labels={"disk": "ssd"})
    job = mesh.workload(placement={"affinity": {"disk": "ssd"}})
    could, left = stories.of(mesh, job).reasons
    assert (could.code, could.worker_id) == ("CLAIMABLE", near)
    assert left.code == "LEFT_FOR_BETTER"
    assert "LEFT_FOR_BETTER" in stories.codes(stories.of_worker(mesh, plain))
    mesh.later(2_000)
    assert {one.worker_id for one in stories.of(mesh, job).reasons} == {plain, near}


# -- held, and ended -------------------------------------------------------------------------


def test_held_work_says_who_holds_it_since_when_and_until_when(mesh: Mesh) -> None:
    worker, job = mesh.worker(), mesh.workload()
    claim = mesh.claims(job, worker)
    one = first(mesh, job)
    assert (one.code, one.worker_id) == ("CLAIMED", worker)
    assert claim.claim_id in one.detail
    assert f"feltd claim evict {claim.claim_id}" in one.remedy
    mesh.say("start", claim)
    assert told(mesh, job) == ["RUNNING"]
    mesh.say("checkpoint", claim)
    assert told(mesh, job) == ["CHECKPOINTED"]

    mesh.ask(cancel.cancel, Cancel(), job)
    assert told(mesh, job) == ["CANCEL_REQUESTED", "CHECKPOINTED"]
    assert "--force" in first(mesh, job).remedy
    mesh.later(31_000)
    assert told(mesh, job)[:3] == ["CANCEL_REQUESTED", "LEASE_OVER", "HOLDER_SILENT"]


def test_work_given_by_hand_is_assigned_until_its_worker_names_it(mesh: Mesh) -> None:
    worker, job = mesh.worker(), mesh.workload()
    mesh.ask(directed.claim, convert({"worker_id": worker}, ClaimById), job)
    assert told(mesh, job) == ["ASSIGNED", "CLAIMED"]


def test_a_dead_letter_says_of_what_and_the_way_back(mesh: Mesh) -> None:
    worker, job = mesh.worker(), mesh.workload()
    mesh.say("fail", mesh.claims(job, worker, start=True), kind="execution_error", message="page 7")
    one = first(mesh, job)
    assert one.code == "DEAD_LETTER"
    assert "execution_error, “page 7”" in one.detail
    assert f"feltd workload requeue {job}" in one.remedy
    done, off = mesh.workload(), mesh.workload()
    mesh.say("complete", mesh.claims(done, worker, start=True), output={})
    others.called_off(mesh, off)
    assert (told(mesh, done), told(mesh, off)) == (["COMPLETED"], ["CANCELLED"])


# -- who may look ----------------------------------------------------------------------------


def test_a_workers_key_sees_what_its_worker_holds_and_itself(mesh: Mesh) -> None:
    worker, other = mesh.worker("edge"), mesh.worker("other")
    held, waits = mesh.workload(), mesh.workload()
    mesh.claims(held, worker)
    key = mesh.key(worker)
    assert stories.of(mesh, held, key).state == "CLAIMED"
    assert stories.of_worker(mesh, worker, key).claims == 1
    looks = (
        (lambda: stories.of(mesh, waits, key), "WORKLOAD_NOT_FOUND"),
        (lambda: stories.of_worker(mesh, other, key), "FORBIDDEN"),
        (lambda: stories.of_worker(mesh, "worker_none"), "WORKER_NOT_FOUND"),
        (lambda: stories.of(mesh, held, pools.person("umbrella")), "WORKLOAD_NOT_FOUND"),
        (lambda: stories.of_worker(mesh, worker, pools.person("umbrella")), "WORKER_NOT_FOUND"),
    )
    assert [mesh.refused(look) for look, _ in looks] == [code for _, code in looks]


def test_the_backlog_shows_the_callers_tenants_alone(mesh: Mesh) -> None:
    mesh.workload()
    mesh.workload(tenant_id="umbrella")
    several = Caller(
        subject=Subject(kind="human", id="ann"), scopes=frozenset("*"), tenants=("acme", "umbrella")
    )
    shown = {
        caller.tenants: [one.tenant_id for one in stories.waiting(mesh, caller).items]
        for caller in (pools.person("acme"), pools.person("*"), pools.person("none"), several)
    }
    assert shown == {
        ("acme",): ["acme"],
        ("*",): ["acme", "umbrella"],
        ("none",): [],
        ("acme", "umbrella"): ["acme", "umbrella"],
    }
    assert stories.waiting(mesh, application_id="none").items == []
    assert stories.waiting(mesh, pool_id="gpu").items == []


# -- workers ---------------------------------------------------------------------------------


def test_a_worker_says_which_rule_the_nearest_work_fails(mesh: Mesh) -> None:
    worker = mesh.worker(labels={"zone": "a"})
    assert stories.codes(stories.of_worker(mesh, worker)) == ["NO_WORK"]
    zone_c = {"required_labels": {"zone": "c"}}
    mesh.workload(definition_id="far", capability_snapshot=["sign"], placement=zone_c)
    mesh.workload(definition_id="near", placement={"required_labels": {"zone": "b"}})
    found = stories.of_worker(mesh, worker).reasons
    assert [one.code for one in found] == ["NO_MATCH", "LABEL_DIFFERS"]
    assert "near" in found[1].detail


def test_a_machine_may_be_stopped_once_nothing_is_in_its_workers_hands(mesh: Mesh) -> None:
    worker, job = mesh.worker(), mesh.workload()
    assert stories.of_worker(mesh, worker).safe_to_stop
    claim = mesh.claims(job, worker)
    holds_it = stories.of_worker(mesh, worker)
    assert (holds_it.safe_to_stop, holds_it.safe_at_ms, holds_it.claims) == (False, None, 1)
    body = convert({"reason": "new disk", "no_renew_after_ms": 0}, DrainRequest)
    mesh.ask(drain.drain, body, worker)
    draining = stories.of_worker(mesh, worker)
    assert draining.safe_at_ms == claim.expires_at_ms
    assert draining.reasons[0].code == "WORKER_DRAINING"
    assert "new disk" in draining.reasons[0].detail


# -- the same with sqlite3 -------------------------------------------------------------------


def test_the_view_names_the_plain_causes(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 8})
    pools.make(mesh, max_concurrency=1)
    jobs = {
        "held": mesh.workload(definition_id="held"),
        "not before": mesh.workload(not_before_at_ms=mesh.now.wall_ms + 5_000),
        "waits its turn": mesh.workload(),
    }
    jobs["waits for"] = others.after(mesh, jobs["held"], jobs["not before"])
    pools.hold(mesh, "definition", "held")
    for cause, asked in {
        "pool full: gpu": {"placement": {"pool_id": "gpu"}},
        "key full: printer": {"concurrency": {"key": "printer", "limit": 1}},
        "rate full: mail": {"rate": {"key": "mail", "limit": 1, "period_ms": 60_000}},
    }.items():
        mesh.claims(mesh.workload(**asked), worker)
        jobs[cause] = mesh.workload(**asked)
    flaky = mesh.workload(retry_policy={"initial_backoff_ms": 60_000})
    mesh.say("fail", mesh.claims(flaky, worker, start=True))
    jobs["backoff until"] = flaky
    shown = {
        row["workload_id"]: row["why"]
        for row in mesh.conn.execute("SELECT workload_id, why FROM v_why").fetchall()
    }
    for cause, job in jobs.items():
        assert shown[job].startswith(cause), (cause, shown[job])
    assert shown[jobs["waits for"]].endswith(" and 1 more")
    pools.drop(mesh)
    mesh.hand("UPDATE workers SET lifecycle = 'OFFLINE'")
    (row,) = mesh.conn.execute(
        "SELECT why FROM v_why WHERE workload_id = ?", [jobs["pool full: gpu"]]
    ).fetchall()
    assert row["why"] == "no pool gpu"
    (row,) = mesh.conn.execute(
        "SELECT why FROM v_why WHERE workload_id = ?", [jobs["waits its turn"]]
    ).fetchall()
    assert row["why"] == "no READY worker is heard in docs"

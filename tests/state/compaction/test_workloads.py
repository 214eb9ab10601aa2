"""Ended work goes whole and leaves its key behind; what unfinished work needs stays (BC-054)."""

import pytest

from feltd.mesh import cancel, groups, requeue
from feltd.model.group import GroupId
from feltd.model.workload import Cancel, Requeue
from tests.state.compaction.world import DAY_MS, HOUR_MS, Kept

WEEK_MS = 7 * DAY_MS


def test_a_completed_workload_goes_a_week_after_its_end_with_all_it_had(kept: Kept) -> None:
    job = kept.done(idempotency_key="night")
    kept.later(WEEK_MS - 1)
    assert "workloads" not in kept.compact()
    kept.later(1)
    cleared = kept.compact()
    assert (cleared["workloads"], cleared["claims"]) == (1, 1)
    for table in ("workloads", "claims", "claim_logs", "checkpoints"):
        assert kept.count(table) == 0
    [stone] = kept.conn.execute("SELECT * FROM tombstones").fetchall()
    assert (stone["workload_id"], stone["state"]) == (job, "COMPLETED")
    assert stone["result_id"].startswith(f"result_{job}")


def test_the_key_of_pruned_work_names_it_for_another_week(kept: Kept) -> None:
    job = kept.done(idempotency_key="night")
    kept.later(WEEK_MS)
    kept.compact()
    again = {"idempotency_key": "night"}
    assert kept.workload(**again) == job
    assert kept.refused(lambda: kept.workload(priority=5, **again)) == (
        "WORKLOAD_IDEMPOTENCY_CONFLICT"
    )
    kept.later(WEEK_MS)
    assert kept.compact()["tombstones"] == 1
    assert kept.workload(**again) != job
    kept.check()


def test_what_is_not_final_is_never_touched(kept: Kept) -> None:
    waiting = kept.workload()
    running = kept.workload()
    dead = kept.workload(retry_policy={"max_attempts": 1})
    crew = kept.crew()
    kept.claims(running, crew, lease_ms=3_600_000, start=True)
    kept.say("fail", kept.claims(dead, crew, start=True))
    kept.keeps(workloads_ms=1)
    kept.later(HOUR_MS // 2)
    assert "workloads" not in kept.compact()
    assert [kept.state(job) for job in (waiting, running, dead)] == [
        "READY",
        "RUNNING",
        "DEAD_LETTERED",
    ]


def test_dead_letters_go_only_where_the_operator_says_so(kept: Kept) -> None:
    dead = kept.workload(retry_policy={"max_attempts": 1})
    kept.say("fail", kept.claims(dead, kept.crew(), start=True))
    kept.later(400 * DAY_MS)
    assert "workloads" not in kept.compact()
    kept.keeps(dead_letters_ms=DAY_MS)
    assert kept.compact()["workloads"] == 1
    assert kept.count("tombstones", "state = 'DEAD_LETTERED'") == 1


def test_what_a_waiting_child_will_read_is_kept_until_it_has_ended(kept: Kept) -> None:
    parent, other = kept.done(), kept.workload()
    child = kept.workload(dependencies=[parent, other])
    assert kept.state(child) == "PENDING"
    kept.later(3 * WEEK_MS)
    assert "workloads" not in kept.compact()
    crew = kept.crew()
    kept.say("complete", kept.claims(other, crew, start=True))
    held = kept.claims(child, crew, lease_ms=3_600_000, start=True)
    kept.keeps(workloads_ms=1)
    kept.later(1_000)
    assert "workloads" not in kept.compact()
    kept.say("complete", held)
    kept.later(1_000)
    assert kept.compact()["workloads"] == 3
    assert kept.count("dependency_edges") == 0


def test_a_dead_child_may_come_back_so_its_parents_wait_for_it(kept: Kept) -> None:
    parent = kept.done()
    child = kept.workload(dependencies=[parent], retry_policy={"max_attempts": 1})
    kept.say("fail", kept.claims(child, kept.crew(), start=True))
    kept.later(3 * WEEK_MS)
    assert "workloads" not in kept.compact()
    kept.ask(requeue.requeue, Requeue(), child)
    kept.say("complete", kept.claims(child, kept.crew(), start=True))
    kept.later(WEEK_MS)
    assert kept.compact()["workloads"] == 2


def test_members_stay_while_their_group_is_unfinished(kept: Kept) -> None:
    kept.done(group="night")
    last = kept.workload(group="night")
    kept.later(2 * WEEK_MS)
    assert "workloads" not in kept.compact()
    kept.ask(cancel.cancel, Cancel(), last)
    kept.later(WEEK_MS)
    assert kept.compact()["workloads"] == 2
    assert kept.count("workload_groups") == 0


def test_a_sealed_group_that_failed_never_looks_completed(kept: Kept) -> None:
    done = kept.done(group="night")
    lost = kept.workload(group="night")
    kept.ask(groups.seal, GroupId("acme", "night"))
    kept.ask(cancel.cancel, Cancel(), lost)
    kept.later(WEEK_MS)
    assert kept.slice("workloads", 1).counts["workloads"] == 1
    kept.check()
    gone = kept.count("workloads", "workload_id = :id", id=done) == 0
    failed = kept.count("workloads", "workload_id = :id", id=lost)
    assert gone
    # While the group has a row, one that failed tells of it.
    assert failed == kept.count("workload_groups")
    kept.compact()
    assert kept.count("workload_groups") == 0
    assert kept.refused(lambda: kept.workload(dependencies=["group:night"])) == (
        "WORKLOAD_DEPENDENCY_INVALID"
    )


def test_work_that_waits_for_a_group_keeps_its_members(kept: Kept) -> None:
    kept.done(group="night")
    kept.ask(groups.seal, GroupId("acme", "night"))
    child = kept.workload(dependencies=["group:night"])
    kept.later(2 * WEEK_MS)
    assert "workloads" not in kept.compact()
    kept.say("complete", kept.claims(child, kept.crew(), start=True))
    kept.later(WEEK_MS)
    assert kept.compact()["workloads"] == 2


def test_the_schema_refuses_what_a_mistake_would_delete(kept: Kept) -> None:
    parent = kept.done()
    kept.workload(dependencies=[parent, kept.workload()])
    with pytest.raises(Exception, match="unfinished work depends on this workload"):
        kept.conn.execute("DELETE FROM workloads WHERE workload_id = ?", [parent])


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 500])
def test_slices_of_any_size_end_at_the_same(kept: Kept, limit: int) -> None:
    for number in range(4):
        for tenant_id in ("acme", "beta"):
            kept.workload(tenant_id=tenant_id, idempotency_key=f"w-{number}")
        job = kept.done()
        kept.workload(dependencies=[job])
    for row in kept.conn.execute("SELECT workload_id FROM workloads WHERE state = 'READY'"):
        if kept.state(row[0]) == "READY":
            kept.ask(cancel.cancel, Cancel(), row[0])
    kept.later(WEEK_MS)
    assert kept.compact(limit)["workloads"] == 16
    assert kept.count("compaction_places", "name = 'workloads'") == 0


def test_a_workload_with_a_thousand_checkpoints_and_many_logs_goes_in_slices(kept: Kept) -> None:
    job = kept.workload()
    held = kept.claims(job, kept.crew(), lease_ms=3_600_000, start=True)
    for page in range(1_000):
        kept.say("checkpoint", held, data={"page": page})
    kept.say("log", held, lines=[f"line {number}" for number in range(900)])
    kept.say("complete", held)
    kept.later(WEEK_MS)
    first = kept.slice("workloads", 100)
    assert first.more
    assert first.counts == {"claim_logs": 100}
    kept.check()
    assert kept.compact(100)["workloads"] == 1

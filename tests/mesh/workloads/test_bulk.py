"""Stories of one change to much work: counted first, done in chunks, repeated until all is done."""

from collections.abc import Iterator
from typing import Any

import pytest

from feltd.mesh import bulk, cancel, creation, deadletters, listing, promises
from feltd.model.base import Ask, Caller
from feltd.model.editing import CHUNK_ROWS, REMAINING_MAX, BulkAnswer, DeadLetters
from feltd.model.grant import GrantConstraints
from feltd.model.workload import Batch, Cancel, Filter
from feltd.store.tx import Tx
from tests.mesh.workloads.stories import creator, new
from tests.mesh.world import Mesh


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    """Every promise is asked of the rows when the story is over."""
    world = Mesh()
    yield world
    if not world.by_hand:
        assert world.run(lambda tx, _, now: promises.ask(tx)) == []
    world.close()


def searched(mesh: Mesh, plan: bulk.Plan, wanted: int, caller: Caller = Mesh.open) -> bulk.Found:
    """The whole search, slice by slice."""
    ids: list[str] = []
    count, before = 0, None
    while True:
        left = wanted if plan.action == "requeue" else wanted - len(ids)
        search = bulk.Search(plan, left, REMAINING_MAX + len(ids) - count, before)
        found = mesh.ask(bulk.find, search, caller=caller)
        ids = bulk.kept(plan, ids, found.workload_ids, wanted)
        count, before = count + found.count, found.before
        if before is None or count - len(ids) >= REMAINING_MAX:
            return bulk.Found(ids, count, before)


def chunk(
    mesh: Mesh,
    action: Any,
    priority: int | None = None,
    caller: Caller = Mesh.open,
    **narrowed: Any,
) -> BulkAnswer:
    """One call of a bulk change."""
    plan = bulk.Plan(action, Filter(**narrowed), priority)
    found = searched(mesh, plan, CHUNK_ROWS, caller)
    beyond = found.count - len(found.workload_ids)
    return mesh.ask(bulk.change, bulk.Chunk(plan, found.workload_ids, beyond), caller=caller)


def until_done(mesh: Mesh, action: Any, **members: Any) -> list[int]:
    """How many each call changed, until none is left."""
    changed: list[int] = []
    while True:
        answer = chunk(mesh, action, **members)
        changed.append(answer.changed)
        assert len(changed) < 100, "it must end"
        if answer.remaining == 0:
            return changed


def states(mesh: Mesh) -> dict[str, int]:
    rows = mesh.conn.execute("SELECT state, count(*) AS n FROM workloads GROUP BY state")
    return {row["state"]: row["n"] for row in rows.fetchall()}


def die(mesh: Mesh, *jobs: str, kind: str = "execution_error", message: str = "no") -> None:
    """Each is taken, fails, and is a dead letter."""
    worker = mesh.worker(name="reaper", capacity={"concurrency": 8})
    for job in jobs:
        held = mesh.claims(job, by=worker, start=True)
        mesh.say("fail", held, kind=kind, message=message)


def taken(mesh: Mesh, worker: str) -> list[str]:
    return [held.workload_id for held in mesh.pull(worker, max=8).claims]


def test_much_work_is_called_off_in_chunks(mesh: Mesh) -> None:
    for _ in range(CHUNK_ROWS + 20):
        mesh.workload()
    other = mesh.workload(definition_id="keep")
    assert until_done(mesh, "cancel", definition_id="extract") == [CHUNK_ROWS, 20]
    assert states(mesh) == {"CANCELLED": CHUNK_ROWS + 20, "READY": 1}
    assert chunk(mesh, "cancel", definition_id="extract") == BulkAnswer(changed=0, remaining=0)
    assert taken(mesh, mesh.worker()) == [other]
    acts = mesh.conn.execute("SELECT subject FROM audit WHERE action = 'bulk_cancel'").fetchall()
    assert [act["subject"] for act in acts] == ["500 workloads", "20 workloads"]
    told = mesh.row("SELECT count(*) AS n FROM events WHERE kind = 'cancel' AND actor IS NOT NULL")
    assert told["n"] == CHUNK_ROWS + 20


def test_what_is_held_is_asked_once_and_no_more_needs_it(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 3})
    held = [mesh.claims(mesh.workload(), by=worker, start=True) for _ in range(3)]
    assert until_done(mesh, "cancel") == [3]
    assert states(mesh) == {"RUNNING": 3}
    assert chunk(mesh, "cancel") == BulkAnswer(changed=0, remaining=0)
    mesh.say("fail", held[0])
    assert states(mesh) == {"CANCELLED": 1, "RUNNING": 2}


def test_a_worker_narrows_to_what_it_holds(mesh: Mesh) -> None:
    one, two = mesh.worker("one"), mesh.worker("two")
    mine = mesh.claims(mesh.workload(), by=one)
    mesh.claims(mesh.workload(), by=two)
    mesh.workload()
    assert until_done(mesh, "cancel", worker_id=one) == [1]
    asked = mesh.row("SELECT workload_id FROM workloads WHERE cancel_requested = 1")
    assert asked["workload_id"] == mine.workload_id


def test_dead_letters_are_brought_back_by_kind(mesh: Mesh) -> None:
    jobs = [mesh.workload() for _ in range(4)]
    die(mesh, *jobs[:2], kind="execution_error")
    die(mesh, *jobs[2:], kind="bad_input")
    assert until_done(mesh, "requeue", failure_kind="bad_input") == [2]
    assert states(mesh) == {"DEAD_LETTERED": 2, "READY": 2}
    assert until_done(mesh, "requeue", priority=7) == [2]
    rows = mesh.conn.execute("SELECT priority, attempts_spent FROM workloads ORDER BY seq")
    assert [tuple(row) for row in rows.fetchall()] == [(7, 0), (7, 0), (0, 0), (0, 0)]


def test_work_gets_another_priority_where_nobody_holds_it(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 8})
    mesh.claims(mesh.workload(), by=worker)
    waiting = [mesh.workload(labels={"team": "web"}) for _ in range(3)]
    mesh.workload(labels={"team": "web"}, priority=9)
    assert until_done(mesh, "reprioritise", priority=9, labels={"team": "web"}) == [3]
    assert chunk(mesh, "reprioritise", priority=9, labels={"team": "web"}).remaining == 0
    assert taken(mesh, worker)[:3] == waiting


def test_the_head_that_falls_behind_makes_room(mesh: Mesh) -> None:
    low = [mesh.workload(labels={"team": "web"}) for _ in range(3)]
    high = mesh.workload()
    until_done(mesh, "reprioritise", priority=-1, labels={"team": "web"})
    assert taken(mesh, mesh.worker(capacity={"concurrency": 8})) == [high, *low]


def test_a_dry_run_counts_and_changes_nothing(mesh: Mesh) -> None:
    for _ in range(7):
        mesh.workload()
    before = mesh.everything()
    assert searched(mesh, bulk.Plan("cancel", Filter()), 0).count == 7
    assert mesh.everything() == before


def test_every_member_of_the_filter_is_met(mesh: Mesh) -> None:
    mesh.workload(definition_id="a", trigger="nightly", labels={"x": "1"})
    mesh.later(10)
    born_ms = mesh.now.lease_ms
    job = mesh.workload(definition_id="a", trigger="nightly", labels={"x": "1"}, group="g")
    mesh.workload(definition_id="b", trigger="nightly", labels={"x": "1"}, group="g")
    mesh.later(10)
    mesh.workload(definition_id="a", trigger="nightly", labels={"x": "1"}, group="g")
    for narrowed in (
        {"definition_id": "a", "trigger": "manual"},
        {"labels": {"x": "2"}},
        {"group": "h"},
        {"application_id": "other"},
        {"tenant_id": "other"},
        {"state": "PENDING"},
        {"failure_kind": "timeout"},
        {"created_after_ms": born_ms + 10},
    ):
        assert chunk(mesh, "cancel", **narrowed) == BulkAnswer(changed=0, remaining=0), narrowed
    asked = {
        "definition_id": "a",
        "trigger": "nightly",
        "labels": {"x": "1"},
        "group": "g",
        "state": "READY",
        "tenant_id": "acme",
        "application_id": "docs",
        "created_after_ms": born_ms - 1,
        "created_before_ms": born_ms + 1,
    }
    assert until_done(mesh, "cancel", **asked) == [1]
    cancelled = mesh.row("SELECT workload_id FROM workloads WHERE state = 'CANCELLED'")
    assert cancelled["workload_id"] == job


def test_what_moved_between_search_and_change_is_left_alone(mesh: Mesh) -> None:
    job, gone = mesh.workload(), mesh.workload()
    plan = bulk.Plan("cancel", Filter(state="READY"))
    found = searched(mesh, plan, 10)
    assert set(found.workload_ids) == {job, gone}
    mesh.claims(gone, by=mesh.worker())
    answer = mesh.ask(bulk.change, bulk.Chunk(plan, [*found.workload_ids, "workload_x"], 0))
    assert answer == BulkAnswer(changed=1, remaining=0)
    assert states(mesh) == {"CANCELLED": 1, "CLAIMED": 1}


def test_an_outsider_changes_nothing(mesh: Mesh) -> None:
    mesh.workload()
    bounded = creator(mesh, constraints=GrantConstraints(max_priority=5))
    mesh.by_hand = False

    def key(*scopes: str, tenants: tuple[str, ...] = ("acme",)) -> Caller:
        return Caller(
            subject=bounded.subject,
            key_id=bounded.key_id,
            scopes=frozenset(scopes),
            tenants=tenants,
            grant_id=bounded.grant_id,
        )

    stranger = key("workloads:operate", tenants=("other",))
    assert chunk(mesh, "cancel", caller=stranger) == BulkAnswer(changed=0, remaining=0)
    assert mesh.refused(lambda: chunk(mesh, "cancel", caller=key("workloads:create"))) == (
        "FORBIDDEN"
    )
    operator = key("workloads:operate")
    beyond = mesh.refused(lambda: chunk(mesh, "reprioritise", priority=6, caller=operator))
    assert beyond == "WORKLOAD_UNAUTHORIZED"
    assert chunk(mesh, "reprioritise", priority=5, caller=operator).changed == 1


def test_the_search_is_bounded_and_goes_on_where_it_stopped(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "READ_ROWS_MAX", 10)
    needle = mesh.workload(labels={"needle": "yes"})
    for _ in range(25):
        mesh.workload()
    plan = bulk.Plan("cancel", Filter(labels={"needle": "yes"}))
    first = mesh.ask(bulk.find, bulk.Search(plan, 500, REMAINING_MAX))
    assert (first.workload_ids, first.before is None) == ([], False)
    assert searched(mesh, plan, 500) == bulk.Found([needle], 1, None)


def test_remaining_is_exact_until_it_is_capped(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(8):
        mesh.workload()
    plan = bulk.Plan("cancel", Filter())
    found = mesh.ask(bulk.find, bulk.Search(plan, wanted=3, count=2))
    assert (len(found.workload_ids), found.count, found.before is None) == (3, 5, False)
    found = mesh.ask(bulk.find, bulk.Search(plan, wanted=3, count=100))
    assert (len(found.workload_ids), found.count, found.before) == (3, 8, None)


def test_more_than_ten_thousand_are_survived(mesh: Mesh) -> None:
    for first in range(0, 10_600, 100):
        items = tuple(new(f"many-{first + number}") for number in range(100))
        mesh.ask(creation.create_batch, Batch(items))
    first = chunk(mesh, "cancel")
    assert first == BulkAnswer(changed=CHUNK_ROWS, remaining=REMAINING_MAX)
    second = chunk(mesh, "cancel")
    assert second == BulkAnswer(changed=CHUNK_ROWS, remaining=9_600)
    assert sum(until_done(mesh, "cancel")) == 9_600
    assert states(mesh) == {"CANCELLED": 10_600}


def test_large_inputs_make_small_chunks(mesh: Mesh) -> None:
    for _ in range(24):
        mesh.workload(input="x" * 250_000)
    changed = until_done(mesh, "cancel")
    assert len(changed) > 1
    assert sum(changed) == 24


def test_a_dead_letter_that_cannot_come_back_does_not_stop_the_others(mesh: Mesh) -> None:
    free, stuck = mesh.workload(), mesh.workload(definition_id="stuck")
    die(mesh, stuck, free)
    mesh.hand("DELETE FROM lanes")
    mesh.hand("DELETE FROM demands WHERE definition_id = 'stuck'")
    mesh.hand("UPDATE applications SET demands = 2000")
    mesh.hand(
        "CREATE TRIGGER no_more BEFORE INSERT ON demands BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    plan = bulk.Plan("requeue", Filter())
    found = searched(mesh, plan, 10)
    answer = mesh.ask(bulk.change, bulk.Chunk(plan, found.workload_ids, 0))
    assert answer == BulkAnswer(changed=1, remaining=1)
    refused = mesh.refused(lambda: chunk(mesh, "requeue"))
    assert refused == "WORKLOAD_INVALID", "nothing could be changed: said, not tried for ever"
    assert states(mesh) == {"DEAD_LETTERED": 1, "READY": 1}


def test_five_hundred_resends_lose_none_however_often_they_stop(mesh: Mesh) -> None:
    """BC-050: dead letters are rows that move, never rows taken out first and put back later."""
    jobs = [mesh.workload() for _ in range(500)]
    die(mesh, *jobs)
    plan = bulk.Plan("requeue", Filter(failure_kind="execution_error"))
    for size in (123, 50, 500):
        found = searched(mesh, plan, size)
        with pytest.raises(RuntimeError):
            mesh.run(_cut(plan), Ask(Mesh.open, bulk.Chunk(plan, found.workload_ids, 0)))
        assert sum(states(mesh).values()) == 500
        mesh.ask(bulk.change, bulk.Chunk(plan, found.workload_ids, 0))
    assert states(mesh) == {"READY": 500}
    events = mesh.row("SELECT count(*) AS n FROM events WHERE kind = 'requeue'")
    assert events["n"] == 500, "each once"


def _cut(plan: bulk.Plan) -> Any:
    def cut(tx: Tx, ask: Any, now: Any) -> None:
        bulk.change(tx, ask, now)
        raise RuntimeError("the power went before the commit")

    return cut


# -- dead letters by kind ----------------------------------------------------------------------


def kinds(mesh: Mesh, caller: Caller = Mesh.open, **whose: Any) -> DeadLetters:
    return mesh.ask(deadletters.by_kind, deadletters.Grouping(**whose), caller=caller)


def test_dead_letters_are_counted_by_what_they_died_of(mesh: Mesh) -> None:
    assert kinds(mesh) == DeadLetters([], capped=False)
    jobs = [mesh.workload() for _ in range(4)]
    die(mesh, jobs[0], kind="bad_input", message="no page 3")
    die(mesh, *jobs[1:3], message="first")
    mesh.later(5)
    die(mesh, jobs[3], message="last")
    found = kinds(mesh)
    assert [(one.failure_kind, one.workloads) for one in found.items] == [
        ("execution_error", 3),
        ("bad_input", 1),
    ]
    newest = found.items[0]
    assert (newest.newest_workload_id, newest.newest_message) == (jobs[3], "last")
    assert (newest.newest_definition_id, newest.newest_at_ms) == ("extract", mesh.now.lease_ms)
    mesh.ask(cancel.cancel, Cancel(), jobs[0])
    assert [one.failure_kind for one in kinds(mesh).items] == ["execution_error"]


def test_they_are_those_of_the_tenant_and_application_asked_for(mesh: Mesh) -> None:
    die(mesh, mesh.workload())
    assert [one.workloads for one in kinds(mesh, application_id="docs").items] == [1]
    assert kinds(mesh, application_id="other").items == []
    assert kinds(mesh, tenant_id="other").items == []
    stranger = Caller(subject=Mesh.open.subject, tenants=("other",))
    assert kinds(mesh, caller=stranger).items == []


def test_counting_them_is_bounded(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [mesh.workload() for _ in range(6)]
    for number, job in enumerate(jobs):
        die(mesh, job, kind=f"kind_{number % 3}")
    monkeypatch.setattr(deadletters, "KINDS_MAX", 2)
    found = kinds(mesh)
    assert ([one.failure_kind for one in found.items], found.capped) == (["kind_0", "kind_1"], True)
    monkeypatch.setattr(deadletters, "KINDS_MAX", 200)
    assert kinds(mesh).capped is False
    monkeypatch.setattr(deadletters, "COUNT_MAX", 1)
    found = kinds(mesh)
    assert ([one.workloads for one in found.items], found.capped) == ([1, 1, 1], True)
    monkeypatch.setattr(deadletters, "COUNT_MAX", 100)
    monkeypatch.setattr(deadletters, "LOOK_ROWS_MAX", 3)
    found = kinds(mesh)
    assert ([one.workloads for one in found.items], found.capped) == ([2, 1], True)

"""Stories of waiting work that is changed: its place in the order, its bounds, where it may run."""

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import convert

from feltd.mesh import due, edit, overdue, promises, requeue
from feltd.model.base import Caller
from feltd.model.editing import Edit
from feltd.model.grant import GrantConstraints
from feltd.model.workload import Requeue, Workload
from tests.mesh.workloads.stories import creator
from tests.mesh.world import Mesh


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    """Every promise is asked of the rows when the story is over."""
    world = Mesh()
    yield world
    assert world.run(lambda tx, _, now: promises.ask(tx)) == []
    world.close()


def edited(mesh: Mesh, job: str, caller: Caller = Mesh.open, **members: Any) -> Workload:
    return mesh.ask(edit.edit, convert(members, Edit), job, caller)


def row_of(mesh: Mesh, job: str) -> Any:
    return mesh.row("SELECT * FROM workloads WHERE workload_id = :job", job=job)


def events_of(mesh: Mesh, job: str) -> list[str]:
    sql = "SELECT kind FROM events WHERE workload_id = ? ORDER BY seq"
    return [row["kind"] for row in mesh.conn.execute(sql, [job]).fetchall()]


def taken(mesh: Mesh, worker: str, **members: Any) -> list[str]:
    return [held.workload_id for held in mesh.pull(worker, **members).claims]


def dead(mesh: Mesh, **members: Any) -> str:
    """A dead letter that failed once."""
    job = mesh.workload(**members)
    held = mesh.claims(job, by=mesh.worker(name=f"once-{job[-12:]}"), start=True)
    mesh.say("fail", held, kind="execution_error", message="no")
    assert row_of(mesh, job)["state"] == "DEAD_LETTERED"
    return job


def test_priority_changes_who_comes_next(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 3})
    first, second, third = (mesh.workload() for _ in range(3))
    shown = edited(mesh, third, priority=5)
    assert (shown.priority, shown.state) == (5, "READY")
    edited(mesh, first, priority=-5)
    assert taken(mesh, worker, max=3) == [third, second, first]
    assert events_of(mesh, third) == ["create", "edit", "claim"]


def test_the_head_of_a_lane_may_fall_behind(mesh: Mesh) -> None:
    first, second = mesh.workload(), mesh.workload()
    edited(mesh, first, priority=-1)
    assert taken(mesh, mesh.worker()) == [second]


def test_an_edit_is_told_to_who_may_fit_now(mesh: Mesh) -> None:
    job = mesh.workload(placement={"required_labels": {"zone": "a"}})
    worker = mesh.worker(labels={"zone": "b"})
    assert taken(mesh, worker) == []
    edited(mesh, job, placement={"required_labels": {"zone": "b"}})
    assert ("ready", "acme/docs") in mesh.signals
    assert taken(mesh, worker) == [job]


def test_a_merge_leaves_what_it_does_not_name(mesh: Mesh) -> None:
    job = mesh.workload(
        timeouts={"queue_ms": 5_000, "total_ms": 60_000},
        retry_policy={"max_attempts": 7, "initial_backoff_ms": 5},
        placement={"required_labels": {"zone": "a", "disk": "ssd"}, "anti_affinity": {"old": "1"}},
        labels={"team": "web", "tier": "1"},
    )
    shown = edited(
        mesh,
        job,
        timeouts={"queue_ms": None, "execution_ms": 7_000},
        retry_policy={"max_attempts": 9},
        placement={"required_labels": {"zone": "b", "disk": None}},
        labels={"tier": None, "note": "x"},
    )
    assert (shown.timeouts.queue_ms, shown.timeouts.execution_ms) == (None, 7_000)
    assert shown.timeouts.total_ms == 60_000
    assert (shown.retry_policy.max_attempts, shown.retry_policy.initial_backoff_ms) == (9, 5)
    assert row_of(mesh, job)["max_attempts"] == 9
    assert shown.placement.required_labels == {"zone": "b"}
    assert shown.placement.anti_affinity == {"old": "1"}
    assert shown.labels == {"team": "web", "note": "x"}


def test_null_takes_a_member_back_to_its_default(mesh: Mesh) -> None:
    job = mesh.workload(
        priority=7,
        timeouts={"queue_ms": 5_000},
        retry_policy={"max_attempts": 7},
        placement={"required_labels": {"zone": "a"}},
        labels={"a": "b"},
        concurrency={"key": "k", "limit": 1},
    )
    members = ("priority", "timeouts", "retry_policy", "placement", "labels", "concurrency")
    shown = edited(mesh, job, **dict.fromkeys(members))
    assert (shown.priority, shown.retry_policy.max_attempts, shown.labels) == (0, 3, {})
    assert (shown.placement.required_labels, shown.concurrency) == ({}, None)
    assert mesh.conn.execute("SELECT count(*) FROM deadlines").fetchone()[0] == 0


def test_timeouts_begin_to_run_with_the_edit(mesh: Mesh) -> None:
    job = mesh.workload()
    mesh.later(1_000)
    edited(mesh, job, timeouts={"queue_ms": 5_000})
    at_ms = mesh.row("SELECT at_ms FROM deadlines")["at_ms"]
    assert at_ms == mesh.now.lease_ms + 4_000


def test_zero_runs_it_now_whatever_it_waited_for(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = mesh.workload(not_before_at_ms=mesh.now.wall_ms + 3_600_000)
    assert taken(mesh, worker) == []
    shown = edited(mesh, job, not_before_at_ms=0)
    assert (shown.not_before_at_ms, shown.eligible_at_ms) == (None, mesh.now.lease_ms)
    held = mesh.pull(worker, start=True).claims[0]
    mesh.say("fail", held)
    assert row_of(mesh, job)["due"] == 0, "a backoff begins"
    edited(mesh, job, not_before_at_ms=0)
    assert taken(mesh, worker) == [job], "and is skipped"


def test_another_instant_never_shortens_a_backoff(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = mesh.workload(retry_policy={"initial_backoff_ms": 10_000, "jitter": 0})
    mesh.say("fail", mesh.claims(job, by=worker, start=True))
    backoff_ms = mesh.now.lease_ms + 10_000
    assert edited(mesh, job, not_before_at_ms=1).eligible_at_ms == backoff_ms
    assert edited(mesh, job, not_before_at_ms=None).eligible_at_ms == backoff_ms
    later_ms = mesh.now.wall_ms + 60_000
    assert edited(mesh, job, not_before_at_ms=later_ms).eligible_at_ms == later_ms
    assert ("due", str(later_ms)) in mesh.signals
    mesh.later(10_000)
    mesh.run(due.promote, 10)
    assert taken(mesh, worker) == []
    mesh.later(50_000)
    mesh.run(due.promote, 10)
    assert taken(mesh, worker) == [job]


def test_a_backoff_that_a_requeue_skipped_does_not_come_back(mesh: Mesh) -> None:
    policy = {"initial_backoff_ms": 600_000, "max_backoff_ms": 600_000}
    job = mesh.workload(retry_policy=policy, timeouts={"total_ms": 60_000})
    mesh.say("fail", mesh.claims(job, by=mesh.worker(), start=True))
    mesh.later(60_000)
    mesh.run(overdue.end_timeouts, 10)
    again = mesh.ask(requeue.requeue, Requeue(), job)
    assert again.eligible_at_ms == mesh.now.lease_ms
    soon_ms = mesh.now.wall_ms + 1_000
    assert edited(mesh, job, not_before_at_ms=soon_ms).eligible_at_ms == soon_ms


def test_work_that_could_run_may_be_put_off(mesh: Mesh) -> None:
    job = mesh.workload()
    edited(mesh, job, not_before_at_ms=mesh.now.wall_ms + 1_000)
    assert taken(mesh, mesh.worker()) == []
    edited(mesh, job, not_before_at_ms=None)
    assert row_of(mesh, job)["eligible_at_ms"] == mesh.now.lease_ms


def test_running_now_keeps_the_time_it_has_waited(mesh: Mesh) -> None:
    job = mesh.workload()
    born_ms = mesh.now.lease_ms
    mesh.later(60_000)
    assert edited(mesh, job, not_before_at_ms=0).eligible_at_ms == born_ms


def test_a_key_may_be_given_and_its_limit_changed(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 4})
    jobs = [mesh.workload() for _ in range(3)]
    for job in jobs:
        edited(mesh, job, concurrency={"key": "printer", "limit": 1})
    assert len(taken(mesh, worker, max=3)) == 1
    waiting = [job for job in jobs if row_of(mesh, job)["state"] == "READY"]
    edited(mesh, waiting[0], concurrency={"limit": 2})
    assert len(taken(mesh, worker, max=3)) == 1, "the newest limit holds for all of the key"


def test_a_change_of_place_leaves_the_limit_of_a_key_alone(mesh: Mesh) -> None:
    old = mesh.workload(concurrency={"key": "printer", "limit": 1})
    mesh.workload(concurrency={"key": "printer", "limit": 5})
    edited(mesh, old, placement={"required_labels": {"zone": "a"}})
    assert mesh.row("SELECT claims_max FROM concurrency_keys")["claims_max"] == 5


def test_a_dead_letter_is_changed_before_it_is_brought_back(mesh: Mesh) -> None:
    job = dead(mesh, placement={"required_labels": {}})
    edited(mesh, job, placement={"required_labels": {"zone": "b"}}, priority=3)
    assert row_of(mesh, job)["demand_id"] is None
    shown = mesh.ask(requeue.requeue, Requeue(), job)
    assert (shown.state, shown.priority) == ("READY", 3)
    assert taken(mesh, mesh.worker(name="b", labels={"zone": "b"})) == [job]


def test_an_edit_that_changes_nothing_writes_nothing(mesh: Mesh) -> None:
    job = mesh.workload(priority=5, labels={"a": "b"})
    before = mesh.everything()
    edited(mesh, job)
    edited(mesh, job, priority=5, labels={"a": "b"}, timeouts={}, placement={})
    assert mesh.everything() == before


def test_what_is_held_or_final_is_not_changed(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = mesh.workload()
    held = mesh.claims(job, by=worker)
    denied = "WORKLOAD_TRANSITION_DENIED"
    assert mesh.refused(lambda: edited(mesh, job, priority=1)) == denied
    mesh.say("start", held)
    assert mesh.refused(lambda: edited(mesh, job, priority=1)) == denied
    mesh.say("complete", held)
    assert mesh.refused(lambda: edited(mesh, job, priority=1)) == denied


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"timeouts": {"queue_ms": 0}}, "/timeouts/queue_ms"),
        ({"timeouts": {"lunch_ms": 1}}, "/timeouts"),
        ({"retry_policy": {"max_attempts": 0}}, "/retry_policy/max_attempts"),
        ({"placement": {"required_labels": {"zone": 1}}}, "/placement/required_labels"),
        ({"concurrency": {"limit": 3}}, "/concurrency"),
        ({"labels": {"a": 1}}, "/labels"),
    ],
)
def test_what_does_not_fit_is_refused_by_place(
    mesh: Mesh, members: dict[str, Any], pointer: str
) -> None:
    job = mesh.workload()
    before = mesh.everything()
    with pytest.raises(Exception, match=pointer) as refused:
        edited(mesh, job, **members)
    assert refused.value.code == "WORKLOAD_INVALID"  # type: ignore[attr-defined]
    assert refused.value.facts["errors"][0]["pointer"] == pointer  # type: ignore[attr-defined]
    assert mesh.everything() == before


def test_attempts_cannot_be_fewer_than_were_made(mesh: Mesh) -> None:
    job = mesh.workload()
    mesh.say("fail", mesh.claims(job, by=mesh.worker(), start=True))
    refused = mesh.refused(lambda: edited(mesh, job, retry_policy={"max_attempts": 1}))
    assert refused == "WORKLOAD_INVALID"
    assert edited(mesh, job, retry_policy={"max_attempts": 2}).retry_policy.max_attempts == 2


def test_a_pool_must_exist(mesh: Mesh) -> None:
    job = mesh.workload()
    refused = mesh.refused(lambda: edited(mesh, job, placement={"pool_id": "nowhere"}))
    assert refused == "WORKER_POOL_NOT_FOUND"


def test_a_label_that_looks_like_a_secret_is_refused(mesh: Mesh) -> None:
    job = mesh.workload()
    refused = mesh.refused(lambda: edited(mesh, job, labels={"password": "hunter2hunter2"}))
    assert refused == "WORKLOAD_SECRET_IN_TEXT"


def test_nobody_edits_past_his_grant_his_tenant_or_his_scope(mesh: Mesh) -> None:
    job = mesh.workload()
    bounded = creator(mesh, constraints=GrantConstraints(max_priority=5))
    operator = Caller(
        subject=bounded.subject,
        key_id=bounded.key_id,
        scopes=frozenset({"workloads:operate"}),
        tenants=("acme",),
        grant_id=bounded.grant_id,
    )
    refused = mesh.refused(lambda: edited(mesh, job, operator, priority=6))
    assert refused == "WORKLOAD_UNAUTHORIZED"
    assert edited(mesh, job, operator, priority=5).priority == 5
    assert edited(mesh, job, operator, labels={"a": "b"}).labels == {"a": "b"}
    assert mesh.refused(lambda: edited(mesh, job, bounded, priority=1)) == "FORBIDDEN"
    stranger = Caller(
        subject=bounded.subject,
        key_id=bounded.key_id,
        scopes=frozenset({"workloads:operate"}),
        tenants=("other",),
    )
    assert mesh.refused(lambda: edited(mesh, job, stranger, priority=1)) == "WORKLOAD_NOT_FOUND"
    assert mesh.refused(lambda: edited(mesh, "workload_x", stranger)) == "WORKLOAD_NOT_FOUND"


def test_an_edit_is_an_act_of_the_audit(mesh: Mesh) -> None:
    job = mesh.workload()
    edited(mesh, job, priority=1)
    act = mesh.row("SELECT actor, subject FROM audit WHERE action = 'edit'")
    assert tuple(act) == ("service:local", job)


def test_the_merge_is_the_one_of_the_standard() -> None:
    """Cases of RFC 7396, appendix A, that concern objects."""
    assert edit.merged({"a": "b"}, {"a": "c"}) == {"a": "c"}
    assert edit.merged({"a": "b"}, {"b": "c"}) == {"a": "b", "b": "c"}
    assert edit.merged({"a": "b", "b": "c"}, {"a": None}) == {"b": "c"}
    assert edit.merged({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}) == {"a": {"b": "d"}}
    assert edit.merged({"a": "foo"}, "bar") == "bar"
    assert edit.merged([1, 2], {"a": "b", "c": None}) == {"a": "b"}
    assert edit.merged({}, {"a": {"bb": {"ccc": None}}}) == {"a": {"bb": {}}}

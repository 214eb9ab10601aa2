"""Work is called off and brought back; every state has a way out."""

import pytest
from msgspec import structs

from feltd.errors import Refused
from feltd.identity.principals import LOCAL, OPEN
from feltd.mesh import attempts, cancel, feed, requeue, workloads
from feltd.mesh.states import WORKLOAD_STATES
from feltd.model.base import Caller, Subject
from feltd.model.workload import After, Cancel, Requeue, RetryPolicy
from tests.mesh.workloads.stories import create, refusal, row, value
from tests.mesh.world import Mesh


def job_in(mesh: Mesh, state: str, worker: str) -> str:
    """A workload brought into a state by the verbs that lead there."""
    job = create(mesh, key=state, retry_policy=RetryPolicy(max_attempts=1)).workload.workload_id
    if state in ("READY", "PENDING"):
        return job
    if state == "CANCELLED":
        mesh.ask(cancel.cancel, Cancel(), job)
        return job
    held = mesh.claims(job, by=worker, start=state != "CLAIMED")
    verb = {"CHECKPOINTED": "checkpoint", "COMPLETED": "complete", "DEAD_LETTERED": "fail"}
    if state in verb:
        mesh.say(verb[state], held)
    assert mesh.state(job) == state
    return job


def test_waiting_work_is_cancelled_at_once(mesh: Mesh) -> None:
    job = create(mesh, key="k").workload.workload_id
    shown = mesh.ask(cancel.cancel, Cancel(reason="not needed"), job)
    assert shown.state == "CANCELLED"
    assert shown.finished_at_ms == mesh.now.lease_ms
    assert ("workload", job) in mesh.signals
    assert value(mesh, "SELECT count(*) FROM demands WHERE head_rank IS NOT NULL") == 0
    assert value(mesh, "SELECT reason FROM audit WHERE action = 'cancel'") == "not needed"
    assert mesh.ask(cancel.cancel, Cancel(), job).state == "CANCELLED"
    assert value(mesh, "SELECT count(*) FROM audit WHERE action = 'cancel'") == 1


def test_a_holder_is_asked_first(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = create(mesh, key="k").workload.workload_id
    held = mesh.claims(job, by=worker, start=True)
    shown = mesh.ask(cancel.cancel, Cancel(), job)
    assert shown.state == "RUNNING"
    assert shown.cancel_requested
    assert ("worker", worker) in mesh.signals
    mesh.say("fail", held)
    assert mesh.state(job) == "CANCELLED"


def test_a_holder_that_completes_all_the_same_has_completed(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = create(mesh, key="k").workload.workload_id
    held = mesh.claims(job, by=worker, start=True)
    mesh.ask(cancel.cancel, Cancel(), job)
    mesh.say("complete", held)
    assert mesh.state(job) == "COMPLETED"


def test_force_fences_the_holder_at_once(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = create(mesh, key="k").workload.workload_id
    held = mesh.claims(job, by=worker, start=True)
    shown = mesh.ask(cancel.cancel, Cancel(force=True), job)
    assert shown.state == "CANCELLED"
    assert shown.attempts[-1].end == "cancelled_by_force"
    assert mesh.refusal("complete", held) == "WORKLOAD_STALE_FENCE"


def test_completed_work_cannot_be_called_off(mesh: Mesh) -> None:
    job = job_in(mesh, "COMPLETED", mesh.worker())
    assert refusal(mesh, cancel.cancel, Cancel(), job) == "WORKLOAD_TRANSITION_DENIED"
    forced = refusal(mesh, cancel.cancel, Cancel(force=True), job)
    assert forced == "WORKLOAD_TRANSITION_DENIED"


@pytest.mark.parametrize("state", [s for s in WORKLOAD_STATES if s != "PENDING"])
def test_every_state_meets_every_verb_with_an_answer(state: str) -> None:
    """BC-043."""
    for verb, body in (
        (cancel.cancel, Cancel()),
        (cancel.cancel, Cancel(force=True)),
        (requeue.requeue, Requeue()),
    ):
        world = Mesh()
        job = job_in(world, state, world.worker())
        code = refusal(world, verb, body, job)
        final = state in ("COMPLETED", "CANCELLED")
        if verb is requeue.requeue:
            assert code == (None if state == "DEAD_LETTERED" else "WORKLOAD_TRANSITION_DENIED")
        elif final:
            assert code == ("WORKLOAD_TRANSITION_DENIED" if state == "COMPLETED" else None)
        else:
            assert code is None
        world.close()


def test_a_dead_letter_comes_back_with_its_history(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = create(
        mesh, key="k", input=1, retry_policy=RetryPolicy(max_attempts=1)
    ).workload.workload_id
    first = mesh.claims(job, by=worker, start=True)
    mesh.say("checkpoint", first)
    mesh.say("fail", first)
    assert mesh.state(job) == "DEAD_LETTERED"
    mesh.later(1_000)
    back = mesh.ask(requeue.requeue, Requeue(priority=7), job)
    assert back.state == "READY"
    assert back.priority == 7
    assert back.finished_at_ms is None
    assert bytes(back.checkpoint or b"") == b'{"page":1}'
    assert [one.end for one in back.attempts] == ["transient"]
    assert ("ready", "acme/docs") in mesh.signals
    second = mesh.claims(job, by=worker, start=True)
    assert second.attempt_number == 2
    assert second.fencing_token > first.fencing_token
    mesh.say("complete", second)
    assert mesh.ask(workloads.get, None, job).failure is None


def test_a_new_input_drops_the_checkpoint_of_the_old_one(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = create(
        mesh, key="k", input=1, retry_policy=RetryPolicy(max_attempts=1)
    ).workload.workload_id
    held = mesh.claims(job, by=worker, start=True)
    mesh.say("checkpoint", held)
    mesh.say("fail", held)
    back = mesh.ask(requeue.requeue, Requeue(input={"page": 2}), job)
    assert bytes(back.input) == b'{"page":2}'
    assert back.checkpoint is None
    assert not create(mesh, key="k", input=1, retry_policy=RetryPolicy(max_attempts=1)).created


def test_a_requeued_workload_meets_its_limits_again(mesh: Mesh) -> None:
    job = job_in(mesh, "DEAD_LETTERED", mesh.worker())
    too_large = Requeue(input="x" * 262_144)
    assert refusal(mesh, requeue.requeue, too_large, job) == "WORKLOAD_INVALID"
    assert mesh.state(job) == "DEAD_LETTERED"


def test_three_workers_that_die_leave_a_dead_letter_with_three_attempts(mesh: Mesh) -> None:
    """BC-041, BC-047."""
    job = create(mesh, key="k").workload.workload_id
    names = [mesh.worker(f"w{n}") for n in range(3)]
    for name in names:
        mesh.hand("UPDATE workers SET last_seen_at_ms = :ms", ms=mesh.now.lease_ms)
        mesh.claims(job, by=name, lease_ms=1_000)
        mesh.later(1_000)
        mesh.sweep()
        mesh.later(70_000)
    shown = mesh.ask(workloads.get, None, job)
    assert shown.state == "DEAD_LETTERED"
    assert [(one.worker_id, one.end) for one in shown.attempts] == [
        (name, "lease_expired") for name in names
    ]
    assert shown.failure is not None
    assert shown.failure.kind == "lease_expired"
    assert value(mesh, "SELECT count(*) FROM claims WHERE ended_at_ms IS NULL") == 0


def test_the_last_attempt_of_a_dead_worker_frees_everything(mesh: Mesh) -> None:
    """BC-041."""
    worker = mesh.worker()
    job = create(mesh, key="k", retry_policy=RetryPolicy(max_attempts=1)).workload.workload_id
    mesh.claims(job, by=worker, lease_ms=1_000)
    mesh.later(1_000)
    mesh.sweep()
    assert ("workload", job) in mesh.signals
    shown = mesh.ask(workloads.get, None, job)
    assert (shown.state, shown.current_claim) == ("DEAD_LETTERED", None)
    assert create(mesh, key="next").created
    mesh.hand("UPDATE workers SET last_seen_at_ms = :ms", ms=mesh.now.lease_ms)
    assert len(mesh.pull(worker).claims) == 1


def test_every_state_that_is_not_final_is_found_by_somebody(mesh: Mesh) -> None:
    """BC-042: a pull, the keeper's promotion or recovery, or a person's requeue."""
    found = {"COMPLETED", "CANCELLED", "PENDING"}  # final; nothing makes PENDING without parents
    for state in ("READY", "CLAIMED", "RUNNING", "CHECKPOINTED", "DEAD_LETTERED"):
        world = Mesh()
        worker = world.worker(capacity={"concurrency": 4})
        job = job_in(world, state, worker)
        if state == "READY":
            assert [one.workload_id for one in world.pull(worker).claims] == [job]
        elif state == "DEAD_LETTERED":
            assert world.ask(requeue.requeue, Requeue(), job).state == "READY"
        else:
            world.later(30_000)
            world.sweep()
            assert row(world, job)["claim_worker_id"] is None
        found.add(state)
        world.close()
    assert found == set(WORKLOAD_STATES)


def test_an_open_claim_without_an_end_cannot_be_stored(mesh: Mesh) -> None:
    """BC-042."""
    job = create(mesh, key="k").workload.workload_id
    mesh.claims(job, by=mesh.worker())
    for column in ("expires_at_ms", "claim_worker_id", "claim_incarnation"):
        with pytest.raises(Exception, match="CHECK constraint failed"):
            mesh.hand(f"UPDATE workloads SET {column} = NULL")  # noqa: S608


def test_one_may_cancel_ones_own_work_and_operators_any(mesh: Mesh) -> None:
    def somebody(name: str, *scopes: str) -> Caller:
        subject = Subject(kind="service", id=name)
        return structs.replace(LOCAL, subject=subject, scopes=frozenset(scopes), tenants=("acme",))

    author = somebody("author", "workloads:create")
    for name, caller, code in (
        ("own", author, None),
        ("foreign", somebody("other", "workloads:create"), "FORBIDDEN"),
        ("reader", somebody("author", "workloads:read"), "FORBIDDEN"),
        ("operator", somebody("boss", "workloads:operate"), None),
    ):
        job = create(mesh, key=name, caller=author).workload.workload_id
        assert refusal(mesh, cancel.cancel, Cancel(), job, caller) == code
    job = create(mesh, key="last", caller=author).workload.workload_id
    assert refusal(mesh, requeue.requeue, Requeue(), job, author) == "FORBIDDEN"
    stranger = structs.replace(OPEN, tenants=("other",))
    assert refusal(mesh, cancel.cancel, Cancel(), job, stranger) == "WORKLOAD_NOT_FOUND"
    assert refusal(mesh, requeue.requeue, Requeue(), job, stranger) == "WORKLOAD_NOT_FOUND"


def test_what_happened_is_told_in_order(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = create(mesh, key="k").workload.workload_id
    held = mesh.claims(job, by=worker, start=True)
    mesh.say("log", held, lines=["one", "two"])
    mesh.say("complete", held, output={"pages": 3})
    told = mesh.ask(feed.of_workload, After(limit=500), job).items
    assert [(one.from_state, one.to) for one in told if one.to] == [
        (None, "READY"),
        ("READY", "CLAIMED"),
        ("CLAIMED", "RUNNING"),
        ("RUNNING", "COMPLETED"),
    ]
    later = mesh.ask(feed.of_workload, After(after=told[1].seq, limit=500), job).items
    assert later == told[2:]
    logs = mesh.ask(workloads.logs, After(), job)
    assert ([line.text for line in logs.items], logs.final) == (["one", "two"], True)
    shown = mesh.ask(workloads.get, None, job)
    assert shown.result is not None
    assert bytes(shown.result.output) == b'{"pages":3}'
    assert shown.result.fencing_token == held.fencing_token
    assert shown.current_claim is None


def test_a_worker_sees_what_it_holds_and_nothing_else(mesh: Mesh) -> None:
    worker = mesh.worker()
    key = mesh.key(worker)
    held = create(mesh, key="held").workload.workload_id
    other = create(mesh, key="other").workload.workload_id
    mesh.claims(held, by=worker)
    assert mesh.ask(workloads.get, None, held, key).current_claim is not None
    assert refusal(mesh, workloads.get, None, other, key) == "WORKLOAD_NOT_FOUND"


def test_a_claim_that_is_not_there_cannot_be_ended(mesh: Mesh) -> None:
    job = create(mesh, key="k").workload.workload_id
    with pytest.raises(Refused):
        mesh.run(lambda tx, _, now: attempts.end_claim(tx, now, job, attempts.End("released")))
    assert row(mesh, job)["state"] == "READY"

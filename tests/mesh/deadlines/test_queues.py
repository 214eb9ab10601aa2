"""Stories of work that waits, for an instant or behind a backoff, while its timeouts run."""

from feltd.mesh import due, edit, promises, requeue
from feltd.model.editing import Edit
from feltd.model.workload import Requeue
from feltd.store.tx import Tx
from tests.mesh.deadlines.stories import deadline, round_of, standing
from tests.mesh.world import Mesh


def test_the_queue_does_not_run_while_nobody_could_take_the_work(mesh: Mesh) -> None:
    """A wall clock set right, or an instant taken back, makes it eligible now and not before."""
    at_ms = mesh.now.wall_ms + 3_600_000
    set_right = mesh.workload(timeouts={"queue_ms": 5_000}, not_before_at_ms=at_ms)
    taken_back = mesh.workload(timeouts={"queue_ms": 5_000}, not_before_at_ms=at_ms * 2)
    mesh.run(due.rescale, 100)
    mesh.later(60_000)
    mesh.ask(edit.edit, Edit(not_before_at_ms=None), taken_back)
    mesh.now = mesh.now._replace(wall_ms=at_ms + 60_000)

    round_of(mesh)
    mesh.run(due.rescale, 100)
    round_of(mesh)

    for job in (set_right, taken_back):
        assert standing(mesh, job)[0] == "READY"
        assert deadline(mesh, job) == 5_000


def test_who_died_behind_a_backoff_and_is_brought_back_waits_for_it_no_more(mesh: Mesh) -> None:
    worker = mesh.worker()
    policy = {"initial_backoff_ms": 600_000, "max_backoff_ms": 600_000}
    job = mesh.workload(timeouts={"total_ms": 5_000}, retry_policy=policy)
    mesh.say("fail", mesh.claims(job, by=worker, start=True))
    mesh.later(5_000)
    round_of(mesh)
    assert standing(mesh, job) == ("DEAD_LETTERED", "total_timeout")

    mesh.ask(requeue.requeue, Requeue(), job)

    assert mesh.claims(job, by=worker).workload_id == job
    assert promises.ask(Tx(mesh.conn)) == []

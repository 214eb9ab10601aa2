"""Work waits until what it depends on has ended, and learns of it in the commit of the end."""

import pytest

from feltd.clock import Now
from feltd.mesh import cancel, creation, evict, workloads
from feltd.model.claim import Evict
from feltd.model.editing import CHUNK_ROWS
from feltd.model.policy import Timeouts
from feltd.model.workload import Batch, Creation, Made, NewWorkload, Refusal
from feltd.store.tx import Tx
from tests.mesh.dependencies.stories import (
    after,
    called_off,
    dies,
    done,
    failure,
    requeued,
    round_of,
    settle,
    states,
    waiting,
)
from tests.mesh.workloads.stories import new, refusal, row, value
from tests.mesh.workloads.test_bulk import chunk, until_done
from tests.mesh.world import Mesh


@pytest.fixture
def edge(mesh: Mesh) -> str:
    return mesh.worker(capacity={"concurrency": 64})


def test_a_diamond_goes_from_its_top_to_its_bottom(mesh: Mesh, edge: str) -> None:
    top = mesh.workload()
    left, right = after(mesh, top), after(mesh, top)
    bottom = after(mesh, left, right)
    assert states(mesh, left, right, bottom) == ["PENDING"] * 3

    done(mesh, top, edge)
    assert states(mesh, left, right, bottom) == ["READY", "READY", "PENDING"]
    assert ("ready", "acme/docs") in mesh.signals

    done(mesh, left, edge)
    assert mesh.state(bottom) == "PENDING"
    done(mesh, right, edge)
    assert mesh.state(bottom) == "READY"
    assert waiting(mesh) == 0
    done(mesh, bottom, edge)


def test_what_is_pending_is_not_given_out(mesh: Mesh, edge: str) -> None:
    top = mesh.workload()
    child = after(mesh, top)
    assert mesh.refused(lambda: mesh.claims(child, by=edge)) == "WORKLOAD_NOT_READY"
    pulled = mesh.pull(edge, max=5)
    assert [claim.workload_id for claim in pulled.claims] == [top]


def test_its_rank_counts_from_when_it_became_ready(mesh: Mesh, edge: str) -> None:
    top = mesh.workload()
    child = after(mesh, top, priority=2)
    mesh.later(60_000)
    mesh.conn.execute("UPDATE workers SET last_seen_at_ms = ?", [mesh.now.lease_ms])
    done(mesh, top, edge)
    told = row(mesh, child)
    assert told["ready_at_ms"] == told["eligible_at_ms"] == mesh.now.lease_ms
    assert told["rank"] == mesh.now.lease_ms - 120_000
    assert told["due"] == 1


def test_its_not_before_still_counts(mesh: Mesh, edge: str) -> None:
    top = mesh.workload()
    child = after(mesh, top, not_before_at_ms=mesh.now.wall_ms + 5_000)
    done(mesh, top, edge)
    assert mesh.state(child) == "READY"
    assert mesh.refused(lambda: mesh.claims(child, by=edge)) == "WORKLOAD_NOT_YET_ELIGIBLE"
    mesh.later(5_000)
    round_of(mesh)
    assert [claim.workload_id for claim in mesh.pull(edge).claims] == [child]


def test_its_queue_timeout_runs_from_when_it_became_ready(mesh: Mesh, edge: str) -> None:
    top = mesh.workload()
    child = after(mesh, top, timeouts={"queue_ms": 1_000})
    mesh.later(10_000)
    round_of(mesh)
    assert mesh.state(child) == "PENDING"
    done(mesh, top, edge)
    mesh.later(999)
    round_of(mesh)
    assert mesh.state(child) == "READY"
    mesh.later(1)
    round_of(mesh)
    assert failure(mesh, child) == ("DEAD_LETTERED", "queue_timeout")


def test_all_finished_takes_any_end(mesh: Mesh, edge: str) -> None:
    good, bad, gone = mesh.workload(), mesh.workload(), mesh.workload()
    child = after(mesh, good, bad, gone, dependency_policy="all_finished")
    done(mesh, good, edge)
    dies(mesh, bad, edge)
    assert mesh.state(child) == "PENDING"
    called_off(mesh, gone)
    assert mesh.state(child) == "READY"


def test_what_has_ended_already_is_not_waited_for(mesh: Mesh, edge: str) -> None:
    good, bad = mesh.workload(), mesh.workload()
    done(mesh, good, edge)
    dies(mesh, bad, edge)
    assert mesh.state(after(mesh, good)) == "READY"
    assert mesh.state(after(mesh, good, bad, dependency_policy="all_finished")) == "READY"
    assert waiting(mesh) == 0


def test_a_failed_parent_spreads_through_what_needs_it(mesh: Mesh, edge: str) -> None:
    top, other = mesh.workload(), mesh.workload()
    child = after(mesh, top, other)
    grandchild, tolerant = after(mesh, child), after(mesh, child, dependency_policy="all_finished")
    untouched = after(mesh, other)

    dies(mesh, top, edge)

    assert failure(mesh, child) == ("DEAD_LETTERED", "dependency_failed")
    assert failure(mesh, grandchild) == ("DEAD_LETTERED", "dependency_failed")
    assert top in row(mesh, child)["failure_message"]
    assert child in row(mesh, grandchild)["failure_message"]
    assert states(mesh, tolerant, untouched) == ["READY", "PENDING"]
    assert {("workload", child), ("workload", grandchild)} <= set(mesh.signals)
    assert waiting(mesh) == 1


@pytest.mark.parametrize("policy", ["all_completed", "all_finished"])
def test_what_comes_after_its_parent_failed_is_told_at_once(
    mesh: Mesh, edge: str, policy: str
) -> None:
    """BC-052."""
    for _ in range(20):
        bad = mesh.workload()
        before = after(mesh, bad, dependency_policy=policy)
        dies(mesh, bad, edge)
        later = after(mesh, bad, dependency_policy=policy)
        want = "READY" if policy == "all_finished" else "DEAD_LETTERED"
        assert states(mesh, before, later) == [want, want]
    created = mesh.row("SELECT to_state, end_kind FROM events WHERE workload_id = :job", job=later)
    assert tuple(created) == (want, None if want == "READY" else "dependency_failed")


def test_every_end_of_a_parent_is_told(mesh: Mesh, edge: str) -> None:
    """BC-041: however a workload ends, in whatever state it was."""
    once = {"retry_policy": {"max_attempts": 1}}
    ends: dict[str, str] = {}

    def parent(how: str, **members: object) -> str:
        job = mesh.workload(**members)
        ends[how] = after(mesh, job)
        return job

    called_off(mesh, parent("cancelled while ready"))
    pending = after(mesh, mesh.workload())
    ends["cancelled while pending"] = after(mesh, pending)
    called_off(mesh, pending)
    forced = parent("cancelled by force")
    mesh.claims(forced, by=edge)
    called_off(mesh, forced, force=True)
    asked = parent("cancelled by its holder")
    held = mesh.claims(asked, by=edge)
    called_off(mesh, asked)
    mesh.say("release", held)
    evicted = mesh.claims(parent("evicted"), by=edge)
    mesh.ask(evict.evict, Evict(reason="no", to="DEAD_LETTERED"), evicted.claim_id)
    mesh.say("fail", mesh.claims(parent("failed", **once), by=edge))
    parent("timed out in the queue", timeouts={"queue_ms": 500})
    timed = after(mesh, mesh.workload(), timeouts={"total_ms": 500})
    ends["timed out while pending"] = after(mesh, timed)
    mesh.claims(parent("lapsed", **once), by=edge, lease_ms=1_000)
    mesh.claims(parent("timed out while held", timeouts={"total_ms": 900}), by=edge)
    mesh.later(1_000)
    round_of(mesh)

    told = {how: failure(mesh, child) for how, child in ends.items()}
    assert told == dict.fromkeys(ends, ("DEAD_LETTERED", "dependency_failed"))


def test_a_stale_workers_outcome_is_no_end(mesh: Mesh, edge: str) -> None:
    """BC-002: dependents saw the second outcome only."""
    job = mesh.workload()
    child = after(mesh, job)
    slow = mesh.claims(job, by=edge, lease_ms=1_000, start=True)
    mesh.later(1_000)
    mesh.sweep()
    mesh.later(2_000)
    quick = mesh.claims(job, by=edge, start=True)
    assert mesh.refusal("complete", slow) == "WORKLOAD_STALE_FENCE"
    assert mesh.refusal("fail", slow) == "WORKLOAD_STALE_FENCE"
    assert mesh.state(child) == "PENDING"
    mesh.say("complete", quick)
    assert mesh.state(child) == "READY"


def test_a_retry_is_no_end(mesh: Mesh, edge: str) -> None:
    job = mesh.workload()
    child = after(mesh, job)
    mesh.say("fail", mesh.claims(job, by=edge))
    assert states(mesh, job, child) == ["READY", "PENDING"]


def test_a_cancelled_child_waits_no_more(mesh: Mesh, edge: str) -> None:
    job = mesh.workload()
    child = after(mesh, job)
    called_off(mesh, child)
    assert waiting(mesh) == 0
    done(mesh, job, edge)
    assert mesh.state(child) == "CANCELLED"


@pytest.mark.parametrize(
    "named",
    [
        "workload_" + "0" * 32,
        "workload_0",
        "k",
        "group:",
        "group:night",
        "group:../night",
        "x" * 200,
    ],
)
def test_what_is_not_there_is_no_dependency(mesh: Mesh, named: str) -> None:
    """BC-055: unknown ids, one's own key."""
    there = mesh.workload()
    before = mesh.everything()
    body = new("k", dependencies=(there, named))
    assert refusal(mesh, creation.create, body) == "WORKLOAD_DEPENDENCY_INVALID"
    assert mesh.everything() == before


def test_another_tenants_work_answers_as_one_made_up(mesh: Mesh) -> None:
    """BC-055."""
    made_up = "workload_" + "0" * 32
    said = []
    for foreign in (
        mesh.workload(tenant_id="other"),
        mesh.workload(application_id="other"),
        made_up,
    ):
        try:
            after(mesh, foreign)
        except Exception as refused:
            said.append(str(refused))
    assert len(said) == 3
    assert len(set(said)) == 1


def test_a_name_given_twice_is_one(mesh: Mesh, edge: str) -> None:
    """BC-055."""
    job = mesh.workload()
    child = after(mesh, job, job)
    assert waiting(mesh) == 1
    done(mesh, job, edge)
    assert mesh.state(child) == "READY"


def test_a_batch_stores_whole_items_or_none(mesh: Mesh) -> None:
    """BC-010."""
    there = mesh.workload()
    good = new("a", dependencies=(there,))
    bad = new("b", dependencies=(there, "workload_" + "0" * 32))
    before = value(mesh, "SELECT count(*) FROM workloads")

    assert (
        refusal(mesh, creation.create_batch, Batch((good, bad), atomic=True))
        == "WORKLOAD_DEPENDENCY_INVALID"
    )
    assert value(mesh, "SELECT count(*) FROM workloads") == before
    assert waiting(mesh) == 0

    made, refused = mesh.ask(creation.create_batch, Batch((good, bad))).items
    assert isinstance(made, Made)
    assert made.state == "PENDING"
    assert isinstance(refused, Refusal)
    assert refused.errors is not None
    assert refused.errors[0]["pointer"] == "/dependencies/1"
    assert waiting(mesh) == 1


def test_a_repeated_creation_is_the_first_however_its_dependencies_stand(
    mesh: Mesh, edge: str
) -> None:
    one, two = mesh.workload(), mesh.workload()
    first = mesh.ask(creation.create, new("k", dependencies=(two, one)))
    done(mesh, one, edge)
    dies(mesh, two, edge)
    again = mesh.ask(creation.create, new("k", dependencies=(one, two)))
    assert again.workload.workload_id == first.workload.workload_id
    assert not again.created


def test_a_requeued_child_waits_for_what_is_unfinished_and_forgives_the_rest(
    mesh: Mesh, edge: str
) -> None:
    dead, live = mesh.workload(), mesh.workload()
    child = after(mesh, dead, live)
    dies(mesh, dead, edge)
    assert mesh.state(child) == "DEAD_LETTERED"
    assert requeued(mesh, child) == "PENDING"
    done(mesh, live, edge)
    assert mesh.state(child) == "READY"


def test_a_requeued_parent_leaves_dead_children_dead_until_they_are_requeued(
    mesh: Mesh, edge: str
) -> None:
    job = mesh.workload()
    child = after(mesh, job)
    dies(mesh, job, edge)
    assert requeued(mesh, job) == "READY"
    assert mesh.state(child) == "DEAD_LETTERED"
    assert requeued(mesh, child) == "PENDING"
    done(mesh, job, edge)
    assert mesh.state(child) == "READY"
    done(mesh, child, edge)


def test_a_requeued_child_of_ended_parents_is_ready(mesh: Mesh, edge: str) -> None:
    job = mesh.workload()
    child = after(mesh, job)
    called_off(mesh, job)
    assert mesh.state(child) == "DEAD_LETTERED"
    assert requeued(mesh, child) == "READY"
    done(mesh, child, edge)


def test_an_end_tells_two_hundred_in_its_commit_and_the_keeper_the_rest(
    mesh: Mesh, edge: str
) -> None:
    job = mesh.workload()
    children = [after(mesh, job) for _ in range(450)]
    done(mesh, job, edge)
    assert states(mesh, *children).count("READY") == 200
    assert ("settle", str(mesh.now.lease_ms)) in mesh.signals
    assert settle(mesh) >= 200
    assert states(mesh, *children).count("READY") == 400
    round_of(mesh)
    assert states(mesh, *children).count("READY") == 450
    assert settle(mesh) == 0


def test_a_long_chain_dies_link_by_link_within_bounds(mesh: Mesh, edge: str) -> None:
    chain = [mesh.workload()]
    for _ in range(450):
        chain.append(after(mesh, chain[-1]))
    dies(mesh, chain[0], edge)
    assert states(mesh, *chain).count("DEAD_LETTERED") == 201
    assert mesh.statements < 2_000
    round_of(mesh)
    assert states(mesh, *chain).count("DEAD_LETTERED") == 451
    assert value(mesh, "SELECT count(*) FROM settlements") == 0


def test_a_parent_requeued_before_all_were_told_is_waited_for_again(mesh: Mesh, edge: str) -> None:
    job = mesh.workload()
    children = [after(mesh, job) for _ in range(250)]
    dies(mesh, job, edge)
    assert requeued(mesh, job) == "READY"
    round_of(mesh)
    assert states(mesh, *children).count("PENDING") == 50
    done(mesh, job, edge)
    assert states(mesh, *children).count("READY") == 50


def test_a_busy_commit_leaves_the_telling_to_the_keeper(mesh: Mesh, edge: str) -> None:
    jobs = [mesh.workload() for _ in range(3)]
    children = [after(mesh, job) for job in jobs for _ in range(20)]

    def call_off_all(tx: Tx, cmd: None, now: Now) -> None:
        tx.statements += 1_000
        for job in jobs:
            found = tx.rows(workloads.READ, {"workload_id": job})[0]
            cancel.call_off(tx, now, found, "service:test", force=False)

    mesh.run(call_off_all)
    assert states(mesh, *children).count("DEAD_LETTERED") == 24
    round_of(mesh)
    assert states(mesh, *children).count("DEAD_LETTERED") == 60


def test_what_waits_is_shown_with_what_it_waits_for(mesh: Mesh) -> None:
    job = mesh.workload()
    body = NewWorkload(
        definition_id="extract",
        idempotency_key="k",
        tenant_id="acme",
        application_id="docs",
        dependencies=(job,),
        timeouts=Timeouts(total_ms=5_000),
    )
    shown = mesh.ask(creation.create, Creation(body)).workload
    assert shown.state == "PENDING"
    assert shown.dependencies == (job,)
    assert shown.dependency_policy == "all_completed"


def test_many_are_requeued_after_what_they_need(mesh: Mesh, edge: str) -> None:
    """More children than a chunk holds, all newer than their parent."""
    top = mesh.workload()
    children = [after(mesh, top) for _ in range(CHUNK_ROWS + 20)]
    last = after(mesh, children[0], children[-1])
    dies(mesh, top, edge)
    round_of(mesh)
    assert states(mesh, *children, last) == ["DEAD_LETTERED"] * (len(children) + 1)

    # Of these alone nothing can be brought back.
    refused = mesh.refused(lambda: chunk(mesh, "requeue", failure_kind="dependency_failed"))
    assert refused == "WORKLOAD_TRANSITION_DENIED"

    assert until_done(mesh, "requeue") == [CHUNK_ROWS, 22]
    assert states(mesh, top, last) == ["READY", "PENDING"]
    assert set(states(mesh, *children)) == {"PENDING"}
    done(mesh, top, edge)
    round_of(mesh)
    assert set(states(mesh, *children)) == {"READY"}


def test_a_batch_names_so_many_dependencies_and_no_more(mesh: Mesh) -> None:
    ids = tuple(mesh.workload() for _ in range(64))
    items = tuple(new(f"many-{n}", dependencies=ids) for n in range(130))
    made = mesh.ask(creation.create_batch, Batch(items)).items
    refused = [one for one in made if isinstance(one, Refusal)]
    assert len(refused) == 5
    assert {one.code for one in refused} == {"WORKLOAD_INVALID"}

"""What pools and holds say is kept where work is taken, by any way, from the next commit on."""

from typing import Any

import pytest

from feltd.mesh import claims, gates, taking
from feltd.model.claim import Claim
from tests.mesh.pools.stories import change, drop, hold, lift, make, refusal
from tests.mesh.world import Mesh


def pooled(mesh: Mesh, pool_id: str = "gpu", **members: Any) -> str:
    """A workload that names a pool."""
    return mesh.workload(placement={"pool_id": pool_id}, **members)


def taken(mesh: Mesh, worker_id: str) -> list[str]:
    """What a worker gets for a pull."""
    return [claim.workload_id for claim in mesh.pull(worker_id).claims]


def why(mesh: Mesh, worker_id: str) -> str:
    """The reason of an empty pull."""
    pulled = mesh.pull(worker_id)
    assert pulled.claims == []
    return pulled.reasons[0].code


def rules(mesh: Mesh, job: str, worker_id: str) -> list[str]:
    """The rules a claim by id is refused with."""
    refused = refusal(lambda: mesh.claims(job, by=worker_id))
    assert refused.code == "MESH_PLACEMENT_DENIED"
    found: list[str] = refused.facts["rules"]
    return found


# -- pools


def test_work_that_names_an_unknown_pool_is_refused(mesh: Mesh) -> None:
    """Another tenant's pool and another application's answer like a made-up one."""
    make(mesh, "theirs", tenant="other")
    make(mesh, "elsewhere", application_id="mail")

    made_up = refusal(pooled, mesh, "made-up")
    for pool_id in ("theirs", "elsewhere"):
        refused = refusal(pooled, mesh, pool_id)
        assert (refused.code, refused.detail, refused.facts) == (
            "WORKER_POOL_NOT_FOUND",
            made_up.detail,
            made_up.facts,
        )
    assert mesh.row("SELECT count(*) AS n FROM workloads")["n"] == 0


@pytest.mark.parametrize(
    ("members", "joins"),
    [
        ({"worker_ids": ["member"]}, {}),
        ({"required_labels": {"zone": "a"}}, {"labels": {"zone": "a"}}),
        ({"capabilities": ["render"]}, {"capabilities": ["docs.extract", "render"]}),
    ],
    ids=["listed", "labels", "capabilities"],
)
def test_only_a_member_gets_the_work_of_a_pool(
    mesh: Mesh, members: dict[str, Any], joins: dict[str, Any]
) -> None:
    outsider, member = mesh.worker("outsider"), mesh.worker("member", **joins)
    if "worker_ids" in members:
        members = {"worker_ids": [member]}
    make(mesh, **members)
    job = pooled(mesh)

    assert why(mesh, outsider) == "NO_MATCH"
    assert rules(mesh, job, outsider) == ["pool"]
    assert taken(mesh, member) == [job]


def test_a_pool_that_changes_counts_from_the_next_claim_on(mesh: Mesh) -> None:
    one, two = mesh.worker("one", capacity={"concurrency": 5}), mesh.worker("two")
    make(mesh, worker_ids=[one])
    running = mesh.claims(pooled(mesh), by=one, start=True)
    job = pooled(mesh)
    assert why(mesh, two) == "NO_MATCH"

    change(mesh, worker_ids=[two])
    assert why(mesh, one) == "NO_MATCH"
    assert taken(mesh, two) == [job]
    assert mesh.say("complete", running).state == "COMPLETED"


def test_a_ceiling_is_never_exceeded_and_lowering_it_blocks_new_claims_only(mesh: Mesh) -> None:
    edge = mesh.worker(capacity={"concurrency": 9})
    make(mesh, max_concurrency=2)
    jobs = [pooled(mesh) for _ in range(4)]
    free = mesh.workload()

    held = mesh.pull(edge, max=9).claims
    assert [claim.workload_id for claim in held] == [jobs[0], jobs[1], free]
    assert why(mesh, edge) == "POOL_FULL"
    assert rules(mesh, jobs[2], edge) == ["pool_full"]

    change(mesh, max_concurrency=1)
    mesh.say("start", held[0])
    mesh.say("complete", held[0])
    assert why(mesh, edge) == "POOL_FULL"
    mesh.say("release", held[1])
    assert len(taken(mesh, edge)) == 1
    assert why(mesh, edge) == "POOL_FULL"
    change(mesh, max_concurrency=None)
    assert len(mesh.pull(edge, max=9).claims) == 2


def test_a_deleted_pool_leaves_its_work_waiting_until_it_is_made_again(mesh: Mesh) -> None:
    edge = mesh.worker(capacity={"concurrency": 5})
    make(mesh, max_concurrency=2)
    running = mesh.claims(pooled(mesh), by=edge, start=True)
    job, last = pooled(mesh), pooled(mesh)
    drop(mesh)

    assert why(mesh, edge) == "NO_MATCH"
    assert rules(mesh, job, edge) == ["pool"]
    assert refusal(pooled, mesh).code == "WORKER_POOL_NOT_FOUND"

    pool, _ = make(mesh, max_concurrency=2)
    # The claim that ran on while there was no pool still counts in it.
    assert pool.active == 1
    assert taken(mesh, edge) == [job]
    assert why(mesh, edge) == "POOL_FULL"
    mesh.say("complete", running)
    assert taken(mesh, edge) == [last]


def test_a_claim_that_ends_after_its_pool_is_gone_leaves_nothing_behind(mesh: Mesh) -> None:
    edge = mesh.worker(capacity={"concurrency": 5})
    make(mesh, max_concurrency=1)
    running = mesh.claims(pooled(mesh), by=edge, start=True)
    drop(mesh)
    mesh.say("complete", running)

    pool, _ = make(mesh, max_concurrency=1)
    assert pool.active == 0
    job = pooled(mesh)
    assert taken(mesh, edge) == [job]


def test_a_pool_made_of_nobody_gives_its_work_to_nobody(mesh: Mesh) -> None:
    edge = mesh.worker()
    make(mesh, listed=True)
    job = pooled(mesh)

    assert rules(mesh, job, edge) == ["pool"]
    change(mesh, listed=False)
    assert taken(mesh, edge) == [job]


def test_the_work_of_a_pool_of_the_tenant_stays_in_its_application(mesh: Mesh) -> None:
    docs, mail = mesh.worker("docs"), mesh.worker("mail", application_id="mail")
    make(mesh, worker_ids=[docs, mail])
    job = pooled(mesh)

    assert why(mesh, mail) == "NO_WORK"
    assert taken(mesh, docs) == [job]


def test_what_a_worker_was_found_to_fit_ends_with_a_change_it_could_not_see(mesh: Mesh) -> None:
    """A pool of the tenant that is made before the application has any work is not overlooked."""
    edge = mesh.worker()
    assert why(mesh, edge) == "NO_WORK"
    held = hold(mesh, "tenant")
    job = mesh.workload()
    assert why(mesh, edge) == "HELD"
    lift(mesh, held.hold_id)
    assert taken(mesh, edge) == [job]


def test_the_last_attempt_of_a_dead_worker_frees_its_place_in_the_pool(mesh: Mesh) -> None:
    """BC-041: it is a dead letter, and the next one of the pool runs."""
    dead, alive = mesh.worker("dead"), mesh.worker("alive")
    make(mesh, max_concurrency=1)
    job = pooled(mesh, retry_policy={"max_attempts": 1})
    mesh.claims(job, by=dead, lease_ms=1_000, start=True)
    waiting = pooled(mesh)
    assert why(mesh, alive) == "POOL_FULL"

    mesh.later(1_000)
    mesh.sweep()
    assert mesh.state(job) == "DEAD_LETTERED"
    assert taken(mesh, alive) == [waiting]


def test_work_that_is_tried_again_comes_first_and_still_asks_for_its_pool(mesh: Mesh) -> None:
    """BC-049: what it asks for is unchanged by its recovery."""
    member = mesh.worker("member", labels={"zone": "a"}, capacity={"concurrency": 3})
    outsider = mesh.worker("outsider", capacity={"concurrency": 3})
    make(mesh, required_labels={"zone": "a"})
    job = pooled(mesh, priority=9)
    held = mesh.claims(job, by=member, start=True)
    mesh.say("fail", held)
    others = [pooled(mesh) for _ in range(3)]
    mesh.later(2_000)
    mesh.promote()

    assert why(mesh, outsider) == "NO_MATCH"
    assert taken(mesh, member) == [job]
    assert taken(mesh, member) == [others[0]]


# -- holds


@pytest.mark.parametrize(
    ("scope", "value"),
    [
        ("all", None),
        ("tenant", None),
        ("application", "docs"),
        ("pool", "gpu"),
        ("definition", "extract"),
        ("definition", "extract#1"),
    ],
)
def test_held_work_is_claimed_by_no_way_and_what_runs_goes_on(
    mesh: Mesh, scope: str, value: str | None
) -> None:
    make(mesh)
    edge = mesh.worker(capacity={"concurrency": 5})
    running = mesh.claims(pooled(mesh), by=edge)
    job = pooled(mesh)
    held = hold(mesh, scope, value)

    assert why(mesh, edge) == "HELD"
    assert rules(mesh, job, edge) == ["held"]
    for verb in ("start", "renew", "checkpoint"):
        mesh.say(verb, running)
    assert mesh.say("complete", running).state == "COMPLETED"
    assert mesh.state(job) == "READY"

    lift(mesh, held.hold_id)
    assert ("ready", "acme/docs") in mesh.signals
    assert taken(mesh, edge) == [job]


def test_a_hold_passes_over_other_work(mesh: Mesh) -> None:
    edge = mesh.worker(capacity={"concurrency": 5})
    stopped, runs = mesh.workload(), mesh.workload(definition_id="index")
    second = mesh.workload(definition_revision="2")
    hold(mesh, "definition", "extract#1")

    assert [one.workload_id for one in mesh.pull(edge, max=5).claims] == [runs, second]
    assert rules(mesh, stopped, edge) == ["held"]


def test_work_given_back_under_a_hold_stays_with_nobody(mesh: Mesh) -> None:
    """A retry is a new claim: it waits for the hold like any other."""
    edge = mesh.worker(capacity={"concurrency": 5})
    job = mesh.workload()
    claim = mesh.claims(job, by=edge, start=True)
    held = hold(mesh, "tenant")
    mesh.say("fail", claim)
    mesh.later(60_000)
    mesh.conn.execute("UPDATE workers SET last_seen_at_ms = ?", [mesh.now.lease_ms])
    mesh.promote()

    assert why(mesh, edge) == "HELD"
    lift(mesh, held.hold_id)
    assert taken(mesh, edge) == [job]


def test_two_holds_on_one_piece_of_work_are_both_lifted_before_it_runs(mesh: Mesh) -> None:
    edge = mesh.worker()
    job = mesh.workload()
    first, second = hold(mesh, "tenant"), hold(mesh, "definition", "extract")

    lift(mesh, first.hold_id)
    assert why(mesh, edge) == "HELD"
    lift(mesh, second.hold_id)
    assert taken(mesh, edge) == [job]


def test_no_claim_passes_a_hold_or_change_of_an_earlier_commit(mesh: Mesh) -> None:
    """The generation a claim was judged under is tested by the statement that issues it."""
    edge = mesh.worker()
    job = mesh.workload()
    looked = mesh.run(lambda tx, _, now: claims.puller(tx, mesh.open, now, edge, None))
    hold(mesh, "tenant")
    wish = taking.Taking(mesh.open, looked, job, 30_000, "id")
    issued: Claim | None = mesh.run(lambda tx, _, now: taking.take(tx, now, wish))
    assert issued is None
    assert mesh.state(job) == "READY"


def test_a_pools_ceiling_is_counted_again_from_the_claims(mesh: Mesh) -> None:
    """What the row of a pool counts is what its live claims are."""
    edge = mesh.worker(capacity={"concurrency": 9})
    make(mesh, max_concurrency=3)
    for _ in range(5):
        pooled(mesh)
    held = mesh.pull(edge, max=9).claims
    mesh.say("release", held[0])
    mesh.later(30_001)
    mesh.sweep()

    counted = mesh.row(
        "SELECT p.active, (SELECT count(*) FROM claims c WHERE c.tenant_id = p.tenant_id"
        " AND c.pool_id = p.pool_id AND c.ended_at_ms IS NULL) AS live FROM pools p"
    )
    assert counted["active"] == counted["live"] == 0
    mesh.run(lambda tx, _, now: gates.pool_changed(tx, "acme", "gpu"))

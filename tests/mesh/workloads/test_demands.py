"""Heads are true, the best work comes first, and depth costs a pull nothing."""

import random

import pytest

from feltd.mesh import cancel, creation, demands, due, edit, idle, matching
from feltd.model.editing import Edit
from feltd.model.policy import Placement
from feltd.model.workload import Batch, Cancel, Resources, RetryPolicy
from feltd.store.tx import Row, Tx
from tests.mesh.workloads.stories import create, new, refusal, row, step_wall, value
from tests.mesh.world import Mesh

WORKER = """
SELECT k.worker_id, k.tenant_id, k.application_id, k.incarnation, k.content_version,
       k.capability_version, k.granted_capabilities, k.workload_kinds, k.resource_profile, k.labels,
       a.demand_generation, a.gate_generation
  FROM workers k
  LEFT JOIN applications a
    ON a.tenant_id = k.tenant_id
   AND a.application_id = k.application_id
 WHERE k.worker_id = :worker_id
"""

BEST_OF_LANES = """
SELECT l.lane_id, l.demand_id, l.head_rank, l.head_seq, w.rank, w.seq
  FROM lanes l
  LEFT JOIN workloads w
    ON w.seq = (SELECT b.seq
                  FROM workloads b
                 WHERE b.lane_id = l.lane_id
                   AND b.state = 'READY'
                   AND b.due = 1
                 ORDER BY b.rank, b.seq
                 LIMIT 1)
"""


def fit(tx: Tx, worker_id: str, kinds: tuple[str, ...] = ()) -> matching.Fit:
    worker = tx.row(WORKER, {"worker_id": worker_id})
    assert worker is not None
    return matching.fitting(tx, worker, kinds)


def head(mesh: Mesh, worker_id: str, kinds: tuple[str, ...] = ()) -> Row | None:
    return mesh.run(lambda tx, _, now: matching.head(tx, fit(tx, worker_id, kinds)))


def first(mesh: Mesh, worker_id: str, kinds: tuple[str, ...] = ()) -> str | None:
    """The idempotency key of what this worker would be given."""
    found = head(mesh, worker_id, kinds)
    if found is None:
        return None
    key: str = row(mesh, found["workload_id"])["idempotency_key"]
    return key


def promote(mesh: Mesh, limit: int = 100) -> tuple[int, int | None]:
    return mesh.run(due.promote, limit)


def heads_are_true(mesh: Mesh) -> bool:
    best: dict[int, tuple[int, int]] = {}
    for lane in mesh.conn.execute(BEST_OF_LANES).fetchall():
        if (lane["head_rank"], lane["head_seq"]) != (lane["rank"], lane["seq"]):
            return False
        if lane["rank"] is not None:
            held = best.get(lane["demand_id"], (2**62, 0))
            best[lane["demand_id"]] = min(held, (lane["rank"], lane["seq"]))
    stored = {
        demand["demand_id"]: (demand["head_rank"], demand["head_seq"])
        for demand in mesh.conn.execute(
            "SELECT demand_id, head_rank, head_seq FROM demands WHERE head_rank IS NOT NULL"
        )
    }
    return stored == best


def test_the_first_created_comes_first_and_a_point_of_priority_is_worth_a_minute(
    mesh: Mesh,
) -> None:
    worker = mesh.worker()
    create(mesh, key="old")
    mesh.later(60_000)
    create(mesh, key="equal", priority=1)
    assert first(mesh, worker) == "old"
    create(mesh, key="urgent", priority=2)
    assert first(mesh, worker) == "urgent"
    mesh.ask(cancel.cancel, Cancel(), head(mesh, worker)["workload_id"])
    assert first(mesh, worker) == "old"


def test_work_of_many_kinds_comes_in_one_order(mesh: Mesh) -> None:
    """BC-060: more kinds than are sought one by one."""
    worker = mesh.worker()
    for number in range(30):
        create(mesh, key=f"k{number}", definition_id=f"kind{number}")
        mesh.later(1)
    seen = []
    for _ in range(30):
        found = head(mesh, worker)
        assert found is not None
        seen.append(row(mesh, found["workload_id"])["idempotency_key"])
        mesh.ask(cancel.cancel, Cancel(), found["workload_id"])
    assert seen == [f"k{number}" for number in range(30)]
    assert head(mesh, worker) is None


def test_what_only_others_may_run_does_not_hide_ones_own(mesh: Mesh) -> None:
    """BC-060: 500 kinds that no worker fits stand before ten that this one fits."""
    worker = mesh.worker()
    for number in range(500):
        create(mesh, key=f"x{number}", capability_snapshot=("nobody",), definition_id=f"x{number}")
    for number in range(10):
        create(mesh, key=f"k{number}", definition_id=f"kind{number}")
    assert first(mesh, worker) == "k0"
    told = mesh.run(lambda tx, _, now: idle.reasons(tx, fit(tx, worker)))
    assert [reason.demands for reason in told] == [10, 500]


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        ({}, True),
        ({"capability_snapshot": ("docs.extract",)}, True),
        ({"capability_snapshot": ("docs.extract", "docs.sign")}, False),
        ({"resources": Resources(cpu_millis=500)}, True),
        ({"resources": Resources(cpu_millis=501)}, False),
        ({"resources": Resources(gpu_count=1)}, False),
        ({"resources": Resources(gpu_count=0)}, True),
        ({"placement": Placement(required_labels={"zone": "a"})}, True),
        ({"placement": Placement(required_labels={"zone": "b"})}, False),
        ({"placement": Placement(required_labels={"rack": "1"})}, False),
        ({"placement": Placement(anti_affinity={"zone": "a"})}, False),
        ({"placement": Placement(anti_affinity={"rack": "1"})}, True),
        ({"application_id": "other"}, False),
        ({"tenant_id": "other"}, False),
    ],
)
def test_a_worker_is_given_only_what_fits_it(
    mesh: Mesh, asked: dict[str, object], fits: bool
) -> None:
    worker = mesh.worker(resource_profile={"cpu_millis": 500}, labels={"zone": "a"})
    create(mesh, key="k", **asked)
    assert (first(mesh, worker) == "k") is fits


def test_a_pull_may_ask_for_some_kinds_only(mesh: Mesh) -> None:
    worker = mesh.worker()
    create(mesh, key="a", definition_id="a")
    create(mesh, key="b2", definition_id="b", definition_revision="2")
    assert first(mesh, worker, ("b",)) == "b2"
    assert first(mesh, worker, ("b#2",)) == "b2"
    assert first(mesh, worker, ("b#1",)) is None
    for number in range(20):
        assert first(mesh, worker, (f"none{number}",)) is None
    assert first(mesh, worker) == "a"


def test_what_fits_is_found_anew_when_either_side_changes(mesh: Mesh) -> None:
    worker = mesh.worker()
    assert head(mesh, worker) is None
    create(mesh, key="k", capability_snapshot=("docs.sign",))
    assert head(mesh, worker) is None
    mesh.hand(
        "UPDATE workers SET granted_capabilities = :granted,"
        " capability_version = capability_version + 1",
        granted='["docs.extract","docs.sign"]',
    )
    assert first(mesh, worker) == "k"


def test_a_fit_that_is_remembered_costs_no_statement(mesh: Mesh) -> None:
    worker = mesh.worker()
    create(mesh, key="k")
    head(mesh, worker)
    head(mesh, worker)
    assert mesh.statements == 2  # the worker, its head


def test_work_for_later_waits_and_is_told_when_it_is_due(mesh: Mesh) -> None:
    worker = mesh.worker()
    at_ms = mesh.now.wall_ms + 5_000
    job = create(mesh, key="later", not_before_at_ms=at_ms).workload
    assert job.state == "READY"
    assert job.eligible_at_ms == mesh.now.lease_ms + 5_000
    assert mesh.signals[0] == ("due", str(job.eligible_at_ms))
    assert head(mesh, worker) is None
    mesh.later(4_999)
    assert promote(mesh) == (0, job.eligible_at_ms)
    mesh.later(1)
    assert promote(mesh) == (1, None)
    assert mesh.signals[0] == ("ready", "acme/docs")
    assert first(mesh, worker) == "later"
    assert heads_are_true(mesh)


def test_an_instant_in_the_past_is_now(mesh: Mesh) -> None:
    job = create(mesh, key="k", not_before_at_ms=1).workload
    assert job.eligible_at_ms == mesh.now.lease_ms


def test_promotion_is_bounded_and_goes_on(mesh: Mesh) -> None:
    for number in range(7):
        create(mesh, key=f"k{number}", not_before_at_ms=mesh.now.wall_ms + 1)
    mesh.later(1)
    assert promote(mesh, limit=5) == (5, mesh.now.lease_ms)
    assert promote(mesh, limit=5) == (2, None)
    assert promote(mesh, limit=5) == (0, None)


def test_waiting_instants_follow_the_wall_clock(mesh: Mesh) -> None:
    """not_before is wall time: when the wall clock is set right, the wait changes with it."""
    worker = mesh.worker()
    at_ms = mesh.now.wall_ms + 3_600_000
    job = create(mesh, key="k", not_before_at_ms=at_ms).workload.workload_id
    other = create(mesh, key="far", not_before_at_ms=at_ms + 1).workload.workload_id
    assert mesh.run(due.rescale, 100) == 0
    step_wall(mesh, 900)
    assert mesh.run(due.rescale, 100) == 0
    step_wall(mesh, 1_800_000 - 900)
    assert mesh.run(due.rescale, 1) == 1
    assert mesh.run(due.rescale, 1) == 1
    assert mesh.run(due.rescale, 1) == 0
    assert row(mesh, job)["eligible_at_ms"] == mesh.now.lease_ms + 1_800_000
    assert row(mesh, other)["eligible_at_ms"] == mesh.now.lease_ms + 1_800_001
    step_wall(mesh, 3_600_000)
    mesh.run(due.rescale, 100)
    assert promote(mesh)[0] == 2
    assert first(mesh, worker) == "k"
    assert heads_are_true(mesh)


def test_a_backoff_is_not_cut_short_by_the_wall_clock(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = create(mesh, key="k", not_before_at_ms=1, capability_snapshot=()).workload.workload_id
    held = mesh.claims(job, by=worker, start=True)
    mesh.say("fail", held)
    waits_until_ms = row(mesh, job)["eligible_at_ms"]
    assert waits_until_ms > mesh.now.lease_ms
    mesh.run(due.rescale, 100)
    step_wall(mesh, 86_400_000)
    mesh.run(due.rescale, 100)
    assert row(mesh, job)["eligible_at_ms"] == waits_until_ms


def test_what_was_tried_and_put_off_follows_the_wall_clock_behind_its_backoff(mesh: Mesh) -> None:
    worker = mesh.worker()
    policy = RetryPolicy(initial_backoff_ms=600_000, max_backoff_ms=600_000, jitter=0)
    job = create(mesh, key="k", retry_policy=policy).workload.workload_id
    mesh.say("fail", mesh.claims(job, by=worker, start=True))
    backoff_ms = row(mesh, job)["eligible_at_ms"]
    at_ms = mesh.now.wall_ms + 3_600_000
    mesh.ask(edit.edit, Edit(not_before_at_ms=at_ms), job)
    mesh.run(due.rescale, 100)
    step_wall(mesh, 1_800_000)
    assert mesh.run(due.rescale, 100) == 1
    assert row(mesh, job)["eligible_at_ms"] == mesh.now.lease_ms + 1_800_000
    step_wall(mesh, 1_800_000)
    assert mesh.run(due.rescale, 100) == 1
    assert row(mesh, job)["eligible_at_ms"] == backoff_ms


def test_the_retried_one_keeps_its_priority(mesh: Mesh) -> None:
    """BC-049."""
    worker = mesh.worker()
    job = create(mesh, key="nine", priority=9).workload.workload_id
    mesh.say("fail", mesh.claims(job, by=worker, start=True))
    for number in range(100):
        create(mesh, key=f"k{number}")
    mesh.later(1_200)
    promote(mesh)
    assert first(mesh, worker) == "nine"


def test_demands_that_nobody_asks_for_any_more_go(mesh: Mesh) -> None:
    worker = mesh.worker()
    gone = create(mesh, key="gone", definition_id="gone").workload.workload_id
    create(mesh, key="stays", definition_id="stays")
    assert first(mesh, worker) == "gone"
    mesh.ask(cancel.cancel, Cancel(), gone)
    generation = value(mesh, "SELECT demand_generation FROM applications")
    assert mesh.run(due.prune, 1) == 1
    assert mesh.run(due.prune, 1) == 0
    assert value(mesh, "SELECT count(*) FROM demands") == 1
    assert value(mesh, "SELECT count(*) FROM lanes") == 1
    assert value(mesh, "SELECT demands FROM applications") == 1
    assert value(mesh, "SELECT demand_generation FROM applications") > generation
    assert first(mesh, worker) == "stays"
    create(mesh, key="again", definition_id="gone", priority=9)
    assert first(mesh, worker) == "again"


def test_an_application_has_two_thousand_kinds_of_unfinished_work_at_most(mesh: Mesh) -> None:
    items = [new(key=f"k{n}", definition_id=f"kind{n}") for n in range(2_001)]
    mesh.ask(creation.create_batch, Batch(tuple(items[:1_000])))
    mesh.ask(creation.create_batch, Batch(tuple(items[1_000:2_000])))
    assert refusal(mesh, creation.create, items[2_000]) == "WORKLOAD_INVALID"
    assert create(mesh, key="known kind", definition_id="kind7").created
    assert create(mesh, key="elsewhere", application_id="other").created
    done = value(mesh, "SELECT workload_id FROM workloads WHERE definition_id = 'kind9'")
    mesh.ask(cancel.cancel, Cancel(), done)
    assert mesh.ask(creation.create, items[2_000]).created
    assert value(mesh, "SELECT demands FROM applications WHERE application_id = 'docs'") == 2_000


def test_heads_stay_true_whatever_happens(mesh: Mesh) -> None:
    """A seeded walk over creation, promotion, cancellation, claims, releases, failures, requeue."""
    chance = random.Random(7)
    workers = [mesh.worker(f"w{n}", capacity={"concurrency": 5}) for n in range(3)]
    held = []
    for step in range(400):
        deed = chance.choice(["create", "create", "claim", "claim", "give back", "cancel", "wait"])
        if deed == "create":
            create(
                mesh,
                key=f"k{step}",
                definition_id=f"kind{chance.randrange(12)}",
                priority=chance.randrange(-3, 4),
                not_before_at_ms=chance.choice([None, mesh.now.wall_ms + 50]),
            )
        elif deed == "claim":
            worker = chance.choice(workers)
            found = head(mesh, worker)
            if found is not None:
                mesh.refused(
                    lambda w=worker, f=found: held.append(mesh.claims(f["workload_id"], by=w))
                )
        elif deed == "give back" and held:
            claim = held.pop(chance.randrange(len(held)))
            mesh.refusal(chance.choice(["release", "fail"]), claim)
        elif deed == "cancel":
            found = head(mesh, chance.choice(workers))
            if found is not None:
                mesh.ask(cancel.cancel, Cancel(), found["workload_id"])
        else:
            mesh.later(chance.choice([1, 40, 2_000]))
            promote(mesh)
        assert heads_are_true(mesh), step
        if step % 50 == 0:
            mesh.run(due.prune, 50)


def test_a_workload_row_offered_twice_changes_nothing(mesh: Mesh) -> None:
    job = row(mesh, create(mesh, key="k").workload.workload_id)
    mesh.run(
        lambda tx, _, now: demands.offer(
            tx, job["lane_id"], job["demand_id"], job["rank"], job["seq"]
        )
    )
    assert heads_are_true(mesh)
    mesh.run(lambda tx, _, now: demands.withdraw(tx, job["lane_id"], job["demand_id"]))
    assert heads_are_true(mesh)

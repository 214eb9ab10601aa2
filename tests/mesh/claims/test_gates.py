"""Stories of work that waits for a key, a rate or a pool, and of what it is told meanwhile."""

from typing import Any

import pytest
from msgspec import convert

from feltd.errors import Refused
from feltd.mesh import attempts, cancel, claims, creation, evict, gates, keys, lanes, rates
from feltd.mesh.attempts import End
from feltd.model.claim import Claim, ClaimById, Evict
from feltd.model.policy import Concurrency
from feltd.model.workload import Batch, Cancel
from tests.mesh.pools import stories
from tests.mesh.workloads.stories import new
from tests.mesh.world import Mesh

ONE = {"key": "disk", "limit": 1}
RATE = {"key": "api", "limit": 2, "period_ms": 10_000}


def crowd(mesh: Mesh, name: str = "crowd", **members: Any) -> str:
    return mesh.worker(name, capacity={"concurrency": 1_000}, **members)


def reasons(mesh: Mesh, worker: str, **members: Any) -> dict[str, int | None]:
    return {one.code: one.demands for one in mesh.pull(worker, **members).reasons}


def denied(mesh: Mesh, job: str, worker: str) -> list[str]:
    """The rules a claim by id is refused with."""
    body = convert({"worker_id": worker}, ClaimById)
    with pytest.raises(Refused) as refused:
        mesh.ask(claims.claim, body, job)
    assert refused.value.code == "MESH_PLACEMENT_DENIED"
    rules: list[str] = refused.value.facts["rules"]
    return rules


def key(mesh: Mesh, name: str = "disk") -> tuple[int, int]:
    row = mesh.row("SELECT active, claims_max FROM concurrency_keys WHERE name = :name", name=name)
    return row["active"], row["claims_max"]


def by_completing(mesh: Mesh, held: Claim) -> None:
    mesh.say("complete", held, start=True)


def by_failing(mesh: Mesh, held: Claim) -> None:
    mesh.say("fail", held, kind="execution_error")


def by_releasing(mesh: Mesh, held: Claim) -> None:
    mesh.say("release", held)


def by_evicting(mesh: Mesh, held: Claim) -> None:
    mesh.ask(evict.evict, convert({"reason": "by hand"}, Evict), held.claim_id)


def by_cancelling(mesh: Mesh, held: Claim) -> None:
    mesh.ask(cancel.cancel, Cancel(force=True), held.workload_id)


def by_losing_the_worker(mesh: Mesh, held: Claim) -> None:
    mesh.run(lambda tx, _, now: attempts.end_claims_of(tx, now, held.worker_id, "worker_lost"))


def by_lapsing(mesh: Mesh, held: Claim) -> None:
    mesh.later(30_000)
    mesh.sweep()


def by_restoring(mesh: Mesh, held: Claim) -> None:
    end = End("restored")
    mesh.run(lambda tx, _, now: attempts.end_claim(tx, now, held.workload_id, end))


ENDS = [
    by_completing,
    by_failing,
    by_releasing,
    by_evicting,
    by_cancelling,
    by_losing_the_worker,
    by_lapsing,
    by_restoring,
]


class TestAConcurrencyKey:
    @pytest.mark.parametrize("end", ENDS)
    def test_has_room_again_whatever_ends_a_claim(self, mesh: Mesh, end: Any) -> None:
        """BC-007, BC-012, BC-041."""
        worker, other = crowd(mesh), crowd(mesh, "other")
        mesh.workload(concurrency=ONE)
        second = mesh.workload(concurrency=ONE)
        held = mesh.pull(worker).claims[0]
        assert reasons(mesh, other) == {"KEY_FULL": 1}
        assert denied(mesh, second, other) == ["key_full"]
        assert key(mesh) == (1, 1)
        end(mesh, held)
        assert key(mesh) == (0, 1)
        assert len(mesh.pull(other, max=2).claims) == 1
        assert key(mesh) == (1, 1)

    def test_tells_who_waits(self, mesh: Mesh) -> None:
        worker = crowd(mesh)
        mesh.workload(concurrency=ONE)
        mesh.workload(concurrency=ONE)
        held = mesh.pull(worker).claims[0]
        by_completing(mesh, held)
        assert ("ready", "acme/docs") in mesh.signals

    def test_is_never_given_back_twice(self, mesh: Mesh) -> None:
        """BC-011: late and repeated ends of a claim that was recovered free nothing."""
        worker, other = crowd(mesh), crowd(mesh, "other")
        mesh.workload(concurrency=ONE, retry_policy={"initial_backoff_ms": 0})
        late = mesh.pull(worker).claims[0]
        by_lapsing(mesh, late)
        mesh.conn.execute("UPDATE workers SET last_seen_at_ms = ?", [mesh.now.lease_ms])
        held = mesh.pull(other).claims[0]
        for verb in ("complete", "release", "release", "fail"):
            assert mesh.refusal(verb, late) == "WORKLOAD_STALE_FENCE"
        assert key(mesh) == (1, 1)
        mesh.workload(concurrency=ONE)
        assert reasons(mesh, worker) == {"KEY_FULL": 1}
        mesh.say("release", held)
        mesh.say("release", held)
        assert key(mesh) == (0, 1)

    def test_holds_over_every_kind_of_work_that_names_it(self, mesh: Mesh) -> None:
        worker = crowd(mesh)
        for number in range(5):
            mesh.workload(definition_id=f"kind{number}", concurrency={"key": "disk", "limit": 2})
        assert len(mesh.pull(worker, max=9).claims) == 2
        assert reasons(mesh, worker) == {"KEY_FULL": 3}

    def test_is_another_in_another_application(self, mesh: Mesh) -> None:
        worker = crowd(mesh)
        mesh.workload(concurrency=ONE)
        mesh.workload(application_id="mail", concurrency=ONE)
        there = crowd(mesh, "there", application_id="mail")
        assert len(mesh.pull(worker).claims) == len(mesh.pull(there).claims) == 1

    def test_does_not_keep_other_work_back(self, mesh: Mesh) -> None:
        worker = crowd(mesh)
        for _ in range(3):
            mesh.workload(concurrency=ONE, priority=9)
        free = mesh.workload()
        taken = [claim.workload_id for claim in mesh.pull(worker, max=9).claims]
        assert len(taken) == 2
        assert taken[1] == free

    def test_takes_the_newest_limit_for_all_of_its_work(self, mesh: Mesh) -> None:
        worker = crowd(mesh)
        for _ in range(6):
            mesh.workload(concurrency=ONE)
        assert len(mesh.pull(worker, max=9).claims) == 1
        mesh.workload(concurrency={"key": "disk", "limit": 3})
        held = mesh.pull(worker, max=9).claims
        assert len(held) == 2
        mesh.workload(concurrency=ONE)
        by_completing(mesh, held[0])
        assert reasons(mesh, worker) == {"KEY_FULL": 1}
        by_completing(mesh, held[1])
        assert key(mesh) == (1, 1)
        assert reasons(mesh, worker) == {"KEY_FULL": 1}

    def test_takes_the_newest_limit_of_a_batch_too(self, mesh: Mesh) -> None:
        items = [
            new(key=f"k{n}", concurrency=Concurrency("disk", limit))
            for n, limit in enumerate((1, 5, 1))
        ]
        mesh.ask(creation.create_batch, Batch(tuple(items)))
        assert key(mesh) == (0, 1)

    def test_stays_with_work_that_is_tried_again(self, mesh: Mesh) -> None:
        """BC-049: recovery changes neither key nor pool."""
        worker = crowd(mesh)
        mesh.workload(concurrency=ONE, retry_policy={"initial_backoff_ms": 1_000})
        mesh.workload(concurrency=ONE, priority=-5)
        held = mesh.pull(worker).claims[0]
        mesh.say("fail", held)
        mesh.later(2_000)
        mesh.promote()
        again = mesh.pull(worker, max=5).claims
        assert [claim.workload_id for claim in again] == [held.workload_id]
        assert reasons(mesh, worker) == {"KEY_FULL": 1}

    def test_is_forgotten_with_its_last_work(self, mesh: Mesh) -> None:
        worker = crowd(mesh)
        mesh.workload(concurrency=ONE, rate=RATE)
        held = mesh.pull(worker).claims[0]
        by_completing(mesh, held)
        assert mesh.run(keys.prune, 10) == mesh.run(rates.prune, 10) == 0
        assert mesh.run(lanes.prune, 10) == 1
        assert mesh.run(keys.prune, 10) == 1
        assert mesh.run(rates.prune, 10) == 0  # its use still counts
        mesh.later(RATE["period_ms"])
        assert mesh.run(rates.prune, 10) == 1
        mesh.workload(concurrency=ONE, rate=RATE)
        assert len(mesh.pull(worker).claims) == 1


class TestAKeyInMuchWork:
    """A key in more lanes than one claim closes or opens at once."""

    @pytest.fixture
    def many(self, mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> Mesh:
        monkeypatch.setattr(lanes, "LANES_AT_ONCE", 4)
        for number in range(20):
            mesh.workload(definition_id=f"kind{number}", concurrency=ONE)
        return mesh

    def closed(self, mesh: Mesh) -> int:
        row = mesh.row("SELECT count(*) AS n FROM lanes WHERE concurrency_open = 0")
        return int(row["n"])

    def test_a_pull_closes_what_it_meets(self, many: Mesh) -> None:
        worker = crowd(many)
        free = many.workload(definition_id="free")
        held = many.pull(worker).claims[0]
        assert self.closed(many) == 4
        assert [claim.workload_id for claim in many.pull(worker).claims] == [free]
        assert self.closed(many) == 19
        assert reasons(many, worker) == {"KEY_FULL": 19}
        by_completing(many, held)
        assert self.closed(many) == 15

    def test_few_are_closed_and_opened_where_much_is_done_at_once(
        self, many: Mesh, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lanes, "STATEMENTS_MANY", 0)
        monkeypatch.setattr(lanes, "LANES_FEW", 1)
        held = many.pull(crowd(many)).claims[0]
        assert self.closed(many) == 1
        monkeypatch.setattr(lanes, "STATEMENTS_MANY", 1_000)
        assert reasons(many, crowd(many, "other")) == {"KEY_FULL": 19}
        monkeypatch.setattr(lanes, "STATEMENTS_MANY", 0)
        by_completing(many, held)
        assert self.closed(many) == 18
        assert many.run(gates.open_rest, 30) == 18

    def test_the_keeper_opens_the_rest(self, many: Mesh) -> None:
        worker = crowd(many)
        held = many.pull(worker).claims[0]
        assert reasons(many, worker) == {"KEY_FULL": 19}
        by_completing(many, held)
        assert many.run(gates.open_rest, 10) == 10
        assert ("ready", "acme/docs") in many.signals
        assert many.run(gates.open_rest, 10) == 5
        assert many.run(gates.open_rest, 10) == 0
        assert self.closed(many) == 0

    def test_the_keeper_leaves_what_is_full_again(self, many: Mesh) -> None:
        worker = crowd(many)
        held = many.pull(worker).claims[0]
        assert reasons(many, worker) == {"KEY_FULL": 19}
        by_completing(many, held)
        assert len(many.pull(worker).claims) == 1
        assert many.run(gates.open_rest, 10) == 0

    def test_a_pull_that_closes_much_is_woken_to_go_on(
        self, many: Mesh, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(claims, "VAIN_MAX", 2)
        worker = crowd(many)
        free = many.workload(definition_id="free")
        assert len(many.pull(worker).claims) == 1
        told = many.pull(worker)
        assert [one.code for one in told.reasons] == ["KEY_FULL"]
        assert ("ready", "acme/docs") in many.signals
        assert [claim.workload_id for claim in many.pull(worker).claims] == [free]


class TestARate:
    def test_lets_so_many_through_in_any_period(self, mesh: Mesh) -> None:
        worker = crowd(mesh)
        for _ in range(6):
            mesh.workload(rate=RATE)
        assert len(mesh.pull(worker).claims) == 1
        mesh.later(6_000)
        first = mesh.pull(worker, max=9).claims
        assert len(first) == 1
        by_completing(mesh, first[0])  # the end of a claim makes no room
        assert reasons(mesh, worker) == {"KEY_FULL": 1}
        opens_at_ms = mesh.now.lease_ms + 4_000
        assert mesh.run(rates.open_rates, 10) == (0, opens_at_ms)
        mesh.later(3_999)
        assert mesh.run(rates.open_rates, 10) == (0, opens_at_ms)
        assert reasons(mesh, worker) == {"KEY_FULL": 1}
        mesh.later(1)
        assert mesh.run(rates.open_rates, 10) == (2, None)
        assert ("ready", "acme/docs") in mesh.signals
        assert len(mesh.pull(worker, max=9).claims) == 1

    def test_tells_the_keeper_when(self, mesh: Mesh) -> None:
        worker = crowd(mesh)
        mesh.workload(rate={**RATE, "limit": 1})
        mesh.pull(worker)
        assert ("rate", str(mesh.now.lease_ms + 10_000)) in mesh.signals

    def test_is_told_to_who_names_the_workload(self, mesh: Mesh) -> None:
        worker = crowd(mesh)
        jobs = [mesh.workload(rate=RATE) for _ in range(3)]
        for job in jobs[:2]:
            mesh.claims(job, by=worker)
        assert denied(mesh, jobs[2], worker) == ["rate_full"]
        mesh.later(10_000)
        mesh.conn.execute("UPDATE workers SET last_seen_at_ms = ?", [mesh.now.lease_ms])
        assert mesh.claims(jobs[2], by=worker).workload_id == jobs[2]

    def test_takes_a_new_limit_at_once(self, mesh: Mesh) -> None:
        worker = crowd(mesh)
        for _ in range(9):
            mesh.workload(rate=RATE)
        assert len(mesh.pull(worker, max=9).claims) == 2
        mesh.workload(rate={**RATE, "limit": 5})
        mesh.run(rates.open_rates, 10)
        assert len(mesh.pull(worker, max=9).claims) == 3
        mesh.workload(rate={**RATE, "limit": 3})
        mesh.run(rates.open_rates, 10)
        assert reasons(mesh, worker) == {"KEY_FULL": 1}
        mesh.later(9_999)
        mesh.run(rates.open_rates, 10)
        assert reasons(mesh, worker) == {"KEY_FULL": 1}
        mesh.later(1)
        mesh.run(rates.open_rates, 10)
        assert len(mesh.pull(worker, max=9).claims) == 3

    def test_keeps_no_more_uses_than_it_needs(self, mesh: Mesh) -> None:
        worker = crowd(mesh)
        for _ in range(30):
            mesh.workload(rate=RATE)
        for _ in range(15):
            assert len(mesh.pull(worker, max=2).claims) == 2
            mesh.later(10_000)
            mesh.run(rates.open_rates, 10)
        row = mesh.row("SELECT count(*) AS n, max(number) AS newest FROM rate_uses")
        assert (row["n"], row["newest"]) == (3, 30)

    def test_goes_with_a_concurrency_key(self, mesh: Mesh) -> None:
        """A lane opens when both have room."""
        worker = crowd(mesh)
        for _ in range(4):
            mesh.workload(rate=RATE, concurrency=ONE)
        first = mesh.pull(worker, max=9).claims
        assert len(first) == 1
        by_completing(mesh, first[0])
        second = mesh.pull(worker, max=9).claims
        assert len(second) == 1
        mesh.later(10_000)
        mesh.run(rates.open_rates, 10)
        assert reasons(mesh, worker) == {"KEY_FULL": 1}
        by_completing(mesh, second[0])
        assert len(mesh.pull(worker, max=9).claims) == 1


class TestAPoolAtItsCeiling:
    @pytest.mark.parametrize("end", ENDS)
    def test_has_room_again_whatever_ends_a_claim(self, mesh: Mesh, end: Any) -> None:
        worker, other = crowd(mesh), crowd(mesh, "other")
        stories.make(mesh, max_concurrency=1)
        jobs = [mesh.workload(placement={"pool_id": "gpu"}) for _ in range(2)]
        held = mesh.pull(worker).claims[0]
        assert reasons(mesh, other) == {"POOL_FULL": 1}
        assert denied(mesh, jobs[1], other) == ["pool_full"]
        assert stories.look(mesh).active == 1
        end(mesh, held)
        assert stories.look(mesh).active == 0
        assert len(mesh.pull(other, max=9).claims) == 1

    def test_holds_over_applications(self, mesh: Mesh) -> None:
        worker, there = crowd(mesh), crowd(mesh, "there", application_id="mail")
        stories.make(mesh, max_concurrency=1)
        mesh.workload(placement={"pool_id": "gpu"})
        mesh.workload(application_id="mail", placement={"pool_id": "gpu"})
        held = mesh.pull(worker).claims[0]
        assert reasons(mesh, there) == {"POOL_FULL": 1}
        by_completing(mesh, held)
        assert ("ready", "acme/mail") in mesh.signals
        assert len(mesh.pull(there).claims) == 1

    def test_blocks_new_claims_only_when_it_is_lowered(self, mesh: Mesh) -> None:
        worker = crowd(mesh)
        stories.make(mesh, max_concurrency=3)
        for _ in range(5):
            mesh.workload(placement={"pool_id": "gpu"})
        held = mesh.pull(worker, max=9).claims
        assert len(held) == 3
        stories.change(mesh, max_concurrency=2)
        for claim in held[:2]:
            mesh.say("start", claim)
            assert reasons(mesh, worker) == {"POOL_FULL": 1}
            mesh.say("complete", claim)
        assert len(mesh.pull(worker, max=9).claims) == 1
        stories.change(mesh, max_concurrency=None)
        assert len(mesh.pull(worker, max=9).claims) == 1

    def test_counts_on_while_it_is_deleted_and_made_again(self, mesh: Mesh) -> None:
        worker = crowd(mesh)
        stories.make(mesh, max_concurrency=2)
        for _ in range(5):
            mesh.workload(placement={"pool_id": "gpu"})
        held = mesh.pull(worker, max=9).claims
        stories.drop(mesh)
        assert reasons(mesh, worker) == {"NO_MATCH": 1}
        by_completing(mesh, held[0])
        assert reasons(mesh, worker) == {"NO_MATCH": 1}
        stories.make(mesh, max_concurrency=2)
        assert stories.look(mesh).active == 1
        assert len(mesh.pull(worker, max=9).claims) == 1
        assert reasons(mesh, worker) == {"POOL_FULL": 1}

    def test_moves_on_with_the_keeper_when_its_work_is_of_many_kinds(
        self, mesh: Mesh, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lanes, "LANES_AT_ONCE", 4)
        worker = crowd(mesh)
        stories.make(mesh, max_concurrency=1)
        for number in range(12):
            mesh.workload(definition_id=f"kind{number}", placement={"pool_id": "gpu"})
        held = mesh.pull(worker).claims[0]
        assert reasons(mesh, worker) == {"POOL_FULL": 11}
        by_completing(mesh, held)
        assert mesh.run(gates.open_rest, 5) == 5
        assert mesh.run(gates.open_rest, 5) == 2
        assert mesh.run(gates.open_rest, 5) == 0
        assert mesh.row("SELECT count(*) AS n FROM demands WHERE pool_open = 0")["n"] == 0


class TestAnEmptyPull:
    def test_says_what_keeps_each_kind_of_work_back(self, mesh: Mesh) -> None:
        worker, full = crowd(mesh), crowd(mesh, "full")
        stories.make(mesh, max_concurrency=1)
        mesh.workload(placement={"pool_id": "gpu"})
        mesh.workload(concurrency=ONE)
        assert len(mesh.pull(full, max=9).claims) == 2
        mesh.workload(placement={"pool_id": "gpu"})
        mesh.workload(concurrency=ONE)
        mesh.workload(definition_id="other", concurrency=ONE)
        mesh.workload(definition_id="paused")
        mesh.workload(capability_snapshot=["nobody"])
        stories.hold(mesh, "definition", "paused")
        assert reasons(mesh, worker) == {
            "HELD": 1,
            "POOL_FULL": 1,
            "KEY_FULL": 2,
            "NO_MATCH": 1,
        }
        stories.confine(mesh, worker)
        assert reasons(mesh, worker) == {"WORKER_QUARANTINED": None}

    def test_says_nothing_waits_when_so_it_is(self, mesh: Mesh) -> None:
        worker = crowd(mesh)
        mesh.workload(concurrency=ONE)
        mesh.pull(worker)
        assert reasons(mesh, worker) == {"NO_WORK": None}


class TestWhatItCosts:
    def cycle(self, mesh: Mesh, worker: str) -> int:
        asked = 0
        held = mesh.pull(worker).claims[0]
        asked += mesh.statements
        mesh.say("start", held)
        asked += mesh.statements
        mesh.say("complete", held)
        return asked + mesh.statements

    def test_work_without_gates_pays_nothing_for_them(self, mesh: Mesh) -> None:
        worker = crowd(mesh)
        stories.make(mesh, max_concurrency=5)
        for _ in range(2):
            mesh.workload()
        mesh.workload(definition_id="keyed", concurrency=ONE, rate=RATE, priority=-9)
        mesh.workload(definition_id="pooled", placement={"pool_id": "gpu"}, priority=-9)
        self.cycle(mesh, worker)
        assert self.cycle(mesh, worker) <= 12

    def test_a_gate_costs_the_same_whatever_stands_behind_it(self, mesh: Mesh) -> None:
        worker = crowd(mesh)
        for _ in range(4):
            mesh.workload(concurrency=ONE)
        self.cycle(mesh, worker)
        few = self.cycle(mesh, worker)
        for _ in range(200):
            mesh.workload(concurrency=ONE)
        assert self.cycle(mesh, worker) == few

"""Silence makes a worker fail; silence the daemon could not hear does not."""

import pytest

from feltd.clock import Now
from feltd.mesh import vitals
from tests.mesh.workers.stories import Hand, House


def credited(house: House, gap_ms: int, first: bool = False) -> int:
    """The writer's hook before the first operation after an outage."""
    return house.mesh.run(lambda tx, _, now: vitals.credit(tx, now, gap_ms, first))


def test_placement_claim_fencing_failure_and_recovery(house: House) -> None:
    """Twin of the seed's second test (T2), in milliseconds."""
    edge = house.worker(capacity={"concurrency": 1})
    house.mesh.later(ms=1_000)
    edge.beat(timestamp_at_ms=house.mesh.now.wall_ms)
    [held] = edge.takes(start=False, lease_ms=1_000)
    assert held.expires_at_ms == held.issued_at_ms + 1_000
    assert edge.says("start", held).state == "RUNNING"
    house.mesh.later(ms=38_000)

    assert house.fails_silent() == [edge.id]

    refused = house.refusal(lambda: edge.says("complete", held))
    assert (refused.code, refused.next) == ("WORKLOAD_STALE_FENCE", "drop_claim")
    assert (edge.shown().lifecycle, edge.shown().health) == ("OFFLINE", "UNHEALTHY")
    assert (edge.shown().claims, edge.shown().capacity.active) == ([], 0)


@pytest.mark.parametrize(("silent_ms", "failed"), [(29_999, False), (30_000, True)])
def test_the_boundary_counts_as_failed(house: House, silent_ms: int, failed: bool) -> None:
    edge = house.worker()
    house.mesh.later(ms=silent_ms)

    assert house.fails_silent() == ([edge.id] if failed else [])


def test_failed_ids_come_ascending_and_once(house: House) -> None:
    hands = [house.worker(name) for name in ("c", "a", "b")]
    house.mesh.later(ms=30_000)

    assert house.fails_silent() == sorted(hand.id for hand in hands)
    assert house.fails_silent() == []


def test_a_round_fails_no_more_than_its_limit(house: House) -> None:
    for name in ("a", "b", "c"):
        house.worker(name)
    house.mesh.later(ms=30_000)

    assert [house.mesh.run(vitals.detect_failures, 2) for _ in range(3)] == [2, 1, 0]


def test_a_round_ends_no_more_claims_than_the_writer_has_time_for(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rack that loses its power is many workers with many claims in one instant."""
    monkeypatch.setattr(vitals, "CLAIMS_AT_ONCE", 3)
    for name in ("a", "b", "c"):
        house.worker(name).takes(2)
    house.mesh.later(ms=30_000)

    # The keeper goes on at once where a full round was found.
    assert [house.mesh.run(vitals.detect_failures, 9) for _ in range(4)] == [9, 9, 1, 0]
    assert len(house.ends()) == 6
    house.keeps_its_promises()


def test_a_worker_that_holds_more_than_that_fails_as_a_whole(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vitals, "CLAIMS_AT_ONCE", 1)
    edge = house.worker()
    edge.takes(2)
    house.mesh.later(ms=30_000)

    assert house.fails_silent() == [edge.id]
    assert len(house.ends()) == 2


def test_a_lost_workers_claims_end_at_once_and_are_free(house: House) -> None:
    edge, other = house.worker(), house.worker("other")
    [held] = edge.takes(lease_ms=600_000)
    house.mesh.later(ms=29_000)
    other.beat()
    house.mesh.later(ms=1_000)

    assert house.fails_silent() == [edge.id]

    assert house.ends() == [(held.claim_id, "worker_lost")]
    assert house.mesh.state(held.workload_id) == "READY"
    assert ("worker_offline", edge.id) in house.mesh.signals
    house.keeps_its_promises()


@pytest.mark.parametrize(
    ("of_workload", "of_daemon", "ends"),
    [(None, "end", True), (None, "lease", False), ("lease", "end", False), ("end", "lease", True)],
)
def test_the_workload_says_what_a_lost_worker_means_else_the_daemon(
    house: House, of_workload: str | None, of_daemon: str, ends: bool
) -> None:
    edge = house.worker()
    house.mesh.workload(on_worker_lost=of_workload)
    [held] = house.mesh.pull(edge.id, edge.caller, lease_ms=60_000).claims
    house.mesh.later(ms=30_000)

    house.fails_silent(of_daemon)

    assert house.ends() == ([(held.claim_id, "worker_lost")] if ends else [])
    assert edge.shown().lifecycle == "OFFLINE"
    house.mesh.later(ms=30_000)
    house.mesh.sweep()
    assert len(house.ends()) == 1


def test_a_wall_clock_that_steps_fails_nobody(house: House) -> None:
    """BC-024: +24 h, then −2 h; liveness and leases are of lease time."""
    hands = [house.worker(f"edge-{n}") for n in range(3)]
    held = [hand.takes(lease_ms=20_000)[0] for hand in hands]
    for step_ms in (86_400_000, -7_200_000):
        now = house.mesh.now
        house.mesh.now = Now(now.lease_ms + 1_000, now.wall_ms + step_ms)
        assert house.fails_silent() == []
        assert house.mesh.run(lambda tx, _, now: vitals.credit(tx, now, 1_000, False)) >= 0
    assert all(hand.says("renew", claim) for hand, claim in zip(hands, held, strict=True))


def test_nobody_fails_for_an_outage_of_the_daemon(house: House) -> None:
    """BC-015: 8 s down with 3 s timeouts; everybody gets one timeout from now."""
    hands = [house.worker(f"edge-{n}", heartbeat_timeout_ms=3_000) for n in range(20)]
    long = [hand.takes(lease_ms=60_000)[0] for hand in hands[:10]]
    short = [hand.takes(lease_ms=2_000)[0] for hand in hands[10:]]
    house.mesh.later(ms=8_000)

    assert credited(house, 0, first=True) == 30

    assert house.fails_silent() == []
    house.mesh.sweep()
    assert house.ends() == []
    for hand, held in zip(hands, long + short, strict=True):
        assert hand.beat(running_claims=[held.claim_id]).fenced_claims == []
        assert hand.says("renew", held).state == "RUNNING"
    house.mesh.later(ms=3_000)
    assert len(house.fails_silent()) == 20


def test_credit_moves_an_end_out_never_in(house: House) -> None:
    edge = house.worker()
    one, two = edge.takes(1, lease_ms=600_000) + edge.takes(1, lease_ms=5_000)
    house.mesh.later(ms=4_000)

    credited(house, 4_000)

    def end_ms(held: object) -> int:
        sql = "SELECT expires_at_ms FROM workloads WHERE workload_id = :id"
        return int(house.mesh.row(sql, id=held.workload_id)["expires_at_ms"])  # type: ignore[attr-defined]

    assert end_ms(one) == one.expires_at_ms
    assert end_ms(two) == house.mesh.now.lease_ms + 30_000


def test_what_had_run_out_before_the_outage_gets_nothing(house: House) -> None:
    edge, dead = house.worker(), house.worker("dead")
    [lapsed] = edge.takes(lease_ms=1_000)
    house.mesh.later(ms=30_000)
    edge.beat()
    house.mesh.later(ms=5_000)

    credited(house, 5_000)

    assert house.fails_silent() == [dead.id]
    house.mesh.sweep()
    assert house.ends() == [(lapsed.claim_id, "lease_expired")]


def test_credit_extends_no_lease_past_its_grant(house: House) -> None:
    ending = house.grant_for("registrar", expires_at_ms=house.mesh.now.wall_ms + 20_000)
    edge = house.worker(grant=ending)
    [held] = edge.takes(lease_ms=10_000)
    house.mesh.later(ms=9_000)

    credited(house, 9_000)

    end = house.mesh.row(
        "SELECT expires_at_ms FROM workloads WHERE workload_id = :id", id=held.workload_id
    )
    assert end["expires_at_ms"] == held.issued_at_ms + 20_000


def test_credit_is_one_event_or_none(house: House) -> None:
    count = "SELECT count(*) AS n FROM events WHERE kind = 'credit'"
    assert credited(house, 4_000) == 0
    assert house.mesh.row(count)["n"] == 0
    house.worker()
    house.worker("other")
    house.mesh.later(ms=4_000)

    credited(house, 4_000)

    assert house.mesh.row(count)["n"] == 1


def test_an_offline_worker_is_not_credited(house: House) -> None:
    edge = house.worker()
    house.drain(edge.id)
    before = edge.row()["last_seen_at_ms"]
    house.mesh.later(ms=8_000)

    credited(house, 8_000, first=True)

    assert edge.row()["last_seen_at_ms"] == before


def test_an_older_file_ends_what_it_believes_to_be_held(house: House) -> None:
    edge, drained, fresh = house.worker(), house.worker("drained"), house.registers("fresh")
    held = [*edge.takes(), *drained.takes()]
    house.drain(drained.id)
    gone = house.worker("gone")
    house.drain(gone.id)

    restored = house.mesh.run(lambda tx, _, now: vitals.restore(tx, now))

    assert restored.claims == [claim.claim_id for claim in sorted_by_worker(held)]
    assert house.ends() == [(claim.claim_id, "restored") for claim in held]
    assert all(house.mesh.state(claim.workload_id) == "READY" for claim in held)
    assert (edge.shown().lifecycle, edge.shown().offline_reason) == ("RECOVERING", "restored")
    assert house.show(fresh.worker.worker_id).lifecycle == "RECOVERING"
    assert (drained.shown().lifecycle, drained.shown().offline_reason) == ("OFFLINE", "drained")
    assert gone.shown().lifecycle == "OFFLINE"
    spent = house.mesh.row("SELECT sum(attempts_spent) AS n FROM workloads")["n"]
    assert spent == 0
    verdict = edge.reconcile(known_claims=[held[0].claim_id])
    assert (verdict.worker.lifecycle, verdict.fenced_claims) == ("READY", [held[0].claim_id])
    assert house.mesh.run(lambda tx, _, now: vitals.restore(tx, now)).claims == []
    house.keeps_its_promises()


def sorted_by_worker(held: list[object]) -> list[object]:
    """In the order of their workers' ids."""
    return sorted(held, key=lambda claim: claim.worker_id)  # type: ignore[attr-defined]


def test_failing_reads_no_worker_that_is_not_due(house: House) -> None:
    plan = house.mesh.conn.execute(f"EXPLAIN QUERY PLAN {vitals.SILENT}", {"now_ms": 0, "limit": 1})
    steps = [row["detail"] for row in plan]

    assert any("workers_by_silence" in step and "SEARCH" in step for step in steps), steps


def test_a_process_can_come_back_from_anything(house: House) -> None:
    """Lost, restored, recovered by hand: reconcile leads to READY each time."""
    edge = house.worker()
    house.mesh.later(ms=30_000)
    house.fails_silent()
    assert edge.reconcile().worker.lifecycle == "READY"
    house.mesh.run(lambda tx, _, now: vitals.restore(tx, now))
    assert edge.reconcile().worker.lifecycle == "READY"
    house.transition(edge.id, "OFFLINE")
    assert edge.reconcile().worker.lifecycle == "READY"
    assert isinstance(edge, Hand)

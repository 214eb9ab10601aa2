"""Work is let out of a worker before it is stopped, and a drain outlives restarts."""

from tests.mesh.workers.stories import Hand, House


def test_a_drained_worker_ends_offline_only_when_its_work_did(house: House) -> None:
    """BC-021: drained is when nothing is held, not when it was asked for."""
    edge = house.worker(capacity={"concurrency": 3})
    one, two = edge.takes(2)

    answer = house.drain(edge.id, reason="upgrade")

    assert answer.worker.lifecycle == "DRAINING"
    assert [held.claim_id for held in answer.outstanding_claims] == [one.claim_id, two.claim_id]
    assert (answer.safe_to_stop, answer.safe_at_ms) == (False, None)
    assert answer.worker.drain is not None
    assert (answer.worker.drain.by, answer.worker.drain.reason) == ("service:operator", "upgrade")
    assert answer.worker.drain.until == "resumed"
    edge.says("complete", one)
    assert edge.shown().lifecycle == "DRAINING"
    edge.says("complete", two)
    assert (edge.shown().lifecycle, edge.shown().offline_reason) == ("OFFLINE", "drained")
    house.keeps_its_promises()


def test_an_idle_worker_is_drained_at_once(house: House) -> None:
    edge = house.worker()

    answer = house.drain(edge.id)

    assert (answer.worker.lifecycle, answer.worker.offline_reason) == ("OFFLINE", "drained")
    assert (answer.safe_to_stop, answer.safe_at_ms) == (True, house.mesh.now.lease_ms)
    stop = house.refusal(edge.beat)
    assert (stop.code, stop.next) == ("WORKER_RECOVERY_REQUIRED", "stop")
    assert stop.facts["offline_reason"] == "drained"
    assert stop.detail == "the worker was drained and must stop"


def test_a_worker_that_left_is_told_so(house: House) -> None:
    edge = house.worker()
    edge.leave()

    stop = house.refusal(edge.beat)

    assert (stop.code, stop.next) == ("WORKER_RECOVERY_REQUIRED", "stop")
    assert stop.detail == "the worker has left and must stop"


def test_a_draining_worker_goes_on_beating_and_renewing(house: House) -> None:
    """BC-017: it is not taken for dead while it finishes."""
    edge = house.worker(heartbeat_timeout_ms=3_000)
    [held] = edge.takes(lease_ms=3_000)
    house.drain(edge.id)
    for _ in range(8):
        house.mesh.later(ms=1_500)
        assert edge.beat(running_claims=[held.claim_id], renew_leases=True).fenced_claims == []
        assert house.fails_silent() == []
        assert house.mesh.sweep() is not None
    assert edge.shown().lifecycle == "DRAINING"

    assert edge.says("complete", held).state == "COMPLETED"

    assert (edge.shown().lifecycle, edge.shown().claims) == ("OFFLINE", [])


def test_a_draining_worker_gets_nothing_new(house: House) -> None:
    edge = house.worker()
    edge.takes()
    house.drain(edge.id)
    house.mesh.workload(capability_snapshot=["documents.extract"])

    pulled = house.mesh.pull(edge.id, edge.caller)

    assert pulled.claims == []
    assert [reason.code for reason in pulled.reasons] == ["WORKER_DRAINING"]


def test_no_renew_after_makes_the_end_binding(house: House) -> None:
    edge = house.worker()
    [held] = edge.takes(lease_ms=20_000)

    answer = house.drain(edge.id, no_renew_after_ms=60_000)

    bound_ms = house.mesh.now.lease_ms + 60_000
    assert answer.safe_at_ms == bound_ms
    for _ in range(5):
        house.mesh.later(ms=10_000)
        edge.beat(running_claims=[held.claim_id], renew_leases=True, lease_ms=20_000)
        house.mesh.sweep()
    assert edge.shown().lifecycle == "DRAINING"
    house.mesh.later(ms=10_000)
    house.mesh.sweep()
    assert house.mesh.now.lease_ms == bound_ms
    assert edge.shown().lifecycle == "OFFLINE"
    end = house.mesh.row(
        "SELECT expires_at_ms, end_kind FROM claims WHERE fencing_token = :token",
        token=held.fencing_token,
    )
    assert (end["expires_at_ms"], end["end_kind"]) == (bound_ms, "lease_expired")


def test_a_bound_before_the_present_ends_shortens_nothing(house: House) -> None:
    edge = house.worker()
    [held] = edge.takes(lease_ms=20_000)

    answer = house.drain(edge.id, no_renew_after_ms=0)

    assert answer.safe_at_ms == held.expires_at_ms


def test_a_mistaken_drain_is_resumed(house: House) -> None:
    """BC-043: a drain has a way back."""
    edge = house.worker()
    [held] = edge.takes()
    house.drain(edge.id)

    assert house.operates("resume", edge.id).lifecycle == "READY"
    assert edge.shown().drain is None
    edge.says("complete", held)
    assert edge.shown().lifecycle == "READY"
    house.drain(edge.id)
    assert house.operates("resume", edge.id).lifecycle == "RECOVERING"
    assert edge.reconcile().worker.lifecycle == "READY"


def test_resuming_what_is_not_drained_changes_nothing(house: House) -> None:
    edge = house.worker()

    assert house.operates("resume", edge.id) == edge.shown()


def test_a_drain_asked_for_twice_began_once(house: House) -> None:
    edge = house.worker()
    edge.takes()
    first = house.drain(edge.id, reason="first").worker.drain
    house.mesh.later(ms=1_000)
    again = house.drain(edge.id, reason="second").worker.drain

    assert first is not None
    assert again is not None
    assert (again.at_ms, again.reason) == (first.at_ms, "second")


def test_a_drain_outlives_a_restart_of_the_process(house: House) -> None:
    edge = house.worker()
    house.drain(edge.id)

    restarted = house.registers(process_id="second", issue_key=True)
    assert (restarted.worker.lifecycle, restarted.worker.drain is None) == ("REGISTERED", False)
    later = house.worker("edge", process_id="second")

    assert (later.shown().lifecycle, later.shown().offline_reason) == ("OFFLINE", "drained")
    assert house.refusal(later.beat).next == "stop"


def test_a_drain_outlives_a_reconciliation(house: House) -> None:
    edge = house.worker()
    house.mesh.later(ms=30_000)
    house.fails_silent()
    house.drain(edge.id)
    assert edge.shown().offline_reason == "drained"

    verdict = edge.reconcile()

    assert (verdict.worker.lifecycle, verdict.worker.offline_reason) == ("OFFLINE", "drained")


def test_a_lost_worker_that_holds_work_finishes_it_under_the_drain(house: House) -> None:
    edge = house.worker()
    [held] = edge.takes(lease_ms=600_000)
    house.mesh.later(ms=30_000)
    house.fails_silent("lease")
    house.drain(edge.id)
    assert edge.shown().lifecycle == "OFFLINE"

    verdict = edge.reconcile(known_claims=[held.claim_id], running_attempts=[held.attempt_id])

    assert verdict.worker.lifecycle == "DRAINING"
    assert [claim.claim_id for claim in verdict.authoritative_claims] == [held.claim_id]
    edge.says("complete", held)
    assert edge.shown().offline_reason == "drained"


def test_a_worker_that_never_beat_is_drained_when_it_comes(house: House) -> None:
    """BC-043: an intent that waits."""
    registered = house.registers(issue_key=True)

    answer = house.drain(registered.worker.worker_id)

    assert answer.worker.lifecycle == "REGISTERED"
    edge = house.worker()
    assert (edge.shown().lifecycle, edge.shown().offline_reason) == ("OFFLINE", "drained")


def test_a_worker_leaves_by_itself_until_it_registers_again(house: House) -> None:
    edge = house.worker()
    [held] = edge.takes()

    answer = edge.leave()

    assert answer.worker.lifecycle == "DRAINING"
    assert answer.worker.drain is not None
    assert (answer.worker.drain.by, answer.worker.drain.reason, answer.worker.drain.until) == (
        f"worker:{edge.id}",
        "left",
        "registered",
    )
    edge.says("release", held)
    assert (edge.shown().lifecycle, edge.shown().offline_reason) == ("OFFLINE", "left")
    assert house.refusal(edge.beat).next == "stop"
    back = house.worker("edge", process_id="second")
    assert (back.shown().lifecycle, back.shown().drain) == ("READY", None)


def test_a_worker_that_never_beat_leaves_at_once(house: House) -> None:
    edge = Hand(house, house.registers(issue_key=True))

    assert edge.leave().worker.offline_reason == "left"


def test_the_same_process_may_come_back_by_registering(house: House) -> None:
    edge = house.worker()
    edge.leave()

    assert house.registers().worker.lifecycle == "REGISTERED"
    assert house.worker().shown().lifecycle == "READY"


def test_a_workers_own_drain_never_replaces_an_operators(house: House) -> None:
    edge = house.worker()
    edge.takes()
    house.drain(edge.id, reason="upgrade")

    after = edge.leave(no_renew_after_ms=5_000).worker.drain

    assert after is not None
    assert (after.by, after.until) == ("service:operator", "resumed")
    assert after.no_renew_after_at_ms == house.mesh.now.lease_ms + 5_000
    assert house.registers(process_id="second", takeover=True).worker.drain is not None


def test_an_operators_drain_until_the_next_registration_is_an_operators_too(house: House) -> None:
    edge = house.worker()
    [held] = edge.takes()
    house.drain(edge.id, until="registered", no_renew_after_ms=5_000)
    bound_ms = house.mesh.now.lease_ms + 5_000

    after = edge.leave(no_renew_after_ms=60_000).worker.drain

    assert after is not None
    assert (after.by, after.no_renew_after_at_ms) == ("service:operator", bound_ms)
    edge.says("release", held)
    assert edge.shown().offline_reason == "drained"
    later = house.drain(edge.id, no_renew_after_ms=9_000).worker.drain
    assert later is not None
    assert later.no_renew_after_at_ms == house.mesh.now.lease_ms + 9_000


def test_draining_needs_the_right(house: House) -> None:
    edge, other = house.worker(), house.worker("other")

    assert house.refusal(lambda: house.drain(edge.id, other.caller)).code == "FORBIDDEN"
    assert house.refusal(lambda: house.drain(edge.id, house.registrar)).code == "FORBIDDEN"
    assert house.refusal(lambda: house.drain("worker_0")).code == "WORKER_NOT_FOUND"


def test_what_an_operator_does_is_in_the_audit_chain(house: House) -> None:
    edge = house.worker()
    house.drain(edge.id, reason="upgrade")
    house.operates("resume", edge.id)

    acts = house.mesh.conn.execute(
        "SELECT actor, action, reason FROM audit WHERE subject = :id ORDER BY seq", {"id": edge.id}
    ).fetchall()

    assert [tuple(act) for act in acts[-2:]] == [
        ("service:operator", "drain", "upgrade"),
        ("service:operator", "resume", None),
    ]

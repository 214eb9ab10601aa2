"""Work that is cancelled while it is held never runs again, whatever ends its claim."""

from collections.abc import Callable
from typing import Any

import pytest

from feltd.mesh import cancel, dependencies, evict, overdue, promises, requeue, vitals
from feltd.mesh.retry import RESERVED
from feltd.model.claim import Evict
from feltd.model.workload import Cancel, Requeue
from tests.mesh.workers.stories import House
from tests.mesh.workloads.stories import refusal, row, value
from tests.mesh.world import Mesh

FOREVER = {"max_attempts": 1_000, "initial_backoff_ms": 0, "jitter": 0}


class Held:
    """One workload that is held by a worker with its own key, and was cancelled since."""

    def __init__(self, house: House, start: bool, timeouts: dict[str, int]) -> None:
        self.house, self.mesh = house, house.mesh
        self.hand = house.worker(capacity={"concurrency": 4})
        kind = {"capability_snapshot": ["documents.extract"], "retry_policy": FOREVER}
        self.job = self.mesh.workload(timeouts=timeouts, **kind)
        self.child = self.mesh.workload(dependencies=[self.job], **kind)
        pulled = self.mesh.pull(self.hand.id, self.hand.caller, start=start)
        (self.claim,) = pulled.claims
        shown = self.mesh.ask(cancel.cancel, Cancel(), self.job)
        assert shown.cancel_requested
        assert shown.state == ("RUNNING" if start else "CLAIMED")

    def fail(self, kind: str) -> None:
        self.hand.says("fail", self.claim, kind=kind, message="x")

    def lapse(self) -> None:
        self.mesh.later(60_000)
        self.mesh.sweep()

    def silence(self) -> None:
        self.mesh.later(60_000)
        assert self.house.fails_silent() == [self.hand.id]

    def silence_then_lapse(self) -> None:
        self.mesh.later(60_000)
        self.house.fails_silent("lease")
        self.mesh.sweep()

    def time_out(self) -> None:
        self.mesh.later(5_000)
        assert self.mesh.run(overdue.end_timeouts, 10)[0] == 1

    def evict(self, to: str) -> None:
        self.mesh.ask(evict.evict, Evict(reason="no", to=to), self.claim.claim_id)  # type: ignore[arg-type]

    def returns(self, after_ms: int, outcome: str | None = None) -> None:
        """It was away that long, and nobody has looked after its claims meanwhile."""
        self.mesh.later(after_ms)
        self.report(outcome) if outcome else self.hand.reconcile(known_claims=[self.claim.claim_id])

    def report(self, outcome: str) -> None:
        told = {
            "attempt_id": self.claim.attempt_id,
            "claim_id": self.claim.claim_id,
            "fencing_token": self.claim.fencing_token,
            "outcome": outcome,
            "failure": {"kind": "transient", "message": "x"},
        }
        self.hand.reconcile(results=[told])


#: How the claim ends → (the deed, the kind it ends with).
ENDS: dict[str, tuple[Callable[[Held], Any], str]] = {
    "released": (lambda h: h.hand.says("release", h.claim), "released"),
    "failed, to be tried again": (lambda h: h.fail("transient"), "transient"),
    "failed by its own timeout": (lambda h: h.fail("timeout"), "timeout"),
    "failed for good": (lambda h: h.fail("execution_error"), "execution_error"),
    "stopped because it was told": (lambda h: h.fail("cancelled"), "cancelled"),
    "policy not enforceable": (lambda h: h.fail("policy_unenforceable"), "policy_unenforceable"),
    "failed in a word of its own": (lambda h: h.fail("no_such_page"), "no_such_page"),
    "reported in a reconciliation": (lambda h: h.report("failed"), "transient"),
    "lapsed, ended by a reconciliation": (lambda h: h.returns(60_000), "lease_expired"),
    "timed out, ended by a reconciliation": (lambda h: h.returns(5_000), "total_timeout"),
    "result too late for a reconciliation": (
        lambda h: h.returns(60_000, "failed"),
        "lease_expired",
    ),
    "lease lapsed": (Held.lapse, "lease_expired"),
    "worker silent": (Held.silence, "worker_lost"),
    "worker silent, left to its lease": (Held.silence_then_lapse, "lease_expired"),
    "worker taken over": (
        lambda h: h.house.registers(process_id="second", takeover=True),
        "worker_lost",
    ),
    "worker set offline": (lambda h: h.house.transition(h.hand.id, "OFFLINE"), "worker_lost"),
    "grant revoked": (lambda h: h.house.revoke(h.house.grant), "authority_lost"),
    "database put back": (
        lambda h: h.mesh.run(lambda tx, _, now: vitals.restore(tx, now)),
        "restored",
    ),
    "evicted": (lambda h: h.evict("READY"), "evicted"),
    "evicted for good": (lambda h: h.evict("DEAD_LETTERED"), "evicted"),
    "timed out in all": (Held.time_out, "total_timeout"),
    "cancelled by force": (
        lambda h: h.mesh.ask(cancel.cancel, Cancel(force=True), h.job),
        "cancelled_by_force",
    ),
}
#: The timeout that runs out, where one does.
TIMEOUTS = {
    "timed out in all": {"total_ms": 5_000},
    "timed out, ended by a reconciliation": {"total_ms": 5_000},
}


@pytest.mark.parametrize("start", [False, True], ids=["claimed", "running"])
@pytest.mark.parametrize("how", ENDS)
def test_it_never_runs_again(mesh: Mesh, house: House, how: str, start: bool) -> None:
    deed, kind = ENDS[how]
    held = Held(house, start, TIMEOUTS.get(how, {}))
    deed(held)
    ended_for_good(mesh, house, held, kind)


@pytest.mark.parametrize("member", ["start_ms", "execution_ms"])
def test_nor_when_it_did_not_start_or_end_in_time(mesh: Mesh, house: House, member: str) -> None:
    held = Held(house, member == "execution_ms", {member: 5_000})
    held.time_out()
    ended_for_good(mesh, house, held, "timeout")


def ended_for_good(mesh: Mesh, house: House, held: Held, kind: str) -> None:
    told = row(mesh, held.job)
    assert told["state"] == "CANCELLED"
    assert (told["lane_id"], told["demand_id"], told["due"]) == (None, None, 0)
    ends = "SELECT end_kind FROM claims WHERE workload_id = :job"
    assert value(mesh, ends, job=held.job) == kind
    # Nobody gets it, by rank or by its id, now or later, and it is final.
    for _ in range(2):
        other = mesh.worker("other", capabilities=["documents.extract"])
        assert mesh.pull(other, max=5).claims == []
        assert mesh.refused(lambda w=other: mesh.claims(held.job, by=w)) == "WORKLOAD_NOT_READY"
        mesh.later(120_000)
        mesh.sweep()
        mesh.promote()
        mesh.run(overdue.end_timeouts, 10)
        mesh.run(dependencies.settle, 10)
        mesh.conn.execute("UPDATE workers SET last_seen_at_ms = ?", [mesh.now.lease_ms])
    assert refusal(mesh, requeue.requeue, Requeue(), held.job) == "WORKLOAD_TRANSITION_DENIED"
    assert value(mesh, "SELECT count(*) FROM claims") == 1
    assert mesh.state(held.child) == "DEAD_LETTERED"
    if not mesh.by_hand:
        assert mesh.run(lambda tx, _, now: promises.ask(tx)) == []


def test_only_completing_it_counts_more_than_the_cancellation(mesh: Mesh, house: House) -> None:
    held = Held(house, True, {})
    held.hand.says("complete", held.claim)
    assert mesh.state(held.job) == "COMPLETED"
    assert mesh.state(held.child) == "READY"


def test_every_end_that_the_daemon_gives_to_a_claim_is_among_these() -> None:
    never_a_claims = {"queue_timeout", "dependency_failed"}
    assert {kind for _, kind in ENDS.values()} >= RESERVED - never_a_claims

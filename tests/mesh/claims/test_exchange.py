"""An exchange: items in the order of the wire, each for itself, then differences, then work."""

from typing import Any

import pytest
from msgspec import convert

from feltd.errors import Refused
from feltd.mesh import cancel, exchange
from feltd.mesh.exchange import Exchanging
from feltd.model.claim import Claim
from feltd.model.exchange import Exchange, ExchangeAnswer
from feltd.model.workload import Cancel
from tests.mesh.world import Mesh


def exchanged(
    mesh: Mesh,
    worker: str,
    faults: dict[tuple[str, int], Refused] | None = None,
    may_claim: bool = True,
    **members: Any,
) -> ExchangeAnswer:
    command = Exchanging(convert(members, Exchange), faults or {}, may_claim)
    return mesh.ask(exchange.exchange, command, worker)


def item(held: Claim, **members: Any) -> dict[str, Any]:
    return {
        "workload_id": held.workload_id,
        "claim_id": held.claim_id,
        "worker_id": held.worker_id,
        "fencing_token": held.fencing_token,
        **members,
    }


def beat(mesh: Mesh, worker: str, *running: str, **members: Any) -> dict[str, Any]:
    row = mesh.row("SELECT * FROM workers WHERE worker_id = :id", id=worker)
    return {
        "worker_id": worker,
        "version": row["version"],
        "capability_version": row["capability_version"],
        "capacity": {"concurrency": row["concurrency"]},
        "health": "HEALTHY",
        "running_claims": list(running),
        **members,
    }


def test_one_round_trip_acknowledges_and_takes_the_next(mesh: Mesh) -> None:
    worker = mesh.worker()
    first = mesh.claims(mesh.workload(), by=worker, start=True)
    second = mesh.workload()

    answer = exchanged(
        mesh,
        worker,
        heartbeat=beat(mesh, worker, first.claim_id),
        complete=[item(first, output=1)],
        claim={"max": 1, "start": True},
    )

    assert [(one.op, one.ok) for one in answer.outcomes] == [
        ("heartbeat", True),
        ("complete", True),
    ]
    assert answer.outcomes[1].state == "COMPLETED"
    assert [claim.workload_id for claim in answer.claims] == [second]
    assert answer.lifecycle == "BUSY"
    assert (answer.fenced_claims, answer.unknown_claims, answer.reasons) == ([], [], [])
    assert answer.worker is not None
    assert answer.worker.claims == [answer.claims[0].claim_id]


def test_items_are_done_in_the_order_of_the_wire(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 3})
    a, b, c = (mesh.claims(mesh.workload(), by=worker) for _ in range(3))

    answer = exchanged(
        mesh,
        worker,
        log=[item(a, lines=["late"])],
        release=[item(c)],
        fail=[item(b, kind="transient", message="m")],
        complete=[item(a)],
        checkpoint=[item(a, data=1)],
        renew=[item(b), item(a)],
        start=[item(a)],
    )

    assert [(one.op, one.claim_id, one.ok) for one in answer.outcomes] == [
        ("start", a.claim_id, True),
        ("renew", b.claim_id, True),
        ("renew", a.claim_id, True),
        ("checkpoint", a.claim_id, True),
        ("complete", a.claim_id, True),
        ("fail", b.claim_id, True),
        ("release", c.claim_id, True),
        ("log", a.claim_id, False),
    ]


def test_a_refused_item_changes_nothing_and_stops_no_other(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 3})
    late = mesh.claims(mesh.workload(), by=worker, lease_ms=1_000, start=True)
    live = mesh.claims(mesh.workload(), by=worker, start=True)
    unstarted = mesh.claims(mesh.workload(), by=worker)
    mesh.later(ms=1_000)

    answer = exchanged(
        mesh, worker, complete=[item(late), item(unstarted), item(live)], renew=[item(late)]
    )

    assert [(one.ok, one.code, one.next) for one in answer.outcomes] == [
        (False, "WORKLOAD_STALE_FENCE", "drop_claim"),
        (False, "WORKLOAD_STALE_FENCE", "drop_claim"),
        (False, "WORKLOAD_TRANSITION_DENIED", "fix_request"),
        (True, None, None),
    ]
    assert answer.fenced_claims == [late.claim_id]
    assert mesh.state(live.workload_id) == "COMPLETED"
    assert mesh.state(unstarted.workload_id) == "CLAIMED"


def test_a_failed_start_first_leaves_no_trace(mesh: Mesh) -> None:
    """The start inside a complete is taken back with it."""
    worker = mesh.worker()
    held = mesh.claims(mesh.workload(), by=worker)
    done = item(held, start=True)
    mesh.hand(
        "CREATE TRIGGER no_result BEFORE UPDATE OF result_id ON workloads"
        " WHEN NEW.result_id IS NOT NULL BEGIN SELECT RAISE(IGNORE); END"
    )
    before = mesh.everything()

    with pytest.raises(RuntimeError):
        exchanged(mesh, worker, complete=[done])
    assert mesh.everything() == before


def test_what_the_handler_found_wrong_refuses_its_item_alone(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 2})
    a, b = (mesh.claims(mesh.workload(), by=worker, start=True) for _ in range(2))
    too_large = Refused("WORKLOAD_INVALID", "/complete/0/output: takes too many bytes")

    answer = exchanged(
        mesh, worker, faults={("complete", 0): too_large}, complete=[item(a), item(b)]
    )

    assert [(one.ok, one.code) for one in answer.outcomes] == [
        (False, "WORKLOAD_INVALID"),
        (True, None),
    ]
    assert mesh.state(a.workload_id) == "RUNNING"


def test_a_refused_heartbeat_skips_only_the_claim(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 2})
    held = mesh.claims(mesh.workload(), by=worker, start=True)
    waiting = mesh.workload()

    answer = exchanged(
        mesh,
        worker,
        heartbeat=beat(mesh, worker, version="2"),
        complete=[item(held)],
        claim={"max": 1},
    )

    assert [(one.op, one.ok, one.code) for one in answer.outcomes] == [
        ("heartbeat", False, "WORKER_HEARTBEAT_REJECTED"),
        ("complete", True, None),
    ]
    assert (answer.claims, answer.worker) == ([], None)
    assert [reason.code for reason in answer.reasons] == ["WORKER_HEARTBEAT_REJECTED"]
    assert mesh.state(waiting) == "READY"


def test_a_heartbeat_with_a_wrong_clock_still_counts_as_heard(mesh: Mesh) -> None:
    worker = mesh.worker()
    mesh.later(ms=20_000)
    crooked = beat(mesh, worker, timestamp_at_ms=mesh.now.wall_ms + 60_000)

    answer = exchanged(mesh, worker, heartbeat=crooked, claim={"max": 1})

    assert answer.outcomes[0].code == "WORKER_CLOCK_INVALID"
    assert mesh.row("SELECT last_seen_at_ms AS at FROM workers")["at"] == mesh.now.lease_ms


def test_an_offline_worker_is_told_to_reconcile_and_its_items_are_judged(mesh: Mesh) -> None:
    worker = mesh.worker()
    held = mesh.claims(mesh.workload(), by=worker, start=True)
    mesh.hand(
        "UPDATE workers SET lifecycle = 'OFFLINE', lifecycle_cause = 'verb',"
        " offline_reason = 'failed'"
    )

    answer = exchanged(mesh, worker, complete=[item(held)], claim={"max": 1})

    assert [(one.ok, one.code) for one in answer.outcomes] == [(True, None)]
    assert answer.lifecycle == "OFFLINE"
    assert [reason.code for reason in answer.reasons] == ["WORKER_RECOVERY_REQUIRED"]


def test_under_load_the_claim_part_alone_is_shed(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 2})
    held = mesh.claims(mesh.workload(), by=worker, start=True)
    waiting = mesh.workload()

    answer = exchanged(mesh, worker, may_claim=False, complete=[item(held)], claim={"max": 1})

    assert answer.outcomes[0].ok
    assert [reason.code for reason in answer.reasons] == ["SERVICE_OVERLOADED"]
    assert mesh.state(waiting) == "READY"


def test_the_very_first_answer_after_recovery_names_the_fenced_claim(mesh: Mesh) -> None:
    """BC-006: the first runner is told at once, and what it says puts nothing back."""
    slow, fast = mesh.worker("slow"), mesh.worker("fast")
    job = mesh.workload()
    lost = mesh.claims(job, by=slow, lease_ms=1_000, start=True)
    mesh.later(ms=1_000)
    mesh.sweep()
    mesh.later(ms=3_000)
    mesh.claims(job, by=fast)

    told = exchanged(mesh, slow, heartbeat=beat(mesh, slow, lost.claim_id))

    assert told.fenced_claims == [lost.claim_id]
    assert told.worker is not None
    assert told.worker.claims == []


def test_what_is_to_be_cancelled_is_told(mesh: Mesh) -> None:
    worker = mesh.worker()
    held = mesh.claims(mesh.workload(), by=worker, start=True)
    mesh.ask(cancel.cancel, Cancel(), held.workload_id)

    assert exchanged(mesh, worker, renew=[item(held)]).cancel_claims == [held.claim_id]


def test_claims_the_worker_does_not_name_are_unknown_to_it(mesh: Mesh) -> None:
    """Their answer was lost: it releases what it does not run."""
    worker = mesh.worker(capacity={"concurrency": 2})
    lost = mesh.claims(mesh.workload(), by=worker)
    mesh.later(ms=6_000)
    known = mesh.claims(mesh.workload(), by=worker)

    told = exchanged(mesh, worker, heartbeat=beat(mesh, worker, known.claim_id))
    silent = exchanged(mesh, worker)

    assert told.unknown_claims == [lost.claim_id]
    assert silent.unknown_claims == [], "without a heartbeat it has named nothing"


def test_a_claim_ended_in_the_same_exchange_is_no_difference(mesh: Mesh) -> None:
    worker = mesh.worker()
    held = mesh.claims(mesh.workload(), by=worker, start=True)
    said: dict[str, Any] = {
        "heartbeat": beat(mesh, worker, held.claim_id),
        "complete": [item(held)],
    }

    assert exchanged(mesh, worker, **said).fenced_claims == []
    assert exchanged(mesh, worker, **said).fenced_claims == [], "nor when it is repeated"


def test_a_heartbeat_inside_renews_what_it_names(mesh: Mesh) -> None:
    worker = mesh.worker()
    held = mesh.claims(mesh.workload(), by=worker, lease_ms=10_000)
    mesh.later(ms=5_000)

    told = exchanged(mesh, worker, heartbeat=beat(mesh, worker, held.claim_id, renew_leases=True))

    assert told.renewed == {held.claim_id: mesh.now.lease_ms + 10_000}


def test_a_repeated_exchange_gets_its_claims_again(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 2})
    held = mesh.claims(mesh.workload(), by=worker, start=True)
    mesh.workload()
    mesh.workload()
    said: dict[str, Any] = {
        "complete": [item(held, output={"n": 1})],
        "claim": {"max": 1, "request_id": "x-1"},
    }

    first, again = exchanged(mesh, worker, **said), exchanged(mesh, worker, **said)

    assert [claim.claim_id for claim in again.claims] == [first.claims[0].claim_id]
    assert again.outcomes == first.outcomes


def test_nobody_exchanges_for_another(mesh: Mesh) -> None:
    worker, other = mesh.worker(), mesh.worker("other")
    key = mesh.key(other)
    command = Exchanging(Exchange(), {})

    assert mesh.refused(lambda: mesh.ask(exchange.exchange, command, worker, key)) == "FORBIDDEN"
    assert mesh.refused(lambda: exchanged(mesh, "worker_none")) == "WORKER_NOT_FOUND"

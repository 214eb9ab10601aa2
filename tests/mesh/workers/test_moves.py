"""Every lifecycle has a way out, by hand and by time; what is not an edge is refused."""

from collections.abc import Callable
from typing import Any

import pytest

from feltd.mesh.states import WORKER_LIFECYCLES, worker_transition
from tests.mesh.workers.stories import Hand, House


def brought(house: House, lifecycle: str) -> Hand:
    """A worker in this lifecycle, brought there by what really leads to it."""
    if lifecycle == "REGISTERED":
        return Hand(house, house.registers(issue_key=True, capacity={"concurrency": 1}))
    edge = house.worker(capacity={"concurrency": 1})
    if lifecycle in ("BUSY", "DRAINING"):
        edge.takes()
    if lifecycle == "DRAINING":
        house.drain(edge.id)
    elif lifecycle in ("OFFLINE", "RECOVERING"):
        house.mesh.later(ms=30_000)
        house.fails_silent()
    if lifecycle == "RECOVERING":
        house.operates("recover", edge.id)
    assert edge.shown().lifecycle == lifecycle
    return edge


ACTIONS: dict[str, Callable[[House, Hand], Any]] = {
    "register": lambda house, edge: house.registers(capacity={"concurrency": 1}),
    "register changed": lambda house, edge: house.registers(
        capacity={"concurrency": 1}, version="2"
    ),
    "take over": lambda house, edge: house.registers(process_id="second", takeover=True),
    "heartbeat": lambda house, edge: edge.beat(),
    "reconcile": lambda house, edge: edge.reconcile(),
    "drain": lambda house, edge: house.drain(edge.id),
    "leave": lambda house, edge: edge.leave(),
    "resume": lambda house, edge: house.operates("resume", edge.id),
    "recover": lambda house, edge: house.operates("recover", edge.id),
    "remove": lambda house, edge: house.operates("remove", edge.id),
    "show": lambda house, edge: edge.shown(),
    **{
        f"transition to {to}": lambda house, edge, to=to: house.transition(edge.id, to)
        for to in WORKER_LIFECYCLES
    },
}

#: What each action may be refused with; anything else, or another exception, is a fault.
DOCUMENTED = {
    "heartbeat": {"WORKER_RECOVERY_REQUIRED"},
    "recover": {"WORKER_TRANSITION_DENIED"},
    "remove": {"WORKER_BUSY"},
    **{f"transition to {to}": {"WORKER_TRANSITION_DENIED"} for to in WORKER_LIFECYCLES},
}


@pytest.mark.parametrize("lifecycle", WORKER_LIFECYCLES)
@pytest.mark.parametrize("action", ACTIONS)
def test_worker_lifecycle(house: House, lifecycle: str, action: str) -> None:
    """BC-043: each pair answers, or is refused as it is documented; the promises hold."""
    edge = brought(house, lifecycle)

    code = house.mesh.refused(lambda: ACTIONS[action](house, edge))

    assert code is None or code in DOCUMENTED.get(action, set())
    house.keeps_its_promises()


@pytest.mark.parametrize("lifecycle", WORKER_LIFECYCLES)
@pytest.mark.parametrize("to", WORKER_LIFECYCLES)
def test_transition_walks_exactly_the_edges_of_the_verb(
    house: House, lifecycle: str, to: str
) -> None:
    edge = brought(house, lifecycle)
    by_hand = {lifecycle, to} != {"READY", "BUSY"} and worker_transition(lifecycle, to)

    if lifecycle == to:
        assert house.transition(edge.id, to).lifecycle == lifecycle
    elif by_hand:
        after = house.transition(edge.id, to).lifecycle
        # An idle worker that shall drain has nothing to wait for.
        assert after == to or (to == "DRAINING" and after == "OFFLINE")
    else:
        refused = house.refusal(lambda: house.transition(edge.id, to))
        assert refused.code == "WORKER_TRANSITION_DENIED"
        assert refused.detail == f"{lifecycle.title()} cannot transition to {to.title()}"
        assert edge.shown().lifecycle == lifecycle


@pytest.mark.parametrize("lifecycle", ["REGISTERED", "READY", "DRAINING", "RECOVERING"])
def test_time_alone_leads_out_of_every_lifecycle(house: House, lifecycle: str) -> None:
    edge = brought(house, lifecycle)
    house.mesh.later(ms=30_000)

    assert house.fails_silent() == [edge.id]
    assert (edge.shown().lifecycle, edge.shown().health) == ("OFFLINE", "UNHEALTHY")


def test_offline_by_hand_ends_what_is_held(house: House) -> None:
    edge = house.worker()
    [held] = edge.takes()

    after = house.transition(edge.id, "OFFLINE")

    assert (after.offline_reason, after.claims) == ("transition", [])
    assert house.ends() == [(held.claim_id, "worker_lost")]
    assert house.refusal(edge.beat).next == "reconcile"


def test_draining_by_hand_is_a_drain(house: House) -> None:
    edge = house.worker()
    edge.takes()

    assert house.transition(edge.id, "DRAINING").drain is not None
    told = house.mesh.row("SELECT kind, from_state, to_state, actor FROM events ORDER BY seq DESC")
    assert tuple(told) == ("drain", "READY", "DRAINING", "service:operator")
    assert house.mesh.row("SELECT action FROM audit WHERE kind = 'act' ORDER BY seq DESC")[0] == (
        "transition"
    )
    assert house.operates("resume", edge.id).lifecycle == "READY"


def test_recovering_lasts_one_timeout(house: House) -> None:
    edge = brought(house, "OFFLINE")
    assert house.operates("recover", edge.id).offline_reason == "recover"
    assert house.operates("recover", edge.id).lifecycle == "RECOVERING"
    house.mesh.later(ms=29_999)
    assert house.fails_silent() == []
    house.mesh.later(ms=1)

    assert house.fails_silent() == [edge.id]
    assert edge.shown().offline_reason == "failed"


def test_only_an_offline_worker_is_recovered(house: House) -> None:
    refused = house.refusal(lambda: house.operates("recover", house.worker().id))

    assert (refused.code, refused.detail) == (
        "WORKER_TRANSITION_DENIED",
        "Ready cannot transition to Recovering",
    )


def test_a_worker_with_live_claims_is_not_removed(house: House) -> None:
    """BC-018: judged by the rows of the claims, whatever the worker reports."""
    edge = house.worker()
    [held] = edge.takes()
    edge.beat(running_claims=[])

    refused = house.refusal(lambda: house.operates("remove", edge.id))

    assert (refused.code, refused.detail) == (
        "WORKER_BUSY",
        "worker with active claims cannot be removed",
    )
    edge.says("release", held)
    house.operates("remove", edge.id)
    assert house.refusal(edge.shown).code == "WORKER_NOT_FOUND"
    assert house.refusal(lambda: house.operates("remove", edge.id)).code == "WORKER_NOT_FOUND"


def test_a_lost_workers_claims_are_recovered_though_it_was_removed(house: House) -> None:
    """BC-018: a lease left to run out does not hang on the worker's row."""
    edge = house.worker()
    [held] = edge.takes(lease_ms=40_000)
    house.mesh.later(ms=30_000)
    house.fails_silent("lease")
    assert house.refusal(lambda: house.operates("remove", edge.id)).code == "WORKER_BUSY"
    house.mesh.later(ms=10_000)

    house.mesh.sweep()

    assert house.ends() == [(held.claim_id, "lease_expired")]
    house.operates("remove", edge.id)


def test_a_removed_name_registers_as_a_new_incarnation(house: House) -> None:
    edge = house.worker()
    house.drain(edge.id)
    house.operates("remove", edge.id)

    back = house.admits()

    assert back.created
    assert (back.answer.worker.worker_id, back.answer.worker.incarnation) == (edge.id, 2)
    assert back.answer.worker.drain is None
    assert house.refusal(edge.beat).facts["reasons"][0]["code"] == "taken_over"
    house.keeps_its_promises()


@pytest.mark.parametrize("verb", ["resume", "recover", "remove"])
def test_operating_needs_the_right_and_the_tenant(house: House, verb: str) -> None:
    edge = house.worker()
    stranger = house.key("stranger", ["workers:operate"], None, ("elsewhere",))
    house.operator, right = house.registrar, house.operator
    assert house.refusal(lambda: house.operates(verb, edge.id)).code == "FORBIDDEN"
    house.operator = stranger
    foreign = house.refusal(lambda: house.operates(verb, edge.id))
    made_up = house.refusal(lambda: house.operates(verb, "worker_0"))
    house.operator = right

    assert foreign.code == "WORKER_NOT_FOUND"
    assert (foreign.detail, foreign.facts) == (made_up.detail, made_up.facts)

"""A program writes for as long as its claim lives, and nothing afterwards."""

from typing import Any

import pytest
from msgspec import UNSET

from feltd.identity.executors import EXECUTOR
from feltd.model.base import Ask, Caller
from feltd.model.claim import Claim
from feltd.model.record import FLOW_CAPABILITIES, Expect
from feltd.state import held
from feltd.state.records import Stored
from feltd.state.transactions import Step
from tests.state.world import State, bytes_of


def written(state: State, claim: Claim, value: Any, op: str = "put", **of: Any) -> Stored:
    """One write of the program that runs for a claim."""
    caller = Caller(
        subject=EXECUTOR,
        tenants=("acme",),
        worker_id=of.get("worker_id", claim.worker_id),
        incarnation=of.get("incarnation", 1),
        local=True,
    )
    expect = Expect(if_version=of.get("if_version", UNSET))
    collection = of.get("collection", "orders")
    body = held.HeldWrite(
        claim_id=claim.claim_id,
        worker_id=claim.worker_id,
        fencing_token=of.get("fencing_token", claim.fencing_token),
        tenant_id=of.get("tenant_id", "acme"),
        step=Step(op, collection, "1", bytes_of(value), expect),
    )
    return state.run(held.write, Ask(caller=caller, body=body, id=claim.workload_id))


def test_what_a_program_writes_names_its_workload_and_is_no_act(state: State) -> None:
    claim = state.claims(state.workload(), by=state.worker(), start=True)
    acts = state.conn.execute("SELECT count(*) FROM audit WHERE kind = 'act'").fetchone()[0]
    written(state, claim, {"a": 1})
    written(state, claim, {"b": 2}, op="patch")
    assert state.value("1") == {"a": 1, "b": 2}
    assert [(one.actor, one.cause_workload_id) for one in state.changes()] == [
        ("service:feltd-executor", claim.workload_id)
    ] * 2
    after = state.conn.execute("SELECT count(*) FROM audit WHERE kind = 'act'").fetchone()[0]
    assert after == acts


def test_a_lease_that_is_over_writes_nothing(state: State) -> None:
    claim = state.claims(state.workload(), by=state.worker(), lease_ms=1_000, start=True)
    state.later(ms=1_000)
    assert state.refused(lambda: written(state, claim, 1)) == "WORKLOAD_STALE_FENCE"
    assert state.changes() == ()


@pytest.mark.parametrize("verb", ["complete", "release"])
def test_an_ended_claim_writes_nothing(state: State, verb: str) -> None:
    claim = state.claims(state.workload(), by=state.worker(), start=True)
    state.say(verb, claim)
    assert state.refused(lambda: written(state, claim, 1)) == "WORKLOAD_STALE_FENCE"


def test_another_token_worker_or_incarnation_writes_nothing(state: State) -> None:
    claim = state.claims(state.workload(), by=state.worker(), start=True)
    for wrong, code in (
        ({"fencing_token": claim.fencing_token + 1}, "WORKLOAD_STALE_FENCE"),
        ({"incarnation": 2}, "WORKLOAD_STALE_FENCE"),
        ({"worker_id": state.worker("other")}, "MESH_CLAIM_SCOPE_DENIED"),
    ):
        assert state.refused(lambda of=wrong: written(state, claim, 1, **of)) == code, wrong
    assert state.changes() == ()


def test_a_program_writes_no_program_and_keeps_to_what_it_expects(state: State) -> None:
    claim = state.claims(state.workload(), by=state.worker(), start=True)
    sly = state.refused(lambda: written(state, claim, 1, collection=FLOW_CAPABILITIES))
    assert sly == "FORBIDDEN"
    assert written(state, claim, 1, if_version=None).version == 1
    assert state.refused(lambda: written(state, claim, 2, if_version=None)) == "RECORD_CONFLICT"
    assert written(state, claim, 2, if_version=1).version == 2
    again = written(state, claim, 2, if_version=1)
    assert (again.version, again.kind) == (2, "")

"""Many writes in one transaction: all of them or none, each with its change, by whoever may."""

from typing import Any

import pytest
from msgspec.structs import replace

from feltd.errors import Refused
from feltd.identity import answers
from feltd.identity.answers import Once
from feltd.model.base import Ask, Caller
from feltd.model.record import FLOW_CAPABILITIES, MUTATIONS_MAX, Committed, Expect
from feltd.state import transactions, writing
from feltd.state.transactions import Step, Transacting, Write
from tests.state.world import State, bytes_of

MUCH = 4 * 1024 * 1024


def step(op: str, record_id: str, value: Any = None, **how: Any) -> Step:
    collection = how.get("collection", "orders")
    expect = Expect(if_version=how["if_version"]) if "if_version" in how else Expect()
    return Step(op, collection, record_id, b"" if op == "delete" else bytes_of(value), expect)


def transact(state: State, *steps: Step, **how: Any) -> Committed:
    body = Transacting("acme", steps, b"the body", how.get("values_bytes_max", MUCH))
    return state.ask(transactions.transact, body, caller=how.get("caller", state.operator))


def acts(state: State) -> list[tuple[str, str]]:
    """What was done to records, as the audit has it."""
    sql = "SELECT action, subject FROM audit WHERE subject LIKE 'acme%' ORDER BY seq"
    return [tuple(row) for row in state.conn.execute(sql)]


def test_everything_is_done_in_order_each_with_its_change(state: State) -> None:
    state.put("b", 1)

    done = transact(
        state,
        step("put", "a", {"n": 1}),
        step("patch", "a", {"m": 2}),
        step("delete", "b"),
        step("put", "b", 3),
    )

    assert done.sequence == 5
    assert [(one.id, one.version, one.deleted) for one in done.records] == [
        ("a", 1, False),
        ("a", 2, False),
        ("b", 2, True),
        ("b", 3, False),
    ]
    assert [(one.seq, one.kind, one.id) for one in state.changes(1)] == [
        (2, "created", "a"),
        (3, "updated", "a"),
        (4, "deleted", "b"),
        (5, "created", "b"),
    ]
    assert (state.value("a"), state.value("b")) == ({"n": 1, "m": 2}, 3)
    assert acts(state) == [("transact", "acme: 4 mutations")]


def test_one_that_is_refused_undoes_all(state: State) -> None:
    state.put("b", 1)
    before = state.everything_of_state()

    for last, code, pointer in (
        (step("put", "b", 2, if_version=7), "RECORD_CONFLICT", "/mutations/1/if_version"),
        (step("patch", "c", {}), "RECORD_NOT_FOUND", "/mutations/1"),
        (step("put", "c", "x" * 300_000), "RECORD_INVALID", "/mutations/1"),
    ):
        with pytest.raises(Refused) as refused:
            transact(state, step("put", "a", 1), last, step("put", "d", 1))
        assert refused.value.code == code
        (error,) = refused.value.facts["errors"]
        assert error["pointer"] == pointer
    assert state.everything_of_state() == before


def test_preconditions_meet_what_the_steps_before_left(state: State) -> None:
    transact(
        state,
        step("put", "a", 1, if_version=None),
        step("put", "a", 2, if_version=1),
        step("delete", "a", if_version=2),
    )

    with pytest.raises(Refused, match="RECORD_CONFLICT"):
        transact(state, step("put", "a", 1), step("put", "a", 2, if_version=1))


def test_a_transaction_that_changes_nothing_appends_nothing(state: State) -> None:
    state.put("a", 1)
    before = state.everything_of_state()

    done = transact(state, step("put", "a", 1), step("patch", "a", 1))

    assert done.sequence == 1
    assert [one.version for one in done.records] == [1, 1]
    assert state.everything_of_state() == before


def test_who_may_write_what(state: State) -> None:
    program = step("put", "p", {}, collection=FLOW_CAPABILITIES)
    order = step("put", "o", {})
    programmer = replace(state.operator, scopes=frozenset({"capabilities:write"}))
    clerk = replace(state.operator, scopes=frozenset({"state:write"}))

    transact(state, program, caller=programmer)
    transact(state, order, caller=clerk)
    for caller, steps in ((programmer, (order,)), (clerk, (program,)), (clerk, (order, program))):
        with pytest.raises(Refused, match="FORBIDDEN"):
            transact(state, *steps, caller=caller)
        with pytest.raises(Refused, match="FORBIDDEN"):
            state.ask(transactions.write, Write("acme", steps[-1]), caller=caller)


def test_a_key_that_ended_writes_nothing(state: State) -> None:
    ended = replace(state.operator, local=False, key_id="k00000000old")

    for ask in (
        lambda: transact(state, step("put", "a", 1), caller=ended),
        lambda: state.ask(transactions.write, Write("acme", step("put", "a", 1)), caller=ended),
    ):
        assert state.refused(ask) == "UNAUTHENTICATED"
    assert state.changes() == ()


def test_each_deed_that_changed_something_is_audited(state: State) -> None:
    for one in (step("put", "a", {}), step("put", "a", {}), step("patch", "a", {"n": 1})):
        state.ask(transactions.write, Write("acme", one), caller=state.operator)
    state.ask(transactions.write, Write("acme", step("delete", "a")), caller=state.operator)

    assert acts(state) == [
        ("put_record", "acme/orders/a"),
        ("patch_record", "acme/orders/a"),
        ("delete_record", "acme/orders/a"),
    ]


def test_values_are_left_out_of_a_large_answer(state: State) -> None:
    steps = (step("put", "a", "x" * 600), step("put", "b", "x" * 600), step("delete", "b"))

    whole = transact(state, *steps, values_bytes_max=2_000)
    bare = transact(state, *steps, values_bytes_max=1_000)

    assert not whole.values_left_out
    assert bare.values_left_out
    for one, other in zip(whole.records, bare.records, strict=True):
        assert one.id == other.id
        assert type(other.value).__name__ == "UnsetType"


def test_what_a_transaction_moves_is_bounded(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MOVED_BYTES_MAX", 15_000)
    for record_id in "abcdef":
        state.put(record_id, {"text": "x" * 2_000})

    patches = [step("patch", record_id, {"n": 1}) for record_id in "abcdef"]
    with pytest.raises(Refused) as refused:
        transact(state, *patches)
    assert refused.value.code == "RECORD_INVALID"
    transact(state, *patches[:2])


def once(state: State, caller: Caller, *steps: Step, digest: str = "d") -> Any:
    body = Transacting("acme", steps, b"", MUCH)
    ask = Ask(caller=caller, body=body)
    command = Once(
        rule=transactions.transact, ask=ask, request_key="r", route="transact", body_sha256=digest
    )
    return state.run(answers.once, command)


def test_a_repeat_by_name_is_done_once(state: State) -> None:
    steps = (step("put", "a", 1, if_version=None), step("put", "b", 1))
    first = once(state, state.operator, *steps)
    state.put("a", 2)

    again = once(state, state.operator, *steps)

    assert again.repeated
    assert bytes_of(again.answer) == bytes_of(first.answer)
    assert state.value("a") == 2
    with pytest.raises(Refused, match="REQUEST_INVALID"):
        once(state, state.operator, *steps, digest="other")


def test_the_largest_transaction_takes_few_statements(state: State) -> None:
    """Some 35 ms of the writer where it was measured, for records of 100 letters."""
    transact(state, *(step("put", f"r{n}", {"n": n}) for n in range(MUTATIONS_MAX)))

    transact(state, *(step("patch", f"r{n}", {"n": -n - 1}) for n in range(MUTATIONS_MAX)))

    # One look, one change, one record each; the rest is for all of them together.
    assert state.statements <= 3 * MUTATIONS_MAX + 16
    assert state.log().head_seq == 2 * MUTATIONS_MAX


def test_collections_are_counted_once_however_many_begin(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    transact(state, *(step("put", "a", 1, collection=f"c{n}") for n in range(200)))
    # One of these would be the count.
    assert state.statements <= 5 * 200 + 16

    monkeypatch.setattr(writing, "COLLECTIONS_MAX", 202)
    swapped = (step("delete", "a", collection="c0"), step("put", "a", 1, collection="d0"))
    transact(state, *swapped, *(step("put", "a", 1, collection=f"d{n}") for n in (1, 2)))
    with pytest.raises(Refused) as refused:
        transact(state, *(step("put", "a", 1, collection=f"e{n}") for n in range(3)))
    assert (refused.value.code, refused.value.facts["used"]) == ("QUOTA_EXCEEDED", 202)
    transact(state, step("delete", "a", collection="c1"), step("put", "a", 1, collection="e0"))

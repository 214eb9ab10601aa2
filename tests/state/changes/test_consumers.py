"""Consumers: a cursor that moves forward, that is waited for, that is dropped in the open."""

from typing import Any

import pytest

from feltd.errors import Refused
from feltd.model.base import Ask
from feltd.model.change import CONSUMERS_MAX, Consumer
from feltd.model.record import OfTenant
from feltd.state import consumers
from feltd.state.consumers import OfConsumer
from tests.state.world import State


@pytest.fixture
def five(state: State) -> State:
    """A log of five changes."""
    for number in range(5):
        state.put("a", number)
    return state


def ack(state: State, seq: int, name: str = "copy", tenant_id: str = "acme") -> Consumer:
    body = OfConsumer(tenant_id, name, seq)
    return state.ask(consumers.acknowledge, body, caller=state.operator)[0]


def get(state: State, name: str = "copy", tenant_id: str = "acme") -> Consumer:
    return state.run(consumers.get, OfConsumer(tenant_id, name))


def refusal(act: Any) -> tuple[str, dict[str, Any]]:
    with pytest.raises(Refused) as refused:
        act()
    return refused.value.code, refused.value.facts


def drop(state: State, name: str = "copy") -> None:
    """What compaction does with one that it waits for no more."""
    sql = "UPDATE consumers SET dropped_at_ms = :now_ms WHERE name = :name"
    state.conn.execute(sql, {"now_ms": state.now.lease_ms, "name": name})


def test_a_consumer_begins_where_it_says_and_moves_on(five: State) -> None:
    begun = ack(five, 0)
    five.later(2_000)
    moved = ack(five, 3)

    assert (begun.ack, begun.lag, begun.head) == (0, 5, 5)
    assert (moved.ack, moved.lag, moved.acked_at_ms - moved.created_at_ms) == (3, 2, 2_000)
    assert get(five) == moved


def test_it_never_moves_back(five: State) -> None:
    ack(five, 3)

    code, facts = refusal(lambda: ack(five, 2))

    assert (code, facts) == ("CONSUMER_BEHIND", {"ack": 3})


def test_the_same_again_says_that_it_is_alive_once_a_second(five: State) -> None:
    begun = ack(five, 3)
    five.later(999)
    assert ack(five, 3).acked_at_ms == begun.acked_at_ms
    five.later(1)
    assert ack(five, 3).acked_at_ms == begun.acked_at_ms + 1_000


def test_nobody_is_done_with_what_is_not_there(five: State) -> None:
    code, facts = refusal(lambda: ack(five, 6))

    assert (code, facts["errors"][0]["pointer"]) == ("RECORD_INVALID", "/ack")


def test_a_new_one_begins_within_the_log(five: State) -> None:
    five.cut(3)

    assert refusal(lambda: ack(five, 2)) == ("CHANGES_COMPACTED", {"oldest": 4, "head": 5})
    assert ack(five, 3).lag == 2


def test_the_log_is_not_cut_under_one_that_counts(five: State) -> None:
    ack(five, 2)

    with pytest.raises(Exception, match="a consumer has not acknowledged"):
        five.cut(3)
    five.cut(2)
    drop(five)
    five.cut(4)


def test_one_that_was_dropped_is_told_what_it_missed(five: State) -> None:
    ack(five, 2)
    drop(five)
    assert get(five).dropped_at_ms is not None, "nothing is gone yet"
    five.cut(4)

    gone = ("CHANGES_COMPACTED", {"oldest": 5, "head": 5})
    assert refusal(lambda: get(five)) == gone
    assert refusal(lambda: ack(five, 2)) == gone
    assert refusal(lambda: ack(five, 3)) == gone
    (shown,) = five.run(consumers.of_tenant, OfTenant("acme"))
    assert (shown.ack, shown.dropped_at_ms) == (2, five.now.lease_ms)

    again = ack(five, 4)
    assert (again.ack, again.dropped_at_ms) == (4, None)
    assert get(five) == again


def test_one_that_was_dropped_in_vain_goes_on_where_it_was(five: State) -> None:
    ack(five, 2)
    drop(five)

    assert ack(five, 2).dropped_at_ms is None


def test_a_consumer_is_forgotten_once(five: State) -> None:
    ack(five, 2)
    for _ in range(2):
        body = OfConsumer("acme", "copy")
        five.ask(consumers.delete, body, caller=five.operator)

    acts = five.conn.execute("SELECT subject FROM audit WHERE action = 'delete_consumer'")
    assert [row["subject"] for row in acts] == ["acme/copy"]
    assert refusal(lambda: get(five))[0] == "CONSUMER_NOT_FOUND"
    five.cut(5)


def test_tenants_have_consumers_of_their_own(five: State) -> None:
    five.put("a", 1, tenant_id="other")
    ack(five, 4)
    theirs = ack(five, 1, tenant_id="other")

    assert (theirs.ack, theirs.head) == (1, 1)
    assert refusal(lambda: get(five, tenant_id="third"))[0] == "CONSUMER_NOT_FOUND"
    shown = five.run(consumers.of_tenant, OfTenant("other"))
    assert [one.name for one in shown] == ["copy"]


def test_there_are_so_many(five: State) -> None:
    for number in range(CONSUMERS_MAX):
        ack(five, 0, f"c{number:03}")

    code, facts = refusal(lambda: ack(five, 0))
    assert (code, facts["limit"]) == ("QUOTA_EXCEEDED", CONSUMERS_MAX)
    ack(five, 5, "c000")
    assert len(five.run(consumers.of_tenant, OfTenant("acme"))) == CONSUMERS_MAX


def test_a_key_that_ended_acknowledges_nothing(five: State) -> None:
    body = OfConsumer("acme", "copy", 1)
    for rule in (consumers.acknowledge, consumers.delete):
        ask = Ask(caller=five.writer, body=body)
        assert five.refused(lambda r=rule, a=ask: five.run(r, a)) == "UNAUTHENTICATED"

"""The log of changes: gapless whatever is written, readable from anywhere it is kept."""

from random import Random
from typing import Any

import pytest

from feltd.errors import Refused
from feltd.model.change import ChangePage, Following
from feltd.model.record import OfTenant
from feltd.state import changes
from feltd.state.changes import ROWS_AT_ONCE
from tests.state.world import State, read


def page(state: State, after: int | None = None, **how: Any) -> ChangePage:
    tenant_id = how.pop("tenant_id", "acme")
    return state.run(changes.page, Following(tenant_id=tenant_id, after=after, **how))


def told(state: State, after: int | None, **how: Any) -> list[int]:
    return [one.seq for one in page(state, after, **how).items]


def refused(state: State, after: int, **how: Any) -> tuple[str, int, int]:
    with pytest.raises(Refused) as why:
        page(state, after, **how)
    return why.value.code, why.value.facts["oldest"], why.value.facts["head"]


# -- what is in it -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_written_the_log_tells_all_of_it(state: State, seed: int) -> None:
    """A reader that applies the changes has what the records hold, at every moment."""
    chance = Random(seed)
    tenants, ids = ("acme", "other"), "abcde"
    held: dict[tuple[str, str], Any] = {}
    stands = dict.fromkeys(tenants, 0)
    for _ in range(150):
        tenant_id, record_id = chance.choice(tenants), chance.choice(ids)
        verb = chance.choice(("put", "put", "patch", "delete"))
        more = () if verb == "delete" else ({"n": chance.randrange(3)},)
        state.refused(
            lambda v=verb, r=record_id, m=more, t=tenant_id: getattr(state, v)(r, *m, tenant_id=t)
        )
        for one in state.changes(stands[tenant_id], tenant_id):
            key = tenant_id, one.id
            assert one.seq == stands[tenant_id] + 1
            assert read(one.before) == held.get(key)
            stands[tenant_id] = one.seq
            held[key] = read(one.after)
            assert (one.kind == "deleted") == (one.after is None)
    for tenant_id in tenants:
        for record_id in ids:
            assert state.value(record_id, tenant_id=tenant_id) == held.get((tenant_id, record_id))


def test_a_refused_operation_takes_no_number(state: State) -> None:
    state.put("a", 1)
    state.refused(lambda: state.delete("b"))
    state.put("a", 2)

    assert told(state, 0) == [1, 2]


# -- reading it ----------------------------------------------------------------------------------


def test_a_reader_goes_on_behind_what_it_saw(state: State) -> None:
    for number in range(ROWS_AT_ONCE * 2 + 3):
        state.put("a", number)
    head = ROWS_AT_ONCE * 2 + 3

    assert told(state, None, limit=5) == [1, 2, 3, 4, 5]
    assert told(state, 5, limit=500) == list(range(6, head + 1))
    last = page(state, head)
    assert (last.items, last.head, last.oldest) == ((), head, 1)
    assert last.instance_id == "instance"


def test_a_log_without_changes_begins_at_one(state: State) -> None:
    empty = page(state)

    assert (empty.items, empty.head, empty.oldest) == ((), 0, 1)
    assert told(state, 0) == []
    assert refused(state, 1) == ("CHANGES_COMPACTED", 1, 0)


def test_a_reader_of_one_collection_sees_that_alone(state: State) -> None:
    for number in range(3):
        state.put("a", number)
        state.put("a", number, "customers")

    assert told(state, 0, collection="customers") == [2, 4, 6]
    assert told(state, 4, collection="customers") == [6]
    assert told(state, 0, collection="none") == []
    assert page(state, 0, collection="none").head == 6


def test_a_page_ends_early_for_its_size_and_the_next_goes_on(state: State) -> None:
    for number in range(6):
        state.put("a", str(number) * 100)

    found, after, pages = [], 0, 0
    while items := page(state, after, bytes_max=500).items:
        found += [one.seq for one in items]
        after = found[-1]
        pages += 1
    assert found == [1, 2, 3, 4, 5, 6]
    assert pages == 3
    assert told(state, 2, bytes_max=1) == [3], "one is always told"


def test_what_is_cut_is_told_never_passed_over(state: State) -> None:
    for number in range(5):
        state.put("a", number)
    state.cut(3)

    assert refused(state, 2) == ("CHANGES_COMPACTED", 4, 5)
    assert refused(state, 0, collection="orders") == ("CHANGES_COMPACTED", 4, 5)
    assert told(state, 3) == told(state, None) == [4, 5]
    state.cut(5)
    assert refused(state, 4) == ("CHANGES_COMPACTED", 6, 5)
    empty = page(state)
    assert (empty.items, empty.oldest, empty.head) == ((), 6, 5)
    state.put("a", 9)
    assert told(state, 5) == [6]


def test_a_number_of_another_history_is_none_of_this_one(state: State) -> None:
    state.put("a", 1)

    assert refused(state, 2) == ("CHANGES_COMPACTED", 1, 1)


def test_the_version_of_a_tenant_is_its_newest_change(state: State) -> None:
    state.put("a", 1)
    state.put("a", 2, tenant_id="other")
    state.put("a", 3, tenant_id="other")

    for tenant_id, sequence in (("acme", 1), ("other", 2), ("none", 0)):
        told_of = state.run(changes.version, OfTenant(tenant_id))
        assert (told_of.sequence, told_of.instance_id) == (sequence, "instance")
    assert state.statements == 2


def test_a_page_is_a_seek_and_a_stretch(state: State) -> None:
    for sql in (changes.OF_TENANT, changes.OF_COLLECTION):
        params = {"tenant_id": "t", "collection": "c", "after": 1, "head": 9, "rows": 5}
        plan = state.conn.execute("EXPLAIN QUERY PLAN " + sql, params).fetchall()
        assert [row["detail"].split()[0] for row in plan] == ["SEARCH"]

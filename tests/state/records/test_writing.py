"""A record is written: its version, its change, what must hold before, and what is no write."""

from typing import Any

import pytest
from msgspec.structs import replace

from feltd.errors import Refused
from feltd.identity.principals import LOCAL
from feltd.model.record import FLOW_CAPABILITIES, RECORD_BYTES_MAX, Expect
from feltd.state import merging, writing
from tests.state.world import State, bytes_of, read

AT_1 = Expect(if_version=1)
NOT_THERE = Expect(if_version=None)
THERE = Expect(exists=True)


def counted(state: State) -> dict[str, tuple[int, int]]:
    """Each collection of acme with its records and bytes."""
    sql = "SELECT collection, records, bytes FROM collections WHERE tenant_id = 'acme'"
    return {name: (records, size) for name, records, size in state.conn.execute(sql)}


# -- versions ------------------------------------------------------------------------------------


def test_each_write_makes_a_version_and_a_change(state: State) -> None:
    made = state.put("o-1", {"status": "new"})
    state.later(5)
    state.put("o-1", {"status": "paid"})
    state.later(5)
    state.patch("o-1", {"total": 7})
    state.delete("o-1")

    assert made == (1, "created", 1)
    begin = state.now.lease_ms - 10
    told = [
        (one.seq, one.kind, one.version, read(one.before), read(one.after), one.at_ms - begin)
        for one in state.changes()
    ]
    assert told == [
        (1, "created", 1, None, {"status": "new"}, 0),
        (2, "updated", 2, {"status": "new"}, {"status": "paid"}, 5),
        (3, "updated", 3, {"status": "paid"}, {"status": "paid", "total": 7}, 10),
        (4, "deleted", 4, {"status": "paid", "total": 7}, None, 10),
    ]
    assert {one.actor for one in state.changes()} == {"service:app"}


def test_a_write_that_changes_nothing_appends_nothing(state: State) -> None:
    state.put("o-1", {"a": 1, "b": [1, 2]})
    before = state.everything_of_state()

    assert state.put("o-1", {"b": [1, 2], "a": 1}) is None
    assert state.patch("o-1", {"a": 1}) is None
    assert state.patch("o-1", {"c": None}) is None
    assert state.put("o-1", {"b": [1, 2], "a": 1}, expect=AT_1) is None

    assert state.told == []
    assert state.everything_of_state() == before


def test_a_value_may_be_anything_of_json(state: State) -> None:
    for value in (None, 0, -1.5, "", "é\U0001f4a9", [], {}, [{"a": [None]}], True):
        state.put("o-1", value)
        assert state.value("o-1") == value


def test_a_deleted_record_is_made_again_under_the_next_version(state: State) -> None:
    state.put("o-1", 1)
    state.delete("o-1")

    assert state.refused(lambda: state.put("o-1", 2, expect=AT_1)) == "RECORD_CONFLICT"
    made = state.put("o-1", 1, expect=NOT_THERE)

    assert made == (3, "created", 3)
    row = state.record("o-1")
    assert row is not None
    assert row["created_by"] == "service:app"
    assert state.refused(lambda: state.put("o-1", 2, expect=AT_1)) == "RECORD_CONFLICT"


def test_what_is_not_there_is_neither_patched_nor_deleted(state: State) -> None:
    state.put("gone", 1)
    state.delete("gone")
    for record_id in ("never", "gone"):
        assert state.refused(lambda at=record_id: state.patch(at, {})) == "RECORD_NOT_FOUND"
        assert state.refused(lambda at=record_id: state.delete(at)) == "RECORD_NOT_FOUND"


# -- what must hold ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expect", "there"),
    [(AT_1, None), (Expect(if_version=3), 2), (AT_1, 2), (NOT_THERE, 2), (THERE, None)],
)
def test_a_write_that_expects_something_else_is_refused(
    state: State, expect: Expect, there: int | None
) -> None:
    if there:
        state.put("o-1", 1)
        state.put("o-1", 2)
    before = state.everything_of_state()

    with pytest.raises(Refused) as refused:
        state.put("o-1", 3, expect=expect)

    assert refused.value.code == "RECORD_CONFLICT"
    assert refused.value.facts == {"version": there}
    assert state.everything_of_state() == before


def test_a_write_that_expects_what_is_goes_through(state: State) -> None:
    state.put("o-1", 1, expect=NOT_THERE)
    state.put("o-1", 2, expect=AT_1)
    state.patch("o-1", 3, expect=THERE)
    state.delete("o-1", expect=Expect(if_version=3))

    assert state.log().head_seq == 4


def test_a_repeat_of_the_same_key_is_no_conflict(state: State) -> None:
    state.put("o-1", {"n": 1})
    state.put("o-1", {"n": 2}, expect=AT_1)
    stranger = replace(state.writer, key_id="k0000stranger")

    assert state.put("o-1", {"n": 2}, expect=AT_1) is None
    assert state.patch("o-1", {"n": 2}, expect=AT_1) is None
    theirs = {"expect": AT_1, "caller": stranger}
    assert state.refused(lambda: state.put("o-1", {"n": 2}, **theirs)) == "RECORD_CONFLICT"
    assert state.refused(lambda: state.put("o-1", {"n": 9}, expect=AT_1)) == "RECORD_CONFLICT"
    state.put("o-1", {"n": 3})
    assert state.refused(lambda: state.put("o-1", {"n": 3}, expect=AT_1)) == "RECORD_CONFLICT"


def test_local_callers_are_told_apart_by_who_they_are(state: State) -> None:
    other = replace(LOCAL, subject=replace(LOCAL.subject, id="other"))
    state.put("o-1", 1)
    state.put("o-1", 2, expect=AT_1, caller=LOCAL)

    assert state.put("o-1", 2, expect=AT_1, caller=LOCAL) is None
    refused = state.refused(lambda: state.put("o-1", 2, expect=AT_1, caller=other))
    assert refused == "RECORD_CONFLICT"
    by_key = state.refused(lambda: state.put("o-1", 2, expect=AT_1))
    assert by_key == "RECORD_CONFLICT"


# -- bounds --------------------------------------------------------------------------------------


def of_size(size_bytes: int) -> str:
    """Text that takes so many bytes as JSON."""
    return "x" * (size_bytes - 2)


def test_a_value_has_its_bounds(state: State) -> None:
    state.put("o-1", of_size(RECORD_BYTES_MAX))
    too_large = of_size(RECORD_BYTES_MAX + 1)

    assert state.refused(lambda: state.put("o-2", too_large)) == "RECORD_INVALID"
    state.put("program", too_large, FLOW_CAPABILITIES)
    larger = of_size(1024 * 1024 + 1)
    refused = state.refused(lambda: state.put("program", larger, FLOW_CAPABILITIES))
    assert refused == "RECORD_INVALID"


def test_a_patch_may_not_let_a_record_grow_beyond_its_bound(state: State) -> None:
    state.put("o-1", {"a": "x" * 200_000})

    patch = {"b": "x" * 100_000}
    assert state.refused(lambda: state.patch("o-1", patch)) == "RECORD_INVALID"
    assert state.record("o-1")["version"] == 1  # type: ignore[index]
    state.patch("o-1", {**patch, "a": None})


def test_collections_are_counted_and_end_with_their_last_record(state: State) -> None:
    state.put("o-1", {"é": 1})
    state.put("o-2", 22)
    state.put("c-1", "x", "customers")
    assert counted(state) == {"orders": (2, len(bytes_of({"é": 1})) + 2), "customers": (1, 3)}

    state.delete("c-1", "customers")
    state.put("o-2", 1)

    assert counted(state) == {"orders": (2, len(bytes_of({"é": 1})) + 1)}


def test_a_tenant_has_so_many_collections(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "COLLECTIONS_MAX", 2)
    state.put("o-1", 1)
    state.put("c-1", 1, "customers")

    with pytest.raises(Refused) as refused:
        state.put("p-1", 1, "parts")
    assert (refused.value.code, refused.value.facts["used"]) == ("QUOTA_EXCEEDED", 2)
    state.put("p-1", 1, "parts", tenant_id="other")
    state.delete("c-1", "customers")
    state.put("p-1", 1, "parts")


def test_tenants_have_records_and_numbers_of_their_own(state: State) -> None:
    state.put("o-1", "ours")
    state.put("o-1", "theirs", tenant_id="other")

    assert (state.value("o-1"), state.value("o-1", tenant_id="other")) == ("ours", "theirs")
    assert [one.seq for one in state.changes()] == [1]
    assert [read(one.after) for one in state.changes(tenant_id="other")] == ["theirs"]


# -- causes --------------------------------------------------------------------------------------


def test_a_cause_is_a_workload_of_the_tenant(state: State) -> None:
    job = state.workload()
    theirs = state.workload(tenant_id="other")
    state.put("o-1", 1, cause=job)

    for cause in (theirs, "wl_made_up"):
        assert state.refused(lambda at=cause: state.put("o-1", 2, cause=at)) == "RECORD_INVALID"
    (change,) = state.changes()
    assert (change.cause_workload_id, change.depth) == (job, 0)


# -- who is told ---------------------------------------------------------------------------------


def test_whoever_waits_for_changes_is_told(state: State) -> None:
    state.put("o-1", 1)
    assert state.told == [("changes", "acme"), ("changes", "*"), ("evaluate", "0")]

    state.put("p-1", {}, FLOW_CAPABILITIES)
    assert ("record", f"acme/{FLOW_CAPABILITIES}") in state.told


# -- merge patches (the examples of RFC 7396) ----------------------------------------------------


@pytest.mark.parametrize(
    ("value", "patch", "after"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"a": 1, "e": None}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_does_what_its_standard_says(value: Any, patch: Any, after: Any) -> None:
    once = merging.merged(bytes_of(value).decode(), bytes_of(patch))

    assert once == bytes_of(after).decode()
    assert merging.merged(once, bytes_of(patch)) == once, "repeating it changes nothing"

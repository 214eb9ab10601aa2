"""Records are read: pages that skip and repeat nothing, search within bounds, and provenance."""

from random import Random
from typing import Any

import pytest

from feltd.model.record import Provenance
from feltd.state import listing, provenance, searching
from feltd.state.listing import PageOf
from tests.state.world import State, bytes_of, read


def page(state: State, limit: int, place: Any = None, **how: Any) -> listing.Listed:
    prefix = how.get("prefix")
    members = {} if place is None else {"before" if prefix is None else "after": place}
    cmd = PageOf("acme", how.get("collection", "orders"), limit, prefix, **members)
    return state.run(listing.page, cmd)


def every(state: State, limit: int = 3, **how: Any) -> list[str]:
    """The ids on all pages."""
    found, place = [], None
    while True:
        one = page(state, limit, place, **how)
        found += [item.id for item in one.items]
        place = one.last
        if place is None:
            return found


# -- pages ---------------------------------------------------------------------------------------


def test_the_newest_come_first_and_changes_move_nothing(state: State) -> None:
    for record_id in "abcdefg":
        state.put(record_id, 1)
    state.put("a", 2)
    state.delete("d")

    assert every(state) == ["g", "f", "e", "c", "b", "a"]
    first = page(state, 2)
    assert [(one.id, one.version, read(one.value)) for one in first.items] == [
        ("g", 1, 1),
        ("f", 1, 1),
    ]
    assert every(state, collection="none") == []


def test_nothing_is_skipped_or_repeated_while_others_write(state: State) -> None:
    chance = Random(7)
    for number in range(60):
        state.put(f"r{number:03}", number)

    for prefix in (None, "r"):
        found: list[str] = []
        place: Any = None
        stays = set(every(state, 500))
        while True:
            one = page(state, 7, place, prefix=prefix)
            found += [item.id for item in one.items]
            place = one.last
            if place is None:
                break
            for _ in range(5):
                state.put(f"r{chance.randrange(1_000):03}", chance.random())
                gone = f"r{chance.randrange(60):03}"
                if state.value(gone) is not None:
                    state.delete(gone)
                stays.discard(gone)
        assert len(found) == len(set(found))
        assert stays <= set(found)


def test_a_prefix_is_a_stretch_of_ids(state: State) -> None:
    for record_id in ("b-2", "a", "b-1", "b", "b.", "c", "B", "b-10", "b-1"):
        state.put(record_id, record_id + "!")
    state.delete("b-2")

    assert every(state, prefix="b") == ["b", "b-1", "b-10", "b."]
    assert every(state, prefix="b-1", limit=1) == ["b-1", "b-10"]
    assert every(state, prefix="") == ["B", "a", "b", "b-1", "b-10", "b.", "c"]
    assert every(state, prefix="x") == []


def test_a_page_reads_so_much_and_no_more(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        state.put(f"r{number:02}", "x" * 100)
    monkeypatch.setattr(listing, "ANSWER_BYTES_MAX", 1_000)
    assert len(page(state, 500).items) == 9
    assert len(every(state, 500)) == 40

    for number in range(1, 39):
        state.delete(f"r{number:02}")
    monkeypatch.setattr(listing, "ROWS_READ_MAX", 10)
    one = page(state, 500, prefix="r")
    assert [item.id for item in one.items] == ["r00"]
    assert one.last is not None
    assert every(state, 500, prefix="r") == ["r00", "r39"]


def test_a_large_record_is_a_page_of_its_own(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "ANSWER_BYTES_MAX", 10)
    for record_id in "abc":
        state.put(record_id, "x" * 100)

    assert len(page(state, 500).items) == 1
    assert every(state) == ["c", "b", "a"]


def test_collections_are_listed_by_name(state: State) -> None:
    for collection in ("orders", "_flow_capabilities", "customers"):
        state.put("one", 1, collection)
    state.put("two", 2, "orders")
    state.put("one", 1, "theirs", tenant_id="other")

    first = state.run(listing.collections, listing.CollectionsOf("acme", 2))
    rest = state.run(listing.collections, listing.CollectionsOf("acme", 2, first.last))

    told = [(one.collection, one.records, one.bytes) for one in (*first.items, *rest.items)]
    assert told == [("_flow_capabilities", 1, 1), ("customers", 1, 1), ("orders", 2, 2)]
    assert rest.last is None


# -- search --------------------------------------------------------------------------------------


def search(state: State, needle: str, **how: Any) -> searching.Sliced:
    how.setdefault("matches", 20)
    cmd = searching.Slice(tenant_id="acme", collection="orders", needle=needle.lower(), **how)
    return state.run(searching.search_slice, cmd)


def test_search_looks_into_the_text_whatever_the_case(state: State) -> None:
    state.put("a", {"Name": "Ägypten", "n": [1.5]})
    state.put("b", {"name": "peru"})
    state.put("c", {"x": "name"})
    state.put("name", 1)
    state.delete("c")

    for needle, ids in (
        ("NAME", ["b", "a"]),
        ("ägypten", ["a"]),
        ('"n":[1.5]', ["a"]),
        ("peru", ["b"]),
        ("%", []),
    ):
        assert [one.id for one in search(state, needle).items] == ids


def test_a_search_ends_at_its_bounds_and_goes_on_there(state: State) -> None:
    for number in range(50):
        state.put(f"r{number}", "odd" if number % 2 else "even")

    found, last, scanned = [], None, 0
    while True:
        one = search(state, "odd", before=last, matches=4, rows=10)
        assert len(one.items) <= 4
        assert one.scanned <= 10
        found += [item.id for item in one.items]
        scanned += one.scanned
        last = one.last
        if last is None:
            break
    assert found == [f"r{number}" for number in range(49, 0, -2)]
    assert scanned == 50


def test_a_slice_reads_so_many_bytes(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "SLICE_BYTES", 1_000)
    for number in range(20):
        state.put(f"r{number}", "x" * 300)

    one = search(state, "none")

    assert (one.scanned, one.items) == (4, ())


def test_only_matches_are_copied_and_only_so_many(state: State) -> None:
    state.put("a", "x" * 200_000)
    big = search(state, "x").items

    assert not searching.full(big)
    assert searching.full(big * 11)


# -- provenance ----------------------------------------------------------------------------------


def told(state: State, record_id: str, limit: int = 50, after: int = 0) -> Provenance:
    cmd = provenance.History("acme", "orders", record_id, limit, after)
    return state.run(provenance.of_record, cmd).provenance


def test_provenance_tells_who_did_what(state: State) -> None:
    job = state.workload()
    state.put("a", 1)
    state.put("b", 1)
    state.later(3)
    state.patch("a", 2, cause=job)
    state.delete("a", caller=state.operator)

    one = told(state, "a")

    begin = state.now.lease_ms - 3
    assert (one.created_by, one.created_at_ms, one.updated_by) == (
        "service:app",
        begin,
        "service:app",
    )
    assert [(it.seq, it.kind, it.version, it.at_ms, it.cause) for it in one.items] == [
        (1, "created", 1, begin, None),
        (3, "updated", 2, begin + 3, job),
        (4, "deleted", 3, begin + 3, None),
    ]
    assert one.oldest == 1
    assert state.refused(lambda: told(state, "c")) == "RECORD_NOT_FOUND"


def test_provenance_goes_on_page_by_page_and_says_where_the_log_begins(state: State) -> None:
    for number in range(7):
        state.put("a", number)
    state.cut(2)

    cmd = provenance.History("acme", "orders", "a", 3)
    first = state.run(provenance.of_record, cmd)
    assert [it.seq for it in first.provenance.items] == [3, 4, 5]
    assert first.last == 5
    assert [it.seq for it in told(state, "a", after=5).items] == [6, 7]
    assert first.provenance.oldest == 3


def test_a_look_at_one_record_costs_the_same_beside_thousands(state: State) -> None:
    """Every query of one record is a seek: nothing is scanned."""
    plans = (
        (provenance.DEEDS, {"record_id": "a", "after": 0, "rows": 5}),
        (listing.NEWEST, {"before": 9, "rows": 5}),
        (listing.BY_ID, {"prefix": "a", "end": "b", "after": "", "rows": 5}),
    )
    for sql, named in plans:
        params = {"tenant_id": "acme", "collection": "orders", **named}
        plan = state.conn.execute("EXPLAIN QUERY PLAN " + sql, params).fetchall()
        assert all(row["detail"].startswith("SEARCH") for row in plan), sql


def test_values_are_stored_as_they_are_shown(state: State) -> None:
    value = {"é": "é\u2028", "b": [1.0, 2], "a": None}
    state.put("a", value)

    row = state.record("a")
    assert row is not None
    assert row["value"].encode() == bytes_of(value)

"""Conditions on a change: what each operator means, and that nothing makes one raise."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import convert, to_builtins
from msgspec.json import decode, encode

from feltd.errors import Refused
from feltd.model.trigger import LEVELS_MAX, NODES_MAX, THOROUGH_MAX, Predicate
from feltd.state.paths import MISSING
from feltd.state.predicates import check, matches

BEFORE = {
    "status": "new",
    "total": 5,
    "tags": ["a", {"k": 1}],
    "note": None,
    "deep": {"a": {"b": 1}},
}
AFTER = {"status": "paid", "total": 7.0, "tags": ["a", "b"], "flag": True, "deep": {"a": {"b": 2}}}


def met(before: Any = BEFORE, after: Any = AFTER, **node: Any) -> bool:
    predicate = convert(node, Predicate)
    check(predicate)
    return matches(predicate, before, after)


@pytest.mark.parametrize(
    ("op", "field", "value", "expected"),
    [
        ("eq", "after.status", "paid", True),
        ("eq", "after.status", "PAID", False),
        ("eq", "after.total", 7, True),  # 1 is 1.0
        ("eq", "after.flag", 1, False),  # true is no number
        ("eq", "after.flag", True, True),
        ("eq", "before.note", None, True),  # null is there
        ("eq", "after.note", None, False),  # what is missing is not null
        ("eq", "after", AFTER, True),
        ("eq", "before.tags", ["a", {"k": 1.0}], True),
        ("ne", "after.status", "new", True),
        ("ne", "after.missing", "new", True),
        ("ne", "after.status", "paid", False),
        ("lt", "before.total", 6, True),
        ("lt", "before.total", 5, False),
        ("le", "before.total", 5, True),
        ("gt", "after.total", 6.5, True),
        ("ge", "after.total", 7, True),
        ("gt", "after.status", "new", True),
        ("gt", "after.status", 3, False),
        ("lt", "after.flag", 3, False),
        ("ge", "after.missing", 0, False),
        ("in", "after.status", ["paid", "sent"], True),
        ("in", "after.status", [], False),
        ("in", "after.missing", [None], False),
        ("exists", "after.flag", True, True),
        ("exists", "after.flag", False, False),
        ("exists", "after.missing", False, True),
        ("exists", "before.note", True, True),
        ("prefix", "after.status", "pa", True),
        ("prefix", "after.total", "7", False),
        ("contains", "after.status", "ai", True),
        ("contains", "after.status", 1, False),
        ("contains", "after.tags", "b", True),
        ("contains", "before.tags", {"k": 1}, True),
        ("contains", "after.deep", "a", False),
        ("eq", "after.tags.1", "b", True),
        ("eq", "after.tags.01", "b", True),
        ("eq", "after.tags.-1", "b", False),
        ("eq", "after.tags.9", "b", False),
        ("eq", "after.deep.a.b", 2, True),
        ("eq", "after.status.length", 4, False),
    ],
)
def test_each_operator_means_what_it_says(op: str, field: str, value: Any, expected: bool) -> None:
    assert met(op=op, field=field, value=value) is expected


def test_exists_needs_no_value() -> None:
    assert met(op="exists", field="after.flag")
    assert not met(op="exists", field="after.missing")


def test_changed_compares_a_path_on_both_sides() -> None:
    assert met(op="changed", field="status")
    assert met(op="changed", field="deep.a.b")
    assert met(op="changed", field="note"), "null became missing"
    assert not met(op="changed", field="missing")
    assert not met({"n": 1}, {"n": 1.0}, op="changed", field="n")
    assert met(MISSING, {"n": None}, op="changed", field="n")


def test_a_record_that_is_made_or_gone_has_no_members_on_that_side() -> None:
    assert not met(MISSING, AFTER, op="exists", field="before")
    assert met(BEFORE, MISSING, op="exists", field="before.status")
    assert not met(BEFORE, MISSING, op="eq", field="after", value=None)
    assert met(None, AFTER, op="eq", field="before", value=None), "a record may hold null"


def test_conditions_are_combined() -> None:
    paid = {"op": "eq", "field": "after.status", "value": "paid"}
    large = {"op": "gt", "field": "after.total", "value": 100}
    assert met(op="all", args=[paid, {"op": "not", "args": [large]}])
    assert met(op="any", args=[large, paid])
    assert not met(op="all", args=[paid, large])
    assert met(op="all", args=[])
    assert not met(op="any", args=[])


@pytest.mark.parametrize(
    ("node", "pointer"),
    [
        ({"op": "eq", "value": 1}, "/predicate/field"),
        ({"op": "eq", "field": "after.x"}, "/predicate/value"),
        ({"op": "eq", "field": "status", "value": 1}, "/predicate/field"),
        ({"op": "eq", "field": "after.x", "value": 1, "args": []}, "/predicate/args"),
        ({"op": "changed", "field": "after.x"}, "/predicate/field"),
        ({"op": "changed", "field": "x", "value": 1}, "/predicate/value"),
        ({"op": "in", "field": "after.x", "value": "abc"}, "/predicate/value"),
        ({"op": "in", "field": "after.x", "value": [1] * 257}, "/predicate/value"),
        ({"op": "prefix", "field": "after.x", "value": 1}, "/predicate/value"),
        ({"op": "lt", "field": "after.x", "value": True}, "/predicate/value"),
        ({"op": "exists", "field": "after.x", "value": 1}, "/predicate/value"),
        ({"op": "all"}, "/predicate/args"),
        ({"op": "all", "field": "after.x", "args": []}, "/predicate"),
        ({"op": "not", "args": []}, "/predicate/args"),
        (
            {"op": "any", "args": [{"op": "all", "args": [{"op": "eq"}]}]},
            "/predicate/args/0/args/0",
        ),
    ],
)
def test_what_means_nothing_is_pointed_at(node: dict[str, Any], pointer: str) -> None:
    with pytest.raises(Refused) as refused:
        check(convert(node, Predicate))

    assert refused.value.code == "TRIGGER_INVALID"
    assert refused.value.facts["errors"][0]["pointer"].startswith(pointer)


def nested(levels: int) -> Predicate:
    node: dict[str, Any] = {"op": "exists", "field": "after"}
    for _ in range(levels - 1):
        node = {"op": "not", "args": [node]}
    return convert(node, Predicate)


def test_a_tree_is_eight_deep_and_256_nodes_at_most() -> None:
    leaf = {"op": "exists", "field": "after"}
    check(nested(LEVELS_MAX))
    check(convert({"op": "all", "args": [leaf] * (NODES_MAX - 1)}, Predicate))
    for tree in (
        nested(LEVELS_MAX + 1),
        nested(200),
        convert({"op": "all", "args": [leaf] * NODES_MAX}, Predicate),
    ):
        with pytest.raises(Refused, match="TRIGGER_INVALID"):
            check(tree)


@pytest.mark.parametrize(
    "node", [{"op": "changed", "field": "x"}, {"op": "contains", "field": "after", "value": 1}]
)
def test_few_nodes_may_look_through_whole_values(node: dict[str, Any]) -> None:
    check(convert({"op": "all", "args": [node] * THOROUGH_MAX}, Predicate))
    with pytest.raises(Refused, match="TRIGGER_INVALID"):
        check(convert({"op": "all", "args": [node] * (THOROUGH_MAX + 1)}, Predicate))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([True, 1], [1, True], False),
        ([True, 1], [True, 1.0], True),
        ({"a": [False], "b": 0}, {"b": 0.0, "a": [False]}, True),
        ({"a": [False], "b": 0}, {"b": False, "a": [0]}, False),
        (["true", "1,2"], ["true", "1,2"], True),
        (True, 1, False),
    ],
)
def test_true_is_no_number_however_deep(one: Any, other: Any, expected: bool) -> None:
    assert met(after=one, op="eq", field="after", value=other) is expected
    assert met(after=[0, one], op="contains", field="after", value=other) is expected
    assert met({"x": one}, {"x": other}, op="changed", field="x") is not expected


def test_a_list_holds_a_member_that_is_the_same_among_those_that_are_alike() -> None:
    one = {"a": True, "n": [1, "true 1"], "-": None}
    alike = [{"a": 1, "n": [1, "true 1"], "-": None}, {"a": True, "n": [True, "true 1"], "-": None}]

    def held(members: list[Any], value: Any) -> bool:
        return met(after=members, op="contains", field="after", value=value)

    assert not held(alike, one)
    assert held([*alike, {**one, "n": [1.0, "true 1"]}], one)
    assert held([{"a": 1}], {"a": 1.0})
    assert held([[True], [1]], [1])
    assert not held([[True], [False]], [1])
    assert not held([["a\n1"]], [["a"]])
    assert not held([], {})


def test_values_as_deep_as_anybody_can_store_are_compared() -> None:
    text = b"[" * 900 + b"1" + b"]" * 900
    assert met(decode(text), decode(text), op="eq", field="after", value=decode(text))
    assert not met(decode(text), decode(text), op="changed", field="x")


def test_a_tree_comes_back_from_the_store_as_it_went_in() -> None:
    node = {"op": "in", "field": "after.x", "value": [None, 1, "a", {"b": []}]}
    stored = encode(convert(node, Predicate), order="deterministic")

    assert decode(stored, type=Predicate) == convert(node, Predicate)
    assert to_builtins(decode(stored, type=Predicate)) == node
    assert b'"value":null' in encode(
        convert({"op": "eq", "field": "after", "value": None}, Predicate)
    )


KEYS = st.sampled_from(["a", "b", "0", "1", "before", "after"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.builds(
    lambda root, steps: ".".join([root, *steps]),
    st.sampled_from(["before", "after"]),
    st.lists(KEYS, max_size=3),
)
COMPARING = st.builds(
    lambda op, field, value: {"op": op, "field": field, "value": value},
    st.sampled_from(["eq", "ne", "contains"]),
    FIELDS,
    VALUES,
)
NODES = st.recursive(
    COMPARING
    | st.builds(lambda key: {"op": "changed", "field": f"x.{key}"}, KEYS)
    | st.builds(
        lambda field, value: {"op": "lt", "field": field, "value": value}, FIELDS, st.text()
    ),
    lambda inner: st.builds(
        lambda op, args: {"op": op, "args": args},
        st.sampled_from(["all", "any"]),
        st.lists(inner, max_size=3),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(node=NODES, before=VALUES, after=VALUES | st.just(MISSING))
def test_no_condition_raises_on_any_change(node: Any, before: Any, after: Any) -> None:
    predicate = convert(node, Predicate)
    check(predicate)

    assert matches(predicate, before, after) in (True, False)
    opposite = Predicate(op="not", args=(predicate,))
    assert matches(opposite, before, after) is not matches(predicate, before, after)

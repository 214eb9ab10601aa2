"""A pipeline does what its steps say, on what it is given, and stops at its bounds."""

from typing import Any

import pytest

from feltd.executor.steps import (
    OUTPUT_BYTES_MAX,
    PROGRAMS,
    ROWS_MAX,
    STEPS_MAX,
    Malformed,
    compiled,
)
from tests.executor.pipelines import outcome, program, ref, status


def test_what_is_emitted_is_the_output_in_order() -> None:
    first = {"op": "emit", "value": ref("input.a")}
    second = {"op": "emit", "value": {"deep": [ref("input"), "as it is"]}}
    assert outcome({}, {"a": 1}, first, second) == [1, {"deep": [{"a": 1}, "as it is"]}]


def test_a_record_that_is_read_can_be_written_elsewhere() -> None:
    shelf: dict[tuple[str, str], Any] = {("orders", "7"): {"total": 3}}
    copied = outcome(
        shelf,
        {"order": "7"},
        {"op": "get", "name": "order", "collection": "orders", "id": ref("input.order")},
        {
            "op": "put",
            "collection": "bills",
            "id": ref("steps.order.id"),
            "value": {"of": ref("steps.order.value.total")},
        },
        {"op": "emit", "value": "done"},
    )
    assert copied == ["done"]
    assert shelf["bills", "7"] == {"of": 3}


def test_each_item_of_what_was_found_gets_the_step_once() -> None:
    shelf: dict[tuple[str, str], Any] = {("o", str(n)): f"paid {n}" for n in range(5)}
    shelf["o", "x"] = "open"
    told = outcome(
        shelf,
        None,
        {"op": "search", "name": "paid", "collection": "o", "query": "paid", "limit": 50},
        {
            "op": "put",
            "each": ref("steps.paid.items"),
            "collection": "seen",
            "id": ref("item.id"),
            "value": {"was": ref("item.value")},
        },
        {"op": "emit", "each": ref("steps.paid.items"), "value": ref("item.id")},
    )
    assert told == ["0", "1", "2", "3", "4"]
    assert {name for place, name in shelf if place == "seen"} == set(told)


def test_a_place_in_a_list_and_a_name_with_a_dot_are_found() -> None:
    given = {"a.b": [10, {"c": 20}]}
    step = {"op": "emit", "value": [ref(["input", "a.b", 0]), ref(["input", "a.b", 1, "c"])]}
    assert outcome({}, given, step) == [[10, 20]]


def test_a_missing_place_fails_unless_something_else_was_named() -> None:
    for path in ("input.b", "input.a.0", ["input", "a", "9" * 5_000], "input.-1"):
        assert status({}, {"a": {}}, {"op": "emit", "value": ref(path)}) == 422
    given = {"op": "emit", "value": ref("input.b", **{"or": ref("input.a")})}
    assert outcome({}, {"a": "else"}, given) == ["else"]


def test_a_record_that_is_not_there_fails_unless_that_is_no_matter() -> None:
    step = {"op": "get", "name": "it", "collection": "c", "id": "1"}
    assert status({}, None, step) == 404
    quiet = {**step, "missing": "null"}
    assert outcome({}, None, quiet, {"op": "emit", "value": ref("steps.it")}) == [None]


@pytest.mark.parametrize("said", [{"id": 7}, {"id": None}, {"id": "a/b"}, {"id": ".."}, {}])
def test_an_input_that_is_no_name_is_malformed(said: Any) -> None:
    assert status({}, said, {"op": "get", "collection": "c", "id": ref("input.id")}) == 422


def test_programs_are_not_written_by_programs() -> None:
    value = {"op": "put", "id": "x", "value": 1}
    assert status({}, PROGRAMS, {**value, "collection": ref("input")}) == 403
    with pytest.raises(Malformed):
        compiled(program({**value, "collection": PROGRAMS}))


def test_doubling_again_and_again_ends_at_the_output_and_not_at_the_memory() -> None:
    steps = [{"op": "emit", "name": "s0", "value": "x" * 100}]
    for n in range(1, STEPS_MAX):
        steps.append({"op": "emit", "name": f"s{n}", "value": [ref(f"steps.s{n - 1}")] * 2})
    assert status({}, None, *steps) == 413


def test_references_to_one_large_value_end_before_they_are_all_filled() -> None:
    wide = {"op": "emit", "value": [ref("input")] * 20_000}
    assert status({}, "x" * 100_000, wide) == 413


def test_nesting_again_and_again_ends_where_no_answer_could_carry_it() -> None:
    steps = [{"op": "emit", "name": "s0", "value": 1}]
    for n in range(1, 40):
        steps.append({"op": "emit", "name": f"s{n}", "value": [ref(f"steps.s{n - 1}")]})
    assert status({}, None, *steps) == 413


def test_rows_are_counted_over_all_steps() -> None:
    many = list(range(ROWS_MAX))
    every = {"op": "emit", "each": ref("input"), "value": 1}
    assert len(outcome({}, many, every)) == ROWS_MAX
    assert status({}, many, every, {"op": "emit", "value": 1}) == 413


def test_the_output_is_bounded_in_bytes() -> None:
    half = {"op": "emit", "value": ref("input")}
    given = "x" * (OUTPUT_BYTES_MAX // 2)
    assert len(outcome({}, given, half)) == 1
    assert status({}, given, half, half) == 413


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        {},
        {"runtime": "pipeline"},
        {"runtime": "pipeline", "steps": []},
        {"runtime": "other", "steps": [{"op": "emit", "value": 1}]},
        {"runtime": "pipeline", "steps": [{"op": "emit", "value": 1}], "more": 1},
        {"runtime": "pipeline", "steps": [{"op": "emit", "value": 1}] * (STEPS_MAX + 1)},
        program({"op": "delete", "collection": "c", "id": "1"}),
        program({"op": ["emit"], "value": 1}),
        program({"op": "emit"}),
        program({"op": "emit", "value": 1, "until": 2}),
        program({"op": "emit", "value": ref("steps.later")}),
        program({"op": "emit", "name": "a", "value": ref("steps.a")}),
        program({"op": "emit", "value": ref("item")}),
        program({"op": "emit", "value": ref("env.HOME")}),
        program({"op": "emit", "value": ref("")}),
        program({"op": "emit", "value": ref(["input", True])}),
        program({"op": "emit", "value": ref("input", also=1)}),
        program({"op": "emit", "name": "a", "value": 1}, {"op": "emit", "name": "a", "value": 1}),
        program({"op": "emit", "each": "letters", "value": 1}),
        program({"op": "get", "collection": "c/d", "id": "1"}),
        program({"op": "get", "collection": "c", "id": "1", "missing": "so what"}),
        program({"op": "search", "collection": "c", "query": ""}),
        program({"op": "search", "collection": "c", "query": "x", "limit": 501}),
        program({"op": "put", "collection": "c", "id": "1", "value": 1, "if_version": True}),
    ],
)
def test_what_is_no_program_is_told_before_it_runs(wrong: Any) -> None:
    with pytest.raises(Malformed):
        compiled(wrong)

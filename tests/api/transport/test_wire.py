"""JSON in and out: what is not JSON, what does not fit, and where (BC-082, BC-083)."""

from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from feltd.api import wire
from feltd.errors import Refused

Count = Annotated[int, Meta(ge=0, le=wire.INT_MAX)]


class Item(Struct, frozen=True, forbid_unknown_fields=True):
    count: Count
    note: str = ""


class Order(Struct, frozen=True, forbid_unknown_fields=True):
    items: list[Item] = []
    usage: dict[str, Count] = {}
    pair: tuple[Count, str] | None = None
    names: frozenset[str] = frozenset()
    labels: dict[Annotated[str, Meta(pattern=r"\A[a-z]+\Z")], str] = {}
    ratio: float = 1.0
    input: Any = None


def refusal(body: bytes) -> tuple[str, str | None]:
    """The code, and the pointer if there is one."""
    with pytest.raises(Refused) as caught:
        wire.decode(body, Order, "WORKLOAD_INVALID")
    errors = caught.value.facts.get("errors")
    return caught.value.code, errors[0]["pointer"] if errors else None


@pytest.mark.parametrize(
    "body",
    [
        b'{"input": ' + b"[" * 200_000,
        b'{"input": "\xff"}',
        b'{"input": "\\ud800"}',
        b'{"input": "\\udc00"}',
        b'{"input": "\x00"}',
        b"\xef\xbb\xbf{}",
        b"{} trailing",
        b"\x1f\x8b\x08\x00",
        b'{"items": [',
        b'{"input": NaN}',
        b'{"count": 1',
        b"'single'",
    ],
)
def test_what_is_not_json_is_malformed(body: bytes) -> None:
    """BC-083."""
    assert refusal(body) == ("REQUEST_MALFORMED", None)


@pytest.mark.parametrize("value", ["9223372036854775808", "1e30", "100000000000000000000000"])
def test_an_integer_beyond_every_reader_does_not_fit(value: str) -> None:
    """BC-082: bounded at the edge, so that no later layer meets it."""
    assert refusal(b'{"items": [{"count": %s}]}' % value.encode()) == (
        "WORKLOAD_INVALID",
        "/items/0/count",
    )


@pytest.mark.parametrize("value", ["-9223372036854775809", "-1", "1.5", "true", '"5"', "null"])
def test_what_is_no_count_does_not_fit_and_its_place_is_named(value: str) -> None:
    """BC-082."""
    assert refusal(b'{"items": [{"count": 1}, {"count": %s}]}' % value.encode()) == (
        "WORKLOAD_INVALID",
        "/items/1/count",
    )


def test_whole_floats_are_integers_wherever_one_is_meant() -> None:
    """BC-082: a client whose language has one kind of number is understood."""
    body = b'{"items": [{"count": 5.0}, {"count": 1e3}], "pair": [2.0, "x"], "usage": {"cpu": 7.0}}'
    order = wire.decode(body, Order)

    assert [item.count for item in order.items] == [5, 1000]
    assert order.pair == (2, "x")
    assert order.usage == {"cpu": 7}


def test_mending_a_whole_float_leaves_free_json_and_floats_alone() -> None:
    order = wire.decode(b'{"items": [{"count": 5.0}], "input": {"x": 5.0}, "ratio": 2.0}', Order)

    assert wire.encode(order.input) == b'{"x":5.0}'
    assert type(order.ratio) is float


def test_a_whole_float_out_of_bounds_still_does_not_fit() -> None:
    assert refusal(b'{"items": [{"count": -5.0}]}') == ("WORKLOAD_INVALID", "/items/0/count")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (b'{"wat": 1}', "/wat"),
        (b'{"items": [{"count": 1, "a/b~c": 2}]}', "/items/0/a~1b~0c"),
        (b'{"items": [{"note": "x"}]}', "/items/0/count"),
        (b'{"usage": {"cpu": "x"}}', "/usage/cpu"),
        (b'{"labels": {"Q": "x"}}', "/labels/Q"),
        (b"[]", ""),
        (b'{"names": [1]}', "/names/0"),
        (b'{"x - at `$.zz`": 1}', "/x - at `$.zz`"),
        (b'{"input": 1e400}', "/input"),
    ],
)
def test_what_does_not_fit_is_pointed_at(body: bytes, pointer: str) -> None:
    assert refusal(body) == ("WORKLOAD_INVALID", pointer)


def test_the_last_of_two_equal_members_counts() -> None:
    assert wire.decode(b'{"ratio": 1.5, "ratio": 2.5}', Order).ratio == 2.5


def test_an_empty_body_is_an_object_without_members() -> None:
    assert wire.decode(b"", Order) == Order()
    with pytest.raises(Refused) as caught:
        wire.decode(b"", Item, "WORKER_INVALID")
    assert caught.value.facts["errors"][0]["pointer"] == "/count"


def test_nul_is_refused_in_any_text_and_only_there() -> None:
    assert refusal(b'{"items": [{"count": 1, "note": "a\\u0000b"}]}') == (
        "WORKLOAD_INVALID",
        "/items/0/note",
    )
    assert refusal(b'{"input": {"a\\u0000": 1}}')[0] == "WORKLOAD_INVALID"
    assert wire.decode(b'{"input": "\\\\u0000"}', Order).input == "\\u0000"


def test_text_with_lines_and_colours_is_text() -> None:
    assert wire.decode(b'{"input": "a\\nb\\tc\\u001b[0m"}', Order).input == "a\nb\tc\x1b[0m"


def test_free_json_is_bounded_by_its_canonical_bytes() -> None:
    value = msgspec.json.decode(b'{"b": 1,   "a": [1, 2]}')

    assert wire.check_free_json(value, 17) == b'{"a":[1,2],"b":1}'
    with pytest.raises(Refused) as caught:
        wire.check_free_json(value, 16, code="WORKLOAD_INVALID", pointer="/input")
    assert caught.value.facts["errors"][0]["pointer"] == "/input"


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        ({"a": [2**53]}, "/input/a/0"),
        ({"a": -(2**53)}, "/input/a"),
        ({"a/b": "x\0"}, "/input/a~1b"),
        ([[[1]]], "/input/0/0"),
    ],
)
def test_free_json_that_another_reader_would_change_is_refused(value: Any, pointer: str) -> None:
    with pytest.raises(Refused) as caught:
        wire.check_free_json(value, 1000, 2, code="WORKLOAD_INVALID", pointer="/input")
    assert caught.value.facts["errors"][0]["pointer"] == pointer


def test_free_json_may_be_32_deep_and_no_deeper() -> None:
    def nested(depth: int) -> Any:
        return [] if depth == 1 else [nested(depth - 1)]

    wire.check_free_json(nested(32), 1000)
    with pytest.raises(Refused):
        wire.check_free_json(nested(33), 1000)


def test_answers_are_the_same_bytes_every_time() -> None:
    assert wire.encode({"b": {"z", "x", "y"}, "a": 1}) == b'{"a":1,"b":["x","y","z"]}'


class Page(Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    label: list[str] = []
    strict: bool = False
    worker_id: str | None = None


def asked(text: str) -> Page:
    return wire.query({"query_string": text.encode()}, Page)


def test_a_query_is_read_like_a_body() -> None:
    page = asked("limit=7&label=a=b&label=c%3Dd&strict&worker_id=w%2D1")

    assert page == Page(limit=7, label=["a=b", "c=d"], strict=True, worker_id="w-1")
    assert asked("") == Page()


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        ("nope=1", "/nope"),
        ("limit=0", "/limit"),
        ("limit=x", "/limit"),
        ("limit=", "/limit"),
        ("worker_id=a%00", "/worker_id"),
        ("worker_id=%ff", ""),
        ("&".join(f"label={i}" for i in range(65)), ""),
    ],
)
def test_a_query_that_does_not_fit_is_pointed_at(text: str, pointer: str) -> None:
    with pytest.raises(Refused) as caught:
        asked(text)
    assert caught.value.code == "REQUEST_INVALID"
    assert caught.value.facts["errors"][0]["pointer"] == pointer


SECRET = b"s" * 32


def test_a_cursor_comes_back_whole_for_its_own_list_only() -> None:
    cursor = wire.seal_cursor(SECRET, ["acme", {"state": "READY"}], [17, "w-1"])

    assert wire.open_cursor(SECRET, ["acme", {"state": "READY"}], cursor) == [17, "w-1"]
    for other in (["umbrella", {"state": "READY"}], ["acme", {"state": "DONE"}]):
        with pytest.raises(Refused) as caught:
            wire.open_cursor(SECRET, other, cursor)
        assert caught.value.code == "REQUEST_MALFORMED"


@given(st.text(max_size=80))
def test_a_made_up_cursor_is_refused(text: str) -> None:
    with pytest.raises(Refused) as caught:
        wire.open_cursor(SECRET, "acme", text)
    assert caught.value.code == "REQUEST_MALFORMED"


@given(st.binary(max_size=200))
def test_any_bytes_are_a_struct_or_a_refusal(body: bytes) -> None:
    """BC-083: nothing else ever comes out."""
    try:
        outcome: object = wire.decode(body, Order)
    except Refused as refused:
        outcome = refused.code
    assert isinstance(outcome, Order) or outcome in ("REQUEST_MALFORMED", "REQUEST_INVALID")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_what_is_stored_of_free_json_reads_back_as_it_was(value: Any) -> None:
    try:
        stored = wire.check_free_json(value, 10_000)
    except Refused:
        return
    assert msgspec.json.encode(msgspec.json.decode(stored), order="deterministic") == stored

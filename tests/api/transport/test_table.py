"""The daemon's own route table keeps what the transport promises for every route."""

from collections.abc import Iterator
from typing import Any

import msgspec
import msgspec.inspect as inspect
import pytest

from feltd.api import openapi, wire
from feltd.api.app import routes
from feltd.api.routes import Route, Routes
from feltd.config import Config
from tests.api.transport.test_openapi import dangling

TABLE = routes(Config())


def every_type(kind: Any, at: str, seen: set[Any]) -> Iterator[tuple[str, inspect.Type]]:
    """Each type within a body or a query, with the place where it stands."""
    yield at, kind
    if isinstance(kind, inspect.StructType):
        if kind.cls in seen:
            return
        seen.add(kind.cls)
        for field in kind.fields:
            yield from every_type(field.type, f"{at}.{field.encode_name}", seen)
    for name in ("item_type", "key_type", "value_type"):
        if (inner := getattr(kind, name, None)) is not None:
            yield from every_type(inner, f"{at}[]", seen)
    for inner in (*getattr(kind, "types", ()), *getattr(kind, "item_types", ())):
        yield from every_type(inner, at, seen)


def inputs(*, of_query: bool = True) -> Iterator[tuple[str, inspect.Type]]:
    for route in TABLE:
        for shape in (route.body, route.query if of_query else None):
            if shape is not None:
                yield from every_type(inspect.type_info(shape), route.operation, set())


def test_every_integer_that_can_be_sent_is_bounded() -> None:
    """BC-082: an unbounded one would reach SQLite."""
    loose = [
        at
        for at, kind in inputs()
        if isinstance(kind, inspect.IntType)
        and None
        in (
            kind.ge if kind.ge is not None else kind.gt,
            kind.le if kind.le is not None else kind.lt,
        )
    ]
    assert not loose, loose


def test_no_integer_bound_is_beyond_what_every_reader_holds() -> None:
    wide = [
        at
        for at, kind in inputs()
        if isinstance(kind, inspect.IntType)
        and max(abs(bound or 0) for bound in (kind.ge, kind.gt, kind.le, kind.lt)) > wire.INT_MAX
    ]
    assert not wide, wide


def test_every_text_and_every_list_that_can_be_sent_has_an_end() -> None:
    endless = [
        at
        for at, kind in inputs(of_query=False)  # a query ends with the URL
        if isinstance(kind, inspect.StrType | inspect.VarTupleType | inspect.ListType)
        and kind.max_length is None
        and not at.endswith("lines[]")  # a log line is cut, not refused
    ]
    assert not endless, endless


def test_every_body_is_frozen_and_refuses_members_it_does_not_know() -> None:
    open_ones = {
        at
        for at, kind in inputs(of_query=False)  # wire.query refuses unknown ones by itself
        if isinstance(kind, inspect.StructType)
        and not (kind.forbid_unknown_fields and kind.cls.__struct_config__.frozen)
    }
    assert not open_ones, open_ones


@pytest.mark.parametrize("route", TABLE, ids=lambda route: f"{route.method} {route.path}")
def test_an_example_fits_and_stands_wherever_a_body_must_be_sent(route: Route) -> None:
    if route.body is None:
        return
    if route.example is not None:
        wire.decode(wire.encode(route.example), route.body, route.invalid_code)
    else:
        msgspec.json.decode(b"{}", type=route.body)


def test_the_table_holds_together() -> None:
    Routes(TABLE)
    assert all(route.summary and route.tag for route in TABLE)
    assert {route.admission for route in TABLE if route.path.startswith("/health")} == {"exempt"}


@pytest.mark.parametrize("version", ["3.1", "3.0"])
def test_the_page_of_the_whole_daemon_can_be_made(version: str) -> None:
    page = openapi.document(TABLE, version)
    assert not dangling(page)
    assert msgspec.json.encode(page)

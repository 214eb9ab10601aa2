"""What a body may hold, read from its own type: each place in it, its bounds, and one beyond.

Nothing here knows a noun: a new member of a body is met by that alone.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec.inspect as inspect

#: Of no type that is asked for, or of a size that nobody means; as JSON, so that also what is no
#: value of Python can be said.
ODD = (
    "null", "true", "-1", "1.5", "1e400", "9007199254740992", "99999999999999999999999", '""',
    r'"\u0000"', r'"\ud800"', '"x\x1by"', '"' + "x" * 70_000 + '"', "[null]", '{"":1}',
    r'{"\u0000":"\u0000"}', '{"a":1,"a":{"b":[0]}}', '{"a":' * 2_000 + "1" + "}" * 2_000,
)  # fmt: skip

Place = tuple[str | int, ...]


class Edge(NamedTuple):
    """A place in a body, a value for it, and whether its type holds the value."""

    place: Place
    value: Any
    fits: bool


def places(kind: Any, at: Place = (), within: tuple[type, ...] = ()) -> Iterator[tuple[Place, Any]]:
    """Each place of a body with its type; lists and dictionaries are entered once.

    What holds its own kind, as a predicate does, is entered once within itself.
    """
    if isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from places(one, at, within)
        return
    yield at, kind
    if isinstance(kind, inspect.StructType):
        if within.count(kind.cls) < 2:
            for field in kind.fields:
                yield from places(field.type, (*at, field.encode_name), (*within, kind.cls))
    elif isinstance(kind, inspect.VarTupleType | inspect.ListType):
        yield from places(kind.item_type, (*at, 0), within)
    elif isinstance(kind, inspect.DictType):
        yield from places(kind.value_type, (*at, "k"), within)


def edges(kind: Any) -> Iterator[Edge]:
    """Values at the bounds of each place of a body, and one beyond each."""
    for at, one in places(kind):
        if isinstance(one, inspect.IntType):
            for bound, step in ((one.ge, -1), (one.le, 1)):
                if bound is not None:
                    yield Edge(at, bound, True)
                    yield Edge(at, bound + step, False)
        elif isinstance(one, inspect.StrType):
            if one.max_length is not None:
                yield Edge(at, "x" * one.max_length, one.pattern is None or "=" not in one.pattern)
                yield Edge(at, "x" * (one.max_length + 1), False)
            if one.min_length:
                yield Edge(at, "x" * (one.min_length - 1), False)
        elif isinstance(one, inspect.VarTupleType | inspect.ListType) and one.max_length:
            yield Edge(at, [sample(one.item_type)] * (one.max_length + 1), False)
        elif isinstance(one, inspect.DictType) and one.max_length:
            many = range(one.max_length + 1)
            yield Edge(at, {f"k{n}": sample(one.value_type) for n in many}, False)
        elif isinstance(one, inspect.LiteralType):
            yield Edge(at, "no_such_word", False)


def sample(kind: Any) -> Any:
    """The least value that a type holds."""
    if isinstance(kind, inspect.UnionType):
        return sample(kind.types[0])
    if isinstance(kind, inspect.StructType):
        return {one.encode_name: sample(one.type) for one in kind.fields if one.required}
    if isinstance(kind, inspect.IntType):
        return kind.ge or 0
    if isinstance(kind, inspect.StrType):
        return "a=b" if kind.pattern and "=" in kind.pattern else "x"
    if isinstance(kind, inspect.LiteralType):
        return kind.values[0]
    if isinstance(kind, inspect.VarTupleType | inspect.ListType):
        return [sample(kind.item_type)] * (kind.min_length or 0)
    return {} if isinstance(kind, inspect.DictType) else None


def put(body: Any, kind: Any, place: Place, value: Any) -> Any:
    """The body with `value` at the place; what lies on the way is made where it is missing."""
    if not place:
        return value
    step, rest = place[0], place[1:]
    if isinstance(kind, inspect.UnionType):
        kind = next(one for one in kind.types if _enters(one, step))
    if isinstance(kind, inspect.StructType):
        inner = next(one.type for one in kind.fields if one.encode_name == step)
        whole = {**sample(kind), **(body if isinstance(body, dict) else {})}
        whole[str(step)] = put(whole.get(str(step)), inner, rest, value)
        return whole
    if isinstance(kind, inspect.DictType):
        return {str(step): put(None, kind.value_type, rest, value)}
    return [put(None, kind.item_type, rest, value)]


def _enters(kind: Any, step: str | int) -> bool:
    if isinstance(step, int):
        return isinstance(kind, inspect.VarTupleType | inspect.ListType)
    if isinstance(kind, inspect.StructType):
        return any(one.encode_name == step for one in kind.fields)
    return isinstance(kind, inspect.DictType)

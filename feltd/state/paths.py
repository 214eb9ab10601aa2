"""Finding a member of a JSON value by a dotted path. Pure and total: no path and no value raises.

A member that is not there is MISSING, which is not null. A whole number indexes an array.
"""

import re
from typing import Any, Final

from msgspec.json import Encoder

#: An array of a record has at most some 100,000 members; a longer number names none of them.
DIGITS_MAX = 9

_ENCODER = Encoder(order="deterministic")
_NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


class Missing:
    """What stands where nothing is; `MISSING` is the only one."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()


def at(value: Any, steps: tuple[str, ...]) -> Any:
    """The member at `steps`, MISSING where there is none; without steps the value itself."""
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step, MISSING)
        elif isinstance(value, list):
            value = _member(value, step)
        else:
            return MISSING
    return value


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: 1 is 1.0, true is not 1, order of members is nothing.

    No depth of nesting is too much, and a value of 256 KiB takes a few milliseconds.
    """
    if one is other:
        return True
    try:
        # For Python true is 1; in all else it judges as JSON does, and a hundred times as fast.
        return bool(one == other) and _booleans(one) == _booleans(other)
    except (RecursionError, OverflowError):
        return _same(one, other)


def among(members: list[Any], value: Any) -> bool:
    """Whether one of some members is the same as `value`: all of them in a few milliseconds."""
    try:
        alike = [member for member in members if member == value]
    except (RecursionError, OverflowError):
        return any(same(member, value) for member in members)
    if not alike:
        return False
    # What is alike differs in true for 1 at most: written with one number for all, it is the same.
    text, lines = _ENCODER.encode(value), _ENCODER.encode_lines(alike)
    if not (b"true" in lines or b"false" in lines):
        return not (b"true" in text or b"false" in text)
    text = _NUMBER.sub(b"0", text)
    return any(_NUMBER.sub(b"0", line) == text for line in set(lines.splitlines()))


def _booleans(value: Any) -> bytes:
    """The text of a value with one number for all: of equal values it tells where true stands."""
    text = _ENCODER.encode(value)
    return _NUMBER.sub(b"0", text) if b"true" in text or b"false" in text else b""


def _same(one: Any, other: Any) -> bool:
    """As `same`, with a list of its own in place of recursion."""
    waiting = [(one, other)]
    while waiting:
        left, right = waiting.pop()
        if isinstance(left, dict) and isinstance(right, dict):
            if left.keys() != right.keys():
                return False
            waiting += [(member, right[name]) for name, member in left.items()]
        elif isinstance(left, list) and isinstance(right, list):
            if len(left) != len(right):
                return False
            waiting += zip(left, right, strict=True)
        elif is_number(left) and is_number(right):
            if left != right:
                return False
        elif type(left) is not type(right) or left != right:
            return False
    return True


def is_number(value: Any) -> bool:
    """Whether it is a number of JSON; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _member(members: list[Any], step: str) -> Any:
    if not (step.isascii() and step.isdigit() and len(step) <= DIGITS_MAX):
        return MISSING
    place = int(step)
    return members[place] if place < len(members) else MISSING

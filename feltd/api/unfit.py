"""What does not fit, said so that a person can mend it.

msgspec names a pattern by its regular expression and a wrong word by itself; here the characters
and the words that fit are named. Called for refusals only; it never decides what is refused.
"""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, get_args

from msgspec import inspect

from feltd.model.base import (
    GrantedCapability,
    Id,
    LabelKey,
    LabelText,
    Name,
    RequestKey,
)
from feltd.model.claim import FailureKind

_WORDS = {
    Name: "may hold only letters, digits and . _ @ + - and is not . or ..",
    GrantedCapability: "may hold only letters, digits and . _ @ + - : and is not . or ..",
    LabelKey: "may hold only letters, digits and . _ @ + - / and is not . or ..",
    LabelText: "may not hold a control character",
    RequestKey: "may not hold a control character",
    Id: "may hold only visible ASCII characters",
    FailureKind: "may hold only lower case letters, digits and _ . - and begins with a letter",
}
_PATTERNS = {
    f"Expected `str` matching regex {get_args(kind)[1].pattern!r}": words
    for kind, words in _WORDS.items()
}
_NOT_A_WORD = "Invalid enum value"
NO_MEMBER = "no such member"
MEMBERS_TOLD_MAX = 10


def plainly(detail: str, shape: Any, steps: Sequence[str], pointer: str) -> str:
    """msgspec's `detail` about the member at `steps` of `shape`, with what would fit.

    `pointer` ends in the name that was sent; of many members only those like it are named.
    """
    if detail in _PATTERNS:
        return _PATTERNS[detail]
    if detail.startswith(_NOT_A_WORD):
        words = [str(one) for kind in _kinds_at(shape, steps) for one in _words(kind)]
        if words:
            return f"{detail}: one of {', '.join(words)}"
    if detail == NO_MEMBER:
        names = [name for kind in _kinds_at(shape, steps) for name in _members(kind)]
        if len(names) > MEMBERS_TOLD_MAX:
            names = get_close_matches(pointer.rpartition("/")[2], names, cutoff=0.5)
        if names:
            return f"{detail}; there is {', '.join(dict.fromkeys(names))}"
    return detail


@cache
def _outline(shape: Any) -> inspect.Type:
    return inspect.type_info(shape)


def _kinds_at(shape: Any, steps: Sequence[str]) -> list[inspect.Type]:
    kinds = list(_each(_outline(shape)))
    for step in steps:
        kinds = [kind for outer in kinds for inner in _inside(outer, step) for kind in _each(inner)]
    return kinds


def _each(kind: inspect.Type) -> Iterator[inspect.Type]:
    """The kinds a value may be of."""
    if isinstance(kind, inspect.Metadata):
        yield from _each(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _each(one)
    else:
        yield kind


def _inside(kind: inspect.Type, step: str) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.StructType):
        yield from (field.type for field in kind.fields if field.encode_name == step)
    elif isinstance(kind, inspect.DictType):
        yield kind.value_type
    elif isinstance(kind, inspect.CollectionType):
        yield kind.item_type


def _words(kind: inspect.Type) -> Sequence[Any]:
    return kind.values if isinstance(kind, inspect.LiteralType) else ()


def _members(kind: inspect.Type) -> Sequence[str]:
    if isinstance(kind, inspect.StructType):
        return [field.encode_name for field in kind.fields]
    return ()

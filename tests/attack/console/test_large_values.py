"""A page writes no more of a value than it shows: the event loop writes it, and nobody is heard."""

import json
from typing import Any

import pytest

from feltd.console import words


class Counted(list[Any]):
    """A list that knows how many of its values were asked for."""

    asked = 0

    def __iter__(self) -> Any:
        for one in super().__iter__():
            Counted.asked += 1
            yield one


def test_of_a_megabyte_of_small_values_only_the_beginning_is_written() -> None:
    Counted.asked = 0
    text, whole = words.pretty(Counted([1] * 500_000))
    assert (len(text), whole) == (words.JSON_CHARS_MAX, False)
    assert Counted.asked < 20_000


@pytest.mark.parametrize(
    "value", [None, "x", 1.5, [], {}, {"b": [1, {"a": None}], "a": "é\u2028<"}, [[[[]]]]]
)
def test_what_fits_is_written_as_it_was(value: Any) -> None:
    whole = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    assert words.pretty(value) == (whole, True)
    assert words.pretty(value, len(whole)) == (whole, True)
    assert words.pretty(value, len(whole) - 1) == (whole[:-1], False)

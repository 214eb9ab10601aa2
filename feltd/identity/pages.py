"""Filling a page of a list by keyset, newest first, where only some rows are the caller's."""

from collections.abc import Callable
from typing import TypeVar

from msgspec.json import encode

from feltd.model.base import INTEGER_MAX
from feltd.model.page import LIMIT_MAX, Page, PageAsk
from feltd.store.tx import Row

T = TypeVar("T")

#: A page reads this many rows to fill up, then it is short: some 20 ms on a reader.
ROWS_READ_MAX = 20_000
#: A page ends early here: one grant may name 256 resources of 1 KiB.
ANSWER_BYTES_MAX = 4 * 1024 * 1024


def fill(
    read: Callable[[dict[str, object]], list[Row]],
    keep: Callable[[Row], T | None],
    wanted: PageAsk,
    instant: str,
    name: str,
) -> Page[T]:
    """The next page after `wanted.after`.

    `read` takes {at_ms, id, rows} and gives that many rows older than (at_ms, id), newest first;
    `instant` and `name` are the columns of that keyset. `keep` makes an item of a row, None for
    one that is not shown.
    """
    # Before every row, also one whose instant is the greatest there is.
    at_ms, last_id = wanted.after or (INTEGER_MAX + 1, "")
    items: list[T] = []
    seen, size_bytes = 0, 0
    while seen < ROWS_READ_MAX:
        rows = read({"at_ms": at_ms, "id": last_id, "rows": LIMIT_MAX})
        for row in rows:
            item = keep(row)
            if item is not None:
                size_bytes += len(encode(item))
                if len(items) == wanted.limit or (items and size_bytes > ANSWER_BYTES_MAX):
                    # One more is there; the next page begins with it.
                    return Page(items=tuple(items), after=(at_ms, last_id))
            at_ms, last_id = row[instant], row[name]
            if item is not None:
                items.append(item)
        if len(rows) < LIMIT_MAX:
            return Page(items=tuple(items))
        seen += len(rows)
    return Page(items=tuple(items), after=(at_ms, last_id))

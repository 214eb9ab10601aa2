"""The capabilities that come with feltd: `identity` and `search`. They need no process of theirs.

One gives back what it is given; the other asks the records until it has what was asked for, or more
than an output holds.
"""

import asyncio
from typing import Any

import msgspec

from feltd.executor.pipeline import SEARCH_LIMIT
from feltd.executor.records import Held, Records
from feltd.executor.running import DURATION_MS_MAX
from feltd.executor.steps import OUTPUT_BYTES_MAX, SEARCH_LIMIT_MAX, Failed
from feltd.model.base import Name
from feltd.model.record import Found


class Search(msgspec.Struct, forbid_unknown_fields=True):
    """The input of `search`."""

    collection: Name
    query: str
    limit: int = SEARCH_LIMIT


async def run(definition: str, given: Any, held: Held, records: Records) -> Any:
    """The output of a built-in on its input. Raises Failed, and what `records.ask` raises."""
    if definition == "identity":
        return given
    try:
        wanted = msgspec.convert(given, Search)
    except msgspec.ValidationError as error:
        raise Failed(422, str(error)) from None
    if not 1 <= len(wanted.query) <= 256 or not 1 <= wanted.limit <= SEARCH_LIMIT_MAX:
        raise Failed(422, f"query is 1 to 256 characters, limit 1 to {SEARCH_LIMIT_MAX}")
    try:
        async with asyncio.timeout(DURATION_MS_MAX / 1_000):
            return await _search(wanted, held, records)
    except TimeoutError:
        raise Failed(408, f"it searched longer than {DURATION_MS_MAX} ms") from None


async def _search(wanted: Search, held: Held, records: Records) -> list[Any]:
    """The values that hold the query, newest first: up to `limit`, or all there are."""
    values: list[Any] = []
    cursor, left_bytes = None, OUTPUT_BYTES_MAX
    while True:
        page = {"limit": wanted.limit - len(values), "cursor": cursor, "bytes_max": left_bytes}
        asked = {"op": "search", "collection": wanted.collection, "query": wanted.query, **page}
        found: Found = await records.ask(held, asked)
        for item in found.items:
            values.append(msgspec.json.decode(item.value))
            left_bytes -= len(bytes(item.value)) + 1
        cursor = found.next_cursor
        if left_bytes < 0:
            raise Failed(413, f"what is found takes more than {OUTPUT_BYTES_MAX} bytes: a limit?")
        if cursor is None or len(values) >= wanted.limit:
            return values

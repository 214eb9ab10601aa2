"""The capabilities that come with feltd: `identity` and `search`. They need no process of theirs.

Each is bounded by itself: one gives back what it is given, the other asks the records once.
"""

from typing import Any

import msgspec

from feltd.executor.pipeline import SEARCH_LIMIT
from feltd.executor.records import Held, Records
from feltd.executor.steps import OUTPUT_BYTES_MAX, SEARCH_LIMIT_MAX, Failed
from feltd.model.base import Name


class Search(msgspec.Struct, forbid_unknown_fields=True):
    """The input of `search`."""

    collection: Name
    query: str
    limit: int = SEARCH_LIMIT
    cursor: str | None = None


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
    # What is found beyond an output comes with the next cursor.
    asked = {**msgspec.to_builtins(wanted), "op": "search", "bytes_max": OUTPUT_BYTES_MAX}
    return await records.ask(held, asked)

"""Following the feed: one event after another, none missing, over whatever becomes of the line.

Where the follower stands is a number alone, so nothing is lost by an outage: the next question
begins behind the last event that was handed out.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

#: Events asked for at once: the most there are in a page.
PAGE = 500


async def follow(
    call: Callable[..., Awaitable[Any]], after: int | None, wait_ms: int | None, **how: Any
) -> AsyncIterator[dict[str, Any]]:
    """What comes behind seq `after` (None: from the oldest kept), by `call` as clients have it.

    At the end of the feed it waits up to `wait_ms` in each question, for ever; with None it ends
    there. `how` goes to each call.
    """
    while True:
        query = {"after": after, "limit": PAGE, "wait_ms": wait_ms}
        page = await call("GET", "/v1/events", query=query, wait_ms=wait_ms or 0, **how)
        for event in page["items"]:
            yield event
        full = len(page["items"]) == PAGE
        # A page that is not full is all there is up to its head.
        after = page["items"][-1]["seq"] if full else page["head"]
        if wait_ms is None and not full:
            return

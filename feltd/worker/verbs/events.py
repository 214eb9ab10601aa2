"""The feed of what happened.

Where a reader stands is a number he keeps himself.
"""

from collections.abc import AsyncIterator

from feltd.worker import feed
from feltd.worker.verbs.calls import Calls, Json


class EventVerbs(Calls):
    """The feed."""

    def events(
        self, after: int | None = None, *, follow: bool = True, wait_ms: int = 20_000
    ) -> AsyncIterator[Json]:
        """What happened in the key's tenants, one event after another, none missing, none twice.

        Begins behind seq `after`; None: at the oldest kept. At the end of the feed it waits for
        more, through any outage of the daemon, unless `follow` is off. Whoever keeps the seq of
        the last event he is done with goes on from there. Raises Refusal EVENTS_COMPACTED where
        the feed does not reach back to `after` any more.
        """
        if not follow:
            return feed.follow(self.call, after, None)
        return feed.follow(self.call, after, wait_ms, patience_ms=None)

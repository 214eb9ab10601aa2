"""Tells in the worker's log, a week ahead and daily, that its grant or its key will end.

What has ended stops the worker with exit code 1; nobody should learn of it that way.
"""

import logging

from feltd.clock import wall_ms
from feltd.worker.verbs.calls import Json

DAY_MS = 86_400_000
WARN_MS = 7 * DAY_MS
HOUR_MS = 3_600_000

#: Members of a heartbeat's answer, what ends then, and what helps.
ENDINGS = (
    ("grant_expires_at_ms", "grant", "feltd grants extend"),
    ("key_expires_at_ms", "key", "make a new key with feltd keys rotate and start with it"),
)

log = logging.getLogger("feltd.worker")


class Expiry:
    """What one worker was told of its ends."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}

    def hear(self, answer: Json) -> None:
        """Look at an answered heartbeat; one warning a day for each ending within a week."""
        at_ms = answer.get("wall_time_ms")
        now_ms = at_ms if isinstance(at_ms, int) else wall_ms()
        for member, what, helps in ENDINGS:
            ends_ms = answer.get(member)
            if not isinstance(ends_ms, int) or ends_ms - now_ms > WARN_MS:
                continue
            if now_ms - self._told.get(member, 0) < DAY_MS:
                continue
            self._told[member] = now_ms
            left_h = max(0, ends_ms - now_ms) // HOUR_MS
            log.warning(
                "the %s of this worker ends in %d h, and the worker with it: %s",
                what, left_h, helps,
            )  # fmt: skip

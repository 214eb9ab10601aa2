"""The two times every decision is made with.

Lease time never steps: it starts at max(stored mark, wall clock) and then follows CLOCK_BOOTTIME;
it judges leases, liveness, backoff and timeouts. Wall time is what people and other machines name.
This is the only file that reads a clock for a decision; rules are handed a `Now`.
"""

import time
from typing import NamedTuple

#: Lease and wall time further apart than this mean that the wall clock stepped.
SKEW_MS_MAX = 2_000


class Now(NamedTuple):
    """One instant on both scales, integer milliseconds."""

    lease_ms: int
    wall_ms: int

    def lease_from_wall(self, instant_ms: int) -> int:
        """A wall instant on the lease scale."""
        return self.lease_ms + (instant_ms - self.wall_ms)


def wall_ms() -> int:
    """The machine's wall clock, Unix milliseconds UTC."""
    return time.time_ns() // 1_000_000


def boot_ms() -> int:
    """Milliseconds since boot, suspend included; never steps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class LeaseClock:
    """The daemon's clock: one object, made at start from the stored mark."""

    def __init__(self, stored_ms: int = 0) -> None:
        """`stored_ms` is the last lease time a former run wrote down (0: none)."""
        self._boot_ms = boot_ms()
        self._start_ms = max(stored_ms, wall_ms())

    def now(self) -> Now:
        """The present instant on both scales."""
        return Now(self._start_ms + boot_ms() - self._boot_ms, wall_ms())

    def skew_ms(self) -> int:
        """How far the wall clock is from the lease clock, signed milliseconds."""
        now = self.now()
        return now.wall_ms - now.lease_ms

    def healthy(self) -> bool:
        """Whether both clocks still agree within two seconds."""
        return abs(self.skew_ms()) <= SKEW_MS_MAX

"""How many calls are at work at once, and which of them a full daemon refuses first.

Try, never queue: a call gets a permit at once or 503 SERVICE_OVERLOADED. Ordinary calls are
refused at 3/4 of the permits, keep-alive calls (they keep leases and workers alive) at all of
them, health and metrics never ask. A parked long poll holds no permit. It all happens on the
event loop, so plain integers are enough: no locks.
"""

import random
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from feltd.errors import Refused

#: Of four permits, ordinary calls may hold three; the last is for those who keep leases alive.
ORDINARY_SHARE = (3, 4)
#: A refusal within this time of the last one means that the overload goes on.
SHEDDING_CONTINUES_S = 1.0
RETRY_AFTER_MAX_S = 5

OVERLOADED = "server is at its in-flight request limit"


class Observer(Protocol):
    """Who counts; metrics implement it, `Unobserved` is its silent form. Never raises."""

    def shed(self, reason: str, keep_alive: bool) -> None:
        """A call was refused for lack of room: reason `in_flight` or `body_memory`."""

    def answered(self, operation: str, status: int, seconds: float) -> None:
        """An HTTP call was answered; `unrouted` when no route was found."""

    def refused(self, operation: str, refused: Refused) -> None:
        """The answer was a refusal."""


class Unobserved:
    """Counts nothing."""

    def shed(self, reason: str, keep_alive: bool) -> None:
        """Nothing."""

    def answered(self, operation: str, status: int, seconds: float) -> None:
        """Nothing."""

    def refused(self, operation: str, refused: Refused) -> None:
        """Nothing."""


class Admission:
    """The permits of one daemon."""

    def __init__(
        self,
        max_in_flight: int,
        observer: Observer | None = None,
        *,
        elapsed_s: Callable[[], float] = time.monotonic,
        jitter_s: Callable[[int, int], int] = random.randint,
    ) -> None:
        """`max_in_flight` >= 1 calls at work; of these ordinary calls at most 3/4, at least one."""
        if max_in_flight < 1:
            raise ValueError("--max-in-flight must be at least 1")
        self.max_in_flight = max_in_flight
        self.ordinary_max = max(1, max_in_flight * ORDINARY_SHARE[0] // ORDINARY_SHARE[1])
        #: Gauges.
        self.in_flight = 0
        self.long_polls = 0
        self.shed_ordinary = 0
        self.shed_keep_alive = 0
        self._observer: Observer = observer or Unobserved()
        self._elapsed_s = elapsed_s
        self._jitter_s = jitter_s
        self._last_shed_s = float("-inf")

    @property
    def crowded(self) -> bool:
        """Whether an ordinary call would be refused now."""
        return self.in_flight >= self.ordinary_max

    def take(self, *, keep_alive: bool) -> "Permit":
        """One permit, at once. Refuses SERVICE_OVERLOADED (committed: false)."""
        if self.in_flight >= (self.max_in_flight if keep_alive else self.ordinary_max):
            raise self.refusal(keep_alive=keep_alive)
        self.in_flight += 1
        return Permit(self, True)

    def exempt(self) -> "Permit":
        """A permit that takes no room, for calls outside admission."""
        return Permit(self, False)

    def refusal(self, *, keep_alive: bool, reason: str = "in_flight") -> Refused:
        """The refusal for lack of room, counted.

        Retry-After is exactly 1 for a lone overload and 1–5 s while refusals go on, so that the
        refused do not all come back in the same second.
        """
        now_s = self._elapsed_s()
        continues = now_s - self._last_shed_s <= SHEDDING_CONTINUES_S
        self._last_shed_s = now_s
        if keep_alive:
            self.shed_keep_alive += 1
        else:
            self.shed_ordinary += 1
        self._observer.shed(reason, keep_alive)
        retry_after_s = self._jitter_s(1, RETRY_AFTER_MAX_S) if continues else 1
        return Refused(
            "SERVICE_OVERLOADED", OVERLOADED, committed=False, retry_after_s=retry_after_s
        )


class Permit:
    """The right of one call to be at work. `release` is idempotent and always comes last."""

    __slots__ = ("_admission", "_counted", "_released")

    def __init__(self, admission: Admission, counted: bool) -> None:
        self._admission = admission
        self._counted = counted
        self._released = False

    def release(self) -> None:
        """Give it back; harmless when repeated."""
        if not self._released:
            self._released = True
            if self._counted:
                self._counted = False
                self._admission.in_flight -= 1

    @property
    def counted(self) -> bool:
        """Whether it takes room now."""
        return self._counted

    def parked(self) -> "Parking":
        """`with permit.parked(): await …` — hold no permit while a long poll waits.

        Afterwards the permit is taken again without asking, even over the limit: the poll was
        admitted once and its end must not fail. Not reentrant.
        """
        return Parking(self)


class Parking:
    """The wait of one long poll, as a context manager."""

    __slots__ = ("_counted", "_permit")

    def __init__(self, permit: Permit) -> None:
        self._permit = permit
        self._counted = False

    def __enter__(self) -> Self:
        permit = self._permit
        self._counted, permit._counted = permit._counted, False
        permit._admission.long_polls += 1
        if self._counted:
            permit._admission.in_flight -= 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        permit = self._permit
        permit._admission.long_polls -= 1
        if self._counted and not permit._released:
            permit._admission.in_flight += 1
            permit._counted = True

"""How many calls are at work at once, and which of them a full daemon refuses first.

Try, never queue: a call gets a permit at once or 503 SERVICE_OVERLOADED. Ordinary calls are
refused at 3/4 of the permits, keep-alive calls (they keep leases and workers alive) at all of
them, health and metrics never ask. The last eighth of the ordinary permits is for tenants that
hold few, so that a flood of one never makes the daemon full for another. A parked long poll holds
no permit. It all happens on the event loop, so plain integers are enough: no locks.
"""

import random
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from feltd.errors import Refused

#: Of four permits, ordinary calls may hold three; the last is for those who keep leases alive.
ORDINARY_SHARE = (3, 4)
#: Of so many ordinary permits one is kept for tenants that hold fewer than are kept, while several
#: tenants call: of 48, a flooding tenant gets 42.
KEPT_ONE_OF = 8
#: How long a tenant counts as calling after a call of it: three heartbeats.
PRESENT_S = 30.0
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
        self._kept = self.ordinary_max // KEPT_ONE_OF
        self._held: dict[str, int] = {}
        # Whoever asked last, and when somebody else did.
        self._asking = ""
        self._others_asked_s = float("-inf")
        self._asked_s = float("-inf")
        #: Gauges.
        self.in_flight = 0
        self.long_polls = 0
        self.shed_ordinary = 0
        self.shed_keep_alive = 0
        self._observer: Observer = observer or Unobserved()
        self._elapsed_s = elapsed_s
        self._jitter_s = jitter_s
        self._last_shed_s = float("-inf")

    def crowded(self, tenant: str = "") -> bool:
        """Whether an ordinary call of the tenant would be refused now.

        It would when all ordinary permits are taken; when only the kept ones are free, only if the
        tenant holds as many as are kept and another tenant called within PRESENT_S. Calls of
        callers with several tenants count as those of one tenant, ''.
        """
        free = self.ordinary_max - self.in_flight
        if free > self._kept:
            return False
        if free <= 0:
            return True
        return self._held.get(tenant, 0) >= self._kept and not self.alone(tenant)

    def alone(self, tenant: str, for_s: float = PRESENT_S) -> bool:
        """Whether no other tenant called for this long."""
        others_s = self._others_asked_s if tenant == self._asking else self._asked_s
        return self._elapsed_s() - others_s > for_s

    def take(self, *, keep_alive: bool, tenant: str = "") -> "Permit":
        """One permit, at once. Refuses SERVICE_OVERLOADED (committed: false)."""
        if tenant != self._asking:
            self._asking, self._others_asked_s = tenant, self._asked_s
        self._asked_s = self._elapsed_s()
        full = self.in_flight >= self.max_in_flight if keep_alive else self.crowded(tenant)
        if full:
            raise self.refusal(keep_alive=keep_alive)
        self.count(tenant, 1)
        return Permit(self, True, tenant)

    def count(self, tenant: str, more: int) -> None:
        """For permits: the tenant holds one more (1) or one less (-1)."""
        self.in_flight += more
        held = self._held.get(tenant, 0) + more
        if held:
            self._held[tenant] = held
        else:
            del self._held[tenant]

    def exempt(self) -> "Permit":
        """A permit that takes no room, for calls outside admission."""
        return Permit(self, False, "")

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

    __slots__ = ("_admission", "_counted", "_released", "_tenant")

    def __init__(self, admission: Admission, counted: bool, tenant: str) -> None:
        self._admission = admission
        self._counted = counted
        self._tenant = tenant
        self._released = False

    def release(self) -> None:
        """Give it back; harmless when repeated."""
        if not self._released:
            self._released = True
            if self._counted:
                self._counted = False
                self._admission.count(self._tenant, -1)

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
            permit._admission.count(permit._tenant, -1)
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
            permit._admission.count(permit._tenant, 1)
            permit._counted = True

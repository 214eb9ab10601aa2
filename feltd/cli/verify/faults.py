"""The ways in which the wire of a behaviour misbehaves."""

import time
from collections import Counter
from typing import Any

from feltd.cli.verify.wire import Call, Fault, Json

#: Calls that renew a lease.
RENEWING = frozenset({"heartbeat", "renew", "checkpoint"})
#: Calls whose first answers are lost, or that are shed at first.
MUTATIONS = frozenset(
    {"register", "heartbeat", "claims", "start", "renew", "complete", "fail", "release", "drain"}
)


class LosesFirst(Fault):
    """The first answer to each verb is lost; of pulls, the first that names a claim."""

    def __init__(self) -> None:
        self.lost: dict[str, Call] = {}

    def loses(self, call: Call) -> bool:
        """Only what the daemon has done: a refusal passes."""
        verbs = call.verbs & MUTATIONS
        if "claims" in verbs and not call.answer.get("claims"):
            verbs -= {"claims"}
        new = verbs - self.lost.keys()
        if not new or call.answer.get("code"):
            return False
        self.lost.update(dict.fromkeys(new, call))
        return True


class ShedsFirst(Fault):
    """The first call of each verb is refused 503, to come again after a second."""

    AFTER_S = 1
    EACH = 1

    def __init__(self) -> None:
        self.shed: list[Call] = []
        self._counts: Counter[str] = Counter()

    def sheds(self, call: Call) -> int | None:
        """Retry-After 1, once for each verb."""
        verbs = call.verbs & MUTATIONS
        if not any(self._counts[verb] < self.EACH for verb in verbs):
            return None
        self._counts.update(verbs)
        self.shed.append(call)
        return self.AFTER_S


class ShedsRenewals(Fault):
    """Whatever renews a lease is refused 503; everything else passes."""

    def sheds(self, call: Call) -> int | None:
        """Retry-After 1 for heartbeats, renewals and checkpoints."""
        return 1 if call.verbs & RENEWING else None


class HidesClaim(Fault):
    """The first answer that gives a claim says that there was nothing."""

    def __init__(self) -> None:
        self.hidden: Json | None = None

    def back(self, call: Call) -> Json | None:
        """The same answer with no claims."""
        if self.hidden is not None or not call.answer.get("claims"):
            return None
        self.hidden = call.answer["claims"][0]
        return {**call.answer, "claims": [], "reasons": [{"code": "NO_WORK", "detail": "none"}]}


class GivesNothing(Fault):
    """The worker cannot ask for work; everything else passes."""

    def sheds(self, call: Call) -> int | None:
        """Retry-After 1 for pulls."""
        return 1 if "claims" in call.verbs and "exchange" not in call.verbs else None

    def there(self, call: Call) -> Json | None:
        """An exchange without its claim part."""
        if "exchange" not in call.verbs:
            return None
        return {name: value for name, value in call.body.items() if name != "claim"}


class StepsClock(Fault):
    """The daemon's wall clock is `ahead_ms` ahead, as the worker sees it.

    What the worker says of its own clock is set back on the way there, and the daemon's wall time
    forward on the way back, so that the daemon itself refuses what is too far off.
    """

    def __init__(self, ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms
        self.since_s = time.monotonic()

    def there(self, call: Call) -> Json | None:
        """The body as a daemon with that clock would understand it."""
        return _moved(call.body, "timestamp_at_ms", -self.ahead_ms)

    def back(self, call: Call) -> Json | None:
        """The answer as a daemon with that clock would give it."""
        return _moved(call.answer, "wall_time_ms", self.ahead_ms)


def _moved(body: Json, member: str, by_ms: int) -> Json | None:
    """The body with an instant moved, also in a heartbeat within it; None where it has none."""
    changed: dict[str, Any] = {}
    if isinstance(body.get(member), int):
        changed[member] = max(0, body[member] + by_ms)
    inner = body.get("heartbeat")
    if isinstance(inner, dict) and isinstance(inner.get(member), int):
        changed["heartbeat"] = {**inner, member: max(0, inner[member] + by_ms)}
    return {**body, **changed} if changed else None

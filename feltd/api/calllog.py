"""One line of the log for each call that was refused, failed or slow, and for what people change.

Not for heartbeats, claims and the rest of the stream: those are counted (metrics.py), and their
changes are events. A line names the call, its caller and its trace, never a path, a body or a
bearer, so nothing a client sends can break a line or leave a secret in it.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog

from feltd.api.request import PARKED_S, Scope, traceparent
from feltd.clock import wall_ms
from feltd.errors import Refused

#: At work, without the wait of a long poll. A commit takes milliseconds; a second is somebody's.
SLOW_S = 1.0
#: Lines of one operation refused for one reason: so many at once, then one a second; what was left
#: out is told by the next of them. A client in a loop must not fill the disk.
LINES_AT_ONCE = 5
LINES_EACH_S = 1.0
#: Refusals kept for the diagnostics.
RECENT = 200

READS = frozenset({"GET", "HEAD", "OPTIONS"})
#: Changes that come in streams, and POSTs that only read.
STREAMED = frozenset(
    {
        "create_workload", "create_workloads", "register_worker",
        "put_record", "patch_record", "delete_record", "transact", "acknowledge_changes",
        "validate", "fence", "try_placement", "preview_trigger", "search_records",
    }
)  # fmt: skip

log = structlog.get_logger("feltd.calls")


class Recent(NamedTuple):
    """A refusal, for the diagnostics."""

    at_ms: int
    operation: str
    code: str
    status: int
    request_id: str


class _Lines:
    """How many lines of one kind may still be written."""

    __slots__ = ("at_s", "left", "left_out")

    def __init__(self, at_s: float) -> None:
        self.left, self.left_out, self.at_s = float(LINES_AT_ONCE), 0, at_s

    def take(self, at_s: float) -> bool:
        self.left = min(LINES_AT_ONCE, self.left + (at_s - self.at_s) * LINES_EACH_S)
        self.at_s = at_s
        if self.left < 1:
            self.left_out += 1
            return False
        self.left -= 1
        return True


class CallLog:
    """The log of calls of one daemon; event loop only."""

    def __init__(self, elapsed_s: Callable[[], float] = time.monotonic) -> None:
        #: The last refusals, and how many there were of each code since the start.
        self.recent: deque[Recent] = deque(maxlen=RECENT)
        self.refusals: dict[str, int] = {}
        self._elapsed_s = elapsed_s
        self._kinds: dict[tuple[str, str], _Lines] = {}

    def refused(self, scope: Scope, refused: Refused) -> None:
        """A call is answered with a refusal: remember which."""
        code = refused.code
        scope["feltd.refusal"] = refused
        self.refusals[code] = self.refusals.get(code, 0) + 1
        self.recent.append(
            Recent(
                wall_ms(),
                scope["feltd.operation"],
                code,
                refused.status,
                scope.get("feltd.request_id", ""),
            )
        )

    def ended(self, scope: Scope, status: int, seconds: float) -> None:
        """A call was answered after so long: write its line, if it gets one."""
        slow = (
            seconds >= SLOW_S
            and "feltd.streamed" not in scope
            and seconds - scope.get(PARKED_S, 0.0) >= SLOW_S
        )
        if status >= 400:
            refused: Refused | None = scope.get("feltd.refusal")
            code = refused.code if refused else str(status)
            if code != "INTERNAL":  # told where it was caught, with its traceback
                self._told("call failed" if status >= 500 else "call refused", scope, code, status,
                           seconds, refused.detail if refused else None)  # fmt: skip
        elif slow:
            self._told("call slow", scope, "slow", status, seconds, None)
        elif scope.get("method") not in READS and by_people(scope):
            log.info("call", **members(scope), status=status, ms=_ms(seconds))

    def _told(
        self,
        event: str,
        scope: Scope,
        code: str,
        status: int,
        seconds: float,
        detail: str | None,
    ) -> None:
        kind, at_s = (scope["feltd.operation"], code), self._elapsed_s()
        lines = self._kinds.get(kind)
        if lines is None:
            lines = self._kinds[kind] = _Lines(at_s)
        if not lines.take(at_s):
            return
        told: dict[str, Any] = members(scope) | {"status": status, "ms": _ms(seconds)}
        if status >= 400:
            told["code"] = code
        if status >= 500 and detail:
            # Ours, not the client's: it quotes nothing that was sent.
            told["detail"] = detail
        if lines.left_out:
            told["left_out"], lines.left_out = lines.left_out, 0
        if event == "call refused":
            log.info(event, **told)
        else:
            log.warning(event, **told)


def members(scope: Scope) -> dict[str, Any]:
    """What every line about a call says of it: operation, request, trace, and who asked."""
    told = {"operation": scope["feltd.operation"], "request_id": scope.get("feltd.request_id", "")}
    if (trace := traceparent(scope)) is not None:
        told["trace_id"] = trace[3:35]
    # Whatever the door makes of a caller, a line must not fail on it: it may be the last resort's.
    caller = scope.get("feltd.caller")
    subject = getattr(caller, "subject", None)
    if subject is not None:
        told["actor"] = str(subject)
        if key_id := getattr(caller, "key_id", ""):
            told["key_id"] = key_id
    elif client := scope.get("client"):
        told["address"] = str(client[0])
    return told


def by_people(scope: Scope) -> bool:
    """Whether the call is the work of a person, or of a service outside what comes in streams."""
    caller = scope.get("feltd.caller")
    if caller is None or getattr(caller, "worker_id", None) is not None:
        return False
    return scope["feltd.operation"] not in STREAMED


def _ms(seconds: float) -> float:
    return round(seconds * 1_000, 1)

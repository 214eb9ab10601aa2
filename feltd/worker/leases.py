"""What a process holds, and until when it may believe so by its own clock.

The daemon's rows decide; this file only makes the worker stop in time when it cannot ask. All
instants here are this machine's boot clock, which neither steps nor stops in a suspend.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

from feltd.clock import boot_ms

#: A beat renews after a third of the lease; given up after two thirds without a renewal.
RENEW_AT = 1 / 3
GIVE_UP_AT = 2 / 3
#: Log lines of one attempt that wait to be sent; the oldest go first, as in the daemon.
LINES_MAX = 1_000
LINE_BYTES_MAX = 1_024


class LeaseView:
    """The daemon's lease time on this machine's boot clock.

    An answer's server_time_ms was stamped after the request was sent, so `sent - server_time` never
    puts an instant later than it is. It is taken anew from every quick answer: the daemon's scale
    moves when the daemon restarts.
    """

    def __init__(self) -> None:
        self._offset_ms: int | None = None

    def saw(self, sent_ms: int, server_time_ms: object) -> None:
        """Note a quick answer: when its request was sent (boot clock), and what it was stamped."""
        if isinstance(server_time_ms, int):
            self._offset_ms = sent_ms - server_time_ms

    def here(self, instant_ms: int, asked_ms: int) -> int:
        """A lease instant on the boot clock; before any answer, as if it were now + asked_ms."""
        if self._offset_ms is None:
            return boot_ms() + asked_ms
        return instant_ms + self._offset_ms


class Held:
    """One claim in this process: its facts, its lease by the own clock, and whether to stop.

    `stopping` is None while the work goes on, else why it shall stop: cancel (the daemon asks),
    lost (it is fenced), lease (renewals fail), timeout (its policy's duration is over), shutdown
    (this process ends).
    """

    def __init__(self, claim: Mapping[str, Any], lease_ms: int, leases: LeaseView) -> None:
        self.claim = claim
        self.claim_id = str(claim["claim_id"])
        self.workload_id = str(claim["workload_id"])
        self.definition = str(claim.get("definition_id") or "")
        self.fencing_token = int(claim["fencing_token"])
        self.lease_ms = lease_ms
        self.stopping: str | None = None
        self.leaving = False
        self.progress: dict[str, Any] | None = None
        self.lines: list[dict[str, Any]] = []
        self.task: asyncio.Task[None] | None = None
        self.on_stop: Callable[[], None] | None = None
        self.stopped = threading.Event()
        self.sending: asyncio.Task[None] | None = None
        self._leases = leases
        self.renewed(claim["expires_at_ms"])

    def fence(self, worker_id: str) -> dict[str, Any]:
        """What every write for this claim has to present."""
        return {
            "claim_id": self.claim_id,
            "worker_id": worker_id,
            "fencing_token": self.fencing_token,
        }

    def renewed(self, expires_at_ms: object) -> None:
        """The daemon moved the end of the lease to this lease instant."""
        if isinstance(expires_at_ms, int):
            now_ms = boot_ms()
            self.ends_ms = self._leases.here(expires_at_ms, self.lease_ms)
            left_ms = max(0, self.ends_ms - now_ms)
            self.give_up_ms = now_ms + int(left_ms * GIVE_UP_AT)

    def stop(self, why: str) -> None:
        """Tell the handler to stop; `lost` and `lease` outrank what was said before."""
        if self.stopping is None or (why in ("lost", "lease") and self.stopping != "lost"):
            first = not self.stopped.is_set()
            self.stopping = why
            self.stopped.set()
            if self.on_stop is not None and (first or why in ("lost", "lease")):
                self.on_stop()

    def note(self, line: dict[str, Any]) -> None:
        """Keep a log line until it is sent."""
        self.lines.append(line)
        del self.lines[:-LINES_MAX]

"""The operations that wait for the writer, and whose turn it is.

The event loop adds at one end, the writer thread takes at the other; both sides meet only in a
deque's append and popleft, and in the one try at an operation's turn, so neither ever waits for
the other. Keep-alive calls go before the rest, yet not without end: a quarter of the turns stays
for the rest. Bulk comes last and opens a batch of its own, yet one batch in four is for it. Within
each lane tenants take turns.
"""

from asyncio import Future
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any

from feltd.clock import Now
from feltd.store.tx import Tx

#: Keep-alive calls in a row while others wait. Without a bound, workers that complete and claim in
#: one keep-alive exchange after another would leave no turn to whoever only asks for work.
KEEP_ALIVE_RUN_MAX = 3
#: After so many batches that did not begin with bulk, bulk that waits comes before all others.
BULK_SKIPPED_MAX = 3


class Operation:
    """One submitted operation, from `submit` to its answer.

    `answer` or `refusal` is filled by the writer thread, `wait_s` and `run_s` too.
    """

    __slots__ = (
        "_turn",
        "answer",
        "bulk",
        "cmd",
        "future",
        "keep_alive",
        "refusal",
        "rule",
        "run_s",
        "submitted_s",
        "tenant",
        "wait_s",
    )

    def __init__(
        self,
        rule: Callable[[Tx, Any, Now], Any],
        cmd: object,
        future: "Future[Any]",
        keep_alive: bool,
        tenant: str,
        submitted_s: float,
        bulk: bool = False,
    ) -> None:
        self.rule = rule
        self.cmd = cmd
        self.future = future
        self.keep_alive = keep_alive
        self.tenant = tenant
        self.submitted_s = submitted_s
        self.bulk = bulk
        self._turn = Lock()
        self.answer: object = None
        self.refusal: BaseException | None = None
        self.wait_s = 0.0
        self.run_s = 0.0

    def start(self) -> bool:
        """Take the one turn: True for the first to ask, be it the writer or who gives up."""
        return self._turn.acquire(blocking=False)

    @property
    def name(self) -> str:
        """The rule's name, for metrics."""
        rule = getattr(self.rule, "func", self.rule)
        return str(getattr(rule, "__name__", type(rule).__name__))


class Lane:
    """Waiting operations by tenant; `take` serves one of each tenant in turn."""

    def __init__(self) -> None:
        self._by_tenant: dict[str, deque[Operation]] = {}
        self._turns: deque[str] = deque()

    def add(self, operation: Operation) -> None:
        """Behind those of the same tenant."""
        waiting = self._by_tenant.get(operation.tenant)
        if waiting is None:
            waiting = self._by_tenant[operation.tenant] = deque()
            self._turns.append(operation.tenant)
        waiting.append(operation)

    def take(self) -> Operation | None:
        """The first of the tenant whose turn it is."""
        if not self._turns:
            return None
        tenant = self._turns.popleft()
        waiting = self._by_tenant[tenant]
        operation = waiting.popleft()
        if waiting:
            self._turns.append(tenant)
        else:
            del self._by_tenant[tenant]
        return operation


class Lanes:
    """The lanes and the inbox before them. `add` is the loop's, `take` the writer thread's."""

    def __init__(self) -> None:
        self.inbox: deque[Operation] = deque()
        self.sorted = 0
        self._first = Lane()
        self._rest = Lane()
        self._bulk = Lane()
        self._run = 0
        self._skipped = 0

    def __len__(self) -> int:
        """How many wait, given-up ones included until their turn comes."""
        return len(self.inbox) + self.sorted

    def add(self, operation: Operation) -> None:
        """Put an operation last."""
        self.inbox.append(operation)

    def take(self, opening: bool = True) -> Operation | None:
        """The operation whose turn it is, or None when none waits that may come now.

        `opening`: it is the first of a batch. Bulk is never anything else, so that nobody's
        answer waits for bulk that came behind him.
        """
        while self.inbox:
            operation = self.inbox.popleft()
            self._lane_of(operation).add(operation)
            self.sorted += 1
        taken = self._next(opening)
        if taken is not None:
            self.sorted -= 1
        return taken

    def opened(self, first: Operation) -> None:
        """A batch begins with this one. Told only of what runs: who gave up has had no turn."""
        self._skipped = 0 if first.bulk else self._skipped + 1

    def _lane_of(self, operation: Operation) -> Lane:
        if operation.keep_alive:
            return self._first
        return self._bulk if operation.bulk else self._rest

    def _next(self, opening: bool) -> Operation | None:
        taken = None
        if opening and self._skipped >= BULK_SKIPPED_MAX:
            taken = self._bulk.take()
        if taken is None and self._run >= KEEP_ALIVE_RUN_MAX:
            taken = self._rest.take()
            self._run = 0 if taken is not None else self._run
        if taken is None:
            taken = self._first.take()
            self._run = 0 if taken is None else self._run + 1
            taken = taken or self._rest.take()
        if opening:
            taken = taken or self._bulk.take()
        return taken

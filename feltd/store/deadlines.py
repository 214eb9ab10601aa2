"""Ends waits at their time without a timer for each: one timer a distinct limit.

Operations of one limit come due in the order they came, so only the first needs watching; those
answered meanwhile are dropped on the way. Used from the event loop alone.
"""

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from time import perf_counter

from feltd.store.lanes import Operation


class Deadlines:
    """Calls `late(operation)` for each operation whose future is not done at its time."""

    def __init__(self, loop: AbstractEventLoop, late: Callable[[Operation], None]) -> None:
        self._loop = loop
        self._late = late
        self._lines: dict[int, deque[Operation]] = {}

    def add(self, operation: Operation, deadline_ms: int) -> None:
        """Watch an operation until `deadline_ms` after it was submitted."""
        line = self._lines.get(deadline_ms)
        if line is None:
            line = self._lines[deadline_ms] = deque()
            self._loop.call_later(deadline_ms / 1_000, self._look, deadline_ms)
        while line and line[0].future.done():
            line.popleft()
        line.append(operation)

    def _look(self, deadline_ms: int) -> None:
        line = self._lines[deadline_ms]
        while line:
            first = line[0]
            if not first.future.done():
                # On the clock that stamped it: the loop's own may be another.
                left_s = first.submitted_s + deadline_ms / 1_000 - perf_counter()
                if left_s > 0:
                    self._loop.call_later(left_s, self._look, deadline_ms)
                    return
                self._late(first)
            line.popleft()
        del self._lines[deadline_ms]

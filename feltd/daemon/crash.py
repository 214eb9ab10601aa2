"""The hook that tests set with FELTD_TEST_CRASH_AT: the process kills itself around a commit.

Commits count from when the daemon serves. `before:N` dies with the N-th commit written and not
committed, `after:N` with it on disk and nobody answered yet. Without the variable none of it runs.
"""

import os
import signal

from feltd.api.metrics import Metrics


class CrashPoint(Metrics):
    """Counts as Metrics do, and dies where it was told to."""

    def __init__(self, point: str, number: int) -> None:
        super().__init__()
        self._point = point
        self._number = number
        self._commits: int | None = None

    def serving(self) -> None:
        """Commits count from now."""
        self._commits = 0

    def before_commit(self) -> None:
        """On the writer thread, last before a COMMIT that changes something."""
        if self._commits is None:
            return
        self._commits += 1
        if self._point == "before" and self._commits >= self._number:
            os.kill(os.getpid(), signal.SIGKILL)

    def batch(self, size: int, commit_s: float) -> None:
        """On the event loop, before any answer is written to its connection."""
        super().batch(size, commit_s)
        if self._point == "after" and self._commits is not None and self._commits >= self._number:
            os.kill(os.getpid(), signal.SIGKILL)

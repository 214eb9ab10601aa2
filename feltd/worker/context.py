"""What a handler sees of its workload: input, checkpoint, fence, and the word to stop.

Handlers never see the wire. A blocking handler gets `Context`, an asynchronous one `AsyncContext`;
they differ in one thing, that `checkpoint` is awaited in the second.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from feltd.clock import wall_ms
from feltd.model.secret_text import covered
from feltd.worker.failures import Fenced
from feltd.worker.leases import LINE_BYTES_MAX, Held

Checkpoint = Callable[[Held, Any], Awaitable[None]]


class _Seen:
    """What both kinds of handler see."""

    def __init__(self, held: Held, checkpoint: Checkpoint, loop: asyncio.AbstractEventLoop) -> None:
        self._held = held
        self._checkpoint = checkpoint
        self._loop = loop

    @property
    def claim(self) -> dict[str, Any]:
        """The whole claim as the daemon sent it."""
        return dict(self._held.claim)

    @property
    def input(self) -> Any:
        """What the submitter gave the workload."""
        return self._held.claim.get("input")

    @property
    def checkpoint_state(self) -> Any:
        """What an earlier attempt stored last, None where none did."""
        return self._held.claim.get("checkpoint")

    @property
    def workload_id(self) -> str:
        """The workload's id."""
        return self._held.workload_id

    @property
    def definition_id(self) -> str:
        """The name the handler was found by."""
        return self._held.definition

    @property
    def attempt(self) -> int:
        """1 for the first attempt, counting every claim ever made for the workload."""
        return int(self._held.claim.get("attempt_number") or 1)

    @property
    def fence(self) -> int:
        """The fencing token: hand it to every third system you write to, the greatest wins."""
        return self._held.fencing_token

    @property
    def cancelled(self) -> bool:
        """Whether to stop now: cancelled, fenced, out of lease, or the process is ending."""
        return self._held.stopped.is_set()

    @property
    def stopping(self) -> str | None:
        """Why to stop: cancel, lost, lease, timeout, shutdown; None while the work goes on."""
        return self._held.stopping

    def raise_if_cancelled(self) -> None:
        """Raise Fenced where the work shall stop."""
        if self._held.stopped.is_set():
            raise Fenced(f"stop: {self._held.stopping}")

    def progress(self, done: int, total: int | None = None, note: str | None = None) -> None:
        """Say how far the work is; it goes with the next heartbeat, the newest wins."""
        told: dict[str, Any] = {"done": int(done)}
        if total is not None:
            told["total"] = int(total)
        if note is not None:
            told["note"] = str(note).replace("\x00", "")[:1_024]
        self._held.progress = told

    def log(self, text: str, level: str = "info") -> None:
        """Keep a log line with the workload: at most 1 KiB of it, 1,000 lines an attempt."""
        clean = str(text).replace("\x00", "")
        if len(clean.encode()) > LINE_BYTES_MAX:
            # Half a secret is found by nobody: it is covered before it is cut.
            clean = covered(clean).encode()[:LINE_BYTES_MAX].decode(errors="ignore")
        line = {"at_ms": wall_ms(), "level": level, "text": clean}
        self._loop.call_soon_threadsafe(self._held.note, line)


class Context(_Seen):
    """What a blocking handler is given; it runs on a thread of its own."""

    def checkpoint(self, state: Any) -> None:
        """Store `state` (any JSON value, up to 256 KiB) for the next attempt; renews the lease.

        Blocks until it is on the daemon's disk. Raises Fenced when the claim is no longer ours,
        Refusal when the state does not fit.
        """
        storing = self._checkpoint(self._held, state)
        asyncio.run_coroutine_threadsafe(_finished(storing), self._loop).result()

    def wait(self, seconds: float) -> bool:
        """Sleep, but wake early when the work shall stop; answers `cancelled`."""
        return self._held.stopped.wait(seconds)


class AsyncContext(_Seen):
    """What an asynchronous handler is given; it is cancelled when the work shall stop."""

    async def checkpoint(self, state: Any) -> None:
        """Store `state` (any JSON value, up to 256 KiB) for the next attempt; renews the lease.

        Returns once it is on the daemon's disk. Raises Fenced when the claim is no longer ours,
        Refusal when the state does not fit.
        """
        await self._checkpoint(self._held, state)


async def _finished(storing: Awaitable[None]) -> None:
    await storing

"""Asks the storage whether it still works: a real read, and a real commit at most five seconds old.

Has a bound of its own, so that an overloaded daemon still says that its storage stalls. Many
callers share one probe: asking often costs the disk nothing.
"""

import asyncio
import sqlite3
import time
from collections.abc import Coroutine

from feltd.clock import Now
from feltd.errors import Refused
from feltd.store.readers import Readers
from feltd.store.tx import Tx
from feltd.store.writer import Writer

BOUND_MS = 1_000
FRESH_MS = 5_000

LOOK = """
SELECT number, applied_at_ms
  FROM schema_migrations
 ORDER BY number DESC
 LIMIT 1
"""

TOUCH = """
INSERT INTO storage_probe (probe_id, probed_at_ms)
VALUES (1, :now_ms)
ON CONFLICT (probe_id) DO UPDATE
   SET probed_at_ms = excluded.probed_at_ms
"""

SLOW = frozenset(("STORAGE_STALLED", "SERVICE_OVERLOADED", "OUTCOME_UNKNOWN"))


def storage_look(tx: Tx, cmd: None, now: Now) -> None:
    """Read one small row."""
    tx.row(LOOK)


def storage_touch(tx: Tx, cmd: None, now: Now) -> None:
    """Write one small row."""
    tx.change(TOUCH, {"now_ms": now.lease_ms})


class Probe:
    """The probe behind readiness; one for the daemon."""

    def __init__(
        self,
        writer: Writer,
        readers: Readers,
        *,
        bound_ms: int = BOUND_MS,
        fresh_ms: int = FRESH_MS,
    ) -> None:
        self._writer = writer
        self._readers = readers
        self._bound_ms = bound_ms
        self._fresh_ms = fresh_ms
        self._touching: asyncio.Task[None] | None = None

    async def ready(self) -> int:
        """How long the probe took, milliseconds.

        Reads, and writes where no commit of the last five seconds changed a row. Refuses
        STORAGE_UNAVAILABLE when the file cannot be read or is written no more,
        STORAGE_PROBE_FAILED when the write fails, STORAGE_STALLED after a second.
        """
        started_s = time.monotonic()
        await self._bounded(self._look_and_touch(started_s))
        return round((time.monotonic() - started_s) * 1_000)

    async def durable(self) -> None:
        """One commit that changes a row, shared by all who ask meanwhile; refuses as `ready`."""
        await self._bounded(self._touch())

    async def _bounded(self, probing: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(probing)
        try:
            await asyncio.wait([task], timeout=self._bound_ms / 1_000)
        finally:
            # Only this caller's waiting ends here; a started write is shielded.
            task.cancel()
        if task.done():
            task.result()
        else:
            raise _stalled()

    async def _look_and_touch(self, started_s: float) -> None:
        await self._look()
        if started_s - self._writer.changed_at_s > self._fresh_ms / 1_000:
            await self._touch()

    async def _look(self) -> None:
        if self._writer.broken is not None:
            raise Refused("STORAGE_UNAVAILABLE", "the daemon has stopped writing")
        try:
            await self._readers.read(storage_look, None, self._bound_ms)
        except (Refused, sqlite3.Error) as error:
            raise _failed(error, "STORAGE_UNAVAILABLE") from error

    async def _touch(self) -> None:
        if self._touching is None:
            self._touching = asyncio.create_task(
                self._writer.submit(storage_touch, None, deadline_ms=self._bound_ms)
            )
            self._touching.add_done_callback(self._touched)
        try:
            # Shared: one caller's bound must not take the write from the others.
            await asyncio.shield(self._touching)
        except (Refused, sqlite3.Error) as error:
            raise _failed(error, "STORAGE_PROBE_FAILED") from error

    def _touched(self, touching: "asyncio.Task[None]") -> None:
        self._touching = None
        if not touching.cancelled():
            # Looked at here, so that a probe nobody waits for leaves no warning behind.
            touching.exception()


def _failed(error: Exception, code: str) -> Refused:
    if getattr(error, "code", "") in SLOW:
        return _stalled()
    return Refused(code, getattr(error, "detail", "the storage probe failed"))


def _stalled() -> Refused:
    return Refused("STORAGE_STALLED", "storage probe exceeded the server deadline")

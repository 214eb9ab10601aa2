"""The periodic work of the daemon: one table, one loop.

Each entry is a rule that the writer runs with a LIMIT, again while it finds a full slice, or a
chore of the daemon (checkpoint, probe, mark). Every entry is guarded alone: one that fails is
counted, logged and tried again in the next round, and never keeps the others from running. A round
that finds nothing writes nothing and says nothing.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import structlog

from feltd.clock import Now, wall_ms
from feltd.config import Config
from feltd.identity import answers
from feltd.mesh import (
    authority,
    dependencies,
    due,
    fences,
    gates,
    holds,
    keys,
    lanes,
    overdue,
    quarantine,
    rates,
    sweep,
    vitals,
)
from feltd.state import evaluation, schedules
from feltd.store.tx import Tx

#: Slices of one entry in one round; 20 slices of 200 rows are some 100 ms of the writer's time.
SLICES_MAX = 20
#: A timer set for the next instant is never shorter: many due instants make one round.
TIMER_MS_MIN = 5

log = structlog.get_logger("feltd.keeper")

#: (tx, limit, now) -> how many rows it changed, or (how many, next instant on lease time or None).
Op = Callable[[Tx, int, Now], Any]
Submit = Callable[[Op, int], Awaitable[Any]]


class Entry(NamedTuple):
    """A row of the table: every `every_ms` (0: each tick) run `op`, at most `limit` rows."""

    name: str
    every_ms: int
    op: Op
    limit: int


class Chore(NamedTuple):
    """A row of the table that is no rule: `run` is awaited every `every_ms`."""

    name: str
    every_ms: int
    run: Callable[[], Awaitable[Any]]


def rules(config: Config) -> tuple[Entry, ...]:
    """The rules of a round, in order.

    Limits keep one slice below some 20 ms of the writer's time; what nobody waits for comes less
    often.
    """

    def detect_failures(tx: Tx, limit: int, now: Now) -> int:
        return vitals.detect_failures(tx, limit, now, config.on_worker_lost)

    return (
        Entry("detect_failures", 0, detect_failures, 50),
        Entry("recover_leases", 0, sweep.recover, 200),
        Entry("end_timeouts", 0, overdue.end_timeouts, 200),
        Entry("end_holds", 0, holds.end_due, 50),
        Entry("end_quarantines", 0, quarantine.end_due, 200),
        Entry("sweep_authority", 0, authority.sweep, 50),
        Entry("settle_dependencies", 0, dependencies.settle, 200),
        Entry("rescale_not_before", 0, due.rescale, 500),
        Entry("promote", 0, due.promote, 500),
        Entry("evaluate_triggers", 0, evaluation.evaluate, 200),
        Entry("fire_schedules", 0, schedules.fire_due, 50),
        Entry("open_rates", 0, rates.open_rates, 500),
        Entry("open_lanes", 0, gates.open_rest, 500),
        Entry("prune_lanes", 10_000, lanes.prune, 2_000),
        Entry("prune_demands", 10_000, due.prune, 200),
        Entry("prune_keys", 10_000, keys.prune, 2_000),
        Entry("prune_rates", 10_000, rates.prune, 2_000),
        Entry("prune_answers", 60_000, answers.prune, 500),
        Entry("prune_fences", 60_000, fences.prune, 500),
    )


class Record:
    """How one entry has fared."""

    def __init__(self) -> None:
        #: Wall time of the last success, milliseconds; 0 before the first.
        self.last_ok_ms = 0
        #: Failures in a row, and ever.
        self.failing = 0
        self.failures = 0
        #: What the last failure was; '' after a success.
        self.trouble = ""
        #: Rows changed since the start.
        self.changed = 0


class Keeper:
    """The loop. `submit(op, limit)` runs a rule on the writer; `now` gives lease time."""

    def __init__(
        self,
        table: Sequence[Entry | Chore],
        submit: Submit,
        now: Callable[[], Now],
        tick_ms: int,
    ) -> None:
        self.table = tuple(table)
        self.records = {one.name: Record() for one in self.table}
        self.rounds = 0
        #: time.monotonic() of the last finished round.
        self.round_at_s = time.monotonic()
        self._submit = submit
        self._now = now
        self._tick_ms = tick_ms
        self._due_s = {one.name: 0.0 for one in self.table}
        self._next_at_ms: dict[str, int] = {}
        self._wake = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Rounds until `stop`; the round at work is finished."""
        while not stop.is_set():
            await self.round()
            await self._rest(stop)

    async def round(self, *, everything: bool = False) -> None:
        """One round: each entry that is due, in the order of the table."""
        for one in self.table:
            at_s = time.monotonic()
            if everything or at_s >= self._due_s[one.name] or self._instant_reached(one.name):
                # Half a tick early counts, or an entry would slip to every other tick.
                every_ms = max(one.every_ms, self._tick_ms) - self._tick_ms / 2
                self._due_s[one.name] = at_s + every_ms / 1_000
                await self._attempt(one)
        self.rounds += 1
        self.round_at_s = time.monotonic()

    def expect(self, name: str, at_ms: int) -> None:
        """An entry will have work at this lease time: rest no longer than until then."""
        if name not in self.records:
            return
        known = self._next_at_ms.get(name)
        if known is None or at_ms < known:
            self._next_at_ms[name] = at_ms
            self._wake.set()

    async def _attempt(self, one: Entry | Chore) -> None:
        record = self.records[one.name]
        try:
            changed = await self._slices(one) if isinstance(one, Entry) else await _done(one)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            record.failing += 1
            record.failures += 1
            record.trouble = f"{type(error).__name__}: {error}"
            if record.failing & (record.failing - 1) == 0:
                # The 1st, 2nd, 4th, 8th … in a row: a full disk must not fill the log too.
                log.warning(
                    "keeper task failed",
                    task=one.name,
                    failures_in_a_row=record.failing,
                    error=record.trouble,
                )
            return
        if record.failing:
            log.info("keeper task works again", task=one.name, after_failures=record.failing)
        record.failing, record.trouble = 0, ""
        record.last_ok_ms = wall_ms()
        if changed:
            record.changed += changed
            log.info("keeper", task=one.name, changed=changed)

    async def _slices(self, one: Entry) -> int:
        changed = 0
        for _ in range(SLICES_MAX):
            # What is told from here on may be missing in the answer, and is kept beside it.
            self._next_at_ms.pop(one.name, None)
            found = await self._submit(one.op, one.limit)
            count, next_at_ms = found if isinstance(found, tuple) else (found, None)
            if next_at_ms is not None:
                told_ms = self._next_at_ms.get(one.name, next_at_ms)
                self._next_at_ms[one.name] = min(next_at_ms, told_ms)
            changed += int(count or 0)
            if int(count or 0) < one.limit:
                break
        else:
            self._due_s[one.name] = 0.0
        return changed

    def _instant_reached(self, name: str) -> bool:
        next_at_ms = self._next_at_ms.get(name)
        return next_at_ms is not None and next_at_ms <= self._now().lease_ms

    async def _rest(self, stop: asyncio.Event) -> None:
        """Wait for the next tick, the next instant somebody waits for, or the stop."""
        rest_ms = float(self._tick_ms)
        if self._next_at_ms:
            next_at_ms = min(self._next_at_ms.values())
            rest_ms = min(rest_ms, max(TIMER_MS_MIN, next_at_ms - self._now().lease_ms))
        stopping = asyncio.ensure_future(stop.wait())
        woken = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait(
                (stopping, woken),
                timeout=rest_ms / 1_000,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            stopping.cancel()
            woken.cancel()
            self._wake.clear()


async def _done(chore: Chore) -> int:
    changed = await chore.run()
    return changed if isinstance(changed, int) else 0

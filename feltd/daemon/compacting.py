"""The pace of compaction: small slices behind everybody else, with rests, and space given back.

A round works beside the keeper, never in its way: each slice comes last in the writer's order, and
none is begun while somebody waits. What a slice may cost decides how large the next one is. A round
that is cut short loses nothing; the next one goes on.
"""

import asyncio
import time

import structlog

from feltd.api.metrics import Metrics
from feltd.clock import Now
from feltd.config import Config
from feltd.errors import Refused
from feltd.model.compaction import Outcome, Policy, Pruned, Slice, Table
from feltd.state import compaction
from feltd.store.readers import Readers
from feltd.store.tx import Tx
from feltd.store.vacuum import BITES
from feltd.store.writer import Writer

#: What a slice may take of the writer while nobody else comes, and while somebody does; its COMMIT
#: takes about as long again. Then a bite.
RUN_S, RUN_BUSY_S = 0.004, 0.0015
BITE_S = 0.005
#: Rows of a first slice, before anything was measured, and of the smallest and the largest.
ROWS_BEGIN, ROWS_MIN, ROWS_MAX = 32, 4, compaction.LIMIT_MAX
#: A slice is followed by a rest of so many times as long, alone and among others.
REST_TIMES, REST_TIMES_BUSY = 1.0, 4.0
REST_S_MIN = 0.002
#: Begin nothing while somebody waits for the writer; after so many looks it is a flood, in which a
#: slice has its turn.
LOOKS_MAX = 10
#: Slices in a row of one table that clear nothing, in a round: what must stay is walked over bit by
#: bit, not all of it every minute.
IDLE_SLICES_MAX = 50
#: One call by hand works for so long; who calls asks again while there is more.
BY_HAND_S = 1.0
#: Free pages that stay for what comes next: giving all back would only make the file grow again.
FREE_PAGES = 256
SIZES = tuple(BITES)

log = structlog.get_logger("feltd.keeper")


def policy_of(config: Config) -> Policy:
    """How long everything is kept, as the settings say."""
    return Policy(
        changes_ms=config.retain_changes_ms,
        consumer_limit_ms=config.consumer_limit_ms,
        workloads_ms=config.retain_workloads_ms,
        dead_letters_ms=config.retain_dead_letters_ms,
        deleted_ms=config.retain_deleted_ms,
        decisions_ms=config.retain_decisions_ms,
        events_ms=config.retain_events_ms,
        audit_ms=config.retain_audit_ms,
        workers_ms=config.retain_workers_ms,
        keys_ms=config.retain_keys_ms,
    )


class Compacting:
    """The compaction of one daemon. Made and used on the event loop."""

    def __init__(
        self,
        config: Config,
        writer: Writer,
        readers: Readers,
        metrics: Metrics,
        stop: asyncio.Event,
    ) -> None:
        self.policy = policy_of(config)
        self._writer = writer
        self._readers = readers
        self._metrics = metrics
        self._stop = stop
        self._rows: dict[Table, int] = dict.fromkeys(compaction.WALKS, ROWS_BEGIN)
        self._size = 0
        self._round: asyncio.Task[None] | None = None
        self._failed: Exception | None = None
        self._cannot_shrink = False
        self._served = False
        #: Somebody else had the writer between the last two slices; operations counted by then.
        self._busy = False
        self._seen = 0

    async def begin(self) -> None:
        """The keeper's chore: begin a round, unless one is at work; raise what ended the last.

        The first time is before anybody is served: then it begins none.
        """
        if not self._served:
            self._served = True
            return
        if self._round is not None and not self._round.done():
            return
        failed, self._failed = self._failed, None
        self._round = asyncio.get_running_loop().create_task(self._whole_round())
        if failed is not None:
            raise failed

    async def close(self) -> None:
        """After the stop was told: wait for the slice at work; none is begun any more."""
        if self._round is not None:
            await asyncio.wait((self._round,))

    async def some(self) -> Outcome:
        """Clear for BY_HAND_S at most; `more`: there is more to clear. Refuses as `submit` does."""
        work = _Work(time.monotonic() + BY_HAND_S)
        await self._clear(work)
        held = await self._readers.read(compaction.held_back, self.policy)
        return Outcome(
            pruned=dict(sorted(work.pruned.items())),
            rewrote_log=work.given > 0,
            dry_run=False,
            held_back=held,
            more=work.more,
        )

    async def _whole_round(self) -> None:
        try:
            await self._clear(_Work(float("inf"), IDLE_SLICES_MAX))
        except Refused as refused:
            if not self._stop.is_set():
                self._failed = refused
                log.warning("operation compaction failed", code=refused.code, error=refused.detail)
        except Exception as error:
            self._failed = error
            log.warning(
                "operation compaction task failed", error=f"{type(error).__name__}: {error}"
            )

    async def _clear(self, work: "_Work") -> None:
        """Every table in turn, then the file; within the time there is."""
        try:
            for table in compaction.WALKS:
                if not await self._table(table, work):
                    work.more = True
                    break
        finally:
            if work.pruned and not self._stop.is_set():
                await self._writer.submit(compaction.told, dict(work.pruned), bulk=True)
        await self._give_back(work)

    async def _table(self, table: Table, work: "_Work") -> bool:
        """Slices of one table; whether it came to its end, or has had its share of the round."""
        idle = 0
        while True:
            if not await self._may_go_on(work):
                return False
            began_s = time.monotonic()
            rows = self._rows[table]
            cmd = Slice(table, rows, self.policy)
            pruned, run_s = await self._writer.submit(compact, cmd, bulk=True)
            self._count(table, pruned, work)
            may_take_s = RUN_BUSY_S if self._busy else RUN_S
            self._rows[table] = _fitting(rows, run_s, may_take_s, whole=not pruned.more)
            idle = 0 if pruned.counts else idle + 1
            if not pruned.more or idle >= work.idle_slices_max:
                return True
            await self._rest(time.monotonic() - began_s)

    def _count(self, table: Table, pruned: Pruned, work: "_Work") -> None:
        for name, rows in pruned.counts.items():
            work.pruned[name] = work.pruned.get(name, 0) + rows
            self._metrics.compacted[name] = self._metrics.compacted.get(name, 0) + rows
        if pruned.skipped:
            log.warning("operation compaction failed", table=table, skipped=pruned.skipped)

    async def _give_back(self, work: "_Work") -> None:
        """Give free pages back, beyond those that are soon used again."""
        while await self._may_go_on(work):
            began_s = time.monotonic()
            bite = await self._writer.vacuum(SIZES[self._size])
            took_s = time.monotonic() - began_s
            work.given += bite.given
            if not bite.able:
                self._warn_once(bite.free)
                break
            if bite.free <= FREE_PAGES or not bite.given:
                break
            if took_s > BITE_S:
                self._size = max(0, self._size - 1)
            elif took_s < BITE_S / 2:
                self._size = min(len(SIZES) - 1, self._size + 1)
            await self._rest(took_s)
        else:
            work.more = True
        if work.given:
            self._metrics.logs_rewritten += 1
            log.debug("durable log rewritten", pruned=sum(work.pruned.values()), pages=work.given)

    def _warn_once(self, free: int) -> None:
        if free > FREE_PAGES and not self._cannot_shrink:
            self._cannot_shrink = True
            log.warning(
                "the file does not shrink",
                free_pages=free,
                detail="it was made without auto_vacuum: what is cleared is used again, not given "
                "back; stop the daemon and run "
                '"PRAGMA auto_vacuum = INCREMENTAL; VACUUM" on it once',
            )

    async def _may_go_on(self, work: "_Work") -> bool:
        """Wait until nobody else waits; whether there is time left and nobody stops the daemon."""
        served = sum(self._metrics.wait_seconds.counts)
        # The last slice is one of them.
        self._busy, self._seen = served > self._seen + 1, served
        for _ in range(LOOKS_MAX):
            if not self._writer.waiting or self._stop.is_set():
                break
            await asyncio.sleep(REST_S_MIN)
        return not self._stop.is_set() and time.monotonic() < work.until_s

    async def _rest(self, took_s: float) -> None:
        times = REST_TIMES_BUSY if self._busy else REST_TIMES
        await asyncio.sleep(max(REST_S_MIN, took_s * times))


class _Work:
    """What one round, or one call by hand, has done so far."""

    def __init__(self, until_s: float, idle_slices_max: float = float("inf")) -> None:
        self.until_s = until_s
        self.idle_slices_max = idle_slices_max
        self.pruned: dict[str, int] = {}
        self.given = 0
        self.more = False


def compact(tx: Tx, cmd: Slice, now: Now) -> tuple[Pruned, float]:
    """One slice, and the seconds it took of the writer's thread."""
    began_s = time.perf_counter()
    pruned = compaction.compact(tx, cmd, now)
    return pruned, time.perf_counter() - began_s


def _fitting(rows: int, run_s: float, may_take_s: float, *, whole: bool) -> int:
    """How many rows the next slice of the table may have, after one that took `run_s`."""
    if run_s > may_take_s:
        return max(ROWS_MIN, int(rows * max(0.25, may_take_s / run_s)))
    if run_s < may_take_s / 2 and not whole:
        return min(ROWS_MAX, rows + max(1, rows // 2))
    return rows

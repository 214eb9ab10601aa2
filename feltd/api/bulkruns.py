"""Bulk changes that the daemon loops itself: started by a person, a chunk an operation, to the end.

A run does what a client does that calls POST /v1/workloads/bulk until nothing remains, by the same
rules and as the same caller, who is tested again with every chunk. It lives in memory: a stop ends
it between two chunks, and doing it again does only what is left.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from feltd.api import edits
from feltd.clock import wall_ms
from feltd.errors import Refused
from feltd.mesh import bulk
from feltd.model.base import Ask, Caller
from feltd.model.editing import CHUNK_ROWS
from feltd.store.readers import Readers
from feltd.store.writer import Writer

#: Runs under way at once: each keeps a reader and the writer busy for half of the time.
UNDER_WAY_MAX = 4
#: Of them those of one person: a million workloads take minutes, and others wait for a place.
UNDER_WAY_OF_ONE_MAX = 2
#: Runs that are remembered after their end.
KEPT_MAX = 200
#: Between two chunks, so that everybody else has their turn.
PAUSE_S = 0.02


class Run(Struct, kw_only=True):
    """One run. `ended` is why it is over: done, stopped, refused; '' while it goes on."""

    run_id: str
    caller: Caller
    plan: bulk.Plan
    matched: int
    began_at_ms: int
    changed: int = 0
    remaining: int = 0
    ended: str = ""
    refused: Refused | None = None
    ended_at_ms: int | None = None
    stopping: bool = False


class Runs:
    """The bulk runs of one daemon. Used on the event loop alone."""

    def __init__(self, writer: Writer, readers: Readers, stop: asyncio.Event) -> None:
        self._writer = writer
        self._readers = readers
        self._stop = stop
        self._runs: dict[str, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._number = 0

    def begin(self, caller: Caller, plan: bulk.Plan, matched: int, deadline_ms: int) -> Run:
        """Start a run over what `plan` lets through; join the caller's own that does just that.

        A form that was sent twice is one run. Refuses SERVICE_OVERLOADED beyond the most.
        """
        mine = [
            run
            for run in self._runs.values()
            if not run.ended and run.caller.subject == caller.subject
        ]
        for run in mine:
            if not run.stopping and (run.plan, run.caller.tenants) == (plan, caller.tenants):
                return run
        if len(mine) >= UNDER_WAY_OF_ONE_MAX:
            raise Refused(
                "SERVICE_OVERLOADED",
                "other bulk changes of yours are still under way",
                committed=False,
            )
        if len(self._tasks) >= UNDER_WAY_MAX or self._stop.is_set():
            raise Refused(
                "SERVICE_OVERLOADED", "other bulk changes are still under way", committed=False
            )
        self._number += 1
        run = Run(
            run_id=f"run_{self._number}_{wall_ms():x}",
            caller=caller,
            plan=plan,
            matched=matched,
            remaining=matched,
            began_at_ms=wall_ms(),
        )
        self._runs[run.run_id] = run
        for old in list(self._runs.values())[: max(len(self._runs) - KEPT_MAX, 0)]:
            if old.ended:
                del self._runs[old.run_id]
        task = asyncio.get_running_loop().create_task(self._go(run, deadline_ms))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return run

    def of(self, caller: Caller, run_id: str) -> Run | None:
        """A run, to the one who started it and to who may see all that he may."""
        run = self._runs.get(run_id)
        if run is None or not (run.caller.subject == caller.subject or "*" in caller.tenants):
            return None
        return run

    def newest(self, caller: Caller, few: int) -> list[Run]:
        """The last runs that the caller may see, newest first."""
        seen = (self.of(caller, run_id) for run_id in reversed(self._runs))
        return [run for run in seen if run is not None][:few]

    async def _go(self, run: Run, deadline_ms: int) -> None:
        try:
            await self._loop(run, deadline_ms, lambda: run.stopping or self._stop.is_set())
        except Refused as refused:
            run.ended, run.refused = "refused", refused
        finally:
            run.ended = run.ended or "stopped"
            run.ended_at_ms = wall_ms()

    async def _loop(self, run: Run, deadline_ms: int, over: Callable[[], bool]) -> None:
        tenants = run.caller.tenants
        tenant = tenants[0] if len(tenants) == 1 else ""
        while not over():
            found = await edits.seek(self._readers, run.caller, run.plan, CHUNK_ROWS)
            beyond = found.count - len(found.workload_ids)
            ask = Ask(caller=run.caller, body=bulk.Chunk(run.plan, found.workload_ids, beyond))
            answer = await self._writer.submit(
                bulk.change, ask, tenant=tenant, deadline_ms=deadline_ms
            )
            run.changed += answer.changed
            run.remaining = answer.remaining
            if not answer.remaining or not answer.changed:
                run.ended = "done"
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S):
                    await self._stop.wait()

"""What a backup costs those who work meanwhile: claims of 64 clients before it, during and after.

The daemon has the rows of a busy day. Each client pulls one and completes it, without pause; while
the backup is made their pulls may take at the 99th percentile at most LIMIT times what they took
before. The last of three rounds counts as the other two do: the worst decides.
"""

import asyncio
import time
from typing import Any, NamedTuple

from tests.bench import large
from tests.bench.cycles import Worker, fence
from tests.bench.machine import Daemon, workload

LIMIT = 3.0
CLIENTS = 64
ROWS = 100_000
ROUNDS = 3
#: How long claims are measured without a backup, and after one: the log goes into the file then.
IDLE_S = 10.0
AFTER_S = 3.0
#: Work is created in batches of so many, as it is used up.
REFILL = 500


class Spread(NamedTuple):
    """Pulls of one stretch of time."""

    pulls: int
    seconds: float
    p50_ms: float
    p99_ms: float
    max_ms: float


class Load:
    """64 clients at work until it ends; `spread` tells of the pulls between two instants."""

    def __init__(self, daemon: Daemon, workers: list[Worker]) -> None:
        self._daemon = daemon
        self._workers = workers
        self._pulls: list[tuple[float, float]] = []
        self._stop = asyncio.Event()
        self._used = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Load":
        self._tasks = [asyncio.create_task(self._client(one)) for one in self._workers]
        self._tasks.append(asyncio.create_task(self._refill()))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)

    def spread(self, since_s: float, until_s: float) -> Spread:
        """Pulls that began in this stretch."""
        took = sorted(took for began, took in self._pulls if since_s <= began < until_s)
        return Spread(
            len(took),
            until_s - since_s,
            1_000 * took[len(took) // 2],
            1_000 * took[int(len(took) * 0.99)],
            1_000 * took[-1],
        )

    async def _client(self, worker: Worker) -> None:
        worker_id, line, _row = worker
        while not self._stop.is_set():
            began = time.perf_counter()
            answer = await line.call(
                "POST", f"/v1/workers/{worker_id}/claims", {"max": 1, "start": True}
            )
            self._pulls.append((began, time.perf_counter() - began))
            for claim in answer["claims"]:
                body = {**fence(claim), "output": {"ok": True}}
                await line.call("POST", f"/v1/workloads/{claim['workload_id']}/complete", body)
                self._used += 1

    async def _refill(self) -> None:
        """Create what was used up, so that there is always the same to do."""
        line = self._daemon.line(self._daemon.submitter)
        made = 0
        while not self._stop.is_set():
            await asyncio.sleep(0.05)
            while self._used - made >= REFILL:
                batch = [workload(f"refill-{made + n}") for n in range(REFILL)]
                await line.call("POST", "/v1/workloads/batch", {"workloads": batch})
                made += REFILL
        line.close()


async def run(rows: int = ROWS, rounds: int = ROUNDS) -> bool:
    """Print each round; whether every one kept to LIMIT."""
    async with Daemon("--backup-keep", "2", prepare=lambda path: large.fill(rows, path)) as daemon:
        workers = [await daemon.worker(f"w{n}", 64) for n in range(CLIENTS)]
        size = daemon.data.stat().st_size
        print(f"{rows:,} workloads, {size / 1e6:,.0f} MB, {CLIENTS} clients")
        print(
            f"{'':<10}{'pulls/s':>10}{'p50 ms':>10}{'p99 ms':>10}{'max ms':>10}"
            f"{'of before':>12}{'log MB':>10}{'seconds':>10}"
        )
        ratios = [await _round(daemon, workers) for _ in range(rounds)]
    print(f"worst p99 while a backup is made: {max(ratios):.2f} of before (limit {LIMIT})")
    return max(ratios) <= LIMIT


async def _round(daemon: Daemon, workers: list[Worker]) -> float:
    async with Load(daemon, workers) as load:
        await asyncio.sleep(1.0)
        began = time.perf_counter()
        await asyncio.sleep(IDLE_S)
        begun = time.perf_counter()
        phases = await _backup(daemon)
        ended = time.perf_counter()
        await asyncio.sleep(AFTER_S)
        before = load.spread(began, begun)
        _line("before", before, before)
        at = begun
        for phase, until, wal_bytes in phases:
            _line(phase, load.spread(at, until), before, wal_bytes)
            at = until
        during = load.spread(begun, ended)
        _line("backup", during, before)
        _line("after", load.spread(ended, ended + AFTER_S), before)
    return during.p99_ms / before.p99_ms


async def _backup(daemon: Daemon) -> list[tuple[str, float, int]]:
    """Make one; each phase with when it ended and what the log had grown to."""
    asking = asyncio.create_task(_ask(daemon))
    line = daemon.line(daemon.admin)
    wal = daemon.data.with_name(daemon.data.name + "-wal")
    phases: list[tuple[str, float, int]] = []
    phase, greatest = "copy", 0
    while not asking.done():
        await asyncio.wait((asking,), timeout=0.1)
        greatest = max(greatest, wal.stat().st_size)
        running = (await line.call("GET", "/v1/backups"))["running"]
        if running is not None and running["phase"] != phase:
            phases.append((phase, time.perf_counter(), greatest))
            phase, greatest = running["phase"], 0
    line.close()
    made = await asking
    if made["broken"]:
        raise RuntimeError(f"the backup is not sound: {made['broken']}")
    phases.append((phase, time.perf_counter(), greatest))
    return phases


async def _ask(daemon: Daemon) -> Any:
    line = daemon.line(daemon.admin)
    try:
        while True:
            answer = await line.call("POST", "/v1/backups")
            if answer.get("state") != "running":
                return answer
    finally:
        line.close()


def _line(what: str, found: Spread, before: Spread, wal_bytes: int = 0) -> None:
    print(
        f"{what:<10}{found.pulls / found.seconds:>10,.0f}{found.p50_ms:>10.1f}"
        f"{found.p99_ms:>10.1f}{found.max_ms:>10.1f}{found.p99_ms / before.p99_ms:>12.2f}"
        f"{wal_bytes / 1e6:>10,.1f}{found.seconds:>10.1f}",
        flush=True,
    )

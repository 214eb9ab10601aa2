"""What a flood of one tenant costs another: its claims idle, and beside 64 clients that flood.

One worker of the quiet tenant claims and completes in a row over HTTP. The loud tenant's clients
create batches of 1,000 from processes of their own. Quiet and flooded stretches take turns on one
daemon, so that the machine's mood meets both; compare only what stands in one run.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import NamedTuple

import msgspec

from tests.bench.cycles import Worker, fence
from tests.bench.flood import Done, Order
from tests.bench.machine import Daemon, workload
from tests.bench.wire import Answered

LOUD, QUIET = "loud", "quiet"
CLIENTS = 64
PROCESSES = 2
ITEMS = 1_000
ROUNDS = 5
#: One stretch; the flood has as long again to fill up before it is measured.
STRETCH_S = 3.0
SETTLE_S = 1.0
#: What a flood may make of the 99th percentile of a claim, at most.
TIMES_MAX = 3.0

_tags = count()


class Spent(NamedTuple):
    """Seconds of each claim and completion, and how many of them were refused for lack of room."""

    claims: list[float]
    completions: list[float]
    refused: list[int]


async def run(rounds: int = ROUNDS) -> bool:
    """Measure each kind of flood; whether p99 of a claim stays within TIMES_MAX in the first."""
    print(f"{'claims of the quiet tenant':<34}{'count':>8}{'p50 ms':>10}{'p99 ms':>10}", end="")
    print(f"{'complete p99':>14}{'refused':>9}{'created/s':>11}")
    good = True
    for atomic in (False, True):
        async with Daemon("--max-in-flight", "64") as daemon:
            worker = await daemon.worker("quiet", 64, tenant=QUIET)
            loud, quiet = await daemon.submitter_of(LOUD), await daemon.submitter_of(QUIET)
            idle, flooded, created = Spent([], [], []), Spent([], [], []), 0.0
            for _ in range(rounds):
                await fill(daemon, quiet)
                await stretch(worker, idle)
                async with flooding(daemon, loud, atomic) as rates:
                    await stretch(worker, flooded)
                created += sum(rates) / rounds
        kind = "atomic" if atomic else "each for itself"
        line("idle", idle, 0)
        line(f"flooded by batches, {kind}", flooded, created)
        times = [at(flooded.claims, part) / at(idle.claims, part) for part in (0.5, 0.99)]
        print(f"{'  times':<34}{'':>8}{times[0]:>10.2f}{times[1]:>10.2f}", flush=True)
        good = good and (atomic or (times[1] < TIMES_MAX and not flooded.refused))
    return good


def line(what: str, spent: Spent, created: float) -> None:
    """One line of the table."""
    claims, completions = spent.claims, spent.completions
    print(
        f"{what:<34}{len(claims):>8}{1000 * at(claims, 0.5):>10.2f}{1000 * at(claims, 0.99):>10.2f}"
        f"{1000 * at(completions, 0.99):>14.2f}{len(spent.refused):>9}{created:>11,.0f}",
        flush=True,
    )


def at(spent: list[float], part: float) -> float:
    """The percentile of `part`."""
    return sorted(spent)[min(len(spent) - 1, int(len(spent) * part))]


async def fill(daemon: Daemon, bearer: str) -> None:
    """More work of the quiet tenant than two stretches take."""
    line = daemon.line(bearer)
    for _ in range(6):
        batch = [workload(f"q{next(_tags)}", QUIET) for _ in range(ITEMS)]
        await line.call("POST", "/v1/workloads/batch", {"workloads": batch})
    line.close()


async def stretch(worker: Worker, spent: Spent) -> None:
    """Claim and complete in a row for STRETCH_S; a refused call is repeated, its time counts on."""
    worker_id, line, _row = worker

    async def insist(path: str, body: object) -> tuple[dict[str, object], float]:
        began = time.perf_counter()
        while True:
            try:
                answer = await line.call("POST", path, body)
                return answer, time.perf_counter() - began
            except Answered as refused:
                if refused.args[0] != 503:
                    raise
                spent.refused.append(1)

    end = time.perf_counter() + STRETCH_S
    while time.perf_counter() < end:
        asked = {"max": 1, "start": True}
        answer, took = await insist(f"/v1/workers/{worker_id}/claims", asked)
        (claim,) = msgspec.convert(answer["claims"], list[dict[str, object]])
        spent.claims.append(took)
        body = {**fence(claim), "output": {"ok": True}}
        _, took = await insist(f"/v1/workloads/{claim['workload_id']}/complete", body)
        spent.completions.append(took)


@asynccontextmanager
async def flooding(daemon: Daemon, bearer: str, atomic: bool) -> AsyncIterator[list[float]]:
    """Inside, the flood runs; afterwards the list holds each process's creations a second."""
    rates: list[float] = []
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.bench.flood",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(PROCESSES)
    ]
    try:
        for process in processes:
            assert process.stdin is not None
            assert process.stdout is not None
            tag = f"{next(_tags):x}"
            order = Order(daemon.port, bearer, LOUD, CLIENTS // PROCESSES, ITEMS, atomic, tag[-4:])
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            await process.stdout.readline()
        began = time.perf_counter()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"\n")
        await asyncio.sleep(SETTLE_S)
        yield rates
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            assert process.stdout is not None
            done = msgspec.json.decode(await process.stdout.readline(), type=Done)
            rates.append(done.created / (time.perf_counter() - began))
            await process.wait()
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()

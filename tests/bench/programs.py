"""What programs that behave badly cost everybody else: claims idle, and beside some that run on.

A daemon with `--worker`; one tenant's WebAssembly programs loop, eat memory or write 100 MB, each
again as soon as it has ended, while a worker of another tenant claims and completes in a row. Quiet
and busy stretches take turns on one daemon; compare only what stands in one run.
"""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from tests.bench.fairness import (
    LOUD,
    QUIET,
    STRETCH_S,
    TIMES_MAX,
    Spent,
    at,
    fill,
    line,
    stretch,
)
from tests.bench.machine import APPLICATION, Daemon, workload
from tests.worker import modules

ROUNDS = 3
#: One is held to the bound; as many as a tenant may run at once are told of.
AT_ONCE = (1, 4)
#: A loop ends by this, the others by themselves.
DURATION_MS = 3_000
SETTLE_S = 1.0
PROGRAMS = {
    "a loop without end": modules.SPIN,
    "memory without end": modules.EAT,
    "100 MB written": modules.FLOOD.replace("FD", "1"),
}

_numbers = count()


async def run(rounds: int = ROUNDS) -> bool:
    """Measure each program; whether p99 of a claim stays within TIMES_MAX beside one of each."""
    print(f"{'claims beside programs':<34}{'count':>8}{'p50 ms':>10}{'p99 ms':>10}", end="")
    print(f"{'complete p99':>14}{'refused':>9}{'ended/s':>11}")
    good = True
    for what, body in PROGRAMS.items():
        for at_once in AT_ONCE:
            times = await _measure(what, modules.module(body), at_once, rounds)
            good = good and (at_once > 1 or times < TIMES_MAX)
    return good


async def _measure(what: str, module: bytes, at_once: int, rounds: int) -> float:
    """Print how it went; how many times as long a claim takes at the 99th percentile."""
    async with Daemon("--worker") as daemon:
        worker = await daemon.worker("quiet", 64, tenant=QUIET)
        quiet, loud = await daemon.submitter_of(QUIET), await daemon.submitter_of(LOUD)
        await _let_run(daemon, module)
        idle, busy, ended = Spent([], [], []), Spent([], [], []), 0.0
        for _ in range(rounds):
            await fill(daemon, quiet)
            await stretch(worker, idle)
            async with _running(daemon, loud, at_once) as said:
                await stretch(worker, busy)
            ended += len(said) / rounds / (SETTLE_S + STRETCH_S)
    line("idle", idle, 0)
    line(f"{what}, {at_once} at once", busy, ended)
    times = at(busy.claims, 0.99) / at(idle.claims, 0.99)
    print(f"{'  times':<52}{times:>10.2f}  {', '.join(sorted(set(said)))}", flush=True)
    return times


async def _let_run(daemon: Daemon, module: bytes) -> None:
    """The program, and the grant by which the daemon runs it."""
    grant = {
        "subject": {"kind": "service", "id": "feltd-executor"},
        "tenant_id": LOUD,
        "application_id": APPLICATION,
        "capabilities": ["worker:register", "worker:capability:bench.work"],
        "resources": [{"kind": "EXACT", "uri": f"flow://{APPLICATION}/workers/feltd"}],
        "expires_at_ms": 4_000_000_000_000,
    }
    await daemon.operator.call("POST", "/v1/grants", grant)
    program = {"runtime": "wasm", "module": base64.b64encode(module).decode()}
    path = f"/v1/collections/_flow_capabilities/records/program?tenant_id={LOUD}"
    await daemon.operator.call("PUT", path, program)


@asynccontextmanager
async def _running(daemon: Daemon, bearer: str, at_once: int) -> AsyncIterator[list[str]]:
    """Inside, so many programs run all the while; afterwards the list says how each ended."""
    said: list[str] = []
    stop = asyncio.Event()

    async def again() -> None:
        client = daemon.line(bearer)
        while not stop.is_set():
            asked = workload(f"p{next(_numbers)}", LOUD)
            policy = {"max_duration_ms": DURATION_MS}
            asked |= {"definition_id": "program", "runtime_policy": policy}
            made = await client.call("POST", "/v1/workloads", asked)
            said.append(await _end(client, made["workload_id"]))
        client.close()

    tasks = [asyncio.create_task(again()) for _ in range(at_once)]
    await asyncio.sleep(SETTLE_S)
    yield said
    stop.set()
    await asyncio.gather(*tasks)


async def _end(client: Any, workload_id: str) -> str:
    while True:
        shown = await client.call("GET", f"/v1/workloads/{workload_id}?wait_ms=5000")
        if shown["state"] in ("COMPLETED", "DEAD_LETTERED"):
            return str((shown.get("failure") or {"message": "completed"})["message"])

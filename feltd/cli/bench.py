"""`feltd bench`: what this machine and this disk give a daemon, in about twenty seconds.

It measures on a throw-away daemon and database in the folder that is named, so the disk is the one
the work will lie on. Client and daemon share the machine: a daemon with its workers elsewhere does
more. Nothing of an existing database is touched.
"""

import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from feltd.api.listen import find_local_socket
from feltd.cli.ending import ended_as_by_ctrl_c
from feltd.cli.output import Examples, json_option, say_json, table
from feltd.cli.verify.ground import Ground, Trouble
from feltd.worker.client import AsyncClient

#: Of the whole time: writing to the disk, creating work, one worker, many workers.
DISK, ENQUEUE, ALONE, TOGETHER = 0.1, 0.2, 0.25, 0.45
BLOCK = b"\0" * 4_096
CREATED_A_CALL = 200
WORKERS = 16
FENCE = ("workload_id", "claim_id", "worker_id", "fencing_token")
LEASE_MS = 60_000
ROOM_BYTES = 512 * 1024 * 1024

COLUMNS = (
    ("what", "what"),
    ("per second", "per_second"),
    ("p50 ms", "p50_ms"),
    ("p99 ms", "p99_ms"),
)


class Figure(NamedTuple):
    """One measured line; the times are of one turn."""

    what: str
    per_second: int
    p50_ms: float
    p99_ms: float


@click.command(
    cls=Examples,
    examples=("feltd bench", "feltd bench --folder /var/lib/feltd --seconds 40 --json"),
    short_help="Measure this disk and this machine, in 20 seconds.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False, writable=True),
    default=Path("."),
    show_default=True,
    help="Measure on the disk this folder is on.",
)
@click.option("--seconds", type=click.IntRange(5, 600), default=20, show_default=True)
@json_option
def bench(folder: Path, seconds: int, as_json: bool) -> int:
    """Measure fsync on this disk, and how much work a daemon takes in and gives out here.

    A cycle is: claim one piece of work, complete it, each durable before it is answered.
    """
    free = os.statvfs(folder)
    if free.f_bavail * free.f_frsize < ROOM_BYTES:
        raise click.ClickException(f"{folder} has less than 512 MiB free: name another --folder")
    figures = []
    with ended_as_by_ctrl_c(), tempfile.TemporaryDirectory(".feltd-bench", dir=folder) as made:
        try:
            for figure in _figures(Path(made), seconds):
                figures.append(figure)
                if not as_json:
                    click.echo(f"{figure.what}: {figure.per_second} a second", err=True)
        except Trouble as trouble:
            raise click.ClickException(str(trouble)) from None
    rows = [figure._asdict() for figure in figures]
    if as_json:
        say_json(rows)
    else:
        table(rows, COLUMNS, empty="nothing was measured")
    return 0


def _figures(folder: Path, seconds: int) -> Iterator[Figure]:
    yield _of_disk(folder / "block", seconds * DISK)
    ground = Ground(folder / "daemon")
    try:
        ground.start()
        _, key = ground.enroll("bench", ("bench.work",))
        yield asyncio.run(_enqueued(ground, seconds * ENQUEUE))
        yield asyncio.run(_worked(ground, key, 1, seconds * ALONE))
        yield asyncio.run(_worked(ground, key, WORKERS, seconds * TOGETHER))
    finally:
        ground.close()


def _of_disk(path: Path, seconds: float) -> Figure:
    """4 KiB written and synced, one after another: the floor under every commit."""
    opened = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    spent: list[float] = []
    try:
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            os.pwrite(opened, BLOCK, 0)
            os.fdatasync(opened)
            spent.append(time.perf_counter() - began)
    finally:
        os.close(opened)
    return _figure("fsync of 4 KiB", len(spent), sum(spent), spent)


async def _enqueued(ground: Ground, seconds: float) -> Figure:
    """Work created, 200 a call on four connections."""
    async with _operator(ground) as client:

        async def turn(_client: int) -> int:
            await client.create_batch([_work() for _ in range(CREATED_A_CALL)])
            return CREATED_A_CALL

        return await _measured(f"create, {CREATED_A_CALL} a call", 4, seconds, turn)


async def _worked(ground: Ground, key: str, workers: int, seconds: float) -> Figure:
    """Claim and complete in one call, one piece of work at a time for each worker."""
    clients = [AsyncClient(ground.url, key) for _ in range(workers)]
    async with _operator(ground) as operator:
        crew = [await _registered(client, n) for n, client in enumerate(clients)]
        held: list[list[dict[str, Any]]] = [[] for _ in crew]
        numbers = itertools.count()
        dry = asyncio.Lock()

        async def turn(number: int) -> int:
            worker_id, bearer = crew[number]
            claim = {
                "max": 1,
                "lease_ms": LEASE_MS,
                "start": True,
                "request_id": f"{workers}-{next(numbers)}",
            }
            done = [{name: one[name] for name in FENCE} for one in held[number]]
            answer = await clients[number].exchange(
                worker_id, {"complete": done, "claim": claim}, bearer=bearer
            )
            held[number] = answer["claims"]
            if not answer["claims"] and not dry.locked():
                async with dry:
                    await operator.create_batch([_work() for _ in range(CREATED_A_CALL)])
            return sum(one["ok"] for one in answer["outcomes"])

        try:
            what = f"cycles, {workers} worker{'s' if workers > 1 else ''}"
            return await _measured(what, workers, seconds, turn)
        finally:
            for client in clients:
                await client.close()


async def _registered(client: AsyncClient, number: int) -> tuple[str, str]:
    """A worker that may take work: its id and its key."""
    told = await client.register(
        {
            "name": f"bench-{number}", "runtime": "process", "version": "1",
            "capacity": {"concurrency": 4}, "capabilities": ["bench.work"],
            "heartbeat_interval_ms": 300_000, "heartbeat_timeout_ms": 900_000,
            "takeover": True, "issue_key": True,
        }
    )  # fmt: skip
    worker, bearer = told["worker"], told["worker_key"]
    await client.heartbeat(
        worker["worker_id"],
        {
            "worker_id": worker["worker_id"], "version": "1", "health": "HEALTHY",
            "capability_version": worker["capability_version"], "capacity": {"concurrency": 4},
        },
        bearer=bearer,
    )  # fmt: skip
    return worker["worker_id"], bearer


async def _measured(
    what: str, clients: int, seconds: float, turn: Callable[[int], Awaitable[int]]
) -> Figure:
    """Run `turn(client)` on each client until the time is up; a turn says how much it did."""
    spent: list[float] = []
    done = 0
    began = time.perf_counter()
    until = began + seconds

    async def client(number: int) -> None:
        nonlocal done
        while (at := time.perf_counter()) < until:
            did = await turn(number)
            done += did
            spent.append(time.perf_counter() - at)

    await asyncio.gather(*(client(number) for number in range(clients)))
    return _figure(what, done, time.perf_counter() - began, spent)


def _figure(what: str, done: int, seconds: float, spent: list[float]) -> Figure:
    ordered = sorted(spent) or [0.0]
    p50, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * at))] for at in (0.5, 0.99))
    return Figure(what, round(done / max(seconds, 1e-9)), round(p50 * 1e3, 2), round(p99 * 1e3, 2))


def _operator(ground: Ground) -> AsyncClient:
    return AsyncClient(socket=find_local_socket(str(ground.database)), tenant="verify")


def _work() -> dict[str, Any]:
    return {
        "definition_id": "bench", "tenant_id": "verify", "application_id": "bench",
        "capability_snapshot": ["bench.work"], "input": {"n": 1},
    }  # fmt: skip

"""The measured loops: enqueue, and claim to complete by single calls and by exchange."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, NamedTuple

from tests.bench.machine import Daemon, Floor, workload
from tests.bench.wire import Line, Socket


class Figure(NamedTuple):
    """What one loop did: how many, in what time, and the spread of one turn."""

    done: int
    seconds: float
    p50_ms: float
    p99_ms: float

    @property
    def rate(self) -> float:
        """Per second."""
        return self.done / self.seconds


async def measured(clients: int, seconds: float, turn: Callable[[int], Awaitable[int]]) -> Figure:
    """Run `turn(client)` on each client until the time is up; a turn says how much it did."""
    spent: list[float] = []
    done = 0
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        nonlocal done
        while (began := time.perf_counter()) < end:
            did = await turn(number)
            done += did  # after the wait: others added meanwhile
            spent.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(clients)))
    took = time.perf_counter() - began
    spent.sort()
    return Figure(
        done,
        took,
        1000 * spent[len(spent) // 2],
        1000 * spent[min(len(spent) - 1, int(len(spent) * 0.99))],
    )


async def floor(clients: int, seconds: float) -> Figure:
    """Bare JSON POSTs without feltd."""
    async with Floor() as bare:
        lines = [Line("127.0.0.1", bare.port) for _ in range(clients)]

        async def turn(number: int) -> int:
            await lines[number].call("POST", "/v1/echo", {"n": number})
            return 1

        figure = await measured(clients, seconds, turn)
        for line in lines:
            line.close()
        return figure


async def enqueue(daemon: Daemon, clients: int, seconds: float, prefix: str) -> Figure:
    """Create workloads one a call."""
    lines = [daemon.line(daemon.submitter) for _ in range(clients)]
    numbers = count()

    async def turn(number: int) -> int:
        await lines[number].call("POST", "/v1/workloads", workload(f"{prefix}-{next(numbers)}"))
        return 1

    figure = await measured(clients, seconds, turn)
    for line in lines:
        line.close()
    return figure


async def enqueue_batches(daemon: Daemon, clients: int, seconds: float, prefix: str) -> Figure:
    """Create workloads, 200 a call."""
    lines = [daemon.line(daemon.submitter) for _ in range(clients)]
    numbers = count()

    async def turn(number: int) -> int:
        batch = [workload(f"{prefix}-{next(numbers)}") for _ in range(200)]
        await lines[number].call("POST", "/v1/workloads/batch", {"workloads": batch})
        return 200

    figure = await measured(clients, seconds, turn)
    for line in lines:
        line.close()
    return figure


Worker = tuple[str, Line, dict[str, Any]]


def fence(claim: dict[str, Any]) -> dict[str, Any]:
    """The three members every fenced call carries."""
    return {
        "claim_id": claim["claim_id"],
        "worker_id": claim["worker_id"],
        "fencing_token": claim["fencing_token"],
    }


async def single(workers: list[Worker], seconds: float) -> Figure:
    """Pull one (started at once), complete it: two calls a cycle."""

    async def turn(number: int) -> int:
        worker_id, line, _row = workers[number]
        answer = await line.call(
            "POST", f"/v1/workers/{worker_id}/claims", {"max": 1, "start": True}
        )
        for claim in answer["claims"]:
            body = {**fence(claim), "output": {"ok": True}}
            await line.call("POST", f"/v1/workloads/{claim['workload_id']}/complete", body)
        return len(answer["claims"])

    return await measured(len(workers), seconds, turn)


async def exchanged(workers: list[Worker], seconds: float, batch: int) -> Figure:
    """Complete what is held and take as much again, in one call."""
    held: list[list[dict[str, Any]]] = [[] for _ in workers]
    # A request_id that was used before would be answered with the claims of then.
    numbers = count(time.monotonic_ns())

    async def turn(number: int) -> int:
        worker_id, line, _row = workers[number]
        done = [
            {**fence(claim), "workload_id": claim["workload_id"], "output": {"ok": True}}
            for claim in held[number]
        ]
        claim = {
            "max": batch,
            "lease_ms": 60_000,
            "wait_ms": 0,
            "start": True,
            "request_id": f"r{next(numbers)}",
        }
        answer = await line.call(
            "POST", f"/v1/workers/{worker_id}/exchange", {"complete": done, "claim": claim}
        )
        held[number] = answer["claims"]
        return sum(outcome["ok"] for outcome in answer["outcomes"])

    figure = await measured(len(workers), seconds, turn)
    for number, (worker_id, line, _row) in enumerate(workers):
        done = [{**fence(claim), "workload_id": claim["workload_id"]} for claim in held[number]]
        await line.call("POST", f"/v1/workers/{worker_id}/exchange", {"complete": done})
    return figure


async def channelled(daemon: Daemon, workers: list[Worker], seconds: float, batch: int) -> Figure:
    """The same over the worker's channel: what is held ends and as much is given, in one frame."""
    sockets = [
        Socket("127.0.0.1", daemon.port, worker_id, line.bearer) for worker_id, line, _ in workers
    ]
    for socket in sockets:
        await socket.open()
    held: list[list[dict[str, Any]]] = [[] for _ in workers]
    order = {"credit": batch, "lease_ms": 60_000, "start": True}

    def ended(number: int) -> list[dict[str, Any]]:
        return [
            {**fence(claim), "workload_id": claim["workload_id"], "output": {"ok": True}}
            for claim in held[number]
        ]

    async def turn(number: int) -> int:
        frame = {"id": number, "complete": ended(number), "claim": order}
        answer = await sockets[number].call(frame)
        held[number] = answer["claims"]
        return sum(outcome["ok"] for outcome in answer["outcomes"])

    figure = await measured(len(workers), seconds, turn)
    for number, socket in enumerate(sockets):
        await socket.call({"id": 0, "complete": ended(number), "claim": {"credit": 0}})
        socket.close()
    return figure

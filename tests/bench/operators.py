"""What an operator waits for on a large file: the twenty questions, and the pages of the console.

One file with a million workloads, four of five done in the last day, their claims, millions of
events and the audit chain over them; a real daemon serves it, with workers that hold some. The
questions are asked beside it as `feltd sql` asks them; the pages over HTTP on one connection, so
that what is measured is the server's time and a little more.
"""

import asyncio
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from feltd import console
from feltd.cli import sql
from feltd.store import query
from tests.bench.cycles import Worker
from tests.bench.large import fill
from tests.bench.machine import APPLICATION, TENANT, Daemon
from tests.bench.wire import Answered, Line

ROWS = 1_000_000
ROUNDS = 5
#: One of those that are done, as long as there are so many.
DONE = "workload_past000000000004001"
#: What a question, and the server's part of a page, may take on such a file.
QUESTION_MS_MAX = 1_000.0
PAGE_MS_MAX = 200.0
#: Workers that are heard, and what each holds.
WORKERS, HELD = 40, 5
#: Pages that answer for as long as somebody listens, lead elsewhere, or have no rows.
NO_PAGES = (
    "/",
    "/console/stream",
    "/console/static/{name}",
    "/console/workloads/bulk",
    "/console/workloads/bulk/{id}",
)
#: Further views of the pages: filters, and far into a list.
VIEWS = (
    "/console/workloads?state=COMPLETED",
    "/console/workloads?state=DEAD_LETTERED",
    "/console/workloads?definition_id=kind07",
    "/console/workloads?state=READY&definition_id=kind07",
    "/console/events?kind=fail",
    "/console/audit?kind=act",
    "/console/workloads/bulk?action=cancel&state=READY&definition_id=kind07",
)


class Cost(NamedTuple):
    """Milliseconds of the first time and of each further one."""

    first_ms: float
    again_ms: list[float]

    @property
    def usual_ms(self) -> float:
        """The median of the further ones."""
        return statistics.median(self.again_ms)


async def run(rows: int = ROWS, rounds: int = ROUNDS) -> bool:
    """Measure both; whether each question and each page stays within its bound."""
    began = time.perf_counter()
    # Nothing is past its time for as long as the bench runs, and the file is the same throughout.
    flags = ("--compact-every-ms", "86400000", "--open-signup")
    async with Daemon(*flags, prepare=partial(fill, rows)) as daemon:
        crew = await populate(daemon)
        await gates(daemon)
        bytes_ = daemon.data.stat().st_size
        took_s = time.perf_counter() - began
        print(f"{rows:,} workloads, {bytes_ / 1e9:.1f} GB, made in {took_s:.0f} s")
        good = await questions(daemon, crew, rounds)
        return await pages(daemon, crew, rounds) and good


async def populate(daemon: Daemon) -> list[Worker]:
    """Workers that are heard, each holding some work under a long lease."""
    crew = [await daemon.worker(f"live-{number:02}", 64) for number in range(WORKERS)]
    for worker_id, line, _row in crew:
        asked = {"max": HELD, "start": True, "lease_ms": 3_600_000}
        await line.call("POST", f"/v1/workers/{worker_id}/claims", asked)
    return crew


async def gates(daemon: Daemon) -> None:
    """One pool, one hold and one schedule, so that their pages have something to show."""
    call = daemon.operator.call
    pool = {"pool_id": "bench-pool", "tenant_id": TENANT, "name": "a pool", "max_concurrency": 9}
    await call("POST", "/v1/pools", pool | {"application_id": APPLICATION})
    hold = {"scope": "definition", "value": "kind39", "tenant_id": TENANT, "reason": "the bench"}
    await call("POST", "/v1/holds", hold)


async def questions(daemon: Daemon, crew: list[Worker], rounds: int) -> bool:
    """Each of the twenty, as often as `rounds` says."""
    given = {
        3: {"worker": crew[0][0]},
        6: {"minutes": 1440},
        16: {"id": DONE},
        18: {"minutes": 1440},
        20: {"worker": "past-003"},
    }
    print(f"{'a question':<62}{'rows':>8}{'first':>10}{'again':>10}{'at most':>9}")
    good = True
    for one in sql.questions():
        for named in _settings(one, given.get(one.number)):
            cost, found = await asyncio.to_thread(_asked, daemon.data, one, named, rounds)
            good = good and max(cost.first_ms, cost.usual_ms) <= QUESTION_MS_MAX
            what = f"{one.number} {one.name}" + (f" {named}" if named else "")
            print(
                f"{what[:61]:<62}{found:>8}{cost.first_ms:>7.0f} ms{cost.usual_ms:>7.0f} ms"
                f"{QUESTION_MS_MAX:>9.0f}",
                flush=True,
            )
    return good


def _settings(one: sql.Question, given: dict[str, Any] | None) -> list[dict[str, Any]]:
    """As it is asked without anything, where it may be, and with what the bench sets."""
    bare = all(item.default or item.says.startswith("only ") for item in one.parameters)
    return [*([{}] if bare else []), *([given] if given else [])]


def _asked(path: Path, one: sql.Question, given: dict[str, Any], rounds: int) -> tuple[Cost, int]:
    times = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        answer = query.ask(path, one.sql, given, rows_max=1_000, timeout_s=60)
        times.append(1e3 * (time.perf_counter() - began))
    return Cost(times[0], times[1:]), len(answer.rows)


async def pages(daemon: Daemon, crew: list[Worker], rounds: int) -> bool:
    """Each page of the console, its first view and some others, over one connection."""
    line = daemon.line(daemon.admin)
    grants = await daemon.operator.call("GET", "/v1/grants?limit=1")
    names = {
        "/console/workloads/{id}": DONE,
        "/console/workers/{id}": crew[0][0],
        "/console/pools/{id}": f"bench-pool?tenant_id={TENANT}",
        "/console/grants/{id}": grants["items"][0]["id"],
    }
    paths = [
        route.path.replace("{id}", names.get(route.path, ""))
        for route in console.ROUTES
        if route.method == "GET" and route.path not in NO_PAGES
        if "{id}" not in route.path or route.path in names
    ]
    print(f"{'a page':<62}{'kB':>8}{'first':>10}{'again':>10}{'at most':>9}")
    good = True
    for path in (*paths, *VIEWS):
        cost, size = await _opened(line, path, rounds)
        good = good and max(cost.first_ms, cost.usual_ms) <= PAGE_MS_MAX
        print(
            f"{path[:61]:<62}{size / 1e3:>8.0f}{cost.first_ms:>7.0f} ms{cost.usual_ms:>7.0f} ms"
            f"{PAGE_MS_MAX:>9.0f}",
            flush=True,
        )
    line.close()
    return good


async def _opened(line: Line, path: str, rounds: int) -> tuple[Cost, int]:
    times = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        try:
            page = await line.send("GET", path, b"")
        except Answered as answered:
            raise AssertionError(f"{path}: {answered.args[0]}") from answered
        times.append(1e3 * (time.perf_counter() - began))
    return Cost(times[0], times[1:]), len(page)

"""What a pull costs in a crowd: many kinds, many rows, many workers, beside work that may not run.

Two daemons stand side by side, one shallow (one kind, 1,000 rows), one deep (1,000 kinds, 100,000
READY rows, 200 workers that fit one, thirty or all kinds, 100,000 rows behind a key at its limit
and 100,000 not yet eligible). They are asked in turns, so that the machine's mood meets both.
"""

import sqlite3
import statistics
import time
from itertools import count, cycle
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import convert

from feltd.clock import Now, wall_ms
from feltd.identity import principals
from feltd.mesh import claims, creation, events
from feltd.model.base import Ask
from feltd.model.claim import Pull
from feltd.model.workload import Batch, Creation, NewWorkload
from feltd.store import connect
from feltd.store.tx import Tx
from tests.bench.cycles import Worker, fence
from tests.bench.machine import Daemon, workload

KINDS = 1_000
ROWS = 100_000
SHALLOW_ROWS = 1_000
WORKERS = 200
#: How many kinds a worker takes, 0: every kind.
POPULATIONS = {"fits one kind": 1, "fits thirty kinds": 30, "fits every kind": 0}
ROUNDS = 10
PULLS = 40
BATCH = 1_000
#: What depth may cost at most, of what it costs without.
HTTP_MAX = 1.3
RULE_MAX = 3.0
HOUR_MS = 3_600_000
KEY = {"key": "blocked", "limit": 1}

COPY = """
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
INSERT INTO workloads ({columns})
SELECT {values}
  FROM workloads w, n
"""


class Cost(NamedTuple):
    """Seconds of each pull of one population, deep and shallow."""

    deep: list[float]
    shallow: list[float]

    @property
    def ratio(self) -> float:
        """The median of the deep over that of the shallow."""
        return statistics.median(self.deep) / statistics.median(self.shallow)


async def run(rounds: int = ROUNDS) -> bool:
    """Measure over HTTP, then the rule alone on the files that are left; whether both hold."""
    async with Daemon() as shallow, Daemon(prepare=deepen) as deep:
        near = [await shallow.worker("near", 1_000)]
        await fill(shallow, SHALLOW_ROWS, "s")
        crowd = await populate(deep)
        over_http = await http(shallow, near, crowd, rounds)
        await shallow.stop()
        await deep.stop()
        in_rule = rule(
            shallow.data,
            near[0][0],
            deep.data,
            {name: [one[0] for one in workers] for name, workers in crowd.items()},
            rounds,
        )
    print(f"{KINDS:,} kinds, {ROWS:,} READY, {ROWS:,} behind a key, {ROWS:,} for later, ", end="")
    print(f"{WORKERS} workers; beside 1 kind, {SHALLOW_ROWS:,} READY")
    print(f"{'a pull that takes one':<34}{'deep p50':>12}{'shallow':>12}{'ratio':>8}{'at most':>9}")
    for where, costs, unit, most in (
        ("over HTTP", over_http, 1e3, HTTP_MAX),
        ("in the rule", in_rule, 1e6, RULE_MAX),
    ):
        for name, cost in costs.items():
            deep_p50, shallow_p50 = (unit * statistics.median(one) for one in cost)
            print(
                f"{f'{where}, {name}':<34}{deep_p50:>9.2f} {'ms' if unit == 1e3 else 'us'}"
                f"{shallow_p50:>9.2f} {'ms' if unit == 1e3 else 'us'}{cost.ratio:>8.2f}{most:>9.1f}"
            )
    return all(cost.ratio <= HTTP_MAX for cost in over_http.values()) and all(
        cost.ratio <= RULE_MAX for cost in in_rule.values()
    )


def kind(number: int) -> str:
    """The definition of one kind of work."""
    return f"kind{number:04d}"


async def fill(daemon: Daemon, rows: int, prefix: str) -> None:
    """Create so many workloads of one kind."""
    line = daemon.line(daemon.submitter)
    batch = [{**workload(f"{prefix}-{n}"), "definition_id": kind(0)} for n in range(rows)]
    await line.call("POST", "/v1/workloads/batch", {"workloads": batch})
    line.close()


def deepen(path: Path) -> None:
    """Make three rows of each kind by the rules: ready, behind the key, for later; and copies."""
    now = Now(wall_ms(), wall_ms())
    shapes: tuple[dict[str, Any], ...] = (
        {},
        {"priority": 9, "concurrency": KEY},
        {"not_before_at_ms": now.wall_ms + HOUR_MS},
    )
    asked = [
        {**workload(f"{n}-{place}"), "definition_id": kind(n), **members}
        for place, members in enumerate(shapes)
        for n in range(KINDS)
    ]
    conn = connect.open_local(path, read_only=False)
    conn.execute("BEGIN IMMEDIATE")
    tx = Tx(conn)
    for start in range(0, len(asked), BATCH):
        items = [Creation(body=convert(one, NewWorkload)) for one in asked[start : start + BATCH]]
        batch = Ask(caller=principals.OPEN, body=Batch(tuple(items)), fresh=str(start))
        creation.create_batch(tx, batch, now)
    events.seal(tx, now)
    _copy(conn, ROWS // KINDS - 1)
    conn.execute("COMMIT")
    conn.close()


def _copy(conn: sqlite3.Connection, copies: int) -> None:
    """Each row so many times more; a copy stands behind its original in the same lane."""
    columns = [
        row["name"] for row in conn.execute("SELECT name FROM pragma_table_info('workloads')")
    ]
    columns.remove("seq")
    own = {name: f"w.{name} || '-' || n.i" for name in ("workload_id", "idempotency_key")}
    values = ", ".join(own.get(name, f"w.{name}") for name in columns)
    conn.execute(COPY.format(columns=", ".join(columns), values=values), [copies])


async def populate(daemon: Daemon) -> dict[str, list[Worker]]:
    """Register the workers of the deep daemon, by population; one more holds the key."""
    holder = await daemon.worker("holder", 1)
    held = await pull(holder)
    assert len(held["claims"]) == 1, "the key is held from here on"
    crowd: dict[str, list[Worker]] = {name: [] for name in POPULATIONS}
    for number, (name, takes) in zip(range(WORKERS), cycle(POPULATIONS.items()), strict=False):
        kinds = [kind((number * 31 + n * 17) % KINDS) for n in range(takes)]
        worker = await daemon.worker(f"w{number}", 64, workload_kinds=kinds)
        await timed(worker)  # what fits is found once
        crowd[name].append(worker)
    return crowd


async def pull(worker: Worker) -> Any:
    """Take one, started, under a long lease."""
    worker_id, line, _row = worker
    asked = {"max": 1, "start": True, "lease_ms": HOUR_MS}
    return await line.call("POST", f"/v1/workers/{worker_id}/claims", asked)


async def timed(worker: Worker) -> float:
    """Seconds that one pull took; what it took is completed."""
    began = time.perf_counter()
    answer = await pull(worker)
    took = time.perf_counter() - began
    assert answer["claims"], answer["reasons"]
    (claim,) = answer["claims"]
    body = {**fence(claim), "output": None}
    await worker[1].call("POST", f"/v1/workloads/{claim['workload_id']}/complete", body)
    return took


async def http(
    shallow: Daemon, near: list[Worker], crowd: dict[str, list[Worker]], rounds: int
) -> dict[str, Cost]:
    """Pulls over HTTP, deep and shallow in turns."""
    costs = {name: Cost([], []) for name in crowd}
    turns = {name: cycle(workers) for name, workers in crowd.items()}
    numbers = count()
    for _ in range(rounds):
        await fill(shallow, PULLS * len(crowd), f"more{next(numbers)}")
        for name, cost in costs.items():
            for _ in range(PULLS):
                cost.deep.append(await timed(next(turns[name])))
                cost.shallow.append(await timed(near[0]))
    return costs


class File:
    """The database of a stopped daemon, and its rule run on it as the writer runs it."""

    def __init__(self, path: Path) -> None:
        self._conn = connect.open_local(path, read_only=False)
        self._memo: dict[Any, Any] = {}

    def pull(self, worker_id: str) -> float:
        """Seconds that one pull took in the rule; it is taken back, so that all meet the same."""
        now = Now(wall_ms(), wall_ms())
        ask = Ask(caller=principals.OPEN, body=Pull(start=True), id=worker_id)
        self._conn.execute("BEGIN IMMEDIATE")
        began = time.perf_counter()
        pulled = claims.pull(Tx(self._conn, self._memo), ask, now)
        took = time.perf_counter() - began
        self._conn.execute("ROLLBACK")
        assert len(pulled.claims) == 1, pulled.reasons
        return took

    def close(self) -> None:
        """Give the file back."""
        self._conn.close()


def rule(
    shallow: Path, near: str, deep: Path, crowd: dict[str, list[str]], rounds: int
) -> dict[str, Cost]:
    """Pulls in the rule alone, deep and shallow in turns."""
    surface, depth = File(shallow), File(deep)
    costs = {name: Cost([], []) for name in crowd}
    for name, worker_ids in crowd.items():
        for worker_id in worker_ids:  # what fits is found once, and pages are read
            depth.pull(worker_id)
            surface.pull(near)
        turns = cycle(worker_ids)
        for _ in range(rounds * PULLS):
            costs[name].deep.append(depth.pull(next(turns)))
            costs[name].shallow.append(surface.pull(near))
    surface.close()
    depth.close()
    return costs

"""What a long log of changes costs, and what cutting it costs those who claim meanwhile.

Reads: two daemons side by side, one with 1,000 changes, one with 1,000,000, asked in turns so that
the machine's mood meets both. Compaction: the long log is past its retention; claims are timed
while it rests and while it is cut, in turns too, and every promise is asked before, in between and
after. Compare only what stands in one run.
"""

import asyncio
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from feltd.clock import wall_ms
from feltd.store import connect
from tests.bench.cycles import Worker, fence
from tests.bench.fairness import at
from tests.bench.machine import TENANT, Daemon
from tests.bench.wire import Line

SHALLOW = 1_000
DEEP = 1_000_000
#: Changes a record has seen.
VERSIONS = 10
ROUNDS = 10
ASKED = 40
COLLECTION = "orders"
PAGE = 100
#: What depth may cost a read at most, and cutting the log the 99th percentile of a claim.
READ_MAX = 1.3
CLAIM_MAX = 3.0
#: The log is older than what is kept of it.
DAY_MS = 24 * 3_600_000
AGE_MS = 3 * DAY_MS
#: One stretch of claims; the log is cut in every other one, by a tenth of it until that is gone.
STRETCH_S = 5.0
PARTS = 10
READER = "reader"

LOG = """
INSERT INTO change_logs (tenant_id) VALUES (:tenant_id)
"""

HEAD = """
UPDATE change_logs SET head_seq = :rows, evaluated_seq = :rows WHERE tenant_id = :tenant_id
"""

# Each record in turn, round after round: its n-th change is its n-th version.
CHANGES = """
WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :rows)
INSERT INTO changes (tenant_id, seq, at_ms, kind, collection, record_id, version, before, after,
                     actor)
SELECT :tenant_id,
       i + 1,
       :at_ms,
       iif(i < :records, 'created', 'updated'),
       :collection,
       printf('order-%07d', i % :records),
       i / :records + 1,
       iif(i < :records, NULL, printf('{"paid":%d}', i / :records - 1)),
       printf('{"paid":%d}', i / :records),
       'service:shop'
  FROM n
"""

RECORDS = """
INSERT INTO records (tenant_id, collection, record_id, version, value, change_seq, created_at_ms,
                     created_by, updated_at_ms, updated_by, updated_key)
SELECT c.tenant_id, c.collection, c.record_id, c.version, c.after, c.seq, c.at_ms, c.actor,
       c.at_ms, c.actor, ''
  FROM changes c
 WHERE c.seq > :rows - :records
 ORDER BY c.seq
"""

COLLECTIONS = """
INSERT INTO collections (tenant_id, collection, records, bytes)
SELECT r.tenant_id, r.collection, count(*), sum(length(CAST(r.value AS BLOB)))
  FROM records r
 GROUP BY 1, 2
"""


# Who holds the whole log until it says otherwise.
CONSUMER = """
INSERT INTO consumers (tenant_id, name, ack_seq, acked_at_ms, created_at_ms, created_by)
VALUES (:tenant_id, :reader, 0, :at_ms, :at_ms, 'service:shop')
"""


def fill(rows: int, path: Path) -> None:
    """A log of so many changes, the newest of each record as it stands."""
    bounds = {
        "tenant_id": TENANT,
        "rows": rows,
        "records": rows // VERSIONS,
        "collection": COLLECTION,
        "reader": READER,
        "at_ms": wall_ms() - AGE_MS,
    }
    conn = connect.open_local(path, read_only=False)
    conn.execute("BEGIN IMMEDIATE")
    for statement in (LOG, CHANGES, HEAD, RECORDS, COLLECTIONS, CONSUMER):
        conn.execute(statement, {name: bounds[name] for name in bounds if f":{name}" in statement})
    conn.execute("COMMIT")
    conn.close()


async def run(rows: int = DEEP, rounds: int = ROUNDS) -> bool:
    """Measure reads, then compaction; whether both stay within their bounds."""
    cheap = await read(rows, rounds)
    return await compact(rows) and cheap


# -- reads -----------------------------------------------------------------------------------


async def read(rows: int, rounds: int) -> bool:
    """Whether no kind of read costs more with a long log."""
    # A day is long past for these rows: they stay because nothing is kept for less than for ever.
    keep = ("--retain-changes-ms", "0")
    shallow = Daemon(*keep, prepare=partial(fill, SHALLOW))
    deep = Daemon(*keep, prepare=partial(fill, rows))
    async with shallow, deep:
        lines = [(one.line(one.admin), count) for one, count in ((shallow, SHALLOW), (deep, rows))]
        spent: dict[str, list[list[float]]] = {name: [[], []] for name in reads(SHALLOW, 0)}
        for number in range(rounds * ASKED):
            for place, (line, count) in enumerate(lines):
                for name, path in reads(count, number).items():
                    took = await timed(line, path)
                    if number >= ASKED // 2:  # pages of the file are read once
                        spent[name][place].append(took)
    print(
        f"{'one read':<34}{f'{rows:,} changes':>20}{f'{SHALLOW:,}':>12}{'ratio':>8}{'at most':>9}"
    )
    good = True
    for name, (near, far) in spent.items():
        low, high = statistics.median(near), statistics.median(far)
        good = good and high / low <= READ_MAX
        figures = f"{1e3 * high:>17.2f} ms{1e3 * low:>9.2f} ms{high / low:>8.2f}{READ_MAX:>9.1f}"
        print(f"{name:<34}{figures}", flush=True)
    return good


def reads(rows: int, number: int) -> dict[str, str]:
    """Each kind of read, about another place in the log each time."""
    records = rows // VERSIONS
    record = f"/v1/collections/{COLLECTION}/records/order-{number * 7_919 % records:07d}"
    after = number * 104_729 % (rows - PAGE)
    of = f"tenant_id={TENANT}"
    return {
        "state version": f"/v1/state/version?{of}",
        "a record by its key": f"{record}?{of}",
        "where a record comes from": f"{record}/provenance?{of}",
        f"{PAGE} records": f"/v1/collections/{COLLECTION}/records?{of}&limit={PAGE}",
        f"{PAGE} changes": f"/v1/changes?{of}&after={after}&limit={PAGE}",
        "the newest changes": f"/v1/changes?{of}&after={rows - PAGE}&limit={PAGE}",
    }


async def timed(line: Line, path: str) -> float:
    """Seconds one GET took."""
    began = time.perf_counter()
    await line.call("GET", path)
    return time.perf_counter() - began


# -- compaction ------------------------------------------------------------------------------


async def compact(rows: int) -> bool:
    """Whether claims go on while the whole log is cut away, and every promise holds all along."""
    idle: list[float] = []
    cutting: list[float] = []
    # Nobody gives the reader up: what it has acknowledged is cut, when that is asked for.
    flags = ("--consumer-limit-ms", "0", "--compact-every-ms", str(DAY_MS))
    async with Daemon(*flags, prepare=partial(fill, rows)) as daemon:
        worker = await daemon.worker("steady", 64)
        good = check(daemon.data, "before")
        gone, freed, busy_s = 0, 0, 0.0
        while gone < rows:
            await daemon.fill(10_000, f"idle{len(idle)}")
            await stretch(daemon, worker, idle, asyncio.ensure_future(asyncio.sleep(STRETCH_S)))
            if gone >= freed:
                freed = min(rows, freed + -(-rows // PARTS))
                path = f"/v1/consumers/{READER}?tenant_id={TENANT}"
                await daemon.operator.call("PUT", path, {"ack": freed})
            began = time.perf_counter()
            cut = asyncio.ensure_future(cut_for(daemon, STRETCH_S))
            await stretch(daemon, worker, cutting, cut)
            busy_s += time.perf_counter() - began
            assert cut.result(), f"nothing more is cut after {gone:,} rows"
            gone += cut.result()
            if freed == gone <= rows // PARTS:
                good = check(daemon.data, "in between") and good
        good = check(daemon.data, "after") and good
    ratio = at(cutting, 0.99) / at(idle, 0.99)
    print(f"{'claims':<34}{'count':>8}{'p50 ms':>10}{'p99 ms':>10}")
    for name, spent in (("the log rests", idle), ("the log is cut", cutting)):
        figures = f"{1e3 * at(spent, 0.5):>10.2f}{1e3 * at(spent, 0.99):>10.2f}"
        print(f"{name:<34}{len(spent):>8}{figures}")
    print(f"{f'  times, at most {CLAIM_MAX:.0f}':<34}{'':>18}{ratio:>10.2f}")
    print(f"{gone:,} changes cut, {gone / busy_s:,.0f} a second", flush=True)
    return good and ratio <= CLAIM_MAX


async def stretch(
    daemon: Daemon, worker: Worker, spent: list[float], ends: "asyncio.Future[Any]"
) -> None:
    """Claim and complete in a row until something else has ended; seconds of each claim."""
    worker_id, line, _row = worker
    while not ends.done():
        began = time.perf_counter()
        asked = {"max": 1, "start": True}
        answer = await line.call("POST", f"/v1/workers/{worker_id}/claims", asked)
        spent.append(time.perf_counter() - began)
        (claim,) = msgspec.convert(answer["claims"], list[dict[str, Any]])
        body = {**fence(claim), "output": None}
        await line.call("POST", f"/v1/workloads/{claim['workload_id']}/complete", body)
        daemon.waiting -= 1


async def cut_for(daemon: Daemon, seconds: float) -> int:
    """Have the log cut for so long, or until there is nothing to cut; how many changes went."""
    line = daemon.line(daemon.admin)
    ends, gone, more = time.perf_counter() + seconds, 0, True
    while more and time.perf_counter() < ends:
        told = await line.call("POST", "/v1/compactions", {"dry_run": False})
        gone += told["pruned"].get("changes", 0)
        more = told["more"]
    line.close()
    return gone


def check(path: Path, when: str) -> bool:
    """Whether every promise holds, asked beside the daemon."""
    command = [sys.executable, "-m", "feltd", "check", "--data", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    print(f"feltd check {when}: {'every promise holds' if ran.returncode == 0 else ran.stdout}")
    return ran.returncode == 0

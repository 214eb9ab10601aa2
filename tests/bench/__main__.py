"""`python -m tests.bench [--quick]`: what feltd costs on this machine, as ratios within one run.

With `--depth` only what a pull costs in a crowd (see depth.py), with `--fairness` only what one
tenant's flood costs another's claims (see fairness.py), with `--state` only what a long log of
changes costs (see state.py), with `--operators` only what questions and pages take on a large file
(see operators.py), with `--programs` only what bad programs cost others (see programs.py), with
`--backup` only what a backup costs those at work (see backup.py); each ends 1 when that is too
much.

Client and daemon share the machine, the disk is the real one: compare lines of one run only. Each
line also says what it is of the bare HTTP floor at the same number of clients.
"""

import argparse
import asyncio
import platform
import sqlite3
import sys

from tests.bench import backup, cycles, depth, fairness, operators, programs, state
from tests.bench.cycles import Figure
from tests.bench.machine import Daemon

CLIENTS = (1, 16, 64)


def line(what: str, clients: int, rows: int | None, figure: Figure, floor: Figure) -> None:
    depth = "" if rows is None else f"{rows:,}"
    print(
        f"{what:<34}{clients:>8}{depth:>10}{figure.rate:>12,.0f}"
        f"{figure.rate / floor.rate:>10.2f}{figure.p50_ms:>10.2f}{figure.p99_ms:>10.2f}",
        flush=True,
    )


async def run(seconds: float, depths: tuple[int, ...], repeats: int) -> None:
    print(f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}")
    print(
        f"{'what':<34}{'clients':>8}{'waiting':>10}{'per second':>12}{'of floor':>10}"
        f"{'p50 ms':>10}{'p99 ms':>10}"
    )
    for turn in range(repeats):
        if repeats > 1:
            print(f"-- run {turn + 1} of {repeats}")
        floors = {clients: await cycles.floor(clients, seconds) for clients in CLIENTS}
        for clients in CLIENTS:
            line("bare HTTP floor (JSON POST)", clients, None, floors[clients], floors[clients])
        await _enqueue(seconds, floors)
        for rows in depths:
            await _cycles(seconds, rows, floors)


async def _enqueue(seconds: float, floors: dict[int, Figure]) -> None:
    async with Daemon() as daemon:
        for clients in CLIENTS:
            figure = await cycles.enqueue(daemon, clients, seconds, f"e{clients}")
            line("enqueue, one a call", clients, None, figure, floors[clients])
        figure = await cycles.enqueue_batches(daemon, 4, seconds, "b")
        line("enqueue, 200 a call", 4, None, figure, floors[16])


async def _cycles(seconds: float, rows: int, floors: dict[int, Figure]) -> None:
    """Every kind of cycle with at least `rows` waiting; the column says how many really did."""
    async with Daemon() as daemon:
        for clients in CLIENTS:
            workers = [await daemon.worker(f"w{clients}-{n}", 64) for n in range(clients)]
            kinds = (
                ("claim, complete: two calls", 2_000, cycles.single(workers, seconds)),
                ("claim + complete: one exchange", 4_000, cycles.exchanged(workers, seconds, 1)),
                (
                    "claim + complete: exchange of 32",
                    25_000,
                    cycles.exchanged(workers, seconds, 32),
                ),
                (
                    "the same over channels",
                    6_000,
                    cycles.channelled(daemon, workers, seconds, 1),
                ),
                (
                    "the same over channels, 32",
                    30_000,
                    cycles.channelled(daemon, workers, seconds, 32),
                ),
            )
            for what, rate, loop in kinds:
                await daemon.fill(rows + int(rate * seconds), f"{what[:3]}{rate}-{clients}")
                waiting = daemon.waiting
                figure = await loop
                daemon.waiting -= figure.done
                line(what, clients, waiting, figure, floors[clients])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 s a line instead of 10")
    parser.add_argument("--repeats", type=int, default=1, help="whole runs (default 1)")
    parser.add_argument("--depth", action="store_true", help="only what a pull costs in a crowd")
    parser.add_argument("--fairness", action="store_true", help="only what a flood costs others")
    parser.add_argument("--operators", action="store_true", help="only questions and pages")
    parser.add_argument("--state", action="store_true", help="only what a long log costs")
    parser.add_argument("--programs", action="store_true", help="only what bad programs cost")
    parser.add_argument("--backup", action="store_true", help="only what a backup costs")
    parser.add_argument(
        "--rows",
        type=int,
        default=state.DEEP,
        help="changes in the long log, or workloads in the large file",
    )
    given = parser.parse_args()
    if given.operators:
        rounds = 2 if given.quick else operators.ROUNDS
        sys.exit(0 if asyncio.run(operators.run(given.rows, rounds)) else 1)
    if given.state:
        good = asyncio.run(state.run(given.rows, 3 if given.quick else state.ROUNDS))
        sys.exit(0 if good else 1)
    if given.backup:
        rows = backup.ROWS if given.rows == state.DEEP else given.rows
        sys.exit(0 if asyncio.run(backup.run(rows, 1 if given.quick else backup.ROUNDS)) else 1)
    if given.programs:
        sys.exit(0 if asyncio.run(programs.run(1 if given.quick else programs.ROUNDS)) else 1)
    if given.fairness:
        good = asyncio.run(fairness.run(2 if given.quick else fairness.ROUNDS))
        sys.exit(0 if good else 1)
    if given.depth:
        sys.exit(0 if asyncio.run(depth.run(4 if given.quick else depth.ROUNDS)) else 1)
    asyncio.run(run(2.0 if given.quick else 10.0, (1_000, 100_000), given.repeats))


if __name__ == "__main__":
    main()

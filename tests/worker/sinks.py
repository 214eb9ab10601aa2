"""A process that writes to a sink under many tokens: `-m tests.worker.sinks KIND WHERE SEED`.

It ends with a line: how many of its writes were accepted, how many came too late.
"""

import os
import random
import sqlite3
import sys
from collections.abc import Callable

from feltd.worker import FileFence, PostgresFence, SqliteFence, StaleFence
from tests.worker.postgres import connect

WRITES = 200
TOKENS = 400


def sqlite_write(where: str) -> Callable[[int], None]:
    connection = sqlite3.connect(where, timeout=60, isolation_level=None)
    fence = SqliteFence(connection)

    def write(token: int) -> None:
        with fence.admit("row", token) as cursor:
            cursor.execute("INSERT INTO written (token) VALUES (?)", [token])

    return write


def postgres_write(where: str) -> Callable[[int], None]:
    fence = PostgresFence(connect(where, autocommit=os.getpid() % 2 == 0))

    def write(token: int) -> None:
        with fence.admit("row", token) as cursor:
            cursor.execute("INSERT INTO written (token) VALUES (%s)", [token])

    return write


def file_write(where: str) -> Callable[[int], None]:
    fence = FileFence(where)
    return lambda token: fence.write(token, f"{token}\n" * 50)


def crashing_file_write(where: str, step: int) -> None:
    """Replace a file under token 7 and die before the given step of it."""
    steps = iter(range(1_000))

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def run(*args: object) -> object:
            if next(steps) == step:
                os._exit(9)
            return call(*args)

        return run

    for name in ("fsync", "replace"):
        setattr(os, name, counted(getattr(os, name)))
    FileFence(where).write(7, "new")


def main() -> None:
    kind, where, number = sys.argv[1:]
    if kind == "crash":
        crashing_file_write(where, int(number))
        return
    write = {"sqlite": sqlite_write, "postgres": postgres_write, "file": file_write}[kind](where)
    rng = random.Random(int(number))
    accepted = late = 0
    for turn in range(WRITES):
        # Tokens drift upwards, as claims do, each process with laggards of its own.
        token = max(1, turn * TOKENS // WRITES + rng.randint(-60, 5))
        try:
            write(token)
            accepted += 1
        except StaleFence as stale:
            if stale.highest is None or stale.highest <= token:
                raise
            late += 1
    print(accepted, late)


if __name__ == "__main__":
    main()

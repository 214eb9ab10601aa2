"""Gives free pages at the end of the file back, a few at a time, between two batches.

A file of feltd is made with auto_vacuum = INCREMENTAL; of one that was not, free pages are used
again but never given back. Run on the writer's connection alone, never inside a transaction.
"""

import sqlite3
from typing import NamedTuple

#: auto_vacuum of a file that gives pages back when asked.
INCREMENTAL = 2

MODE = "PRAGMA auto_vacuum"
FREE = "PRAGMA freelist_count"
# PRAGMA takes no parameters: one statement for each size of a bite, so that none is formatted.
BITES = {
    8: "PRAGMA incremental_vacuum(8)",
    16: "PRAGMA incremental_vacuum(16)",
    32: "PRAGMA incremental_vacuum(32)",
    64: "PRAGMA incremental_vacuum(64)",
    128: "PRAGMA incremental_vacuum(128)",
}


class Bite(NamedTuple):
    """Pages that one bite gave back, pages that are free; whether this file can give any."""

    given: int
    free: int
    able: bool


def look(conn: sqlite3.Connection) -> Bite:
    """How many pages are free, without giving any back."""
    return Bite(0, _number(conn, FREE), _number(conn, MODE) == INCREMENTAL)


def bite(conn: sqlite3.Connection, pages: int) -> Bite:
    """Give back up to `pages` (one of BITES) in a commit of its own.

    Raises what SQLite does: the file is as before then.
    """
    found = look(conn)
    if not found.able or not found.free:
        return found
    # Each page is a row without a column: execute() would stop at the first, and here nothing is
    # open that executescript() could commit.
    conn.executescript(BITES[pages])
    left = _number(conn, FREE)
    return Bite(found.free - left, left, True)


def _number(conn: sqlite3.Connection, pragma: str) -> int:
    return int(conn.execute(pragma).fetchone()[0])

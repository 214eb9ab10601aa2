"""Somebody's own question to the file, beside a running daemon: it reads, briefly, and no secrets.

The connection is read-only as every reader's. An authorizer lets nothing through but reading:
digests of secrets read as NULL wherever they are named, other files are not attached, settings stay
as they are. A question ends at its time limit, so that it never holds back the WAL for long.
"""

import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from feltd.store.connect import open_local

#: What reads as NULL: with it a stolen page of output would let a guess be tested.
HIDDEN = frozenset(
    {("keys", "secret_digest"), ("sessions", "secret_digest"), ("users", "password_hash")}
)
#: The raw pages of the file hold them too.
CLOSED = frozenset({"sqlite_dbpage"})
#: Settings that tell; those in the second line tell of what they are given.
TELLING = frozenset(
    {"application_id", "collation_list", "compile_options", "data_version", "database_list"}
    | {"encoding", "freelist_count", "function_list", "journal_mode", "page_count", "page_size"}
    | {"schema_version", "table_list", "user_version"}
)
TELLING_OF = frozenset(
    {"foreign_key_list", "index_info", "index_list", "index_xinfo", "table_info", "table_xinfo"}
    | {"foreign_key_check", "integrity_check", "quick_check", "table_list"}
)
READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE})
#: How json_each and its like tell which columns they have. Nobody writes there: SQLite refuses it.
DECLARING = (sqlite3.SQLITE_UPDATE, "sqlite_master")
#: What SQLite says when it may not, or cannot.
REFUSED = frozenset(
    {"not authorized", "authorization denied", "attempt to write a readonly database"}
)
#: Between two looks at the clock: far below a millisecond of work.
STEPS = 10_000
#: Bytes of one value that a question makes: the largest stored one has a megabyte.
VALUE_BYTES_MAX = 32 * 1024 * 1024
#: Bytes of a whole answer, which is held in memory on the machine that the daemon runs on.
ANSWER_BYTES_MAX = 256 * 1024 * 1024
#: Bytes counted for a value besides its text.
CELL_BYTES = 64


class QueryProblem(ValueError):
    """A question that cannot be answered; the sentence says why."""


class Answer(NamedTuple):
    """`columns` name the values of each of `rows`; `more`: there were more rows than asked for."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    more: bool


class Bindings(dict[str, Any]):
    """Values by name. What a question names beyond them is NULL, as in the shell of SQLite.

    `asked` are the names it had.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return self.get(name)


def ask(
    path: Path, sql: str, given: Mapping[str, Any], *, rows_max: int, timeout_s: float
) -> Answer:
    """One question to the database at `path`, at most `rows_max` rows of its answer.

    Raises QueryProblem where SQLite refuses it, it would do more than read, or takes longer than
    `timeout_s`; StoreProblem where the file cannot be read.
    """
    conn = open_local(path)
    conn.row_factory = None
    conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
    ends_s = time.monotonic() + timeout_s
    conn.set_progress_handler(lambda: time.monotonic() > ends_s, STEPS)
    conn.set_authorizer(_may)
    bindings = Bindings(given)
    try:
        cursor = conn.execute(sql, bindings)
        rows = _fetched(cursor, rows_max + 1)
        if cursor.description is None:
            raise QueryProblem("the question is empty")
        columns = [named[0] for named in cursor.description]
    except (sqlite3.Error, sqlite3.Warning, OverflowError) as error:
        raise QueryProblem(_why(error, timeout_s)) from error
    except MemoryError as error:
        raise QueryProblem("there is no memory for the question: ask for less") from error
    finally:
        conn.close()
    if strange := set(given) - bindings.asked:
        raise QueryProblem(f"the question has no :{min(strange)}")
    return Answer(columns, rows[:rows_max], len(rows) > rows_max)


def _fetched(cursor: sqlite3.Cursor, rows_max: int) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    left = ANSWER_BYTES_MAX
    for row in cursor:
        left -= sum(
            CELL_BYTES + (len(value) if isinstance(value, str | bytes) else 0) for value in row
        )
        if left < 0:
            most = ANSWER_BYTES_MAX // 2**20
            raise QueryProblem(f"the answer is larger than {most} MiB: ask for less, or LIMIT it")
        rows.append(row)
        if len(rows) == rows_max:
            break
    return rows


def _may(action: int, first: str | None, second: str | None, *_where: str | None) -> int:
    """What SQLite may do for a question, asked for each part of it as it is prepared."""
    if action in READING or (action, first) == DECLARING:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_READ:
        if first in CLOSED:
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_IGNORE if (first, second) in HIDDEN else sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_DENY if second == "load_extension" else sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA:
        tells = first in TELLING if second is None else first in TELLING_OF
        return sqlite3.SQLITE_OK if tells else sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_DENY


def _why(error: Exception, timeout_s: float) -> str:
    text = str(error)
    if text == "interrupted":
        return f"the question was ended after {timeout_s:g} s: ask for less, or give it more time"
    if "one statement at a time" in text:
        return "one question at a time"
    if text in REFUSED or "may not be modified" in text:
        return "a question only reads: SELECT, EXPLAIN, and settings that tell"
    if "has no name" in text:
        return "a parameter has a name: write :name, not ?"
    return text

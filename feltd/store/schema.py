"""Whether a file still keeps the rules that its schema makes: the rules themselves, and each row.

SQLite tests a CHECK when a row is written and never again, and not at all for who asks it not to
(`ignore_check_constraints`); a trigger that was dropped guards nothing. So the shipped migrations
are played into an empty database, what stands there is compared with what the file has, and every
CHECK is asked of every row. A read-only connection does not even load them: they are asked as
queries.
"""

import re
import sqlite3
from collections.abc import Iterator

from feltd.store import migrate
from feltd.store.connect import memory

#: Rows named of one table: a person looks at the first ones.
NAMED_MAX = 5
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
QUOTES = {"'": "'", '"': '"', "`": "`", "[": "]"}

SCHEMA = """
SELECT type, name, tbl_name, sql
  FROM sqlite_schema
 WHERE sql IS NOT NULL
 ORDER BY type, name
"""

KEY = """
SELECT name
  FROM pragma_table_info(:name)
 WHERE pk > 0
 ORDER BY pk
"""


def shipped(applied: int) -> sqlite3.Connection:
    """An empty database in memory with the schema that the first `applied` migrations make."""
    conn = memory()
    for statement in migrate.LEDGER:
        conn.execute(statement)
    for migration in migrate.migrations()[:applied]:
        for statement in migrate.statements(migration.sql):
            conn.execute(statement)
    return conn


def altered(conn: sqlite3.Connection, pure: sqlite3.Connection) -> list[str]:
    """What of the shipped schema the file has not, or otherwise; empty where it is as shipped.

    Tables, views and indexes of somebody else are no harm; a trigger of his on a shipped table is.
    """
    ours = {(row["type"], row["name"]): row for row in pure.execute(SCHEMA)}
    found = {(row["type"], row["name"]): row for row in conn.execute(SCHEMA)}
    wrong = []
    for (kind, name), row in ours.items():
        if (kind, name) not in found:
            wrong.append(f"{kind} {name} is missing")
        elif _words(row["sql"]) != _words(found[kind, name]["sql"]):
            wrong.append(f"{kind} {name} is not as it was shipped")
    for (kind, name), row in found.items():
        if kind == "trigger" and (kind, name) not in ours and ("table", row["tbl_name"]) in ours:
            wrong.append(f"trigger {name} on {row['tbl_name']} is somebody else's")
    return wrong


def violations(conn: sqlite3.Connection, pure: sqlite3.Connection) -> list[str]:
    """Rows that break a CHECK of the shipped schema, some of each table, named by their keys.

    Reads every row of the tables that have one: about 2 s a million workloads.
    """
    wrong = []
    for row in pure.execute(SCHEMA).fetchall():
        rules = list(checks(row["sql"])) if row["type"] == "table" else []
        if rules:
            wrong += _violating(conn, row["name"], _key(pure, row["name"]), rules)
    return wrong


def checks(sql: str) -> Iterator[str]:
    """The conditions of a table's CHECKs, as they stand in its text."""
    place = 0
    before = ""
    while place < len(sql):
        begin, place = place, _past(sql, place)
        token = sql[begin:place]
        if token == "(" and before.upper() == "CHECK":
            place = _past_brackets(sql, begin)
            yield sql[begin + 1 : place - 1].strip()
        if not token.isspace() and not token.startswith(("--", "/*")):
            before = token


def _violating(
    conn: sqlite3.Connection, table: str, key: tuple[str, ...], rules: list[str]
) -> list[str]:
    # The text is that of the shipped migrations, never the file's own.
    columns = ", ".join(key)
    which = " ".join(f"WHEN NOT ({rule}) THEN {number}" for number, rule in enumerate(rules))
    broken = " OR ".join(f"NOT ({rule})" for rule in rules)
    sql = (
        f"SELECT {columns}, CASE {which} END FROM {table}"  # noqa: S608
        f" WHERE {broken} LIMIT {NAMED_MAX + 1}"
    )
    rows = conn.execute(sql).fetchall()
    told = []
    for row in rows[:NAMED_MAX]:
        *named, number = tuple(row)
        which_row = ", ".join(f"{name}={value}" for name, value in zip(key, named, strict=True))
        rule = " ".join(rules[number].split())
        told.append(f"{table} {which_row} breaks CHECK ({rule})")
    if len(rows) > NAMED_MAX:
        told.append(f"{table}: and more")
    return told


def _key(pure: sqlite3.Connection, table: str) -> tuple[str, ...]:
    names = tuple(row["name"] for row in pure.execute(KEY, {"name": table}))
    return names or ("rowid",)


def _words(sql: str) -> list[str]:
    """A schema's text without its comments, blanks and quotes of names, which say nothing.

    SQLite writes some of them itself when a table is renamed.
    """
    words = []
    place = 0
    while place < len(sql):
        begin, place = place, _past(sql, place)
        token = sql[begin:place]
        if token.isspace() or token.startswith(("--", "/*")):
            continue
        words.append(token if token[0] == "'" else token.strip('"`[]').upper())
    return words


def _past(sql: str, place: int) -> int:
    """The end of the token at `place`: a blank, comment, quoted text, word or single sign."""
    if sql.startswith("--", place):
        end = sql.find("\n", place)
        return len(sql) if end < 0 else end + 1
    if sql.startswith("/*", place):
        end = sql.find("*/", place)
        return len(sql) if end < 0 else end + 2
    sign = sql[place]
    if sign in QUOTES:
        end = sql.find(QUOTES[sign], place + 1)
        return len(sql) if end < 0 else end + 1
    if (word := WORD.match(sql, place)) is not None:
        return word.end()
    if sign.isspace():
        while place < len(sql) and sql[place].isspace():
            place += 1
        return place
    return place + 1


def _past_brackets(sql: str, place: int) -> int:
    """The end of the brackets that open at `place`."""
    depth = 0
    while place < len(sql):
        begin, place = place, _past(sql, place)
        depth += {"(": 1, ")": -1}.get(sql[begin:place], 0)
        if depth == 0:
            return place
    return len(sql)

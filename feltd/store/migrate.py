"""Brings the schema to the version this feltd ships, or says in a sentence why it may not.

Each .sql file and its version stamp are one explicit transaction, so a kill between any two
statements leaves nothing behind and the next start runs the file again. Never executescript: it
commits whatever is open first. Shipped files are append-only; their checksums are kept.
"""

import hashlib
import re
import sqlite3
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NamedTuple

from feltd.clock import wall_ms
from feltd.store.connect import APPLICATION_ID, StoreProblem, open_local, unusable

NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)

# The runner's own two tables: what was applied, and the row the readiness probe writes to.
LEDGER = (
    """
CREATE TABLE IF NOT EXISTS schema_migrations (
  number        INTEGER PRIMARY KEY,  -- of the file; the newest is the file's user_version
  name          TEXT    NOT NULL,     -- of the file
  sha256        TEXT    NOT NULL,     -- of its text, hex
  applied_at_ms INTEGER NOT NULL      -- wall time, milliseconds
) STRICT
""",
    """
CREATE TABLE IF NOT EXISTS storage_probe (
  probe_id     INTEGER PRIMARY KEY CHECK (probe_id = 1),
  probed_at_ms INTEGER NOT NULL       -- lease time of the last durable probe, milliseconds
) STRICT
""",
)

HAS_LEDGER = """
SELECT count(*)
  FROM sqlite_schema
 WHERE name = 'schema_migrations'
"""

HAS_ANYTHING = """
SELECT count(*)
  FROM sqlite_schema
"""

APPLIED = """
SELECT number, name, sha256
  FROM schema_migrations
 ORDER BY number
"""

RECORD = """
INSERT INTO schema_migrations (number, name, sha256, applied_at_ms)
VALUES (:number, :name, :sha256, :applied_at_ms)
"""


class Migration(NamedTuple):
    """One shipped file; `checksum` is the SHA-256 of its text, hex."""

    number: int
    name: str
    sql: str
    checksum: str


class Plan(NamedTuple):
    """What `apply` would do: the files already in, and those to come, by name."""

    version: int
    applied: list[str]
    pending: list[str]


def migrations(folder: Traversable | None = None) -> list[Migration]:
    """The shipped files in order, numbered from 1 without a gap."""
    found = []
    for file in (folder or _shipped()).iterdir():
        named = NAME.fullmatch(file.name)
        if named is None:
            if file.name.endswith(".sql"):
                raise _broken(f"{file.name} is not named like 0001_what_it_does.sql.")
            continue
        sql = file.read_text(encoding="utf-8")
        checksum = hashlib.sha256(sql.encode()).hexdigest()
        found.append(Migration(int(named[1]), file.name, sql, checksum))
    found.sort()
    numbers = [one.number for one in found]
    if not found or numbers != list(range(1, len(found) + 1)):
        raise _broken(f"Migrations are numbered {numbers}, not 1, 2, 3 …")
    return found


def apply(conn: sqlite3.Connection, folder: Traversable | None = None) -> list[str]:
    """Apply what is missing; the names of the files applied now.

    `conn` stands outside a transaction. Repeating applies nothing. A second process doing the
    same waits for each file and then finds it applied. Raises StoreProblem with nothing written
    when the database is another program's, newer, or was made by an edited file.
    """
    shipped = migrations(folder)
    _verify(conn, shipped)
    done = []
    for migration in shipped:
        conn.execute("BEGIN IMMEDIATE")
        try:
            if len(_verify(conn, shipped)) < migration.number:
                _run(conn, migration)
                done.append(migration.name)
            conn.execute("COMMIT")
        except BaseException:
            if conn.in_transaction:
                conn.execute("ROLLBACK")
            raise
    return done


def check(path: Path, folder: Traversable | None = None, *, deep: bool = False) -> Plan:
    """What `apply` would do with this file, which is only read.

    Raises StoreProblem where `apply` would refuse, and for an empty, foreign or broken file. With
    `deep` every page is read too (about 4 s a million workloads).
    """
    conn = open_local(path, read_only=True)
    try:
        conn.execute("BEGIN")
        plan = plan_of(conn, folder)
        if deep:
            damage = quick_check(conn)
            if damage:
                raise _damaged(path, damage[0])
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    finally:
        conn.close()
    return plan


def plan_of(conn: sqlite3.Connection, folder: Traversable | None = None) -> Plan:
    """The same for an open database. Raises StoreProblem where `apply` would refuse."""
    shipped = migrations(folder)
    applied, names = len(_verify(conn, shipped)), [one.name for one in shipped]
    return Plan(applied, names[:applied], names[applied:])


def quick_check(conn: sqlite3.Connection) -> list[str]:
    """What SQLite finds wrong in the file; empty when it is sound. Never raises for damage."""
    try:
        found = [str(row[0]) for row in conn.execute("PRAGMA quick_check(10)").fetchall()]
        if found == ["ok"]:
            broken = conn.execute("PRAGMA foreign_key_check").fetchall()
            return [f"a row of {row[0]} refers to a missing row of {row[2]}" for row in broken[:10]]
    except sqlite3.DatabaseError as error:
        # A damaged page makes the check itself raise instead of answering a row.
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_CORRUPT:
            raise
        return [str(error)]
    return found


def statements(sql: str) -> Iterator[str]:
    """The single statements of a script; the ';' inside triggers, texts and comments ends none."""
    start = 0
    end = sql.find(";")
    while end >= 0:
        if sqlite3.complete_statement(sql[start : end + 1]):
            yield sql[start : end + 1].strip()
            start = end + 1
        end = sql.find(";", end + 1)
    if COMMENT.sub("", sql[start:]).strip():
        raise _broken("A migration ends inside a statement.")


def _run(conn: sqlite3.Connection, migration: Migration) -> None:
    for statement in LEDGER:
        conn.execute(statement)
    for statement in statements(migration.sql):
        conn.execute(statement).fetchall()
        if not conn.in_transaction:
            raise _broken(f"{migration.name} ends its own transaction.")
    conn.execute(
        RECORD,
        {
            "number": migration.number,
            "name": migration.name,
            "sha256": migration.checksum,
            "applied_at_ms": wall_ms(),
        },
    )
    # PRAGMA takes no parameters; the number comes from a file name of four digits.
    conn.execute("PRAGMA user_version = " + str(migration.number))


def _verify(conn: sqlite3.Connection, shipped: list[Migration]) -> list[Migration]:
    """The shipped files this database has already; refuses a database they do not fit."""
    application_id = int(conn.execute("PRAGMA application_id").fetchone()[0])
    version = int(conn.execute("PRAGMA user_version").fetchone()[0])
    if application_id != APPLICATION_ID:
        raise StoreProblem(
            f"The database is another program's (application_id 0x{application_id:08x}).",
            "Name another file with --data.",
        )
    if version > len(shipped):
        raise StoreProblem(
            f"The database is newer than this feltd: schema {version}, known up to {len(shipped)}.",
            "Start the newer feltd again, or put a backup of before the upgrade in its place.",
        )
    applied = []
    if conn.execute(HAS_LEDGER).fetchone()[0]:
        applied = [tuple(row) for row in conn.execute(APPLIED).fetchall()]
    elif version or conn.execute(HAS_ANYTHING).fetchone()[0]:
        raise _altered(f"schema version {version} is claimed, but no migration is recorded")
    known = shipped[: len(applied)]
    for found, expected in zip(applied, known, strict=False):
        if found != (expected.number, expected.name, expected.checksum):
            raise _altered(f"{expected.name} was applied with another text than this feltd ships")
    if version != len(applied):
        raise _altered(f"schema version {version} is claimed, but {len(applied)} are recorded")
    return known


def _shipped() -> Traversable:
    packed = files("feltd") / "_migrations"
    if packed.is_dir():
        return packed
    return Path(__file__).resolve().parents[2] / "migrations"


def _altered(what: str) -> StoreProblem:
    return StoreProblem(
        f"The database does not fit this feltd: {what}.",
        "Start the feltd that made it, or put a backup in its place.",
    )


def _damaged(path: Path, what: str) -> StoreProblem:
    return StoreProblem(
        f"{path} is damaged: {what}.",
        "Stop, keep the file and its -wal together, and put a backup in their place.",
    )


def _broken(what: str) -> StoreProblem:
    return StoreProblem(what, "Install feltd again: its migrations are incomplete.")

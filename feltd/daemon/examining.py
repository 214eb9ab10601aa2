"""Whether a copy of a database is whole: its pages, its promises, its chain, its checksum.

A backup is examined before it gets its name, and again whenever somebody asks or puts it back. The
file is only read, and nobody may be serving it.
"""

import sqlite3
from functools import partial
from pathlib import Path
from typing import NamedTuple

from feltd.errors import Refused
from feltd.mesh import ledger
from feltd.state import promises
from feltd.store import copying, dialect, lock, migrate
from feltd.store.backup import Manifest, read_manifest
from feltd.store.connect import StoreProblem, open_copy, unusable
from feltd.store.tx import Row, Tx


class Examined(NamedTuple):
    """What was found: the ledger's row, the schema, and every broken promise in a line each.

    `asked` is False for a schema older than this feltd's: its promises cannot be asked before the
    next start has brought it up to date.
    """

    found: Row
    schema: int
    asked: bool
    broken: tuple[str, ...]


def examine(file: Path) -> Examined:
    """Read every page and ask every promise of a copy.

    Raises StoreProblem for a file that is damaged, no feltd database, or newer than this feltd.
    """
    conn = open_copy(file)
    try:
        plan = migrate.plan_of(conn)
        if damage := copying.damage(conn):
            told = "; ".join(line for one in damage[:3] for line in one.splitlines()[-1:])
            raise StoreProblem(f"{file} is damaged: {told}.", "Use another backup.")
        # A text that is none is told by its row, and ends no look at the others.
        conn.text_factory = partial(str, encoding="utf-8", errors="replace")
        conn.execute("BEGIN")
        tx = Tx(conn)
        broken: list[promises.Broken] = []
        if asked := not plan.pending:
            broken = promises.ask(tx) + promises.walk(tx)[1]
        told_of = tuple(f"{one.id} {one.says}: {one.rows[0]}" for one in broken)
        return Examined(ledger.read(tx), dialect.schema_version(tx), asked, told_of)
    except sqlite3.Error as error:
        raise unusable(file, error) from error
    except Refused as refused:
        raise StoreProblem(f"{file}: {refused.detail}.", "Use another backup.") from refused
    finally:
        conn.close()


def compare(file: Path) -> Manifest | None:
    """The manifest beside a copy, its length and checksum found to be the copy's; None for none.

    Raises StoreProblem naming what differs.
    """
    try:
        manifest = read_manifest(file)
    except ValueError as error:
        raise StoreProblem(
            f"{error}.", "Use another backup; without its manifest this one can still be read."
        ) from error
    if manifest is None:
        return None
    size = file.stat().st_size
    if size != manifest.bytes:
        raise StoreProblem(
            f"{file} has {size} bytes, and its manifest says {manifest.bytes}: it is not whole.",
            "Use another backup.",
        )
    if copying.digest(file)[0] != manifest.sha256:
        raise StoreProblem(
            f"{file} is not what was backed up: its SHA-256 differs from its manifest's.",
            "Use another backup.",
        )
    return manifest


def refuse_live(file: Path) -> None:
    """Refuse a database that somebody serves or writes to: its file alone is not all of it."""
    if file.is_dir():
        raise StoreProblem(f"{file} is not a file.", "Name the copy itself, feltd-….db.")
    for end in ("-wal", "-journal"):
        beside = file.with_name(file.name + end)
        if beside.exists() and beside.stat().st_size:
            raise StoreProblem(
                f"{beside} lies beside it: the file alone is not the whole database.",
                "Make a backup of a database with 'feltd backup create --data'.",
            )
    if (held := lock.holder(file)) is not None:
        raise StoreProblem(
            f"{file} is in use by process {held.pid or 'unknown'}.",
            "Make a backup of it with 'feltd backup create --data'.",
        )

"""From a path to an open database: what is there, whether it may be served, and from when.

The order is the point. The lock first, so that nobody else touches the file; then what can be told
without opening it (the mark, the tail of the WAL); then SQLite, the migrations, the check of the
pages, the clocks, the floor under the tokens. Whatever is wrong raises StoreProblem (or LockHeld)
with the way out, and the file is as it was.
"""

import asyncio
import os
import socket
import sqlite3
from pathlib import Path
from typing import NamedTuple

import structlog

from feltd.api.fresh import characters
from feltd.api.health import CLEAN, RECOVERED, Finding
from feltd.clock import LeaseClock, wall_ms
from feltd.config import Config, refuse_open_bind
from feltd.daemon.marks import Marker
from feltd.daemon.place import no_database
from feltd.errors import Refused
from feltd.identity import sessions
from feltd.mesh import chain, events, holds, ledger, vitals
from feltd.store import dialect, migrate, sidecar, walfile
from feltd.store.connect import Connection, StoreProblem, open_writer, verify
from feltd.store.sidecar import Mark
from feltd.store.tx import Row, Tx

#: A wall clock this far behind the last run's was set back by somebody who should say so.
CLOCK_BEHIND_MS_MAX = 86_400_000
#: Pages of a larger file are checked behind the first answers (about 4 s a million workloads).
CHECK_BEFORE_BYTES_MAX = 64 * 1024 * 1024
#: Beyond a tick a recovery may be this late before `feltd check` calls the promise broken.
RECOVER_SLACK_MS = 5_000

log = structlog.get_logger("feltd.start")


class Opened(NamedTuple):
    """An open database, ready to be written to by one daemon."""

    conn: Connection
    clock: LeaseClock
    marker: Marker
    finding: Finding
    schema_version: int
    #: Lease time since the last run wrote some down, given back to somebody; 0: to nobody.
    credited_ms: int
    #: The pages are still to be checked, beside serving.
    check_behind: bool
    #: The hold on everybody's work that stands, as a sentence; '' for none.
    held: str


class _Run(NamedTuple):
    """What the first transaction of a run answers."""

    floor: int
    found: Row
    schema_version: int
    #: Workers and leases that got the time back.
    credited: int
    held: str


async def open_database(config: Config) -> Opened:
    """Open the database whose lock is held. Raises StoreProblem, the file untouched."""
    path = config.path
    if not path.exists() and not path.is_symlink():
        raise no_database(path)
    # The tail is read while nothing of SQLite has been near the file: closing a file in a process
    # that has it open through SQLite would drop SQLite's locks.
    tail = await asyncio.to_thread(walfile.read_tail, path)
    verify(path)
    mark = sidecar.read(path)
    unclean = mark is None or not mark.clean
    size_bytes = path.stat().st_size
    conn = await open_writer(path)
    try:
        applied = await conn.run(migrate.apply)
        if applied:
            log.info("schema migrated", files=applied)
        check = unclean or config.check_at_start
        before = check and (size_bytes <= CHECK_BEFORE_BYTES_MAX or config.check_at_start)
        if before:
            await _check_pages(conn, path)
        found = await conn.run(_ledger)
        clock = _clock(config, found, mark)
        finding = find(found, mark, tail, await conn.run(lambda one: _head_of(one, mark)))
        run = await conn.run(lambda one: _begin_run(one, clock, config, finding, mark))
        marker = await asyncio.to_thread(Marker, path, run.found, run.floor, clock.now().lease_ms)
    except sqlite3.IntegrityError as error:
        await conn.close()
        raise StoreProblem(
            f"{path} contradicts itself: {error}.",
            "Put a whole backup in its place, without the -wal and -shm of the file it replaces.",
        ) from error
    except BaseException:
        await conn.close()
        raise
    return Opened(
        conn,
        clock,
        marker,
        finding,
        run.schema_version,
        clock.now().lease_ms - found["lease_ms"] if run.credited else 0,
        check and not before,
        run.held,
    )


def refuse_open_socket(config: Config, fd: int, named: str) -> None:
    """A socket that is handed in, by what is `named`, is held to the rule of --host.

    Raises ConfigProblem. What is no socket is refused where it is listened on.
    """
    try:
        with socket.socket(fileno=os.dup(fd)) as handed:
            name = handed.getsockname()
    except OSError:
        return
    if isinstance(name, tuple):
        refuse_open_bind(config, f"{named} {fd}, bound to", str(name[0]))


def find(
    found: Row, mark: Mark | None, tail: walfile.Tail | None, head_hash: str | None
) -> Finding:
    """What the start found, from the ledger, the mark, the WAL's tail and the marked audit hash.

    `head_hash` is the hash this database has where the mark names one, None without a mark.
    """
    served = found["served_at_ms"] is not None or _is_of_a_run(mark, found)
    last_stop = CLEAN if not served or (mark and mark.clean) else "unclean"
    detail: dict[str, int | None] = {}
    if served:
        if mark is None or mark.database != found["instance_id"]:
            detail["missing_commits"] = None
        elif found["commit_seq"] < mark.commit_seq:
            detail["missing_commits"] = mark.commit_seq - found["commit_seq"]
        elif head_hash != mark.audit_head.partition(":")[2]:
            # As many commits, but others: a copy that went its own way.
            detail["missing_commits"] = None
    if tail is not None:
        detail |= {"byte_offset": tail.byte_offset, "discarded_bytes": tail.discarded_bytes}
    return Finding(RECOVERED if detail else CLEAN, detail or None, last_stop)


def _is_of_a_run(mark: Mark | None, found: Row) -> bool:
    """Whether the mark tells of a run that this database has forgotten altogether."""
    if mark is None or mark.database != found["instance_id"]:
        return False
    return mark.commit_seq > int(found["commit_seq"])


def rolled_back(finding: Finding) -> bool:
    """Whether the database is an earlier one than was served."""
    return "missing_commits" in (finding.detail or {})


def _ledger(conn: sqlite3.Connection) -> Row:
    try:
        return ledger.read(Tx(conn))
    except Refused:
        raise StoreProblem(
            "The database was never initialised.", "Remove it and run 'feltd init'."
        ) from None


def _head_of(conn: sqlite3.Connection, mark: Mark | None) -> str | None:
    if mark is None:
        return None
    seq = mark.audit_head.partition(":")[0]
    return ledger.audit_hash(Tx(conn), int(seq)) if seq.isdigit() else ""


def _clock(config: Config, found: Row, mark: Mark | None) -> LeaseClock:
    stored_ms = max(found["lease_ms"], mark.lease_ms if mark else 0)
    behind_ms = stored_ms - wall_ms()
    if behind_ms > CLOCK_BEHIND_MS_MAX and not config.accept_clock:
        raise StoreProblem(
            f"The wall clock is {behind_ms // 3_600_000} hours behind the last run of this "
            "database.",
            "Set the clock right, or start once with --accept-clock.",
        )
    return LeaseClock(stored_ms)


def _begin_run(
    conn: sqlite3.Connection,
    clock: LeaseClock,
    config: Config,
    finding: Finding,
    mark: Mark | None,
) -> _Run:
    """The first commit of a run: the token floor, and what a restored file needs.

    Its claims and sessions end, and it gets another name: readers of changes see another history.
    """
    now = clock.now()
    ceiling = mark.ceiling if mark else 0
    opening = ledger.Opening(ceiling, config.tick_ms + RECOVER_SLACK_MS, finding.label)
    conn.execute("BEGIN IMMEDIATE")
    try:
        tx = Tx(conn)
        if rolled_back(finding):
            ledger.rename(tx, f"instance_{characters(16)}", now)
        try:
            floor = ledger.open_run(tx, opening, now)
        except ValueError as error:
            raise StoreProblem(
                f"The clock leaves {error}.", "Set the machine's clock right, then start again."
            ) from error
        chain.tell_inherited(tx, now)
        if rolled_back(finding):
            vitals.restore(tx, now)
            sessions.forget(tx)
        # In this commit, not the next: no file may say that it is now, and that leases lapsed
        # while nobody could renew them.
        credited = vitals.credit(tx, now, 0, True)
        if config.hold_claims:
            holds.hold_at_start(tx, now)
        held = holds.whole(tx)
        events.seal(tx, now)
        found = ledger.read(tx)
        schema_version = dialect.schema_version(tx)
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise
    return _Run(floor, found, schema_version, credited, held)


def first_damage(damage: list[str]) -> str:
    """The beginning of what is wrong with the pages, on one line."""
    lines = [line for line in "\n".join(damage).splitlines() if not line.startswith("***")]
    return "; ".join(lines[:3])


async def _check_pages(conn: Connection, path: Path) -> None:
    damage = await conn.run(migrate.quick_check)
    if damage:
        raise StoreProblem(
            f"{path} is damaged: {first_damage(damage)}.",
            "Stop, keep the file and its -wal together, and put a backup in their place.",
        )

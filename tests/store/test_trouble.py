"""What callers are told when the storage fails, when they wait too long, or when they leave."""

import asyncio
import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from feltd.clock import Now
from feltd.errors import Refused
from feltd.store import connect
from feltd.store import writer as writing
from feltd.store.tx import Tx
from feltd.store.writer import Writer
from tests.store.conftest import HandClock, OpenWriter
from tests.store.stories import Gate, add, add_and_tell, look, stamp

pytestmark = pytest.mark.anyio


async def refusal(waiting: Any) -> tuple[str, object]:
    """The code and `committed` of a submit that is refused."""
    with pytest.raises(Refused) as refused:
        await waiting
    return refused.value.code, refused.value.facts["committed"]


def limit_pages(tx: Tx, pages: int, now: Now) -> None:
    # PRAGMA takes no parameters; the number is the test's own.
    tx.rows("PRAGMA max_page_count = " + str(pages))


def add_much(tx: Tx, text: str, now: Now) -> int:
    return add(tx, text * 2_000_000, now)


Shell = Callable[[], sqlite3.Connection]


@pytest.fixture
def open_shell(path: Path) -> Iterator[Shell]:
    """Opens somebody's sqlite3 shell on the same file."""
    shells: list[sqlite3.Connection] = []

    def opened() -> sqlite3.Connection:
        shells.append(sqlite3.connect(path, isolation_level=None, check_same_thread=False))
        return shells[-1]

    yield opened
    for shell in shells:
        shell.close()


async def test_a_full_disk_takes_the_whole_batch_back_and_tells_everybody(
    open_writer: OpenWriter,
) -> None:
    """BC-078: 503 with a storage code, nothing acknowledged that is not stored, no latch."""
    told: list[object] = []
    writer = await open_writer(after_commit=told.append)
    await writer.submit(add, "before")
    await writer.submit(limit_pages, 40)

    gate = Gate()
    held = await gate.hold(writer)
    batch = [
        asyncio.create_task(refusal(one))
        for one in (
            writer.submit(add_and_tell, "innocent"),
            writer.submit(add_much, "x"),
        )
    ]
    await asyncio.sleep(0)
    gate.open()
    answers = [await refusal(held), *await asyncio.gather(*batch)]

    assert answers == [("STORAGE_FULL", False)] * 3
    assert told == []
    assert await writer.submit(look, None) == ["before"]
    assert writer.trouble is not None

    await writer.submit(limit_pages, 1_000_000)
    assert await writer.submit(add_much, "x") == 2
    assert writer.trouble is None
    assert writer.broken is None


async def test_a_disk_that_fills_at_commit_commits_nothing(open_writer: OpenWriter) -> None:
    """BC-078, where the page that finds no room is allocated before COMMIT itself."""

    def seal(tx: Tx, now: Now) -> None:
        tx.change("INSERT INTO commits (at_ms) VALUES (:at)", {"at": now.lease_ms})
        add_much(tx, "y", now)

    writer = await open_writer(before_commit=seal)
    await writer.submit(limit_pages, 40)

    assert await refusal(writer.submit(add, "one")) == ("STORAGE_FULL", False)
    assert await writer.submit(look, None) == []


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, "STORAGE_FULL"), (errno.EIO, "STORAGE_UNAVAILABLE")]
)
async def test_a_mark_that_cannot_be_written_before_commit_is_the_storages_failure(
    open_writer: OpenWriter, number: int, code: str
) -> None:
    def mark(tx: Tx, now: Now) -> None:
        raise OSError(number, os.strerror(number))

    writer = await open_writer(before_commit=mark)

    assert await refusal(writer.submit(add, "one")) == (code, False)
    assert await writer.submit(look, None) == []


async def test_a_shell_that_holds_the_lock_makes_storage_busy(
    open_writer: OpenWriter, open_shell: Shell
) -> None:
    """BC-066: no deferred upgrade, so the busy timeout counts; 503, nothing half done."""
    writer = await open_writer()
    await writer.submit(add, "before")
    shell = open_shell()
    shell.execute("BEGIN IMMEDIATE")

    answers = await asyncio.gather(
        *(refusal(writer.submit(add, str(number))) for number in range(3))
    )
    shell.execute("ROLLBACK")

    assert answers == [("STORAGE_BUSY", False)] * 3
    assert await writer.submit(look, None) == ["before"]
    assert writer.trouble is None
    await writer.submit(add, "after")


SCRATCH = """
import sqlite3, sys
shell = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=5)
shell.execute("PRAGMA wal_autocheckpoint = 0")
shell.execute("CREATE TABLE scratch (a)")
print("ready", flush=True)
for number in range(200):
    shell.execute("INSERT INTO scratch VALUES (1)")
    shell.execute("DELETE FROM scratch")
"""


async def test_operations_go_on_beside_a_shell_that_writes(
    open_writer: OpenWriter, path: Path
) -> None:
    """BC-066: a foreign loop of writes costs waiting, never a failure."""
    seen: list[int] = []
    writer = await open_writer(on_foreign_write=lambda tx, now: seen.append(now.lease_ms))
    await writer.submit(add, "first")
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCRATCH, str(path), stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    await other.stdout.readline()
    await asyncio.gather(*(writer.submit(add, str(number)) for number in range(300)))
    assert await other.wait() == 0

    assert len(await writer.submit(look, None)) == 301
    assert seen


async def test_a_foreign_write_is_noticed_once_and_ours_never(
    open_writer: OpenWriter, open_shell: Shell
) -> None:
    seen: list[int] = []

    def foreign(tx: Tx, now: Now) -> None:
        seen.append(len(tx.rows("SELECT note_id FROM notes")))

    writer = await open_writer(on_foreign_write=foreign)
    for _ in range(3):
        await writer.submit(add, "ours")
    assert seen == []

    open_shell().execute("INSERT INTO notes (text) VALUES ('foreign')")
    for _ in range(3):
        await writer.submit(add, "ours")

    assert seen == [4]


OTHER = b"another file"


def replace(path: Path) -> None:
    """Put another file in the database's place, as a careless restore does."""
    path.rename(path.with_name("moved.db"))
    path.write_bytes(OTHER)


def untouched(path: Path) -> bool:
    """Whether the other file is as it was put there."""
    return path.read_bytes() == OTHER


async def test_a_database_that_was_replaced_stops_the_writer(
    open_writer: OpenWriter, path: Path
) -> None:
    stopped: list[BaseException] = []
    writer = await open_writer(on_fatal=stopped.append)
    await writer.submit(add, "before")
    replace(path)

    assert await refusal(writer.submit(add, "orphan")) == ("STORAGE_UNAVAILABLE", False)
    assert len(stopped) == 1
    assert await refusal(writer.submit(look, None)) == ("STORAGE_UNAVAILABLE", False)
    assert untouched(path)


async def test_a_wal_that_was_removed_stops_the_writer(open_writer: OpenWriter, path: Path) -> None:
    """BC-071: writing into a deleted -wal is noticed before anything is acknowledged."""
    stopped: list[BaseException] = []
    writer = await open_writer(on_fatal=stopped.append)
    await writer.submit(add, "before")
    path.with_name("feltd.db-wal").unlink()

    assert await refusal(writer.submit(add, "orphan")) == ("STORAGE_UNAVAILABLE", False)
    assert len(stopped) == 1


async def test_a_damaged_page_ends_writing_but_not_the_daemon(
    open_writer: OpenWriter, path: Path
) -> None:
    stopped: list[BaseException] = []
    writer = await open_writer(on_fatal=stopped.append)

    def damaged(tx: Tx, cmd: None, now: Now) -> None:
        error = sqlite3.DatabaseError("database disk image is malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error

    assert await refusal(writer.submit(damaged, None)) == ("STORAGE_UNAVAILABLE", False)
    assert await refusal(writer.submit(add, "more")) == ("STORAGE_UNAVAILABLE", False)
    assert writer.broken is not None
    assert stopped == []


def test_an_io_error_at_commit_is_an_unknown_outcome_and_ends_the_daemon(
    path: Path, folder: Path
) -> None:
    """A write past RLIMIT_FSIZE fails inside COMMIT: nobody may be told it was not committed."""
    program = """
import asyncio, resource, sys
from pathlib import Path
from feltd.clock import Now
from feltd.errors import Refused
from feltd.store import connect, migrate
from feltd.store.writer import Writer
from tests.store.stories import add

async def main():
    path, folder = Path(sys.argv[1]), Path(sys.argv[2])
    conn = await connect.open_writer(path)
    await conn.run(lambda raw: migrate.apply(raw, folder))
    stopped = []
    writer = Writer(conn, path, lambda: Now(1, 1), on_fatal=stopped.append)
    await writer.submit(add, "small")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    for text in ("x" * 1_500_000, "small"):
        try:
            await writer.submit(add, text)
        except Refused as refused:
            print(refused.code, refused.facts["committed"], len(stopped))
    await writer.close()

asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(path), str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    )

    assert ended.stdout.splitlines() == [
        "OUTCOME_UNKNOWN unknown 1",
        "STORAGE_UNAVAILABLE False 1",
    ], ended.stderr


async def test_an_operation_not_started_by_its_deadline_never_runs(
    open_writer: OpenWriter,
) -> None:
    writer = await open_writer()
    gate = Gate()
    held = await gate.hold(writer)

    late = await refusal(writer.submit(add, "late", deadline_ms=10))
    gate.open()
    await held

    assert late == ("SERVICE_OVERLOADED", False)
    assert await writer.submit(look, None) == ["gate"]


async def test_an_operation_started_by_its_deadline_is_unknown_and_runs_on(
    open_writer: OpenWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "UNKNOWN_AFTER_S", 0.02)
    writer = await open_writer()
    gate = Gate()

    late = await refusal(await gate.hold(writer, deadline_ms=10))
    gate.open()

    assert late == ("OUTCOME_UNKNOWN", "unknown")
    assert await writer.submit(look, None) == ["gate"]


async def test_an_operation_that_ends_in_its_extra_time_is_answered(
    open_writer: OpenWriter,
) -> None:
    writer = await open_writer()
    gate = Gate()
    held = await gate.hold(writer, deadline_ms=1)
    await asyncio.sleep(0.02)
    gate.open()

    assert await held == 1


async def test_a_slow_commit_can_be_held_for_tests(open_writer: OpenWriter) -> None:
    writer = await open_writer()
    writer.slow_commit_ms = 50
    answer = asyncio.create_task(writer.submit(add, "slow", deadline_ms=1))
    await asyncio.sleep(0.03)

    assert not answer.done()
    assert await answer == 1


async def test_callers_that_leave_at_any_moment_leave_no_transaction_open(
    open_writer: OpenWriter, open_shell: Shell
) -> None:
    """BC-068: after 300 vanished callers the operator gets the lock and the next call is fine."""
    writer = await open_writer()

    async def vanish(number: int) -> str:
        call = asyncio.create_task(writer.submit(add, str(number), deadline_ms=100))
        await asyncio.sleep(number % 10 / 5_000)
        call.cancel()
        return "gone" if isinstance(await settled(call), asyncio.CancelledError) else str(number)

    async def settled(call: "asyncio.Task[int]") -> BaseException | None:
        await asyncio.wait([call])
        return asyncio.CancelledError() if call.cancelled() else call.exception()

    answered = await asyncio.gather(*map(vanish, range(300)))
    shell = open_shell()
    shell.execute("BEGIN IMMEDIATE")
    shell.execute("ROLLBACK")

    assert await writer.submit(add, "after") > 0
    stored = set(await writer.submit(look, None))
    assert {one for one in answered if one != "gone"} <= stored


async def test_a_caller_that_leaves_before_its_turn_takes_its_operation_along(
    open_writer: OpenWriter,
) -> None:
    writer = await open_writer()
    gate = Gate()
    held = await gate.hold(writer)
    left = asyncio.create_task(writer.submit(add, "left"))
    stays = asyncio.create_task(writer.submit(add, "stays"))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.sleep(0)
    gate.open()
    await asyncio.gather(held, stays)

    assert await writer.submit(look, None) == ["gate", "stays"]


class Credit:
    """Notes when the writer asks for the outage credit."""

    def __init__(self) -> None:
        self.given: list[tuple[int, bool]] = []

    def __call__(self, tx: Tx, now: Now, gap_ms: int, first: bool) -> None:
        self.given.append((gap_ms, first))

    def taken(self) -> list[tuple[int, bool]]:
        given, self.given = self.given, []
        return given


async def test_the_outage_credit_is_due_at_the_start_and_after_a_gap(
    open_writer: OpenWriter, clock: HandClock
) -> None:
    credit = Credit()
    writer = await open_writer(tick_ms=2_000, before_batch=credit)
    await writer.submit(add, "first")
    assert credit.taken() == [(0, True)]

    clock.later(6_000)
    await writer.submit(stamp, None)
    assert credit.taken() == []

    clock.later(6_001)
    await writer.submit(stamp, None)
    assert credit.taken() == [(6_001, False)]


async def test_the_outage_credit_is_due_when_writes_kept_failing(
    open_writer: OpenWriter, clock: HandClock
) -> None:
    """Reading batches in between are no proof that a heartbeat could be stored."""
    credit = Credit()
    writer = await open_writer(before_batch=credit)
    await writer.submit(add, "before")
    await writer.submit(limit_pages, 40)
    credit.taken()
    for _ in range(4):
        assert (await refusal(writer.submit(add_much, "x")))[0] == "STORAGE_FULL"
        await writer.submit(stamp, None)
        clock.later(1_000)
    await writer.submit(limit_pages, 1_000_000)
    credit.taken()

    await writer.submit(add, "after")
    await writer.submit(add, "later")

    assert credit.taken() == [(4_000, False)]


async def test_the_outage_credit_is_due_when_keep_alive_calls_kept_being_shed(
    open_writer: OpenWriter, clock: HandClock
) -> None:
    credit = Credit()
    writer: Writer = await open_writer(before_batch=credit)
    await writer.submit(add, "before")
    credit.taken()
    for _ in range(4):
        writer.note_shed_keep_alive()
        await writer.submit(add, "ordinary", tenant="acme")
        await writer.submit(add, "the daemon's own round", keep_alive=True)
        clock.later(1_000)
    await writer.submit(add, "beat", keep_alive=True, tenant="acme")
    await writer.submit(add, "ordinary")

    assert credit.taken() == [(4_000, False)]


async def test_a_hook_that_fails_takes_the_batch_back_and_runs_again(
    open_writer: OpenWriter,
) -> None:
    tries: list[bool] = []

    def credit(tx: Tx, now: Now, gap_ms: int, first: bool) -> None:
        tries.append(first)
        if len(tries) == 1:
            raise LookupError

    writer = await open_writer(before_batch=credit)
    with pytest.raises(RuntimeError):
        await writer.submit(add, "lost")
    await writer.submit(add, "kept")

    assert tries == [True, True]
    assert await writer.submit(look, None) == ["kept"]


async def test_the_wal_stays_short_and_a_long_reader_only_delays_that(
    open_writer: OpenWriter, path: Path
) -> None:
    """BC-074: the WAL's size is told, a reader lets it grow, and it shrinks once he is gone."""
    writer = await open_writer()
    for _batch in range(40):
        await asyncio.gather(*(writer.submit(add, "x" * 3_000) for _ in range(50)))
    assert writer.wal_bytes < 1_000 * 4_120

    reader = connect.open_local(path)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM notes").fetchone()
    for _batch in range(60):
        await asyncio.gather(*(writer.submit(add, "x" * 3_000) for _ in range(50)))
    grown = writer.wal_bytes
    assert grown > 1_500 * 4_120
    reader.close()
    done = await writer.checkpoint(truncate=True)

    assert not done.busy
    assert writer.wal_bytes == 0
    assert writer.wal_pages == 0

"""Operations are committed together, answered after the commit, each out of the others' way."""

import asyncio
from typing import Any

import pytest

from feltd.clock import Now
from feltd.errors import Refused
from feltd.store import batch, connect
from feltd.store.batch import OPERATIONS_MAX
from feltd.store.tx import Kept, Tx
from feltd.store.writer import Writer
from tests.store.conftest import HandClock, OpenWriter
from tests.store.stories import (
    Gate,
    add,
    add_and_tell,
    add_then_keep,
    add_then_refuse,
    look,
    stamp,
)

pytestmark = pytest.mark.anyio


class Ledger:
    """Keeps what the writer reports."""

    def __init__(self) -> None:
        self.operations: list[tuple[str, str]] = []
        self.batches: list[int] = []

    def operation(self, name: str, outcome: str, wait_s: float, run_s: float) -> None:
        assert wait_s >= 0
        assert run_s >= 0
        self.operations.append((name, outcome))

    def batch(self, size: int, commit_s: float) -> None:
        self.batches.append(size)


async def after_gate(writer: Writer, *waiting: Any) -> list[Any]:
    """Let the given submits queue behind a held operation, then let all run."""
    gate = Gate()
    held = await gate.hold(writer)
    tasks = [asyncio.create_task(one) for one in waiting]
    await asyncio.sleep(0)
    gate.open()
    await held
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_answer_comes_with_the_row_on_disk(open_writer: OpenWriter, path: Any) -> None:
    writer = await open_writer()

    note_id = await writer.submit(add, "hello")

    beside = connect.open_local(path)
    assert beside.execute("SELECT note_id, text FROM notes").fetchall()[0][:] == (note_id, "hello")
    beside.close()


async def test_the_writer_syncs_every_commit(open_writer: OpenWriter) -> None:
    """BC-081: FULL for whatever is acknowledged; nothing else is offered."""
    writer = await open_writer()

    def settings(tx: Tx, cmd: None, now: Now) -> list[int]:
        return [
            int(tx.rows(pragma)[0][0])
            for pragma in (
                "PRAGMA synchronous",
                "PRAGMA foreign_keys",
                "PRAGMA wal_autocheckpoint",
                "PRAGMA recursive_triggers",
                "PRAGMA trusted_schema",
                "PRAGMA cell_size_check",
                "PRAGMA mmap_size",
                "PRAGMA auto_vacuum",
                "PRAGMA busy_timeout",
            )
        ]

    assert await writer.submit(settings, None) == [2, 1, 0, 1, 0, 1, 0, 2, 2000]


async def test_a_refusal_takes_back_its_own_writes_and_no_others(open_writer: OpenWriter) -> None:
    writer = await open_writer()

    answers = await after_gate(
        writer,
        writer.submit(add, "first"),
        writer.submit(add_then_refuse, "refused"),
        writer.submit(add, "last"),
    )

    assert isinstance(answers[1], Refused)
    assert answers[1].code == "WORKLOAD_NOT_READY"
    assert await writer.submit(look, None) == ["gate", "first", "last"]


async def test_a_bug_in_one_operation_is_its_callers_alone(open_writer: OpenWriter) -> None:
    writer = await open_writer()

    def broken(tx: Tx, cmd: str, now: Now) -> None:
        add(tx, cmd, now)
        raise KeyError(cmd)

    def stopping(tx: Tx, cmd: str, now: Now) -> None:
        raise StopIteration

    answers = await after_gate(
        writer,
        writer.submit(broken, "lost"),
        writer.submit(stopping, "lost"),
        writer.submit(add, "forbidden"),
        writer.submit(add, "kept"),
    )

    assert [type(answer).__name__ for answer in answers[:3]] == [
        "KeyError",
        "RuntimeError",
        "IntegrityError",
    ]
    assert await writer.submit(look, None) == ["gate", "kept"]


async def test_a_kept_refusal_is_raised_after_its_writes_are_committed(
    open_writer: OpenWriter,
) -> None:
    told: list[list[tuple[str, str]]] = []
    writer = await open_writer(after_commit=told.append)

    with pytest.raises(Kept) as refused:
        await writer.submit(add_then_keep, "heard")

    assert refused.value.code == "WORKER_CLOCK_INVALID"
    assert await writer.submit(look, None) == ["heard"]
    assert told == [[("notes", "heard")]]


async def test_signals_are_told_once_a_batch_and_dropped_with_a_refusal(
    open_writer: OpenWriter,
) -> None:
    told: list[list[tuple[str, str]]] = []
    writer = await open_writer(after_commit=told.append)

    await after_gate(
        writer,
        writer.submit(add_and_tell, "same"),
        writer.submit(add_then_refuse, "dropped"),
        writer.submit(add_and_tell, "same"),
        writer.submit(add_and_tell, "other"),
    )

    assert [signal for batch in told for signal in batch].count(("notes", "dropped")) == 0
    assert all(len(batch) == len(set(batch)) for batch in told)
    assert {signal for batch in told for signal in batch} == {("notes", "same"), ("notes", "other")}


async def test_a_signal_comes_after_the_commit(open_writer: OpenWriter, path: Any) -> None:
    seen: list[int] = []

    def count(signals: list[tuple[str, str]]) -> None:
        beside = connect.open_local(path)
        seen.append(beside.execute("SELECT count(*) FROM notes").fetchone()[0])
        beside.close()

    writer = await open_writer(after_commit=count)
    await writer.submit(add_and_tell, "one")

    assert seen == [1]


async def test_what_waits_is_committed_in_one_transaction(open_writer: OpenWriter) -> None:
    ledger = Ledger()
    commits: list[int] = []
    writer = await open_writer(
        observer=ledger, before_commit=lambda tx, now: commits.append(now.lease_ms)
    )

    await after_gate(writer, *(writer.submit(add, str(number)) for number in range(100)))

    assert sum(ledger.batches) == 101
    # One with the gate, or a second one when the gate took longer than a batch may.
    assert len(ledger.batches) <= 2
    assert len(commits) == len(ledger.batches)
    assert ledger.operations[-1] == ("add", "ok")


async def test_a_batch_is_bounded(open_writer: OpenWriter) -> None:
    ledger = Ledger()
    writer = await open_writer(observer=ledger)

    await after_gate(writer, *(writer.submit(stamp, None) for _ in range(OPERATIONS_MAX * 2 + 10)))

    assert max(ledger.batches) <= OPERATIONS_MAX
    assert sum(ledger.batches) == OPERATIONS_MAX * 2 + 11


async def test_a_long_operation_ends_its_batch(open_writer: OpenWriter) -> None:
    ledger = Ledger()
    gate, later = Gate(), Gate()
    writer = await open_writer(observer=ledger)
    held = await gate.hold(writer)
    behind = [asyncio.create_task(writer.submit(later.rule, "slow"))]
    behind += [asyncio.create_task(writer.submit(add, str(number))) for number in range(5)]
    await asyncio.sleep(0.03)
    gate.open()
    await asyncio.to_thread(later.entered.wait, 30)
    await asyncio.sleep(0.03)
    later.open()
    await asyncio.gather(held, *behind)

    assert ledger.batches == [1, 1, 5]


async def test_keep_alive_calls_go_first_and_tenants_take_turns(open_writer: OpenWriter) -> None:
    writer = await open_writer()

    await after_gate(
        writer,
        *(writer.submit(add, f"flood {number}", tenant="loud") for number in range(4)),
        writer.submit(add, "quiet 0", tenant="quiet"),
        writer.submit(add, "quiet 1", tenant="quiet"),
        writer.submit(add, "beat loud", tenant="loud", keep_alive=True),
        writer.submit(add, "beat quiet", tenant="quiet", keep_alive=True),
    )

    assert await writer.submit(look, None) == [
        "gate",
        "beat loud",
        "beat quiet",
        "flood 0",
        "quiet 0",
        "flood 1",
        "quiet 1",
        "flood 2",
        "flood 3",
    ]


@pytest.mark.parametrize(("others", "batches"), [("loud", [6]), ("quiet", [3, 3])])
async def test_a_batch_of_several_tenants_ends_sooner(
    open_writer: OpenWriter, monkeypatch: pytest.MonkeyPatch, others: str, batches: list[int]
) -> None:
    """The quiet tenant is not answered before the COMMIT: a flood must not put it off."""
    monkeypatch.setattr(batch, "BATCH_S_MAX", 3_600.0)
    monkeypatch.setattr(batch, "SHARED_PART", 0.0)
    ledger = Ledger()
    writer = await open_writer(observer=ledger)
    gate = Gate()
    held = asyncio.create_task(writer.submit(gate.rule, "gate", tenant="loud"))
    await asyncio.to_thread(gate.entered.wait, 30)
    waiting = [
        asyncio.create_task(writer.submit(add, f"{number} of {tenant}", tenant=tenant))
        for number, tenant in enumerate(("loud", others, "loud", "loud", "loud"))
    ]
    await asyncio.sleep(0)
    gate.open()
    await asyncio.gather(held, *waiting)

    assert ledger.batches == batches


async def test_one_batch_has_one_time(open_writer: OpenWriter, clock: HandClock) -> None:
    writer = await open_writer()

    def drift(tx: Tx, cmd: None, now: Now) -> int:
        clock.later(7)
        return now.lease_ms

    answers = await after_gate(writer, *(writer.submit(drift, None) for _ in range(10)))

    assert set(answers) == {1_000_000}
    assert await writer.submit(stamp, None) == 1_000_070


async def test_before_commit_runs_in_the_same_transaction_and_only_for_changes(
    open_writer: OpenWriter,
) -> None:
    def seal(tx: Tx, now: Now) -> None:
        tx.change("INSERT INTO commits (at_ms) VALUES (:at)", {"at": now.lease_ms})

    def seals(tx: Tx, cmd: None, now: Now) -> int:
        return len(tx.rows("SELECT commit_id FROM commits"))

    writer = await open_writer(before_commit=seal)
    await writer.submit(add, "one")
    await writer.submit(look, None)
    with pytest.raises(Refused):
        await writer.submit(add_then_refuse, "nothing")

    assert await writer.submit(seals, None) == 1


async def test_close_commits_what_waits_and_refuses_what_comes(
    open_writer: OpenWriter, path: Any
) -> None:
    writer = await open_writer()
    gate = Gate()
    held = await gate.hold(writer)
    waiting = [asyncio.create_task(writer.submit(add, str(number))) for number in range(50)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(writer.close())
    await asyncio.sleep(0)
    with pytest.raises(Refused) as refused:
        await writer.submit(add, "too late")
    gate.open()
    await asyncio.gather(held, closing, *waiting)

    assert (refused.value.code, refused.value.facts["committed"]) == ("SERVICE_OVERLOADED", False)
    beside = connect.open_local(path)
    assert beside.execute("SELECT count(*) FROM notes").fetchone()[0] == 51
    beside.close()
    assert not path.with_name("feltd.db-wal").exists() or not (
        path.with_name("feltd.db-wal").stat().st_size
    )
    await writer.close()


async def test_the_number_of_waiting_operations_is_readable(open_writer: OpenWriter) -> None:
    writer = await open_writer()
    gate = Gate()
    held = await gate.hold(writer)
    given_up = asyncio.create_task(writer.submit(add, "given up"))
    waiting = asyncio.create_task(writer.submit(add, "waiting"))
    await asyncio.sleep(0)
    assert writer.waiting == 3

    given_up.cancel()
    await asyncio.sleep(0)
    assert writer.waiting == 2
    gate.open()
    await asyncio.gather(held, waiting)

    assert writer.waiting == 0


async def test_thousands_of_operations_from_many_callers_all_get_their_own_answer(
    open_writer: OpenWriter,
) -> None:
    writer = await open_writer()

    async def caller(name: int) -> list[tuple[int, str]]:
        return [
            (await writer.submit(add, f"{name}/{number}", tenant=str(name % 7)), f"{name}/{number}")
            for number in range(50)
        ]

    answered = [one for some in await asyncio.gather(*map(caller, range(64))) for one in some]

    def stored(tx: Tx, cmd: None, now: Now) -> dict[int, str]:
        return {row["note_id"]: row["text"] for row in tx.rows("SELECT note_id, text FROM notes")}

    assert await writer.submit(stored, None) == dict(answered)
    assert len(answered) == 64 * 50

"""Batches in slices: others have their turn in between, and the answer says what became of each."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from feltd.api import batches
from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import principals
from feltd.model.workload import NewBatch
from feltd.store import connect, migrate
from feltd.store.writer import Writer

SLICE = batches.SLICE_ITEMS


def docs(key: str, **members: Any) -> dict[str, Any]:
    asked = {"definition_id": "extract", "idempotency_key": key, "application_id": "docs"}
    return asked | members


@dataclass
class Call:
    """A batch call as its handler sees it, over a writer of its own."""

    app: Any
    body: NewBatch
    deadline_ms: int = 600_000
    by_itself: bool = False
    caller: Any = principals.OPEN
    tenant: str = ""
    traceparent: str | None = None
    query_string: bytes = b""
    headers: dict[bytes, str] = field(default_factory=dict)

    def decode(self, shape: type[object]) -> object:
        return self.body

    def header(self, name: bytes) -> str | None:
        return self.headers.get(name)

    def alone(self, for_s: float) -> bool:
        return self.by_itself

    async def answer(self) -> list[dict[str, Any]]:
        made = await batches.create_workloads(self)  # type: ignore[arg-type]
        items: list[dict[str, Any]] = msgspec.json.decode(made.body)["items"]
        return items


def batch_of(*items: dict[str, Any], atomic: bool = False) -> NewBatch:
    raws = [msgspec.Raw(msgspec.json.encode(item)) for item in items]
    return NewBatch(tuple(raws), atomic)


class Ledger:
    """How many operations the writer ran, by name."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def operation(self, name: str, outcome: str, wait_s: float, run_s: float) -> None:
        self.ran.append(name)

    def batch(self, size: int, commit_s: float) -> None:
        """Not looked at."""


@asynccontextmanager
async def opened(path: Path, ledger: Ledger | None = None) -> AsyncIterator[Any]:
    """The handler's surroundings over a real file."""
    conn = connect.open_local(path, read_only=False)
    migrate.apply(conn)
    conn.close()
    clock = Now(1_000_000, 1_000_000)
    writer = Writer(await connect.open_writer(path), path, lambda: clock, observer=ledger)
    try:
        yield SimpleNamespace(writer=writer, keyring=None)
    finally:
        await writer.close()


@pytest.mark.parametrize(
    ("atomic", "alone", "dependencies", "operations"),
    [
        (False, False, 0, 3),
        (False, True, 0, 1),
        (True, False, 0, 1),
        (False, False, batches.DEPENDENCIES_AN_ITEM, 5),
    ],
)
def test_a_batch_is_one_operation_a_slice_and_an_atomic_one_is_one(
    tmp_path: Path, atomic: bool, alone: bool, dependencies: int, operations: int
) -> None:
    """A slice is larger when no other tenant calls, and smaller when its items wait for many."""

    async def story() -> None:
        ledger = Ledger()
        async with opened(tmp_path / "feltd.db", ledger) as app:
            first = [docs(f"parent-{n}") for n in range(dependencies or 1)]
            parents = await Call(app, batch_of(*first)).answer()
            named = [parent["workload_id"] for parent in parents][:dependencies]
            items = [docs(f"k{n}", dependencies=named) for n in range(2 * SLICE + 1)]
            made = await Call(app, batch_of(*items, atomic=atomic), by_itself=alone).answer()
        assert [item["created"] for item in made] == [True] * len(items)
        assert len({item["workload_id"] for item in made}) == len(items)
        assert ledger.ran == ["create_batch"] * (1 + operations)

    asyncio.run(story())


def test_what_the_deadline_left_is_refused_and_the_rest_stands(tmp_path: Path) -> None:
    async def story() -> tuple[list[Any], list[Any]]:
        async with opened(tmp_path / "feltd.db") as app:
            body = batch_of(*(docs(f"k{n}") for n in range(8 * SLICE)))
            app.writer.slow_commit_ms = 1_000
            items = await Call(app, body, deadline_ms=1_500).answer()
            app.writer.slow_commit_ms = 0
            return items, await Call(app, body).answer()

    items, again = asyncio.run(story())
    made = [item for item in items if "workload_id" in item]
    assert len(items) == 8 * SLICE
    assert len(made) in (SLICE, 2 * SLICE)
    assert items[: len(made)] == made
    assert {item["code"] for item in items[len(made) :]} == {"SERVICE_OVERLOADED"}
    # What was answered as made was made once; the rest is made now.
    assert [one["workload_id"] for one in again[: len(made)]] == [
        one["workload_id"] for one in made
    ]
    assert [one["created"] for one in again] == [n >= len(made) for n in range(len(again))]


def test_another_tenant_waits_for_no_more_than_a_slice(tmp_path: Path) -> None:
    """Sent while sixty-four calls of the other are at work, its own is over before each of them."""

    async def story() -> list[str]:
        ended: list[str] = []
        async with opened(tmp_path / "feltd.db") as app:

            async def call(name: str, tenant: str, count: int) -> None:
                items = batch_of(*(docs(f"{name}-{n}") for n in range(count)))
                made = await Call(app, items, tenant=tenant).answer()
                assert all(item.get("created") for item in made), made
                ended.append(name)

            async with asyncio.TaskGroup() as calls:
                for number in range(64):
                    calls.create_task(call(f"loud-{number}", "loud", 2 * SLICE))
                calls.create_task(call("quiet", "quiet", 1))
        return ended

    assert asyncio.run(story())[0] == "quiet"


def conflicting(name: str) -> list[dict[str, Any]]:
    """Refused as a whole by its last item, when all of them have been at work."""
    items = [docs(f"{name}-{n}") for n in range(SLICE)]
    return [*items, docs(f"{name}-0", labels={"another": "body"})]


@pytest.mark.parametrize("refused", [False, True])
def test_the_answer_is_there_before_the_rest_and_the_rest_is_had_anyway(
    tmp_path: Path, refused: bool
) -> None:
    """However a batch ends: the tenant's next waits, another tenant's does not."""

    async def story() -> list[str]:
        ended: list[str] = []
        async with opened(tmp_path / "feltd.db") as app:

            async def call(name: str, tenant: str) -> None:
                await Call(app, batch_of(docs(name)), tenant=tenant).answer()
                ended.append(name)

            app.writer.slow_commit_ms = 50
            items = conflicting("loud") if refused else [docs("loud")]
            loud = Call(app, batch_of(*items, atomic=True), tenant="loud")
            if refused:
                with pytest.raises(Refused):
                    await loud.answer()
            else:
                await loud.answer()
            app.writer.slow_commit_ms = 0
            # Answered, and the turn is not yet given back.
            assert batches._turns["loud"].locked()
            async with asyncio.TaskGroup() as calls:
                calls.create_task(call("again", "loud"))
                for number in range(3):
                    calls.create_task(call(f"other-{number}", f"tenant-{number}"))
        return ended

    ended = asyncio.run(story())
    assert ended[-1] == "again"
    assert len(ended) == 4


def test_a_client_that_goes_away_saves_its_tenant_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        began, loop = asyncio.Event(), asyncio.get_running_loop()
        create_batch = batches.creation.create_batch

        def watched(*given: Any) -> Any:
            loop.call_soon_threadsafe(began.set)
            return create_batch(*given)

        monkeypatch.setattr(batches.creation, "create_batch", watched)
        async with opened(tmp_path / "feltd.db") as app:
            app.writer.slow_commit_ms = 100
            items = batch_of(docs("gone"), atomic=True)
            leaving = asyncio.create_task(Call(app, items, tenant="loud").answer())
            await began.wait()
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            assert batches._turns["loud"].locked()

    asyncio.run(story())


def test_what_never_began_is_not_rested_for(tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(tmp_path / "feltd.db") as app:
            app.writer.slow_commit_ms = 300
            first = asyncio.create_task(Call(app, batch_of(docs("first")), tenant="a").answer())
            await asyncio.sleep(0.05)
            with pytest.raises(Refused) as refused:
                await Call(app, batch_of(docs("late")), tenant="loud", deadline_ms=50).answer()
            assert refused.value.code == "SERVICE_OVERLOADED"
            assert "loud" not in batches._turns or not batches._turns["loud"].locked()
            await first

    asyncio.run(story())


def test_alone_nobody_rests(tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(tmp_path / "feltd.db") as app:
            items = batch_of(docs("one"), atomic=True)
            await Call(app, items, tenant="loud", by_itself=True).answer()
            assert "loud" not in batches._turns or not batches._turns["loud"].locked()

    asyncio.run(story())


def test_a_rest_has_an_end_however_slow_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tenant's next batch would be refused for nothing but its deadline."""
    work = batches._Make()
    assert work.rest_s(batches.ATOMIC_REST) == 0
    monkeypatch.setattr(batches.time, "monotonic", lambda: 100.0)
    work.began_s = 40.0
    assert work.rest_s(batches.ATOMIC_REST) == batches.REST_S_MAX
    work.began_s = 99.9
    assert work.rest_s(batches.REST) == pytest.approx(0.1)

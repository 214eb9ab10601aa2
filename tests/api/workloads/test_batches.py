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

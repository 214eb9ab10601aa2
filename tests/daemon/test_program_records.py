"""The records of a tenant as programs reach them, and which programs are known."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from feltd.clock import Now
from feltd.daemon.programs import TenantRecords
from feltd.errors import Refused
from feltd.executor.programs import BUILTINS, Catalogue
from feltd.executor.records import Held
from feltd.executor.steps import PROGRAMS, Failed
from feltd.mesh import ledger
from feltd.state import records
from feltd.state.writing import Writing
from feltd.store import connect, migrate
from feltd.store.readers import Readers
from feltd.store.tx import Tx
from feltd.store.writer import Writer

pytestmark = pytest.mark.anyio

NOBODY = Held("workload_none", "claim_1", "worker_none", 1, 1)
WELL = {"runtime": "pipeline", "steps": [{"op": "emit", "value": 1}]}
FLOOR = "UPDATE change_logs SET floor_seq = :seq, floor_at_ms = 1 WHERE tenant_id = 't'"
CUT = "DELETE FROM changes WHERE tenant_id = 't' AND seq <= :seq"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Shelf:
    """A database with the records of tenant t."""

    writer: Writer
    readers: Readers

    def __init__(self) -> None:
        self.now = Now(1_000_000, 1_000_000)

    def records(self, tenant_id: str = "t") -> TenantRecords:
        return TenantRecords(self.writer, self.readers, b"s" * 32, tenant_id)

    async def do(self, rule: Callable[[Tx, Now], Any]) -> Any:
        return await self.writer.submit(lambda tx, _, now: rule(tx, now), None)

    async def put(self, name: str, value: Any, collection: str = PROGRAMS) -> None:
        why, text = Writing("t", "service:app"), msgspec.json.encode(value, order="deterministic")
        await self.do(lambda tx, now: records.put(tx, now, why, collection, name, text))

    async def delete(self, name: str) -> None:
        why = Writing("t", "service:app")
        await self.do(lambda tx, now: records.delete(tx, now, why, PROGRAMS, name))

    async def cut(self, seq: int) -> None:
        await self.do(lambda tx, _: (tx.change(FLOOR, {"seq": seq}), tx.change(CUT, {"seq": seq})))


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Shelf]:
    shelf = Shelf()
    conn = await connect.open_writer(path)
    await conn.run(migrate.apply)
    shelf.writer = Writer(conn, path, lambda: shelf.now)
    await shelf.do(lambda tx, now: ledger.begin(tx, "instance_1", now))
    shelf.readers = await Readers.open(path, lambda: shelf.now)
    try:
        yield shelf
    finally:
        await shelf.readers.close()
        await shelf.writer.close()


async def test_programs_are_known_as_they_are_written(tmp_path: Path) -> None:
    async with opened(tmp_path / "f.db") as shelf:
        catalogue = Catalogue(shelf.records())
        await shelf.put("old", WELL)
        await shelf.put("odd", {"runtime": "other"})
        await shelf.put("search", WELL)
        await catalogue.follow()
        assert catalogue.definitions == BUILTINS | {"old"}
        await shelf.put("new", WELL)
        await shelf.put("odd", WELL)
        await shelf.put("twice", WELL)
        await shelf.delete("twice")
        await shelf.put("old", {"runtime": "other"})
        await catalogue.follow()
        assert catalogue.definitions == BUILTINS | {"new", "odd"}
        assert await catalogue.program("old") is None


async def test_a_log_that_was_cut_makes_it_look_at_every_program_again(tmp_path: Path) -> None:
    async with opened(tmp_path / "f.db") as shelf:
        catalogue = Catalogue(shelf.records())
        for name in ("a", "b"):
            await shelf.put(name, WELL)
        await catalogue.follow()
        await shelf.delete("a")
        await shelf.put("c", WELL)
        await shelf.cut(3)
        await catalogue.follow()
        assert catalogue.definitions == BUILTINS | {"b", "c"}


async def test_another_history_makes_it_look_at_every_program_again(tmp_path: Path) -> None:
    async with opened(tmp_path / "f.db") as shelf:
        catalogue = Catalogue(shelf.records())
        await shelf.put("a", WELL)
        await catalogue.follow()
        await shelf.delete("a")
        await shelf.do(lambda tx, now: ledger.rename(tx, "instance_2", now))
        await shelf.put("b", WELL)
        await catalogue.follow()
        assert catalogue.definitions == BUILTINS | {"b"}


async def test_a_rejected_program_stays_so_until_it_is_another(tmp_path: Path) -> None:
    async with opened(tmp_path / "f.db") as shelf:
        catalogue = Catalogue(shelf.records())
        await shelf.put("a", WELL)
        await catalogue.follow()
        program = await catalogue.program("a")
        assert program is not None
        catalogue.reject("a", program.text, "it does not compile")
        assert await catalogue.program("a") is None
        await shelf.put("a", {"runtime": "other"})
        await shelf.put("a", WELL)
        await catalogue.follow()
        assert "a" not in catalogue.definitions, "it is what it was"
        await shelf.put("a", {**WELL, "steps": [{"op": "emit", "value": 2}]})
        await catalogue.follow()
        assert "a" in catalogue.definitions
        assert await catalogue.program("a") is not None


async def test_what_is_found_ends_at_its_bytes_and_goes_on_behind_them(tmp_path: Path) -> None:
    async with opened(tmp_path / "f.db") as shelf:
        for number in range(9):
            await shelf.put(f"{number}", "needle" + "x" * 100_000, "c")
        asked = {"op": "search", "collection": "c", "query": "NEEDLE", "limit": 50, "cursor": None}
        seen: list[str] = []
        while True:
            found = await shelf.records().ask(NOBODY, {**asked, "bytes_max": 300_000})
            assert 1 <= len(found.items) <= 2
            assert len(msgspec.json.encode(found)) <= 300_000
            seen += [one.id for one in found.items]
            if found.complete:
                break
            asked["cursor"] = found.next_cursor
        assert seen == [str(number) for number in range(8, -1, -1)]


async def test_another_tenants_records_are_not_there(tmp_path: Path) -> None:
    async with opened(tmp_path / "f.db") as shelf:
        await shelf.put("1", "mine", "c")
        await shelf.put("a", WELL)
        other = shelf.records("other")
        assert await other.ask(NOBODY, {"op": "get", "collection": "c", "id": "1"}) is None
        assert await other.program("a") is None
        asked = {"op": "search", "collection": "c", "query": "mine", "limit": 5, "cursor": None}
        assert (await other.ask(NOBODY, {**asked, "bytes_max": 10_000})).items == ()


@pytest.mark.parametrize(("value", "status"), [("x" * 300_000, 422), (2**60, 422), ("a\x00b", 422)])
async def test_what_no_record_may_hold_is_refused_before_the_claim_is_looked_at(
    tmp_path: Path, value: Any, status: int
) -> None:
    async with opened(tmp_path / "f.db") as shelf:
        asked = {"op": "put", "collection": "c", "id": "1", "value": value}
        with pytest.raises(Failed) as refused:
            await shelf.records().ask(NOBODY, asked)
        assert refused.value.status == status


async def test_a_claim_that_is_none_writes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "f.db") as shelf:
        asked = {"op": "put", "collection": "c", "id": "1", "value": 1}
        with pytest.raises(Refused) as refused:
            await shelf.records().ask(NOBODY, asked)
        assert refused.value.code == "MESH_CLAIM_SCOPE_DENIED"


async def test_storage_that_is_closed_is_trouble_and_no_failure_of_the_program(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "f.db") as shelf:
        found = shelf.records()
    with pytest.raises(Failed) as refused:
        await found.ask(NOBODY, {"op": "get", "collection": "c", "id": "1"})
    assert refused.value.status == 503

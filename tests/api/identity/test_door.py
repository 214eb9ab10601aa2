"""The door's map: what it knows, when it looks again, and that it costs strangers nothing more."""

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from feltd.api import door as door_module
from feltd.api.door import Door, allow, tenant_filter, tenant_of
from feltd.api.fresh import key_material
from feltd.api.routes import Route
from feltd.clock import Now
from feltd.config import Config
from feltd.errors import Refused
from feltd.identity import keys
from feltd.identity.principals import LOCAL, OPEN
from feltd.mesh import ledger
from feltd.model.base import Ask, Caller, Subject
from feltd.model.key import CreateKey, KeyMade, RotateKey
from feltd.store import connect, migrate
from feltd.store.readers import Readers
from feltd.store.tx import Tx
from feltd.store.writer import Writer

pytestmark = pytest.mark.anyio

START_MS = 1_800_000_000_000
MINUTE_MS = 60_000


class Stage:
    """A writer, readers and a door on one file; wall time moves by hand."""

    def __init__(self) -> None:
        self.wall_ms = START_MS
        self.reads = 0
        #: What every reading fails with.
        self.trouble: Refused | None = None
        #: Held: a reading has read the database and waits for `gate` before it answers.
        self.gate: asyncio.Event | None = None
        self.held = asyncio.Event()
        self.door = Door(Config(), lambda: self.wall_ms)
        self.writer: Writer
        self.readers: Readers

    def now(self) -> Now:
        return Now(self.wall_ms, self.wall_ms)

    async def read(self, fn: Callable[..., Any], cmd: Any, timeout_ms: int = 0) -> Any:
        """What the door reads through: counted, and held after the database was read."""
        self.reads += 1
        if self.trouble is not None:
            raise self.trouble
        found = await self.readers.read(fn, cmd)
        if self.gate is not None:
            self.held.set()
            await self.gate.wait()
        return found

    async def key(self, **members: Any) -> KeyMade:
        body = CreateKey(**{"name": "x", "tenants": ("acme",), **members})
        ask = Ask(caller=LOCAL, body=body, fresh=key_material())
        return await self.writer.submit(keys.create, ask)

    async def revoke(self, made: KeyMade) -> None:
        await self.writer.submit(keys.revoke, Ask(caller=LOCAL, body=None, id=made.key_id))

    async def enters(self, made: KeyMade) -> Caller:
        return await self.door.caller(f"Bearer {made.secret}")

    async def refused(self, text: str) -> Refused:
        try:
            await self.door.caller(text)
        except Refused as refused:
            return refused
        raise AssertionError("it was let in")


@asynccontextmanager
async def staged(path: Path) -> AsyncIterator[Stage]:
    stage = Stage()
    conn = await connect.open_writer(path)
    await conn.run(migrate.apply)

    def told(signals: list[tuple[str, str]]) -> None:
        for topic, key in signals:
            stage.door.told(topic, key)

    stage.writer = Writer(conn, path, stage.now, after_commit=told)
    await stage.writer.submit(lambda tx, cmd, now: ledger.begin(tx, "instance_1", now), None)
    stage.readers = await Readers.open(path, stage.now)
    try:
        await stage.door.fill(stage)  # type: ignore[arg-type]
        yield stage
    finally:
        await stage.readers.close()
        await stage.writer.close()


async def test_a_known_key_is_let_in_without_a_read(tmp_path: Path) -> None:
    async with staged(tmp_path / "f.db") as stage:
        made = await stage.key()
        caller = await stage.enters(made)
        reads = stage.reads

        for _ in range(3):
            assert await stage.enters(made) is caller

        assert stage.reads == reads == 2
        assert caller.key_id == made.key_id


async def test_the_scheme_is_known_in_any_case(tmp_path: Path) -> None:
    async with staged(tmp_path / "f.db") as stage:
        made = await stage.key()
        for scheme in ("Bearer", "bearer", "BEARER"):
            assert (await stage.door.caller(f"{scheme} {made.secret}")).key_id == made.key_id
        for scheme in ("Basic ", "Token  "):
            assert (await stage.refused(f"{scheme} {made.secret}")).code == "UNAUTHENTICATED"


async def test_strangers_cost_no_read(tmp_path: Path) -> None:
    async with staged(tmp_path / "f.db") as stage:
        for text in ("Bearer x", "Bearer " + "0" * 69, None):
            assert (await stage.refused(str(text))).code == "UNAUTHENTICATED"
        made_up = door_module.bearer.bearer("s", key_material())
        assert (await stage.refused(f"Bearer {made_up}")).code == "UNAUTHENTICATED"

        assert stage.reads == 1


async def test_keys_that_cannot_be_read_let_nobody_in_and_are_logged_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with staged(tmp_path / "f.db") as stage:
        made = await stage.key()
        stage.trouble = Refused("STORAGE_UNAVAILABLE", "the database could not be read")
        for _ in range(3):
            assert (await stage.refused(f"Bearer {made.secret}")).code == "STORAGE_UNAVAILABLE"
        assert capsys.readouterr().out.count("bearer authentication worker failed") == 1

        stage.trouble = None
        assert (await stage.enters(made)).key_id == made.key_id


async def test_a_revocation_holds_at_the_next_call(tmp_path: Path) -> None:
    async with staged(tmp_path / "f.db") as stage:
        made = await stage.key()
        await stage.enters(made)

        await stage.revoke(made)

        refused = await stage.refused(f"Bearer {made.secret}")
        assert refused.facts["reasons"][0]["code"] == "revoked"


async def test_a_revocation_during_a_reading_is_not_overwritten_by_what_was_read_before(
    tmp_path: Path,
) -> None:
    """BC-089: the reading saw the key alive, the commit came after it."""
    for blank in (False, True):
        async with staged(tmp_path / f"{blank}.db") as stage:
            made = await stage.key()
            if blank:
                stage.door.told("foreign_write", "")
            stage.gate = asyncio.Event()
            early = asyncio.create_task(stage.enters(made))
            await stage.held.wait()
            await stage.revoke(made)
            late = asyncio.create_task(stage.enters(made))
            await asyncio.sleep(0)

            stage.gate.set()

            for task in (early, late):
                with pytest.raises(Refused) as refused:
                    await task
                assert refused.value.facts["reasons"][0]["code"] == "revoked"


async def test_a_foreign_write_during_a_reading_makes_it_read_again(tmp_path: Path) -> None:
    async with staged(tmp_path / "f.db") as stage:
        made = await stage.key()
        stage.gate = asyncio.Event()
        stage.door.told("foreign_write", "")
        entering = asyncio.create_task(stage.enters(made))
        await stage.held.wait()
        stage.door.told("foreign_write", "")
        stage.gate.set()

        assert (await entering).key_id == made.key_id
        assert stage.reads == 3


async def test_a_key_that_changed_twice_is_still_let_in(tmp_path: Path) -> None:
    async with staged(tmp_path / "f.db") as stage:
        made = await stage.key()
        entering = asyncio.create_task(stage.enters(made))
        for _ in range(5):
            await asyncio.sleep(0.002)
            stage.door.told("key", made.key_id)

        assert (await entering).key_id == made.key_id
        assert (await stage.enters(made)).key_id == made.key_id


async def test_many_waiting_share_one_reading(tmp_path: Path) -> None:
    async with staged(tmp_path / "f.db") as stage:
        made = [await stage.key() for _ in range(20)]

        await asyncio.gather(*(stage.enters(one) for one in made))

        assert stage.reads == 2


async def test_a_failed_reading_forgets_nothing(tmp_path: Path) -> None:
    async with staged(tmp_path / "f.db") as stage:
        made = await stage.key()

        async def fail(*_: object) -> None:
            raise Refused("STORAGE_UNAVAILABLE", "the disk is gone", committed=False)

        stage.read, read = fail, stage.read  # type: ignore[method-assign, assignment]
        for _ in range(2):
            assert (await stage.refused(f"Bearer {made.secret}")).code == "STORAGE_UNAVAILABLE"
        stage.read = read  # type: ignore[method-assign]

        assert (await stage.enters(made)).key_id == made.key_id


async def test_a_caller_that_goes_away_does_not_end_the_reading_of_others(tmp_path: Path) -> None:
    async with staged(tmp_path / "f.db") as stage:
        made = await stage.key()
        stage.gate = asyncio.Event()
        gone, stays = (asyncio.create_task(stage.enters(made)) for _ in range(2))
        await stage.held.wait()
        gone.cancel()
        stage.gate.set()

        assert (await stays).key_id == made.key_id
        assert stage.reads == 2


async def test_a_key_expires_in_memory_too(tmp_path: Path) -> None:
    async with staged(tmp_path / "f.db") as stage:
        made = await stage.key(expires_at_ms=START_MS + 1_000)
        stage.wall_ms += 999
        await stage.enters(made)
        stage.wall_ms += 1

        refused = await stage.refused(f"Bearer {made.secret}")
        assert refused.facts["reasons"][0]["code"] == "expired"


async def test_a_rotated_key_goes_on_until_its_overlap_ends(tmp_path: Path) -> None:
    async with staged(tmp_path / "f.db") as stage:
        old = await stage.key()
        ask = Ask(
            caller=LOCAL, body=RotateKey(overlap_ms=1_000), id=old.key_id, fresh=key_material()
        )
        new = await stage.writer.submit(keys.rotate, ask)

        assert (await stage.enters(old)).subject == (await stage.enters(new)).subject
        stage.wall_ms += 1_000
        assert (await stage.refused(f"Bearer {old.secret}")).facts["reasons"]
        await stage.enters(new)


async def test_use_is_noted_once_a_minute_and_key(tmp_path: Path) -> None:
    async with staged(tmp_path / "f.db") as stage:
        one, two = await stage.key(), await stage.key()
        for made in (one, two, one, one):
            await stage.enters(made)
        minute = START_MS // MINUTE_MS * MINUTE_MS

        used = stage.door.take_used()
        assert sorted(used) == sorted([(one.key_id, minute), (two.key_id, minute)])
        await stage.writer.submit(keys.note_used, used)
        await stage.enters(one)
        assert stage.door.take_used() == []
        stage.wall_ms += MINUTE_MS
        await stage.enters(one)
        assert stage.door.take_used() == [(one.key_id, minute + MINUTE_MS)]


async def test_unknown_wrong_and_ended_take_the_same_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BC-095: one hash and one comparison of equal lengths, whoever knocks."""
    async with staged(tmp_path / "f.db") as stage:
        good, gone = await stage.key(), await stage.key()
        await stage.enters(gone)
        await stage.revoke(gone)
        await stage.refused(f"Bearer {gone.secret}")
        await stage.enters(good)
        work: list[tuple[str, int, int]] = []

        def compare(one: bytes, other: bytes) -> bool:
            work.append(("compare", len(one), len(other)))
            return hmac.compare_digest(one, other)

        def sha256(text: bytes) -> Any:
            work.append(("hash", len(text), 0))
            return hashlib.sha256(text)

        class Spied:
            compare_digest = staticmethod(compare)

        class Hashing:
            pass

        Hashing.sha256 = staticmethod(sha256)  # type: ignore[attr-defined]
        monkeypatch.setattr(door_module, "hmac", Spied)
        monkeypatch.setattr(door_module, "hashlib", Hashing)

        paths, told = [], []
        bearer = door_module.bearer
        for key_id in (good.key_id, gone.key_id, "000000000000"):
            work.clear()
            text = bearer.bearer("s", key_id + key_material()[12:])
            refused = await stage.refused(f"Bearer {text}")
            paths.append(tuple(work))
            told.append((refused.code, refused.detail, refused.facts))

        assert len(set(paths)) == 1
        assert paths[0] == (("hash", 69, 0), ("compare", 32, 32))
        assert told[0] == told[1] == told[2]


# Routes and tenants


async def _handler(request: Any) -> Any:
    return request


def route(auth: Any, scope: str | None = None, path: str = "/v1/things/{id}") -> Route:
    return Route(
        method="GET",
        path=path,
        operation="x",
        tag="x",
        handler=_handler,
        summary="x",
        scope=scope,
        auth=auth,
    )


def caller(**members: Any) -> Caller:
    return Caller(**{"subject": Subject(kind="service", id="x"), "tenants": ("acme",), **members})


EVERY = caller(tenants=("*",), scopes=frozenset({"*"}))
WORKER = caller(subject=Subject(kind="worker", id="w1"), worker_id="w1")


@pytest.mark.parametrize(
    ("who", "auth", "scope", "path", "enters"),
    [
        (caller(), "any", None, "/v1/auth/me", True),
        (WORKER, "any", None, "/v1/auth/me", True),
        (caller(), "scope", "a:b", "/v1/things", False),
        (caller(scopes=frozenset({"a:b"})), "scope", "a:b", "/v1/things", True),
        (caller(scopes=frozenset({"*"})), "scope", "a:b", "/v1/things", True),
        (LOCAL, "scope", "a:b", "/v1/things", True),
        (OPEN, "scope", "a:b", "/v1/things", True),
        (WORKER, "scope", "a:b", "/v1/things", False),
        (caller(scopes=frozenset({"metrics:read"})), "scope", "metrics:read", "/metrics", False),
        (EVERY, "scope", "metrics:read", "/metrics", True),
        (LOCAL, "scope", "daemon:operate", "/v1/health/acknowledge", True),
        (WORKER, "worker", None, "/v1/workers/{id}/heartbeat", True),
        (OPEN, "worker", None, "/v1/workers/{id}/heartbeat", True),
        (LOCAL, "worker", None, "/v1/workers/{id}/heartbeat", False),
        (caller(scopes=frozenset({"*"})), "worker", None, "/v1/workers/{id}/heartbeat", False),
    ],
)
async def test_who_may_use_which_route(
    who: Caller, auth: str, scope: str | None, path: str, enters: bool
) -> None:
    wanted = route(auth, scope, path)
    if enters:
        allow(wanted, who, {"id": "w1"})
    else:
        with pytest.raises(Refused, match="FORBIDDEN"):
            allow(wanted, who, {"id": "w1"})


@pytest.mark.parametrize("auth", ["any", "worker"])
async def test_a_worker_key_is_good_for_no_path_under_another_worker(auth: str) -> None:
    for path in ("/v1/workers/{id}", "/v1/workers/{worker_id}/drain"):
        with pytest.raises(Refused, match="FORBIDDEN"):
            allow(route(auth, None, path), WORKER, {"id": "w2"})


class Call:
    """As much of a request as the tenant of it needs."""

    def __init__(self, who: Caller, header: str | None = None, query: bytes = b"") -> None:
        self.caller = who
        self.query_string = query
        self.route = route("any")
        self._header = header

    def header(self, name: bytes) -> str | None:
        return self._header if name == b"x-feltd-tenant" else None


class Body:
    def __init__(self, tenant_id: str | None) -> None:
        self.tenant_id = tenant_id


ONE, TWO = caller(), caller(tenants=("a", "b"))


@pytest.mark.parametrize(
    ("who", "header", "query", "body", "tenant"),
    [
        (ONE, None, b"", None, "acme"),
        (ONE, "acme", b"", "acme", "acme"),
        (ONE, "other", b"", None, "FORBIDDEN"),
        (ONE, None, b"", "other", "FORBIDDEN"),
        (TWO, None, b"", None, "REQUEST_INVALID"),
        (TWO, "b", b"", None, "b"),
        (TWO, None, b"tenant_id=a", None, "a"),
        (TWO, None, b"x=1&tenant_id=a", "a", "a"),
        (TWO, "a", b"", "b", "REQUEST_INVALID"),
        (TWO, "a", b"tenant_id=b", None, "REQUEST_INVALID"),
        (TWO, "c", b"", None, "FORBIDDEN"),
        (EVERY, None, b"", None, "REQUEST_INVALID"),
        (EVERY, "anything", b"", None, "anything"),
        (EVERY, "*", b"", None, "REQUEST_INVALID"),
        (EVERY, "a:b", b"", None, "REQUEST_INVALID"),
        (EVERY, "", b"", None, "REQUEST_INVALID"),
        (OPEN, None, b"", None, "default"),
        (OPEN, None, b"", "acme", "acme"),
        (caller(tenants=()), None, b"", None, "REQUEST_INVALID"),
    ],
)
async def test_the_tenant_of_a_call(
    who: Caller, header: str | None, query: bytes, body: str | None, tenant: str
) -> None:
    call: Any = Call(who, header, query)
    try:
        found = tenant_of(call, Body(body))
    except Refused as refused:
        found = refused.code
    assert found == tenant


async def test_a_list_spans_the_tenants_of_its_caller_unless_it_names_one() -> None:
    every: Any = Call(TWO)
    named: Any = Call(TWO, None, b"tenant_id=b&limit=3")

    assert tenant_filter(every) is None
    assert tenant_filter(named) == "b"


async def test_the_map_survives_a_row_it_has_never_heard_of(tmp_path: Path) -> None:
    """A signal names a key that has no row: nothing to let in, nothing to wait for."""
    async with staged(tmp_path / "f.db") as stage:
        stage.door.told("key", "000000000000")
        made_up = door_module.bearer.bearer("s", "000000000000" + key_material()[12:])

        assert (await stage.refused(f"Bearer {made_up}")).code == "UNAUTHENTICATED"


async def test_an_act_that_is_refused_where_it_commits_though_the_door_let_it_in(
    tmp_path: Path,
) -> None:
    """I25: revoked before the commit means not committed."""
    async with staged(tmp_path / "f.db") as stage:
        made = await stage.key(scopes=("keys:admin",))
        inside = await stage.enters(made)
        await stage.revoke(made)

        ask = Ask(caller=inside, body=CreateKey(name="late", scopes=()), fresh=key_material())
        with pytest.raises(Refused, match="UNAUTHENTICATED"):
            await stage.writer.submit(keys.create, ask)

        def count(tx: Tx, cmd: None, now: Now) -> int:
            return len(tx.rows("SELECT key_id FROM keys"))

        assert await stage.readers.read(count, None) == 1

"""The door and sessions: what use keeps one alive, and when the door looks again."""

from pathlib import Path
from typing import Any

import pytest

from feltd.api import cookies
from feltd.api.admission import Admission
from feltd.api.fresh import key_material
from feltd.api.request import Request
from feltd.api.routes import Route
from feltd.errors import Refused
from feltd.identity import keys, passwords, sessions, users
from feltd.identity.principals import IDLE_MS, LOCAL
from feltd.model.base import Ask
from feltd.model.user import ChangeRoles, Hashed, Proven
from tests.api.identity.test_door import MINUTE_MS, Stage, staged

pytestmark = pytest.mark.anyio

KEPT = passwords.hashed("correct horse battery", b"0123456789abcdef")
HOUR_MS = 60 * MINUTE_MS


async def logged_in(stage: Stage, **held: str) -> str:
    """A user, and a session of his."""
    body = Hashed(username="ada", password_hash=KEPT, roles=held)
    await stage.writer.submit(users.create, Ask(caller=LOCAL, body=body))
    proven = Proven(username="ada", password_hash=KEPT)
    ask = Ask(caller=LOCAL, body=proven, fresh=key_material())
    return str((await stage.writer.submit(sessions.begin, ask)).session)


async def nothing(*_: Any) -> Any:
    """What these calls neither receive nor send."""


def request(
    session: str, *, method: str = "GET", query: bytes = b"", scheme: str = "http", **more: Any
) -> Request:
    """A call by cookie."""
    headers = [(b"host", b"127.0.0.1:7610"), *more.pop("headers", [])]
    name = "__Host-feltd_session" if scheme == "https" else "feltd_session"
    headers.append((b"cookie", f"theme=dark; {name}={session}".encode()))
    scope = {
        "type": "http", "method": method, "path": "/v1/workers", "query_string": query,
        "headers": headers, "scheme": scheme, "server": ("127.0.0.1", 7610), **more,
    }  # fmt: skip
    route = Route(
        method=method, path="/v1/workers", operation="list_workers", tag="worker", handler=nothing,
        summary="", scope="workers:read",
    )  # fmt: skip
    polls: Any = None
    return Request(
        scope, nothing, route, {}, app=None, admission=Admission(64), polls=polls, deadline_ms=1_000
    )


async def test_a_cookie_is_narrowed_to_the_tenants_that_are_good_for_the_route(
    tmp_path: Path,
) -> None:
    async with staged(tmp_path / "f.db") as stage:
        session = await logged_in(stage, acme="admin", globex="viewer")
        asked = request(session)

        await stage.door.authenticate(asked)

        assert asked.caller.tenants == ("acme", "globex")
        assert not asked.caller.holds("keys:admin")
        assert asked.by_cookie == session[7:19]


async def test_a_page_that_refreshes_itself_keeps_nobodys_session_alive(tmp_path: Path) -> None:
    async with staged(tmp_path / "f.db") as stage:
        session = await logged_in(stage, acme="viewer")
        listens = {"headers": [(b"accept", b"text/event-stream")]}
        for _ in range(60):
            stage.wall_ms += MINUTE_MS
            await stage.door.authenticate(request(session, query=b"part=rows"))
            await stage.door.authenticate(request(session, **listens))
        assert stage.door.take_used() == []

        stage.wall_ms += IDLE_MS - HOUR_MS
        with pytest.raises(Refused, match="nobody used the session"):
            await stage.door.authenticate(request(session, query=b"part=rows"))


async def test_use_keeps_a_session_for_twelve_hours_and_is_written_down(tmp_path: Path) -> None:
    async with staged(tmp_path / "f.db") as stage:
        session = await logged_in(stage, acme="viewer")
        for _ in range(12 * 4 - 1):
            stage.wall_ms += HOUR_MS // 4
            await stage.door.authenticate(request(session))
        used = stage.door.take_used()
        await stage.writer.submit(keys.note_used, used)

        assert used == [(session[7:19], stage.wall_ms)]
        row = await stage.readers.read(
            lambda tx, cmd, now: tx.row("SELECT last_used_at_ms FROM sessions"), None
        )
        assert row["last_used_at_ms"] == stage.wall_ms
        stage.wall_ms += HOUR_MS // 4
        with pytest.raises(Refused, match="expired"):
            await stage.door.authenticate(request(session))


async def test_a_use_the_row_does_not_know_yet_is_not_lost_when_the_door_looks_again(
    tmp_path: Path,
) -> None:
    async with staged(tmp_path / "f.db") as stage:
        session = await logged_in(stage, acme="viewer")
        stage.wall_ms += HOUR_MS - 1
        await stage.door.authenticate(request(session))

        change = Ask(caller=LOCAL, body=ChangeRoles(roles={"acme": "admin"}), id="ada")
        await stage.writer.submit(users.change_role, change)
        stage.wall_ms += HOUR_MS - MINUTE_MS

        asked = request(session)
        await stage.door.authenticate(asked)
        assert asked.caller.holds("keys:admin")


async def test_an_open_call_reads_on_by_the_roles_it_began_with_or_ends(tmp_path: Path) -> None:
    async with staged(tmp_path / "f.db") as stage:
        session = await logged_in(stage, acme="viewer", globex="viewer")
        asked = request(session)
        await stage.door.authenticate(asked)
        before = asked.caller

        async def change(**given: str | None) -> None:
            ask = Ask(caller=LOCAL, body=ChangeRoles(roles=given), id="ada")  # type: ignore[arg-type]
            await stage.writer.submit(users.change_role, ask)

        await change(acme="admin")
        await stage.door.authenticate(asked)
        assert asked.caller == before
        await change(globex=None)
        with pytest.raises(Refused, match="roles") as refused:
            await stage.door.authenticate(asked)
        assert refused.value.code == "FORBIDDEN"


async def test_a_foreign_page_is_refused_before_its_body_is_read(tmp_path: Path) -> None:
    async with staged(tmp_path / "f.db") as stage:
        session = await logged_in(stage, acme="admin")
        own = {"headers": [(b"origin", b"http://127.0.0.1:7610")]}

        with pytest.raises(Refused, match="only from a page of this daemon"):
            await stage.door.authenticate(request(session, method="POST"))

        await stage.door.authenticate(request(session, method="POST", **own))


@pytest.mark.parametrize(
    ("scheme", "server", "secure"),
    [
        ("http", ("127.0.0.1", 7610), False),
        ("http", ("::1", 7610), False),
        ("https", ("127.0.0.1", 7610), True),
        ("http", ("192.0.2.1", 7610), True),
        ("http", None, True),
    ],
)
async def test_the_cookie_is_for_tls_alone_but_within_this_machine(
    scheme: str, server: Any, secure: bool
) -> None:
    asked = request("felt_h_x", scheme=scheme, server=server)

    name, text = cookies.set_cookie(asked, "felt_h_x", 4_102_444_800_000)
    _, cleared = cookies.clear_cookie(asked)

    assert name == b"set-cookie"
    assert text.startswith(b"__Host-feltd_session=" if secure else b"feltd_session=")
    assert text.endswith(b"; Secure") is secure
    assert b"HttpOnly; SameSite=Lax" in text
    assert b"Max-Age=0" in cleared
    assert cleared.partition(b"=")[0] == text.partition(b"=")[0]


async def test_a_websocket_is_never_opened_by_cookie() -> None:
    asked = request("felt_h_x", type="websocket")

    assert cookies.session_of(asked) is None
    assert cookies.session_of(request("felt_h_x")) == "felt_h_x"

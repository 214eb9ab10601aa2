"""Logging in over HTTP: what is wrong is told in one way, too often waits, and nothing leaks."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feltd.api.passwords import THREADS, WAITING_MAX, Passwords
from feltd.errors import Refused
from feltd.identity.throttle import ACCOUNT_FREE
from tests.api.identity.conftest import Wire
from tests.daemon.running import Answer, Daemon

PASSWORD = "canary-password-83b1"
ANOTHER = "canary-password-c07f"


class Town(Wire):
    """What people say to the daemon."""

    def user(self, name: str, **held: str) -> dict[str, Any]:
        body = {"username": name, "password": PASSWORD, "roles": held}
        made: dict[str, Any] = self.post("/v1/users", body)
        return made

    def try_login(self, name: str, password: str = PASSWORD, **headers: str) -> Answer:
        body = {"username": name, "password": password}
        return self.call("POST", "/v1/auth/login", body, key="", **headers)

    def login(self, name: str, password: str = PASSWORD) -> str:
        answer = self.try_login(name, password)
        assert answer.status == 200, answer
        return str(answer.body["session"])


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """A daemon of this module alone, where people may sign up."""
    daemon = Daemon(tmp_path_factory.mktemp("town") / "feltd.db", "--open-signup")
    try:
        yield Town(daemon.init().start())
    finally:
        daemon.close()


def told(answer: Answer) -> tuple[int, dict[str, Any], list[str]]:
    """An answer without what differs in each."""
    same = {name: one for name, one in answer.body.items() if name != "request_id"}
    return answer.status, same, sorted(answer.headers)


def test_a_session_is_a_bearer_and_a_cookie_for_this_machine(town: Town) -> None:
    town.user("ada", acme="operator")

    answer = town.try_login("ada")

    session = answer.body["session"]
    assert session.startswith("felt_h_")
    assert answer.headers["cache-control"] == "no-store"
    kept = answer.headers["set-cookie"].split("; ")
    assert kept[0] == f"feltd_session={session}"
    assert set(kept[1:]) >= {"HttpOnly", "SameSite=Lax", "Path=/"}
    assert "Secure" not in kept, "over plain HTTP within this machine"
    me = town.get("/v1/auth/me", key=session)
    assert (me["subject"], me["roles"]) == ({"kind": "human", "id": "ada"}, {"acme": "operator"})
    assert me["principal"]["session_id"] == session[7:19]


def test_a_stranger_a_wrong_password_and_a_disabled_user_are_told_the_same(town: Town) -> None:
    """BC-095."""
    town.user("known")
    town.user("gone")
    town.post("/v1/users/gone/disable")

    answers = [
        town.try_login("known", ANOTHER),
        town.try_login("gone"),
        town.try_login("gone", ANOTHER),
        town.try_login("nobody-of-that-name"),
        town.try_login("'; DROP TABLE users; --"),
        town.try_login("known", "x"),
    ]

    assert answers[0].status == 401
    assert answers[0].body["code"] == "UNAUTHENTICATED"
    assert all(told(one) == told(answers[0]) for one in answers)


@pytest.mark.parametrize(
    "body",
    [
        {"username": "ada"},
        {"username": "ada", "password": ""},
        {"username": "ada", "password": "p" * 257},
        {"username": "", "password": PASSWORD},
        {"username": "ada", "password": PASSWORD, "roles": {}},
        {"username": "ada", "password": ["a", "b"]},
    ],
)
def test_what_is_no_login_is_refused_without_repeating_it(town: Town, body: Any) -> None:
    answer = town.call("POST", "/v1/auth/login", body, key="")

    assert (answer.status, answer.body["code"]) == (422, "REQUEST_INVALID")
    assert PASSWORD not in repr(answer.body)


def test_too_many_wrong_passwords_wait_and_the_right_one_too(town: Town) -> None:
    town.user("tried")

    wrong = [town.try_login("tried", ANOTHER) for _ in range(ACCOUNT_FREE)]
    waits = town.try_login("tried")
    stranger = [town.try_login("tried-but-nobody") for _ in range(ACCOUNT_FREE + 1)][-1]

    assert {one.status for one in wrong} == {401}
    assert (waits.status, waits.body["code"], waits.body["next"]) == (
        429,
        "LOGIN_THROTTLED",
        "wait",
    )
    assert int(waits.headers["retry-after"]) == 1
    assert 0 < waits.body["eligible_at_ms"] - waits.body["server_time_ms"] <= 1_000
    assert stranger.status == 429, "a name nobody has waits in the same way"
    time.sleep((waits.body["eligible_at_ms"] - waits.body["server_time_ms"]) / 1_000)
    assert town.try_login("tried").status == 200
    assert town.try_login("tried", ANOTHER).status == 401, "what was tried before is forgotten"
    acts = "SELECT actor, subject FROM audit WHERE action = 'throttle_login'"
    town.eventually(lambda: rows(town, acts) == [("service:feltd", "tried")])


def test_a_password_changes_by_who_knows_it_and_ends_the_other_sessions(town: Town) -> None:
    town.user("bob")
    own, other = town.login("bob"), town.login("bob")
    path = "/v1/auth/password"

    wrong = town.refused("POST", path, {"old": ANOTHER, "new": ANOTHER}, key=own)
    short = town.refused("POST", path, {"old": PASSWORD, "new": "short"}, key=own)
    admin = town.refused("POST", path, {"username": "bob", "new": ANOTHER})
    foreign = town.refused("POST", path, {"username": "ada", "old": PASSWORD, "new": ANOTHER},
                           key=own)  # fmt: skip
    blind = town.refused("POST", path, {"new": ANOTHER}, key=own)

    assert [one["code"] for one in (wrong, short, admin, foreign, blind)] == [
        "UNAUTHENTICATED", "REQUEST_INVALID", "FORBIDDEN", "FORBIDDEN", "FORBIDDEN"
    ]  # fmt: skip
    assert town.get("/v1/auth/me", key=other)
    town.post(path, {"old": PASSWORD, "new": ANOTHER}, key=own)
    assert town.reasons(other) == ["revoked"]
    assert town.get("/v1/auth/me", key=own)
    assert town.try_login("bob").status == 401
    town.login("bob", ANOTHER)


def test_who_signs_up_may_log_in_and_sees_nothing_until_somebody_gives_him_a_role(
    town: Town,
) -> None:
    body = {"username": "newcomer", "password": PASSWORD}

    made = town.call("POST", "/v1/auth/signup", body, key="")

    assert (made.status, made.body["roles"]) == (201, {})
    again = town.refused("POST", "/v1/auth/signup", body, key="")
    assert (again["status"], again["code"]) == (409, "USER_EXISTS")
    session = town.login("newcomer")
    for path in ("/v1/workers", "/v1/workloads", "/v1/keys", "/v1/events", "/v1/users", "/metrics"):
        assert town.call("GET", path, key=session).status == 403, path
    town.post("/v1/users/newcomer/role", {"roles": {"acme": "viewer"}})
    assert town.call("GET", "/v1/workers", key=session).status == 200


def test_a_password_is_not_taken_twelve_characters_short(town: Town) -> None:
    for path, key in (("/v1/auth/signup", ""), ("/v1/users", None)):
        for password in ("elevenchars", "", "p" * 257, "twelve chars\0"):
            body = {"username": "short", "password": password}
            assert town.call("POST", path, body, key=key).status == 422


def test_sign_up_is_shut_where_nobody_opened_it(wire: Wire) -> None:
    body = {"username": "eve", "password": PASSWORD}

    refused = wire.refused("POST", "/v1/auth/signup", body, key="")

    assert (refused["status"], refused["code"]) == (403, "FORBIDDEN")


def test_a_page_of_somebody_else_logs_nobody_in(town: Town) -> None:
    town.user("target")

    foreign = town.try_login("target", Origin="https://evil.example")
    own = town.try_login("target", Origin=town.daemon.url)

    assert (foreign.status, "set-cookie" in foreign.headers) == (403, False)
    assert own.status == 200


def test_logging_in_again_is_never_the_session_the_browser_brought(town: Town) -> None:
    town.user("fixed")
    planted = town.login("fixed")

    answer = town.try_login("fixed", Cookie=f"feltd_session={planted}")

    assert answer.body["session"] != planted


def test_no_password_or_session_is_in_the_database_the_log_or_the_audit(town: Town) -> None:
    town.user("canary")
    session = town.login("canary")
    town.try_login("canary", ANOTHER)
    town.post("/v1/auth/password", {"old": PASSWORD, "new": ANOTHER}, key=session)
    secrets = [PASSWORD.encode(), ANOTHER.encode(), session[20:].encode()]

    folder = Path(town.data).parent
    found = [
        (path.name, secret)
        for path in folder.iterdir()
        if path.is_file()
        for secret in secrets
        if secret in path.read_bytes()
    ]

    assert not found
    assert town.daemon.check().returncode == 0


def rows(town: Town, sql: str) -> list[Any]:
    """Of the file, beside the daemon."""
    import sqlite3

    conn = sqlite3.connect(f"file:{town.data}?mode=ro", uri=True)
    try:
        return conn.execute(sql).fetchall()
    finally:
        conn.close()


@pytest.mark.anyio
async def test_a_stranger_costs_as_many_verifications_as_somebody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """BC-095."""
    compared: list[str] = []
    monkeypatch.setattr(
        "feltd.identity.passwords.verify_secret", lambda kept, *_: compared.append(kept) or True
    )
    pool = Passwords()

    assert await pool.verify("$argon2id$kept", PASSWORD)
    assert not await pool.verify(None, PASSWORD), "even where nobody's hash would match"

    assert (len(compared), pool.verified) == (2, 2)


@pytest.mark.anyio
async def test_two_passwords_are_at_work_sixteen_wait_and_the_next_is_told_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """BC-091."""
    gate, at_work = threading.Event(), []
    threads_max = 0

    def slow(kept: str, password: str) -> bool:
        nonlocal threads_max
        at_work.append(1)
        threads_max = max(threads_max, len(at_work))
        assert gate.wait(10)
        at_work.pop()
        return True

    monkeypatch.setattr("feltd.identity.passwords.matches", slow)
    pool = Passwords()
    waiting = [
        asyncio.ensure_future(pool.verify("kept", "x")) for _ in range(THREADS + WAITING_MAX)
    ]
    await asyncio.sleep(0)

    with pytest.raises(Refused, match="authentication temporarily unavailable") as refused:
        await pool.verify(None, "x")
    # Whoever goes away gives no place free: his thread is busy all the same.
    waiting.pop().cancel()
    await asyncio.sleep(0)
    with pytest.raises(Refused):
        await pool.hash("x" * 12)

    assert (refused.value.code, refused.value.facts["committed"]) == ("SERVICE_OVERLOADED", False)
    gate.set()
    assert all(await asyncio.gather(*waiting))
    assert threads_max == THREADS
    assert (await pool.hash("x" * 12)).startswith("$argon2id$")

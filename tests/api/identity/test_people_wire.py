"""Sessions over HTTP: the cookie and its defence, roles route by route, and what ends with them."""

import http.client
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from feltd.api import cookies
from feltd.api.app import routes
from feltd.api.door import WHOLE_DAEMON
from feltd.api.routes import Route
from feltd.config import Config
from feltd.identity import keyring, roles
from tests.api.identity.conftest import Wire
from tests.daemon.running import Answer

PASSWORD = "correct horse battery"
#: Routes that ask a role of whoever calls.
SCOPED = [route for route in routes(Config()) if route.scope is not None]
MUTATING = [route for route in SCOPED if route.method != "GET"]


class People:
    """Users of this daemon by name, each with a session and the cookie and token of it."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.made = 0
        file = Config(data=str(wire.data)).keyring_path
        self.keyring = keyring.parse(file.read_bytes())

    def person(self, **held: str) -> "Person":
        self.made += 1
        name = f"person-{self.made}"
        given = {"*" if tenant == "every" else tenant: role for tenant, role in held.items()}
        body = {"username": name, "password": PASSWORD, "roles": given}
        self.wire.post("/v1/users", body)
        return Person(self, name)


class Person:
    """One session."""

    def __init__(self, people: People, name: str) -> None:
        self.wire, self.name = people.wire, name
        body = {"username": name, "password": PASSWORD}
        self.session: str = self.wire.post("/v1/auth/login", body, key="")["session"]
        self.cookie = f"feltd_session={self.session}"
        self.token = cookies.form_token(people.keyring, self.session[7:19])

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """By bearer."""
        return self.wire.call(method, path, body, key=self.session, **headers)

    def click(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """By cookie, from a page of the daemon, unless headers say otherwise; None leaves one."""
        sent = {"Cookie": self.cookie}
        if method != "GET":
            sent |= {"Origin": self.wire.daemon.url, "X_Feltd_Form_Token": self.token}
        sent |= headers
        kept = {name: text for name, text in sent.items() if text != "-"}
        return self.wire.call(method, path, body, key="", **kept)


@pytest.fixture(scope="module")
def people(wire: Wire) -> People:
    return People(wire)


@pytest.fixture(scope="module")
def operator(people: People) -> Person:
    return people.person(acme="operator")


def hold(name: str) -> dict[str, str]:
    return {"scope": "definition", "value": name, "tenant_id": "acme", "reason": "a test"}


def test_a_cookie_reads_and_with_origin_and_token_acts(operator: Person) -> None:
    assert operator.click("GET", "/v1/workers").status == 200

    made = operator.click("POST", "/v1/holds", hold("cookie"))

    assert (made.status, made.body["held_by"]) == (201, f"human:{operator.name}")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "-"},
        {"Origin": "null"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1"},
        {"X_Feltd_Form_Token": "-"},
        {"X_Feltd_Form_Token": ""},
        {"X_Feltd_Form_Token": "0" * 64},
        {"X_Feltd_Form_Token": "é"},
    ],
    ids=repr,
)
def test_whatever_a_foreign_page_sends_changes_nothing(
    operator: Person, headers: dict[str, str]
) -> None:
    refused = operator.click("POST", "/v1/holds", hold("foreign"), **headers)

    assert (refused.status, refused.body["code"]) == (403, "FORBIDDEN")
    assert "foreign" not in repr(operator.click("GET", "/v1/holds").body)


def test_a_token_is_good_for_one_session_alone(people: People, operator: Person) -> None:
    other = people.person(acme="operator")

    refused = operator.click("POST", "/v1/holds", hold("x"), X_Feltd_Form_Token=other.token)

    assert refused.status == 403


def test_a_bearer_decides_and_a_bad_one_never_falls_back_to_the_cookie(operator: Person) -> None:
    wire = operator.wire
    good = wire.call("GET", "/v1/auth/me", Cookie=operator.cookie)
    bad = [
        wire.call("GET", "/v1/auth/me", key=key, Cookie=operator.cookie)
        for key in ("x", operator.session[:-1], operator.session[:-1] + "0", "felt_h_")
    ]
    basic = wire.call("GET", "/v1/auth/me", key="", Cookie=operator.cookie,
                      Authorization="Basic YTpi")  # fmt: skip

    assert good.body["subject"]["kind"] == "service"
    assert {(one.status, one.body["code"]) for one in (*bad, basic)} == {(401, "UNAUTHENTICATED")}


def test_a_bearer_needs_no_origin_and_no_token(operator: Person) -> None:
    made = operator.call("POST", "/v1/holds", hold("bearer"), Origin="https://evil.example")

    assert made.status == 201


def test_a_key_in_the_cookie_is_nobody_and_so_are_two_sessions(operator: Person) -> None:
    wire = operator.wire
    planted = f"feltd_session={'felt_h_' + 'A' * 62}; {operator.cookie}"

    for cookie in (f"feltd_session={wire.daemon.key}", planted, "feltd_session=", "x" * 4_000):
        assert wire.call("GET", "/v1/auth/me", key="", Cookie=cookie).status == 401
    other = wire.call("GET", "/v1/auth/me", key="", Cookie=f"__Host-{operator.cookie}")
    assert other.status == 401, "the name for TLS is not one over plain HTTP"


def test_a_form_of_an_api_route_is_no_way_around_json(operator: Person) -> None:
    address = urlsplit(operator.wire.daemon.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
    body = urlencode({"form_token": operator.token, **hold("form")})
    headers = {"Cookie": operator.cookie, "Origin": operator.wire.daemon.url}
    headers["Content-Type"] = "application/x-www-form-urlencoded"
    connection.request("POST", "/v1/holds", body, headers)

    assert connection.getresponse().status == 415
    connection.close()


def test_logging_out_ends_the_session_and_takes_the_cookie_away(people: People) -> None:
    ada = people.person(acme="viewer")

    answer = ada.click("POST", "/v1/auth/logout", {})

    assert answer.status == 204
    assert answer.headers["set-cookie"].startswith("feltd_session=; ")
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert ada.click("GET", "/v1/auth/me").body["reasons"][0]["code"] == "revoked"
    assert people.wire.refused("POST", "/v1/auth/logout", {})["code"] == "FORBIDDEN"


def fill(route: Route) -> str:
    """A path of the route, to nothing that is there."""
    parts = ["nothing_1" if part.startswith("{") else part for part in route.path.split("/")]
    return "/".join(parts)


def refused_for_its_role(person: Person, route: Route) -> bool:
    """Whether a person is turned away for what he may not do, before anything is looked up."""
    sent = None if route.method == "GET" else route.example if route.body is not None else {}
    answer = person.call(route.method, fill(route), sent, X_Feltd_Tenant="acme")
    code = answer.body["code"] if isinstance(answer.body, dict) and answer.status >= 400 else ""
    return (answer.status, code) == (403, "FORBIDDEN")


def lacking(role: roles.Role) -> list[Route]:
    """The routes whose scope the role does not hold."""
    return [
        route for route in SCOPED if route.scope not in roles.SCOPES[role] and route.auth == "scope"
    ]


def test_no_viewer_changes_anything_on_any_route(people: People) -> None:
    viewer = people.person(every="viewer")
    wire = people.wire

    let_in = [
        f"{route.method} {route.path}"
        for route in MUTATING
        if route.scope not in roles.SCOPES["viewer"] and not refused_for_its_role(viewer, route)
    ]

    # With auth `any` the rule looks for the object first: it is not there.
    rest = [name for name in let_in if not by_rule(name)]
    assert not rest
    assert len(MUTATING) > 40
    assert viewer.call("POST", "/v1/workloads/nothing_1/cancel", {}).status in (403, 404)
    assert wire.get("/v1/users")["items"]


def by_rule(name: str) -> bool:
    return any(f"{route.method} {route.path}" == name and route.auth == "any" for route in MUTATING)


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_what_a_role_lacks_is_refused_on_every_route(people: People, role: roles.Role) -> None:
    person = people.person(every=role)

    missed = [route.path for route in lacking(role) if not refused_for_its_role(person, route)]

    assert not missed


def test_what_a_role_holds_is_not_refused_for_the_scope(people: People) -> None:
    admin = people.person(every="admin")
    reads = [one for one in SCOPED if one.method == "GET" and "{" not in one.path]

    refused = [route.path for route in reads if admin.call("GET", route.path).status == 403]

    assert not refused


def test_a_role_in_one_tenant_is_none_in_another(people: People) -> None:
    wire = people.wire
    ada = people.person(acme="admin", other="viewer")
    there = {**hold("theirs"), "tenant_id": "other"}
    hold_id = wire.post("/v1/holds", there)["hold_id"]

    assert ada.call("POST", "/v1/holds", there).status == 403
    assert ada.call("POST", "/v1/holds", hold("x"), X_Feltd_Tenant="other").status in (403, 422)
    assert ada.call("DELETE", f"/v1/holds/{hold_id}").status == 404
    assert ada.call("POST", "/v1/keys", {"name": "k", "tenants": ["other"]}).status == 403
    assert ada.call("POST", "/v1/keys", {"name": "k"}).status == 201
    record = "/v1/collections/c/records/r"
    assert ada.call("PUT", record, 1, X_Feltd_Tenant="other").status == 403
    assert ada.call("PUT", record, 1, X_Feltd_Tenant="acme").status == 201
    assert ada.call("PUT", "/v1/collections/_flow_capabilities/records/r", {"x": 1},
                    X_Feltd_Tenant="other").status == 403  # fmt: skip
    listed = ada.call("GET", "/v1/keys").body["items"]
    assert {tenant for one in listed for tenant in one["tenants"]} == {"acme"}


def test_what_is_the_whole_daemons_needs_a_role_of_every_tenant(people: People) -> None:
    some, every = people.person(acme="admin", other="admin"), people.person(every="viewer")

    for route in SCOPED:
        if route.scope in WHOLE_DAEMON and route.method == "GET" and "{" not in route.path:
            assert some.call("GET", route.path).status == 403, route.path
            expected = 200 if route.scope in roles.SCOPES["viewer"] else 403
            answer = every.call("GET", route.path + "?tenant_id=acme")
            assert answer.status in (expected, 422), route.path


def test_a_session_is_no_worker_and_registers_none(people: People) -> None:
    wire, admin = people.wire, people.person(acme="admin")
    grant = wire.grant(subject={"kind": "human", "id": admin.name})
    body = {
        "name": "mine", "runtime": "process", "version": "1", "capacity": {"concurrency": 1},
        "capabilities": ["extract"], "issue_key": True, "authorization_grant": grant["token"],
    }  # fmt: skip

    registered = admin.call("POST", "/v1/workers", body)
    beat = admin.call("POST", "/v1/workers/worker_1/heartbeat", {})

    assert (registered.status, registered.body["code"]) == (403, "FORBIDDEN")
    assert (beat.status, beat.body["code"]) == (403, "FORBIDDEN")


def test_users_are_made_listed_given_roles_and_disabled_over_http(people: People) -> None:
    wire = people.wire
    ada = people.person(acme="admin")
    body = {"username": "made-by-ada", "password": PASSWORD, "roles": {"acme": "operator"}}

    made = ada.call("POST", "/v1/users", body)
    beyond = ada.call("POST", "/v1/users", {**body, "username": "b", "roles": {"other": "viewer"}})
    given = ada.call("POST", "/v1/users/made-by-ada/role", {"roles": {"acme": "viewer"}})
    first = ada.call("GET", "/v1/users?limit=1").body
    rest = ada.call("GET", f"/v1/users?limit=500&cursor={first['next_cursor']}").body

    assert (made.status, made.body["created_by"]) == (201, f"human:{ada.name}")
    assert (beyond.status, beyond.body["errors"][0]["pointer"]) == (403, "/roles/other")
    assert (given.status, given.body["roles"]) == (200, {"acme": "viewer"})
    names = [one["username"] for one in (*first["items"], *rest["items"])]
    assert names[0] == "made-by-ada"
    assert len(set(names)) == len(names)
    assert wire.call("GET", f"/v1/users?cursor={first['next_cursor']}").status == 400
    assert ada.call("POST", "/v1/users/made-by-ada/disable", {}).body["disabled_by"]
    unknown = ada.call("POST", "/v1/users/never-made/disable", {})
    assert (unknown.status, unknown.body["code"]) == (404, "USER_NOT_FOUND")
    for path in ("/v1/users/x/role", "/v1/users"):
        assert ada.call("POST", path, {"roles": {"acme": "owner"}}).status == 422


def ends_with(
    person: Person, path: str, act: Callable[[], Any], **headers: str
) -> tuple[Any, float]:
    """What an open call is answered in the end, and how long after the act, seconds."""
    answers: list[tuple[Answer, float]] = []

    def listen() -> None:
        answer = person.wire.call("GET", path, key=person.session, **headers)
        answers.append((answer, time.monotonic()))

    thread = threading.Thread(target=listen)
    thread.start()
    time.sleep(0.5)
    acted_s = time.monotonic()
    act()
    thread.join(20)
    assert answers, "it is open still"
    answer, ended_s = answers[0]
    return answer, ended_s - acted_s


def end_of(wire: Wire) -> str:
    """The end of the feed, so that a poll there waits."""
    return str(wire.get("/v1/events?after=0&limit=500")["head"])


@pytest.mark.parametrize("how", ["logout", "disable", "role"])
def test_what_a_session_has_open_ends_with_it(people: People, how: str) -> None:
    """BC-089."""
    wire = people.wire
    ada = people.person(quiet="viewer")
    acts = {
        "logout": lambda: ada.call("POST", "/v1/auth/logout", {}),
        "disable": lambda: wire.post(f"/v1/users/{ada.name}/disable"),
        "role": lambda: wire.post(f"/v1/users/{ada.name}/role", {"roles": {"quiet": None}}),
    }

    poll, _ = ends_with(ada, f"/v1/events?after={end_of(wire)}&wait_ms=15000", acts[how])

    assert poll.status == (403 if how == "role" else 401)


def test_a_stream_ends_when_the_role_it_reads_by_is_taken(people: People) -> None:
    """BC-089."""
    wire = people.wire
    ada = people.person(quiet="viewer", other="viewer")

    stream, _ = ends_with(
        ada,
        f"/v1/events?after={end_of(wire)}",
        lambda: wire.post(f"/v1/users/{ada.name}/role", {"roles": {"quiet": None}}),
        Accept="text/event-stream",
    )

    assert stream.body.rstrip().splitlines()[-2] == "event: end"
    assert "FORBIDDEN" in stream.body
    assert ada.call("GET", "/v1/events").status == 200, "the other tenant's she may read on"


def test_a_restart_logs_nobody_out(people: People) -> None:
    wire = people.wire
    ada = people.person(acme="viewer")

    wire.daemon.kill()
    wire.daemon.start()

    assert ada.call("GET", "/v1/workers").status == 200
    assert ada.click("GET", "/v1/workers").status == 200

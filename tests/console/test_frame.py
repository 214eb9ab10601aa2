"""What every page keeps to, whoever wrote it: headers, no inline code, refusals, who may act."""

import asyncio
import http.client
import re
import threading
from importlib.resources import files
from urllib.parse import unquote, urlsplit

import pytest

from feltd import console
from feltd.api.app import routes as api_routes
from feltd.api.routes import Route
from feltd.config import Config
from feltd.console import frame, nav
from tests.console.reading import Reading
from tests.console.town import HOSTILE, PASSWORD, Town
from tests.daemon.running import Answer, Daemon
from tests.tidy.source import ROOT

#: Pages that can be opened without naming a thing.
PLAIN = sorted(
    route.path
    for route in console.ROUTES
    if route.method == "GET" and "{" not in route.path and route.auth == "scope"
    if route.path not in ("/console/stream", "/console/samples")
)
#: What these pages must be told.
ASKED = {
    "/console/workloads/bulk": "?action=cancel",
}
ACTS = [route for route in console.ROUTES if route.method == "POST" and route.auth == "scope"]


def call(town: Town | Daemon, method: str, path: str, body: str = "", **headers: str) -> Answer:
    """A call with nothing but these headers."""
    address = urlsplit(town.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    try:
        connection.request(method, path, body or None, headers)
        got = connection.getresponse()
        return Answer(got.status, got.read().decode(), {k.lower(): v for k, v in got.getheaders()})
    finally:
        connection.close()


@pytest.mark.parametrize("path", PLAIN)
def test_a_page_holds_no_script_and_no_style_of_its_own(town: Town, path: str) -> None:
    got = town.page(path + ASKED.get(path, ""))

    assert got.status == 200, got.body
    read = Reading(got.body)
    assert not read.inline
    assert HOSTILE not in got.body
    assert "<script>alert" not in got.body
    assert "<img src=x" not in got.body
    assert got.headers["content-security-policy"] == frame.CSP
    assert got.headers["referrer-policy"] == "same-origin"
    assert got.headers["x-content-type-options"] == "nosniff"
    assert got.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", PLAIN)
def test_every_form_that_changes_something_carries_the_token(town: Town, path: str) -> None:
    got = call(town, "GET", path + ASKED.get(path, ""), Cookie=cookie(town, "ada"))

    for form in Reading(got.body).acts():
        assert form.fields.get("form_token"), form


@pytest.mark.parametrize("path", PLAIN)
def test_a_viewer_sees_no_act(town: Town, path: str) -> None:
    got = town.page(path + ASKED.get(path, ""), by="vic")

    acts = {form.action for form in Reading(got.body).acts()}
    assert acts <= {"/console/logout"}
    assert got.status in (200, 403)


@pytest.mark.parametrize("route", ACTS, ids=lambda route: route.operation)
def test_a_viewer_is_refused_where_it_acts(town: Town, route: Route) -> None:
    path = re.sub(r"\{[^}]+\}", "x", route.path)

    assert town.form(path, by="vic").status == 403
    assert not str(route.scope).endswith(":read"), "an act has the scope of its rule"


def test_templates_hold_no_code() -> None:
    for entry in files("feltd.console").joinpath("templates").iterdir():
        text = entry.read_text()
        where = entry.name
        assert not re.search(r"<script(?![^>]*\bsrc=)", text), where
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|hx-on|javascript:|js:", text), where
        assert "|safe" not in text, f"{where}: nothing is trusted"
        assert "autoescape" not in text, where
        assert not re.search(r"https?://", text), f"{where}: nothing comes from elsewhere"


def test_who_is_not_known_is_led_to_the_login_and_back(town: Town) -> None:
    got = call(town, "GET", "/console/workloads?state=READY")

    assert got.status == 303
    assert got.headers["location"] == "/console/login?next=%2Fconsole%2Fworkloads%3Fstate%3DREADY"
    assert call(town, "POST", "/console/holds").status == 401


def test_a_part_that_is_asked_for_by_nobody_known_makes_its_page_load_again(town: Town) -> None:
    got = call(town, "GET", "/console?part=health", **{"HX-Request": "true"})

    assert (got.status, got.headers["hx-refresh"], got.body) == (401, "true", "")


def test_a_slash_at_the_end_leads_to_the_same_overview(town: Town) -> None:
    assert "<h1>Overview</h1>" in town.page("/console/").body


def test_a_refusal_is_a_page_that_says_what_to_do(town: Town) -> None:
    got = town.page("/console/workloads/none")

    assert got.status == 404
    assert got.headers["content-type"] == "text/html; charset=utf-8"
    assert got.headers["content-security-policy"] == frame.CSP
    assert "WORKLOAD_NOT_FOUND" in got.body
    assert got.headers["x-request-id"] in got.body
    assert "Next:" in got.body


def test_what_is_no_page_is_refused_as_a_page(town: Town) -> None:
    got = call(town, "GET", "/console/%3Cscript%3E")

    assert got.status == 404
    assert "ROUTE_NOT_FOUND" in got.body
    assert "<script>" not in got.body.replace("<script src", "")


def test_a_part_is_one_block_of_the_page(town: Town) -> None:
    part = town.page("/console?part=health")

    assert "<html" not in part.body
    assert "Health" in part.body
    assert town.page("/console?part=main").status == 404
    assert town.page("/console?part=nothing").status == 404


def test_a_page_takes_forms_and_nothing_else(town: Town) -> None:
    key = {"Authorization": f"Bearer {town.login('ada')}"}
    json = call(town, "POST", "/console/holds", "{}", **key, **{"Content-Type": "application/json"})
    text = call(town, "POST", "/console/holds", "a=b", **key, **{"Content-Type": "text/plain"})

    assert (json.status, text.status) == (415, 415)


def test_a_field_that_does_not_fit_is_named(town: Town) -> None:
    got = town.form("/console/workloads/x/edit", priority="many")

    assert got.status == 422
    assert "<strong>priority</strong>" in got.body


def test_what_was_said_is_said_once(town: Town) -> None:
    done = town.form("/console/holds", scope="tenant", value="acme", reason="r")
    assert done.status == 303, done.body
    address, session = done.headers["location"], cookie(town, "ada")
    kept = done.headers["set-cookie"].partition(";")[0]
    told = unquote(kept.partition("=")[2].rpartition(".")[0])
    shown = call(town, "GET", address, Cookie=f"{session}; {kept}")

    assert told in shown.body
    assert "feltd_said=;" in shown.headers["set-cookie"]
    assert told not in call(town, "GET", address, Cookie=session).body


@pytest.mark.parametrize("planted", ["%3Cb%3ECall+me", "Call%20me." + "0" * 32, ".", "\xff.\xe9"])
def test_nothing_is_said_that_the_daemon_did_not_say_to_this_session(
    town: Town, planted: str
) -> None:
    """A page of a sibling domain, or of another port here, plants a cookie."""
    session = cookie(town, "ada")
    shown = call(town, "GET", "/console/holds", Cookie=f"{session}; feltd_said={planted}")

    assert shown.status == 200
    assert "Call" not in shown.body
    assert "feltd_said=;" in shown.headers["set-cookie"]


def test_what_was_said_to_one_is_not_told_to_another(town: Town) -> None:
    done = town.form("/console/holds", scope="tenant", value="acme", reason="r")
    kept = done.headers["set-cookie"].partition(";")[0]
    told = unquote(kept.partition("=")[2].rpartition(".")[0])

    body = {"username": "ada", "password": PASSWORD}
    another = town.daemon.post("/v1/auth/login", body, key="")["session"]
    told_to = {
        who: told in call(town, "GET", "/console/holds", Cookie=f"{session}; {kept}").body
        for who, session in (
            ("vic", cookie(town, "vic")),
            ("ada elsewhere", f"feltd_session={another}"),
            ("ada", cookie(town, "ada")),
        )
    }

    assert told_to == {"vic": False, "ada elsewhere": False, "ada": True}


def test_places_are_paths_of_pages_and_shown_by_scope(town: Town) -> None:
    paths = {route.path for route in console.ROUTES}
    places = [place for _, group in nav.PLACES for place in group]

    assert {place.path for place in places} <= paths
    shown = set(Reading(town.page("/console", by="vic").body).links())
    for place in places:
        assert (place.path in shown) is place.scope.endswith(":read")


def test_pages_are_no_part_of_the_api() -> None:
    api = {route.path for route in api_routes(Config())}

    assert all(route.page and route.tag == "console" for route in console.ROUTES)
    assert not api & {route.path for route in console.ROUTES}
    assert "GET /console/" not in (ROOT / "README.md").read_text()


def cookie(town: Town, name: str) -> str:
    """The cookie of a person."""
    return f"feltd_session={town.login(name)}"


def test_a_page_is_written_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of 250 rows takes 30 ms to write: no heartbeat waits behind those who read."""

    def written(*_page: object, **_values: object) -> str:
        return threading.current_thread().name

    monkeypatch.setattr(frame, "write", written)
    assert str(asyncio.run(frame.page(None, "workloads"))).startswith("feltd-pages")  # type: ignore[arg-type]

"""People come in and go out: by a form, with a cookie, back to where they wanted to be."""

from urllib.parse import urlencode

import pytest

from tests.console.reading import Reading
from tests.console.test_frame import call
from tests.console.town import PASSWORD, Town
from tests.daemon.running import Answer

FORM = "application/x-www-form-urlencoded"


def send(town: Town, path: str, fields: dict[str, str], **headers: str) -> Answer:
    """A form as a browser sends it."""
    sent = {"Content-Type": FORM, "Origin": town.url} | headers
    return call(town, "POST", path, urlencode(fields), **sent)


def log_in(town: Town, name: str, **fields: str) -> Answer:
    return send(town, "/console/login", {"username": name, "password": PASSWORD} | fields)


def session(answer: Answer) -> str:
    """The cookie an answer sets."""
    return answer.headers["set-cookie"].partition(";")[0]


def test_a_login_leads_to_where_one_wanted_to_be(town: Town) -> None:
    form = Reading(call(town, "GET", "/console/login?next=%2Fconsole%2Fworkers%3Fa%3D1").body)
    got = log_in(town, "vic", next=form.forms[0].fields["next"])

    assert (got.status, got.headers["location"]) == (303, "/console/workers?a=1")
    kept = got.headers["set-cookie"]
    assert "; HttpOnly; SameSite=Lax" in kept
    assert call(town, "GET", "/console", Cookie=session(got)).status == 200


@pytest.mark.parametrize(
    "to",
    [
        "//evil.example/console",
        "https://evil.example/console",
        "/\\evil.example",
        "/console\\..\\..",
        "/consoleevil",
        "javascript:alert(1)",
        "/console/\r\nSet-Cookie: a=b",
        "",
    ],
)
def test_a_login_leads_nowhere_else(town: Town, to: str) -> None:
    assert log_in(town, "vic", next=to).headers["location"] == "/console"


def test_a_wrong_password_is_told_on_the_form_and_not_repeated(town: Town) -> None:
    got = send(town, "/console/login", {"username": "<b>vic", "password": "not the password"})

    assert got.status == 401
    assert "set-cookie" not in got.headers
    assert "not the password" not in got.body
    assert Reading(got.body).forms[0].fields["username"] == "<b>vic"
    assert "<b>vic" not in got.body


def test_a_strangers_page_logs_nobody_in(town: Town) -> None:
    got = send(
        town,
        "/console/login",
        {"username": "vic", "password": PASSWORD},
        Origin="https://evil.example",
    )

    assert got.status == 403
    assert "set-cookie" not in got.headers


def test_a_logout_ends_the_session_everywhere(town: Town) -> None:
    kept = session(log_in(town, "vic"))
    page = Reading(call(town, "GET", "/console", Cookie=kept).body)
    token = page.forms[-1].fields["form_token"]

    got = send(town, "/console/logout", {"form_token": token}, Cookie=kept)

    assert (got.status, got.headers["location"]) == (303, "/console/login")
    assert call(town, "GET", "/console", Cookie=kept).status == 303


def test_what_changes_something_needs_the_form_token_and_the_own_page(town: Town) -> None:
    kept = session(log_in(town, "ada"))
    token = Reading(call(town, "GET", "/console", Cookie=kept).body).forms[-1].fields["form_token"]
    hold = {"scope": "definition", "value": "never", "reason": "x", "tenant_id": "t"}

    bare = send(town, "/console/holds", hold, Cookie=kept)
    wrong = send(town, "/console/holds", hold | {"form_token": "0" * 64}, Cookie=kept)
    foreign = send(
        town,
        "/console/holds",
        hold | {"form_token": token},
        Cookie=kept,
        Origin="https://evil.example",
    )

    assert [one.status for one in (bare, wrong, foreign)] == [403, 403, 403]
    assert send(town, "/console/holds", hold | {"form_token": token}, Cookie=kept).status == 303


def test_a_new_password_ends_the_other_sessions(town: Town) -> None:
    body = {"username": "pia", "password": PASSWORD, "roles": {"*": "viewer"}}
    town.daemon.post("/v1/users", body)
    one, other = session(log_in(town, "pia")), session(log_in(town, "pia"))
    form = Reading(call(town, "GET", "/console/password", Cookie=one).body)
    token = form.acts()[-1].fields["form_token"]
    fields = {"form_token": token, "old": PASSWORD, "new": "another one, longer", "again": "no"}

    differs = send(town, "/console/password", fields, Cookie=one)
    fields["again"] = fields["new"]
    changed = send(town, "/console/password", fields, Cookie=one)

    assert differs.status == 422
    assert "another one, longer" not in differs.body
    assert changed.status == 303
    assert call(town, "GET", "/console", Cookie=one).status == 200
    assert call(town, "GET", "/console", Cookie=other).status == 303


def test_sign_up_is_closed_unless_it_was_opened(town: Town) -> None:
    assert call(town, "GET", "/console/signup").status == 403
    assert send(town, "/console/signup", {"username": "eve", "password": PASSWORD}).status == 403

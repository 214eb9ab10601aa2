"""What a foreign page in somebody's browser, or the machine it leaves, gets out of a daemon."""

import http.client
from collections.abc import Iterator
from urllib.parse import urlencode, urlsplit

import pytest

from tests.daemon.running import PATIENCE_S, Answer, Daemon

PASSWORD = "correct horse battery"
LISTED = "https://app.example"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    made = Daemon(
        tmp_path_factory.mktemp("pages") / "feltd.db", "--allow-origin", LISTED, "--open-signup"
    )
    try:
        made.init().start()
        body = {"username": "ada", "password": PASSWORD, "roles": {"acme": "admin"}}
        made.post("/v1/users", body)
        yield made
    finally:
        made.close()


def form(daemon: Daemon, path: str, fields: dict[str, str], **headers: str) -> Answer:
    """A form as a browser sends it."""
    address = urlsplit(daemon.url)
    sent = {"Content-Type": "application/x-www-form-urlencoded"}
    sent |= {name.replace("_", "-"): text for name, text in headers.items()}
    talk = http.client.HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE_S)
    try:
        talk.request("POST", path, urlencode(fields), sent)
        got = talk.getresponse()
        text = got.read().decode()
    finally:
        talk.close()
    return Answer(got.status, text, {name.lower(): one for name, one in got.headers.items()})


@pytest.mark.parametrize("origin", ["null", "https://evil.example", LISTED, "http://127.0.0.1"])
def test_no_other_page_logs_anybody_in_or_signs_anybody_up_by_a_form(
    daemon: Daemon, origin: str
) -> None:
    """The victim would go on as somebody else, and be looked over the shoulder."""
    for path in ("/console/login", "/console/signup"):
        fields = {"username": "ada", "password": PASSWORD}
        told = form(daemon, path, fields, Origin=origin)
        assert told.status == 403
        assert "feltd_session" not in told.headers.get("set-cookie", "")


@pytest.mark.parametrize(
    "to",
    ["//evil.example", "/\\evil.example", "https://evil.example", "/console@evil.example",
     "/console\r\nSet-Cookie: a=b", "/console/\t/evil.example", "/consolex", "javascript:alert(1)",
     "/console\u2028"],
)  # fmt: skip
def test_the_login_leads_nowhere_but_into_the_console(daemon: Daemon, to: str) -> None:
    fields = {"username": "ada", "password": PASSWORD, "next": to}
    told = form(daemon, "/console/login", fields, Origin=daemon.url)

    assert (told.status, told.headers["location"]) == (303, "/console")
    assert told.headers["set-cookie"].startswith("feltd_session=felt_h_")


def test_what_is_answered_for_a_cookie_is_kept_by_nobody(daemon: Daemon) -> None:
    """No proxy in between knows that it is one person's, and the next at the browser is another."""
    body = {"username": "ada", "password": PASSWORD}
    cookie = daemon.call("POST", "/v1/auth/login", body, key="").headers["set-cookie"]
    kept = cookie.partition(";")[0]

    for path in ("/v1/auth/me", "/v1/workloads", "/v1/keys", "/console", "/console/keys"):
        told = daemon.call("GET", path, key="", Cookie=kept)
        assert told.status == 200
        assert told.headers["cache-control"] == "no-store"
        assert told.headers["x-content-type-options"] == "nosniff"


def test_another_page_never_shares_a_cookie_by_cors(daemon: Daemon) -> None:
    body = {"username": "ada", "password": PASSWORD}
    cookie = daemon.call("POST", "/v1/auth/login", body, key="").headers["set-cookie"]
    kept = cookie.partition(";")[0]

    for origin in (LISTED, "null", "https://evil.example", LISTED + ".evil.example"):
        told = daemon.call("GET", "/v1/workloads", key="", Cookie=kept, Origin=origin)
        assert "access-control-allow-credentials" not in told.headers
        assert (told.headers.get("access-control-allow-origin") == LISTED) is (origin == LISTED)
        acted = daemon.call(
            "POST", "/v1/auth/logout", {}, key="", Cookie=kept, Origin=origin,
            X_Feltd_Form_Token="0" * 64,
        )  # fmt: skip
        assert (acted.status, acted.body["code"]) == (403, "FORBIDDEN")
    assert daemon.call("GET", "/v1/auth/me", key="", Cookie=kept).status == 200

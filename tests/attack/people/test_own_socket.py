"""The operator's own socket where others reach it: by a port for his browser, or by a proxy."""

import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.daemon.running import PATIENCE_S, Daemon

FORM = "application/x-www-form-urlencoded"
HELD = "scope=all&reason=because+a+page+said+so"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    made = Daemon(tmp_path_factory.mktemp("own") / "feltd.db")
    try:
        yield made.init().start()
    finally:
        made.close()


class Local(HTTPConnection):
    """A connection to the daemon's own socket, as `ssh -L` makes one."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__("localhost", timeout=PATIENCE_S)
        self.path = f"{daemon.data}.sock"

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(self.path)


def call(daemon: Daemon, method: str, path: str, body: str = "", **headers: str) -> int:
    talk: Any = Local(daemon)
    sent = {name.replace("_", "-"): text for name, text in headers.items()}
    try:
        talk.request(method, path, body or None, sent)
        answer = talk.getresponse()
        answer.read()
        return int(answer.status)
    finally:
        talk.close()


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:8080"])
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000"])
def test_a_page_in_the_operators_browser_is_not_the_operator(
    daemon: Daemon, host: str, origin: str
) -> None:
    told = call(daemon, "POST", "/console/holds", HELD, Host=host, Origin=origin, Content_Type=FORM)

    assert told == 403
    assert call(daemon, "GET", "/v1/keys", Host=host, Origin=origin) == 403
    assert daemon.get("/v1/holds")["items"] == []


def test_a_name_that_leads_to_this_machine_is_not_this_machine(daemon: Daemon) -> None:
    """DNS rebinding: the page's own name is pointed at the port, so that its origin is the same."""
    evil = {"Host": "evil.example:8080"}
    assert call(daemon, "GET", "/v1/keys", **evil) == 403
    origin = {"Origin": "http://evil.example:8080", "Content_Type": FORM}
    assert call(daemon, "POST", "/console/holds", HELD, **evil, **origin) == 403
    assert daemon.get("/v1/holds")["items"] == []


@pytest.mark.parametrize("header", ["X_Forwarded_For", "X_Forwarded_Proto", "Forwarded", "Via",
                                    "X_Real_IP"])  # fmt: skip
def test_whoever_comes_by_a_proxy_is_not_the_operator(daemon: Daemon, header: str) -> None:
    assert call(daemon, "GET", "/v1/keys", Host="localhost", **{header: "192.0.2.1"}) == 403


def test_the_operator_himself_comes_in_with_his_tools_and_his_browser(daemon: Daemon) -> None:
    for host in ("localhost", "feltd", "127.0.0.1:8080", "[::1]:8080"):
        assert call(daemon, "GET", "/v1/keys", Host=host) == 200
    own = {"Host": "localhost:8080", "Origin": "http://localhost:8080"}
    assert call(daemon, "GET", "/console", **own) == 200
    hold = call(daemon, "POST", "/console/holds", HELD, **own, Content_Type=FORM)
    assert hold == 303
    # With a key he is whoever the key is, wherever it came through.
    key = {"Authorization": f"Bearer {daemon.key}", "Host": "felt.example", "Via": "1.1 proxy"}
    assert call(daemon, "GET", "/v1/keys", **key) == 200

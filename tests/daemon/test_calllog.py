"""The log of calls of a running daemon: one line each, with its trace, without a secret."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from feltd.api import calllog
from feltd.api.calllog import LINES_AT_ONCE, CallLog
from feltd.errors import Refused
from tests.daemon.running import PATIENCE_S, Daemon, Edge, create, people

TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Logged(Daemon):
    """A daemon whose log is read from where a test began."""

    began = 0

    def told(self) -> str:
        """The log since then."""
        return super().told()[self.began :]


@pytest.fixture(scope="module")
def logging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    made = Logged(tmp_path_factory.mktemp("log") / "feltd.db", "--tick-ms", "100")
    try:
        made.init().start()
        lines(made, event="serving")
        yield made
    finally:
        made.close()


@pytest.fixture
def daemon(logging: Logged) -> Logged:
    """One daemon for all; each test reads what came of its own calls."""
    logging.began += len(logging.told())
    return logging


def lines(daemon: Daemon, least: int = 1, **members: Any) -> list[dict[str, Any]]:
    """Every line of the log that holds these members, once there are so many.

    Each line must be JSON. A line is written after its answer, so a test may be there before it.
    """
    ends_s = time.monotonic() + PATIENCE_S
    while True:
        told = [json.loads(line) for line in daemon.told().split("\n")[:-1]]
        found = [one for one in told if members.items() <= one.items()]
        if len(found) >= least:
            return found
        assert time.monotonic() < ends_s, (members, told)
        time.sleep(0.01)


def test_a_refused_call_has_one_line_with_its_ids(daemon: Daemon) -> None:
    daemon.call("GET", "/v1/workloads/none", traceparent=TRACEPARENT, x_request_id="mine-1")

    [line] = lines(daemon, request_id="mine-1")
    assert line["event"] == "call refused"
    assert line["level"] == "info"
    assert line["code"] == "WORKLOAD_NOT_FOUND"
    assert line["status"] == 404
    assert line["operation"] == "get_workload"
    assert line["trace_id"] == TRACE
    assert line["actor"] == f"service:{line['key_id']}"
    assert line["ms"] >= 0


def test_what_people_change_is_told_and_what_streams_is_not(daemon: Daemon) -> None:
    mesh = people(daemon)
    edge = Edge(daemon, "edge", mesh.registrar_key, capabilities=["documents.extract"])
    edge.beat()
    create(daemon, mesh, "one")
    [claim] = edge.pull(start=True)
    edge.fenced("complete", claim)
    daemon.get("/v1/workloads")
    daemon.post(f"/v1/workers/{edge.id}/drain", {"reason": "a new disk"})
    edge.call("drain", {})

    told = [one["operation"] for one in lines(daemon, 4, event="call")]
    assert told == ["issue_grant", "create_key", "create_key", "drain"]
    # The reason is somebody's text: it is in the audit, not in the log.
    assert "a new disk" not in daemon.told()


HOSTILE = (
    b"X-Request-Id: a\x0bb\r\n",
    b'X-Request-Id: "}\r\n',
    b"X-Request-Id: " + b"a" * 65 + b"\r\n",
    b'traceparent: 00-"},{"event":"forged","x":"\r\n',
    b"traceparent: " + TRACEPARENT.upper().encode() + b"\r\n",
    b"User-Agent: x\xff\xfe{\r\n",
    b"Authorization: Bearer felt_s_\xe2\x80\xae\r\n",
)
IN_AN_ID = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def test_a_hostile_header_breaks_no_line(daemon: Daemon) -> None:
    address = urlsplit(daemon.url)
    place = (address.hostname or "", address.port or 0)
    for raw in HOSTILE:
        with socket.create_connection(place, PATIENCE_S) as connection:
            connection.sendall(
                b"GET /v1/workloads/%22%0a%7b HTTP/1.1\r\nHost: localhost\r\n" + raw + b"\r\n"
            )
            assert connection.recv(65_536).startswith(b"HTTP/1.1 4"), raw
    daemon.call("GET", "/v1/nowhere")
    lines(daemon, code="ROUTE_NOT_FOUND")

    for one in lines(daemon, event="call refused"):
        assert one.get("trace_id") in (None, TRACE)
        assert set(one["request_id"]) <= IN_AN_ID
        assert len(one["request_id"]) <= 64
    assert {one["event"] for one in lines(daemon)} <= {"call refused", "keeper"}


def test_a_bearer_is_in_no_line(daemon: Daemon) -> None:
    wrong = daemon.key[:-8] + "AAAAAAAA"
    daemon.call("GET", "/v1/workloads", key=wrong)
    daemon.call("GET", f"/v1/workloads?token={daemon.key}")
    daemon.call("GET", f"/v1/workloads/{daemon.key}")
    [line] = lines(daemon, code="UNAUTHENTICATED")
    lines(daemon, code="WORKLOAD_NOT_FOUND")
    assert wrong not in daemon.told()
    assert daemon.key not in daemon.told()
    assert line["address"] == "127.0.0.1"
    assert "actor" not in line


def test_a_client_in_a_loop_does_not_fill_the_disk(daemon: Daemon) -> None:
    for _ in range(60):
        daemon.call("GET", "/v1/grants/none")
    daemon.call("GET", "/v1/nowhere")
    lines(daemon, code="ROUTE_NOT_FOUND")
    assert len(lines(daemon, LINES_AT_ONCE, code="GRANT_NOT_FOUND")) < 40


def test_a_refused_channel_has_its_line_too(daemon: Daemon) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    answer = daemon.call(
        "GET", "/v1/no/channel", x_request_id="upgrade-1", Origin="https://elsewhere.example",
        Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==", **upgrade,
    )  # fmt: skip
    assert answer.status == 404
    [line] = lines(daemon, request_id="upgrade-1")
    assert line["code"] == "ROUTE_NOT_FOUND"


def test_a_slow_call_is_told_and_a_long_poll_is_not(daemons: Callable[..., Daemon]) -> None:
    daemon = daemons(FELTD_TEST_SLOW_COMMIT_MS="1200").start()
    daemon.post("/v1/holds", {"scope": "all", "reason": "x"})
    [line] = lines(daemon, event="call slow")
    assert (line["operation"], line["level"]) == ("place_hold", "warning")
    assert line["ms"] >= 1_000
    head = daemon.get("/v1/events")["items"][-1]["seq"]
    daemon.get(f"/v1/events?after={head}&wait_ms=1300")
    daemon.call("GET", "/v1/nowhere")
    lines(daemon, code="ROUTE_NOT_FOUND")
    assert [one["operation"] for one in lines(daemon, event="call slow")] == ["place_hold"]


class Heard:
    """A log that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def info(self, event: str, **members: Any) -> None:
        self.told.append({"event": event} | members)

    warning = info


def test_what_was_left_out_is_told_by_the_next_line(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    monkeypatch.setattr(calllog, "log", heard)
    at_s = 0.0
    calls = CallLog(lambda: at_s)

    def refuse() -> None:
        scope: dict[str, Any] = {"feltd.operation": "pull", "headers": [], "method": "POST"}
        calls.refused(scope, Refused("SERVICE_OVERLOADED", "full", committed=False))
        calls.ended(scope, 503, 0.001)

    for _ in range(LINES_AT_ONCE + 7):
        refuse()
    assert len(heard.told) == LINES_AT_ONCE
    at_s = 1.0
    refuse()
    assert heard.told[-1]["left_out"] == 7
    assert heard.told[-1]["detail"] == "full"
    at_s = 60.0
    refuse()
    assert "left_out" not in heard.told[-1]
    # Every one of them is counted all the same.
    assert calls.refusals == {"SERVICE_OVERLOADED": LINES_AT_ONCE + 9}

"""Canaries: each bound that hypercorn has no setting for still holds, on both event loops.

When an upgrade of hypercorn, h11 or uvloop breaks one of these, server.py has to be looked at
before anything else.
"""

import os
import socket
import ssl
import stat
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from feltd.api.house import LOCAL_CONNECTIONS_MAX
from feltd.api.listen import BACKLOG, ListenProblem
from tests.api.transport.kit import Closed, Talk, request, serving

LONG_MS = 60_000
HEALTH = request("GET", "/health")


def test_one_connection_too_many_is_cut_and_the_others_live_on(loop_kind: str) -> None:
    with serving(loop_kind, max_connections=3) as house:
        kept = [house.connect() for _ in range(3)]
        assert [talk.send(HEALTH).answer().status for talk in kept] == [200] * 3

        assert house.connect().ended()
        assert kept[0].send(HEALTH).answer().status == 200

        kept[1].close()
        house.eventually(lambda: house.server.connections == 2)
        assert house.connect().send(HEALTH).answer().status == 200


def test_one_address_cannot_take_every_connection(loop_kind: str) -> None:
    with serving(loop_kind, max_connections=10, max_connections_per_address=2) as house:
        greedy = [house.connect().send(HEALTH) for _ in range(2)]
        assert [talk.answer().status for talk in greedy] == [200] * 2
        assert house.connect().ended()

        there = ("127.0.0.1", house.port)
        other = Talk(socket.create_connection(there, source_address=("127.0.0.2", 0)))
        assert other.send(HEALTH).answer().status == 200


def test_a_client_that_went_away_between_calls_leaves_nothing_behind(loop_kind: str) -> None:
    with serving(loop_kind, keep_alive_ms=LONG_MS) as house:
        for leave in (Talk.close, Talk.reset):
            talk = house.connect()
            talk.send(HEALTH).answer()
            leave(talk)
            house.eventually(lambda: house.server.connections == 0)


def test_a_client_that_half_closes_gets_its_answer_and_leaves_nothing_behind(
    loop_kind: str,
) -> None:
    with serving(loop_kind, keep_alive_ms=LONG_MS) as house:
        talk = house.connect().send(HEALTH)
        talk.sock.shutdown(socket.SHUT_WR)

        assert talk.answer().status == 200
        assert talk.ended()
        house.eventually(lambda: house.server.connections == 0)


def test_a_client_that_never_reads_is_cut(loop_kind: str) -> None:
    with serving(loop_kind, drain_deadline_ms=200) as house:
        talk = house.connect()
        talk.send(request("GET", f"/v1/large?bytes={32 << 20}"))

        house.eventually(lambda: house.server.connections == 1)
        house.eventually(lambda: house.server.connections == 0)
        assert house.do(lambda: house.stack.admission.in_flight) == 0


def test_a_client_that_never_reads_a_last_small_answer_is_cut_as_well(loop_kind: str) -> None:
    with serving(loop_kind, drain_deadline_ms=200, keep_alive_ms=200) as house:
        talk = house.connect()
        talk.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(4):
            talk.send(request("GET", f"/v1/large?bytes={4 << 20}"))
        house.eventually(lambda: house.server.connections == 1)
        house.eventually(lambda: house.server.connections == 0)


def test_a_slow_line_is_not_mistaken_for_a_client_that_never_reads(loop_kind: str) -> None:
    with serving(loop_kind, drain_deadline_ms=1_500) as house:
        talk = house.connect()
        talk.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
        talk.send(request("GET", f"/v1/large?bytes={16 << 20}"))
        received = 0
        while received < 16 << 20:
            piece = talk.sock.recv(256 * 1024)
            assert piece, f"cut after {received} bytes"
            received += len(piece)
            time.sleep(0.03)


@pytest.mark.parametrize(
    "opening",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0",
        b"GET /health HTTP/2.0\r\nHost: a\r\n\r\n",
        b"GET /health HTTP/1.0\r\nHost: a\r\n\r\n",
    ],
)
def test_only_http_1_1_is_spoken(loop_kind: str, opening: bytes) -> None:
    with serving(loop_kind) as house:
        talk = house.connect().send(opening)
        answer = talk.answer()

        assert (answer.status, answer.json["status"]) == (505, 505)
        assert answer.code == "PROTOCOL_UNSUPPORTED"
        assert talk.ended()
        talk.close()
        house.eventually(lambda: house.server.connections == 0)


def test_an_offer_to_upgrade_to_http_2_is_passed_over(loop_kind: str) -> None:
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2_Settings": "AAMA"}
    with serving(loop_kind) as house:
        talk = house.connect()
        assert talk.send(request("GET", "/health", **offer)).answer().status == 200
        assert talk.send(HEALTH).answer().status == 200


async def accepting(scope: Any, receive: Any, send: Any) -> None:
    """A WebSocket application that says one long word."""
    if scope["type"] == "lifespan":
        for step in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{step}.complete"})
        return
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "text": "a" * 100})
    await receive()


def test_websockets_are_never_compressed(loop_kind: str) -> None:
    handshake = request(
        "GET",
        "/channel",
        Connection="Upgrade",
        Upgrade="websocket",
        Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==",
        Sec_WebSocket_Version="13",
        Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits",
    )
    with serving(loop_kind, app=accepting) as house:
        talk = house.connect().send(handshake)
        head = talk._until(b"\r\n\r\n").lower()
        frame = talk._exactly(2)
        while frame[0] & 0x0F == 9:  # a ping
            talk._exactly(frame[1])
            frame = talk._exactly(2)

        assert head.startswith(b"http/1.1 101")
        assert b"sec-websocket-extensions" not in head
        assert frame == bytes([0x81, 100])  # not marked compressed, and as long as it is
        talk.close()
        house.eventually(lambda: house.server.connections == 0)


def test_a_websocket_where_there_is_none_is_refused_like_any_path(loop_kind: str) -> None:
    handshake = request(
        "GET",
        "/channel",
        Connection="Upgrade",
        Upgrade="websocket",
        Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==",
        Sec_WebSocket_Version="13",
    )
    with serving(loop_kind) as house:
        answer = house.connect().send(handshake).answer()

    assert (answer.status, answer.code) == (404, "ROUTE_NOT_FOUND")
    assert answer.headers["feltd-protocol"] == "1"


@pytest.fixture
def certificate(tmp_path: Path) -> dict[str, str]:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    making = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    making += ["-nodes", "-subj", "/CN=localhost", "-days", "1", "-out", cert, "-keyout", key]
    subprocess.run(making, check=True, capture_output=True)
    return {"tls_cert": str(cert), "tls_key": str(key)}


@pytest.fixture
def client() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


@pytest.mark.needs("openssl")
def test_tls_clients_are_offered_http_1_1_alone(
    loop_kind: str, certificate: dict[str, str], client: ssl.SSLContext
) -> None:
    with serving(loop_kind, **certificate) as house:
        assert house.url.startswith("https://")
        for _ in range(20):
            talk = house.connect(tls=client)
            assert isinstance(talk.sock, ssl.SSLSocket)
            assert talk.sock.selected_alpn_protocol() == "http/1.1"
            assert talk.send(HEALTH).answer().status == 200
            assert talk.send(request("GET", "/v1/large?bytes=5000000")).answer().status == 200
            talk.send(request("GET", "/health", X="y" * 20_000))
            assert talk.answer().status == 413
            talk.close()
        house.eventually(lambda: house.server.connections == 0)


@pytest.mark.needs("openssl")
def test_who_does_not_shake_hands_is_waited_for_no_longer_than_a_head(
    loop_kind: str, certificate: dict[str, str], client: ssl.SSLContext
) -> None:
    with serving(loop_kind, head_deadline_ms=500, **certificate) as house:
        assert house.connect().ended()
        assert house.connect(tls=client).send(HEALTH).answer().status == 200


@pytest.mark.needs("openssl")
def test_a_certificate_with_its_key_in_the_same_file_is_never_served_without_tls(
    loop_kind: str, certificate: dict[str, str], client: ssl.SSLContext, tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(b"".join(Path(path).read_bytes() for path in certificate.values()))
    with serving(loop_kind, tls_cert=str(both)) as house:
        assert house.connect(tls=client).send(HEALTH).answer().status == 200


def test_a_certificate_that_is_none_is_a_plain_sentence(tmp_path: Path) -> None:
    wrong = tmp_path / "cert.pem"
    wrong.write_text("not a certificate")
    for path in (str(wrong), str(tmp_path / "missing.pem")):
        with pytest.raises(ListenProblem, match="--tls-cert"), serving(tls_cert=path):
            pass


def test_a_head_that_drips_is_answered_408_and_cut(loop_kind: str) -> None:
    with serving(loop_kind, head_deadline_ms=300, keep_alive_ms=LONG_MS) as house:
        talk = house.connect()
        assert talk.send(HEALTH).answer().status == 200
        for byte in b"GET /health HT":
            talk.send(bytes([byte]))
        answer = talk.answer()

        assert (answer.status, answer.code) == (408, "REQUEST_TIMEOUT")
        assert talk.ended()


def test_a_connection_that_never_says_anything_is_closed_but_one_at_rest_is_not(
    loop_kind: str,
) -> None:
    with serving(loop_kind, head_deadline_ms=400, keep_alive_ms=LONG_MS) as house:
        resting = house.connect()
        resting.send(HEALTH).answer()
        assert house.connect().ended()
        assert resting.send(HEALTH).answer().status == 200


def test_a_connection_at_rest_too_long_is_closed(loop_kind: str) -> None:
    with serving(loop_kind, keep_alive_ms=200) as house:
        talk = house.connect()
        talk.send(HEALTH).answer()
        assert talk.ended()


def test_a_connection_serves_more_than_a_thousand_calls(loop_kind: str) -> None:
    with serving(loop_kind) as house:
        talk = house.connect()
        for _ in range(1_100):
            assert "connection" not in talk.send(HEALTH).answer().headers


def test_calls_sent_ahead_are_answered_in_their_order(loop_kind: str) -> None:
    with serving(loop_kind) as house:
        talk = house.connect()
        talk.send(b"".join(request("GET", f"/v1/workers/w{i}") for i in range(20)))
        assert [talk.answer().json["id"] for _ in range(20)] == [f"w{i}" for i in range(20)]


def test_a_call_sent_ahead_on_a_connection_that_ends_leaves_nothing_behind(
    loop_kind: str,
) -> None:
    with serving(loop_kind) as house:
        talk = house.connect()
        talk.send(request("GET", "/health", Connection="close") + HEALTH)
        assert talk.answer().status == 200
        assert talk.ended()
        house.eventually(lambda: house.server.connections == 0)


def test_a_body_is_asked_for_only_when_somebody_wants_it(loop_kind: str) -> None:
    with serving(loop_kind, stack={"body_bytes_max": 1_000}) as house:
        wanted = house.connect()
        wanted.send(request("POST", "/v1/echo", Content_Length="12", Expect="100-continue", **JSON))
        assert wanted._until(b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        assert wanted.send(b'{"name":"a"}').answer().status == 201

        unwanted = house.connect()
        unwanted.send(
            request("POST", "/v1/echo", Content_Length="2000", Expect="100-continue", **JSON)
        )
        assert unwanted._until(b"\r\n\r\n").startswith(b"HTTP/1.1 413")


JSON = {"Content_Type": "application/json"}


def test_a_stop_ends_what_rests_at_once_and_lets_what_works_finish(loop_kind: str) -> None:
    with serving(loop_kind, keep_alive_ms=LONG_MS) as house:
        resting, silent = house.connect(), house.connect()
        resting.send(HEALTH).answer()
        working, polling = house.connect(), house.connect()
        working.send(request("POST", "/v1/hold"))
        polling.send(request("POST", "/v1/poll?wait_ms=30000"))
        house.eventually(lambda: house.world.entered == 1 and len(house.world.polls) == 1)

        house.do(house.stop_event.set)

        assert polling.answer().json == {"why": "stop"}
        assert resting.ended()
        assert silent.ended()
        with pytest.raises((ConnectionError, Closed)):
            house.connect().send(HEALTH).answer()
        house.do(house.world.release.set)
        answer = working.answer()
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        house._thread.join(20)
        assert not house._thread.is_alive()
    assert house.hard_exits == 0


def test_a_stop_does_not_wait_for_ever_for_a_call_that_never_ends(loop_kind: str) -> None:
    with serving(loop_kind, graceful_ms=1_000) as house:
        working = house.connect().send(request("POST", "/v1/hold"))
        house.eventually(lambda: house.world.entered == 1)
        house.do(house.stop_event.set)
        answer = working.answer()
        assert (answer.status, answer.code) == (503, "OUTCOME_UNKNOWN")
        assert answer.json["committed"] == "unknown"
        assert working.ended()
        house._thread.join(20)
        assert not house._thread.is_alive()
        assert house.world.dropped == 1
    assert house.hard_exits == 0


def test_a_loop_that_is_not_given_back_does_not_keep_the_process(loop_kind: str) -> None:
    with serving(loop_kind, graceful_ms=300) as house:
        talk = house.connect().send(request("POST", "/v1/hold"))
        house.eventually(lambda: house.world.entered == 1)
        house.do(house.stop_event.set)
        house.do(lambda: house.loop.call_later(0.05, time.sleep, 1.0))
        house._thread.join(20)
        assert not house._thread.is_alive()
        talk.close()
    assert house.hard_exits == 1


def test_a_socket_handed_over_is_served_and_a_unix_one_among_them_is_no_operators(
    loop_kind: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "handed.sock")
    handed = socket.socket(socket.AF_UNIX)
    handed.bind(path)
    handed.listen()
    with serving(loop_kind, fds=(handed.detach(),)) as house:
        assert house.url == f"unix:{path}"
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(path)
        assert Talk(sock).send(HEALTH).answer().json["local"] is False


def test_the_operators_socket_is_private_and_tells_who_comes_by_it(
    loop_kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "feltd.db.sock"
    with serving(loop_kind, local_path=str(path), max_connections=1) as house:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        taken = house.connect()
        taken.send(HEALTH).answer()
        # The network's cap is not the operator's.
        talk = house.connect_local().send(HEALTH)
        assert talk.answer().json["local"] is True
        unkeyed = request("GET", "/v1/workers/w1", Authorization="")
        assert talk.send(unkeyed).answer().status == 200
        assert taken.send(HEALTH).answer().json["local"] is False
        crowd = [house.connect_local() for _ in range(LOCAL_CONNECTIONS_MAX - 1)]
        house.eventually(lambda: house.server.connections == LOCAL_CONNECTIONS_MAX + 1)
        assert house.connect_local().ended()
        for talk in crowd:
            talk.close()
    assert not path.exists()


def test_a_port_in_use_is_a_plain_sentence(loop_kind: str) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(ListenProblem) as caught, serving(loop_kind, port=taken.getsockname()[1]):
        pass
    assert "Address already in use" in str(caught.value)
    taken.close()


def test_a_herd_fits_into_the_backlog(loop_kind: str) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    seen = socket.socket(fileno=os.dup(listening.fileno()))
    with serving(loop_kind, fds=(listening.detach(),)):
        told = seen.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
        backlog = struct.unpack_from("I", told, 28)[0]
    seen.close()
    kernel_max = int(Path("/proc/sys/net/core/somaxconn").read_text())
    assert backlog == min(BACKLOG, kernel_max)

"""Behind nginx and Caddy, run by the shipped snippets: all that works without them works."""

import http.client
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, Message, Request, TextMessage

from tests.daemon.running import PATIENCE_S, Daemon, Edge, Mesh, create, people
from tests.transport import proxies
from tests.transport.certificates import Authority
from tests.transport.test_activation import launch

KINDS = [
    pytest.param("nginx", marks=pytest.mark.needs("nginx", "openssl")),
    pytest.param("caddy", marks=pytest.mark.needs("openssl")),
]


class Behind(NamedTuple):
    """A daemon, the proxy before it, and the daemon as clients reach it through the proxy."""

    daemon: Daemon
    proxy: proxies.Proxy
    front: Daemon


@pytest.fixture(params=KINDS, scope="module")
def behind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Behind]:
    """One of each kind for all stories."""
    folder = tmp_path_factory.mktemp("behind")
    authority = Authority(folder)
    daemon = Daemon(folder / "feltd.db", "--tick-ms", "100", "--trust-proxy", "127.0.0.1/32")
    daemon.init().start()
    proxy = getattr(proxies, request.param)(folder, authority, daemon.url)
    front = Daemon(daemon.data)
    front.key, front.tls = daemon.key, authority.client()
    front.url = f"https://localhost:{proxy.port}"
    yield Behind(daemon, proxy, front)
    proxy.close()
    daemon.close()


@pytest.fixture(scope="module")
def mesh(behind: Behind) -> Mesh:
    """A grant and its keys, for the stories behind one proxy."""
    return people(behind.front)


def last_seq(front: Daemon) -> int:
    """Where the feed of events stands."""
    feed = front.get("/v1/events?limit=500")
    return max((one["seq"] for one in feed["items"]), default=0)


def addresses(daemon: Daemon, count: int) -> set[str]:
    """Whose calls without a valid key the log tells of, once there are so many lines."""
    ends_s = time.monotonic() + PATIENCE_S
    while len(found := re.findall(r'"address": "([^"]*)"', daemon.told())) < count:
        assert time.monotonic() < ends_s, daemon.told()
        time.sleep(0.02)
    return set(found)


def test_work_goes_through_and_the_client_is_who_he_is(behind: Behind, mesh: Mesh) -> None:
    daemon, front = behind.daemon, behind.front
    work = create(front, mesh, "work")
    edge = Edge(front, "edge", mesh.registrar_key)
    edge.beat()
    claims = {claim["workload_id"]: claim for claim in edge.pull(max=8)}
    claim = claims[work["workload_id"]]
    assert edge.fenced("start", claim).status == 200
    assert edge.fenced("complete", claim, output={"pages": 1}).status == 200
    assert front.get(f"/v1/workloads/{work['workload_id']}")["state"] == "COMPLETED"

    # What a client says of himself and others counts for nothing.
    for spoof in ("192.0.2.66", "192.0.2.66, 127.0.0.1"):
        refused = front.call("GET", "/v1/keys", key="felt_x", X_Forwarded_For=spoof)
        assert refused.status == 401
    assert addresses(daemon, 2) == {"127.0.0.1"}


def test_a_stranger_is_named_by_the_proxy_and_refused_beside_it(
    daemons: Callable[..., Daemon],
) -> None:
    """The test plays the proxy: it alone can come from another address than its own."""
    daemon = daemons().start("--trust-proxy", "127.0.0.1/32")
    said = {"X_Forwarded_For": "192.0.2.66", "X_Forwarded_Proto": "https"}
    assert daemon.call("GET", "/v1/keys", key="felt_x", **said).status == 401
    assert addresses(daemon, 1) == {"192.0.2.66"}
    daemon.stop()
    # Now nothing here is trusted: the same words are the client's own, and count for nothing.
    daemon.start("--trust-proxy", "10.0.0.0/8")
    assert daemon.call("GET", "/v1/keys", key="felt_x", **said).status == 401
    assert addresses(daemon, 2) == {"192.0.2.66", "127.0.0.1"}


def test_a_long_poll_ends_when_there_is_something_to_tell(behind: Behind, mesh: Mesh) -> None:
    front = behind.front
    after = last_seq(front)
    with ThreadPoolExecutor() as pool:
        polling = pool.submit(front.get, f"/v1/events?after={after}&wait_ms=30000")
        while not front.get("/health").get("long_polls", 1):
            assert not polling.done()
        create(front, mesh, "poll")
        assert polling.result(PATIENCE_S)["items"]


def test_events_of_a_stream_come_one_by_one(behind: Behind, mesh: Mesh) -> None:
    """Nothing is held back until a buffer is full or the stream ends."""
    front = behind.front
    with closing(front.connection()) as talk:
        headers = {"Authorization": f"Bearer {front.key}", "Accept": "text/event-stream"}
        talk.request("GET", f"/v1/events?after={last_seq(front)}", headers=headers)
        answer = talk.getresponse()
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        for name in ("one", "two", "three"):
            created = create(front, mesh, name)["workload_id"]
            while created not in (line := answer.readline().decode()):
                assert line, "the stream ended"


def test_a_large_body_arrives_whole_and_a_larger_one_is_refused_in_feltds_words(
    behind: Behind, mesh: Mesh
) -> None:
    front = behind.front
    text = "x" * 200_000
    made = create(front, mesh, "large", input={"text": text})
    assert front.get(f"/v1/workloads/{made['workload_id']}")["input"]["text"] == text
    body = {"definition_id": "extract", "input": {"text": "x" * (1024 * 1024)}}
    refused = front.call("POST", "/v1/workloads", body)
    assert (refused.status, refused.body["code"]) == (413, "REQUEST_TOO_LARGE")
    long_head = front.call("GET", "/v1/workloads", X_Long="x" * 20_000)
    assert (long_head.status, long_head.body["code"]) == (413, "REQUEST_TOO_LARGE")


def test_64_connections_are_kept_and_each_is_used_again(behind: Behind) -> None:
    front = behind.front
    headers = {"Authorization": f"Bearer {front.key}"}
    gate = threading.Barrier(64)

    def use(_number: int) -> list[int]:
        with closing(front.connection()) as talk:
            found = []
            talk.connect()
            kept = talk.sock
            gate.wait(PATIENCE_S)
            for _ in range(5):
                talk.request("GET", "/health", headers=headers)
                with talk.getresponse() as answer:
                    answer.read()
                    found.append(answer.status)
                assert talk.sock is kept
            return found

    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(use, range(64))) == [[200] * 5] * 64


def test_the_channel_of_a_worker_is_upgraded(behind: Behind, mesh: Mesh) -> None:
    front = behind.front
    edge = Edge(front, "far", mesh.registrar_key)
    talk = front.connection()
    talk.connect()
    with closing(talk):
        channel = WSConnection(ConnectionType.CLIENT)
        asked = Request(
            host=f"localhost:{behind.proxy.port}",
            target=f"/v1/workers/{edge.id}/channel",
            subprotocols=["feltd.v1"],
            extra_headers=[(b"Authorization", f"Bearer {edge.key}".encode())],
        )
        talk.sock.sendall(channel.send(asked))
        accepted = _next(talk.sock, channel)
        assert isinstance(accepted, AcceptConnection), accepted
        assert accepted.subprotocol == "feltd.v1"
        beat = {"worker_id": edge.id, "version": "1", "health": "HEALTHY",
                "capability_version": edge.capability_version,
                "capacity": {"concurrency": 8}}  # fmt: skip
        talk.sock.sendall(channel.send(TextMessage(json.dumps({"id": 7, "heartbeat": beat}))))
        answer = json.loads(_text(talk.sock, channel))
        assert (answer["id"], answer["worker"]["name"]) == (7, "far")


def test_a_person_logs_in_and_only_pages_of_this_address_may_act(
    behind: Behind, tmp_path: Path
) -> None:
    """The cookie is for TLS alone: the scheme is the one the proxy was spoken to by."""
    front = behind.front
    front.post(
        "/v1/users", {"username": "ada", "password": "correct horse", "roles": {"*": "admin"}}
    )
    asked = {"username": "ada", "password": "correct horse"}
    login = front.call("POST", "/v1/auth/login", asked, key="")
    assert login.status == 200, login
    cookie = login.headers["set-cookie"]
    assert cookie.startswith("__Host-feltd_session=")
    assert "Secure" in cookie
    by_cookie: dict[str, Any] = {"key": "", "Cookie": cookie.partition(";")[0]}
    told = front.call("GET", "/v1/auth/me", **by_cookie)
    assert (told.status, told.body["subject"]) == (200, {"kind": "human", "id": "ada"})
    foreign = front.call("POST", "/v1/auth/logout", **by_cookie, Origin="https://elsewhere.example")
    assert "only from a page of this daemon" in foreign.body["detail"]
    own = front.call("POST", "/v1/auth/logout", **by_cookie, Origin=front.url)
    assert "form token" in own.body["detail"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_proxy_on_this_machine_comes_by_the_unix_socket(
    daemons: Callable[..., Daemon], authority: Authority, tmp_path: Path, kind: str
) -> None:
    """As feltd.socket opens it. Trusted as 127.0.0.1 is; nobody who comes by it is an operator."""
    daemon, path = daemons("feltd.db"), tmp_path / "given.sock"
    with socket.socket(socket.AF_UNIX) as given:
        given.bind(str(path))
        given.listen()
        launch(daemon, given, flags=("--trust-proxy", "127.0.0.1/32"))
    proxy = getattr(proxies, kind)(tmp_path, authority, f"unix:{path}")
    try:
        front = Daemon(daemon.data)
        front.key, front.tls = daemon.key, authority.client()
        front.url = f"https://localhost:{proxy.port}"
        assert front.get("/v1/auth/me")["subject"]["kind"] == "service"
        assert front.call("GET", "/v1/keys", key="").status == 401
        assert addresses(daemon, 1) == {"127.0.0.1"}
    finally:
        proxy.close()


@pytest.mark.needs("nginx", "openssl")
def test_clear_text_is_sent_on_to_tls(
    daemons: Callable[..., Daemon], authority: Authority, tmp_path: Path
) -> None:
    daemon = daemons("feltd.db", "--trust-proxy", "127.0.0.1/32").start()
    proxy = proxies.nginx(tmp_path, authority, daemon.url)
    try:
        talk = http.client.HTTPConnection("127.0.0.1", proxy.clear_port, timeout=PATIENCE_S)
        with closing(talk):
            talk.request("POST", "/v1/workloads?tenant=a", headers={"Host": "localhost"})
            answer = talk.getresponse()
            assert answer.status == 308
            assert answer.headers["Location"] == "https://localhost/v1/workloads?tenant=a"
    finally:
        proxy.close()


def _next(sock: socket.socket | ssl.SSLSocket, channel: WSConnection) -> Any:
    while True:
        for event in channel.events():
            return event
        channel.receive_data(sock.recv(65_536) or None)


def _text(sock: socket.socket | ssl.SSLSocket, channel: WSConnection) -> str:
    text = ""
    while True:
        event = _next(sock, channel)
        if isinstance(event, Message):
            text += str(event.data)
            if event.message_finished:
                return text

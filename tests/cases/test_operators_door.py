"""The door of people: floods of logins, slow and large bodies, secrets in addresses, upgrades."""

import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode, urlsplit

import pytest

from tests.api.channel.talk import Refusal, Wire, address_of, path_of
from tests.cases.test_races import threads_of
from tests.daemon.load import crew
from tests.daemon.running import Answer, Daemon, Edge, people

PASSWORD = "a horse, a battery, a staple"
FORM = "application/x-www-form-urlencoded"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon of this file, with a user who administers it."""
    made = Daemon(tmp_path_factory.mktemp("door") / "feltd.db", "--body-deadline-ms", "1000")
    try:
        made.init().start()
        body = {"username": "ada", "password": PASSWORD, "roles": {"*": "admin"}}
        made.post("/v1/users", body)
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def edge(daemon: Daemon) -> Edge:
    """A worker that has nothing to do with people."""
    return crew(daemon, people(daemon), 1)[0]


def line_to(daemon: Daemon) -> socket.socket:
    """A connection on which a test says what it likes."""
    address = urlsplit(daemon.url)
    return socket.create_connection((address.hostname, address.port), 20)


def test_a_flood_of_logins_that_are_given_up_costs_workers_nothing(
    daemon: Daemon, edge: Edge
) -> None:
    """BC-091: 200 who leave at once; two passwords are at work, whoever has gone, and few wait."""
    status = f"/proc/{daemon.pid}/status"

    def resident_kb() -> int:
        with open(status) as told:
            return next(int(line.split()[1]) for line in told if line.startswith("VmRSS"))

    def storm(number: int) -> None:
        raw = json.dumps({"username": f"user-{number}", "password": "wrong"}).encode()
        head = (
            "POST /v1/auth/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(raw)}\r\n\r\n"
        )
        with line_to(daemon) as line:
            line.sendall(head.encode() + raw)
            time.sleep(0.005)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    beats: list[int] = []
    threads: list[int] = []
    stop = threading.Event()

    def beat() -> None:
        while not stop.is_set():
            beats.append(edge.beat().status)
            threads.append(threads_of(daemon))

    storm(0)
    before, memory_kb = threads_of(daemon), resident_kb()
    worker = threading.Thread(target=beat)
    worker.start()
    with ThreadPoolExecutor(50) as many:
        list(many.map(storm, range(200)))
    stop.set()
    worker.join()

    assert set(beats) == {200}
    # The threads of passwords are made at the first of them.
    assert max(threads) <= before + 2
    assert resident_kb() < memory_kb + 65_536
    while "feltd_in_flight 0.0" not in daemon.get("/metrics"):
        time.sleep(0.02)


def test_one_of_those_who_make_the_same_user_at_once_makes_him(daemon: Daemon) -> None:
    """BC-037: whoever comes second is told that there is one, and changes nothing of him."""
    passwords = [f"{number} {PASSWORD}" for number in range(12)]

    def make(password: str) -> Answer:
        body = {"username": "twin", "password": password, "roles": {"t": "viewer"}}
        return daemon.call("POST", "/v1/users", body)

    with ThreadPoolExecutor(12) as many:
        told = list(many.map(make, passwords))

    assert Counter(answer.status for answer in told)[201] == 1, told
    assert {answer.status for answer in told} <= {201, 409, 503}
    (won,) = [one for one, answer in zip(passwords, told, strict=True) if answer.status == 201]
    let_in = daemon.call("POST", "/v1/auth/login", {"username": "twin", "password": won}, key="")
    assert let_in.status == 200


def test_what_is_secret_in_an_address_is_told_to_nobody(daemon: Daemon, edge: Edge) -> None:
    """BC-092: bearers and passwords in addresses of pages, streams and channels; then look."""
    login = {"username": "ada", "password": PASSWORD}
    session = daemon.post("/v1/auth/login", login, key="")["session"]
    secrets = [session, edge.key, daemon.key, urlencode({"": PASSWORD})[1:], PASSWORD]
    shown = []
    for secret in secrets:
        word = urlencode({"": secret})[1:]
        for path in (
            f"/console?token={word}", f"/console/login?password={word}", f"/console/{word}",
            f"/console/stream?session={word}", f"/v1/auth/login?password={word}",
            f"/console/login?next=/console/{word}", f"/v1/backups?api_key={word}",
        ):  # fmt: skip
            answer = daemon.call("GET", path, key="", Accept="text/html")
            assert answer.status != 200 or "login" in path, path
            assert answer.status < 500, answer
            # A page repeats its own address to who asked for it; nothing else does.
            if not path.startswith("/console"):
                shown.append(json.dumps([answer.body, answer.headers]))
        path = f"{path_of(edge.id)}?token={word}"
        with pytest.raises(Refusal) as refused:
            Wire.open(address_of(daemon), path, Cookie=f"feltd_session={session}")
        shown.append(json.dumps(refused.value.body))
    shown += [daemon.told(), daemon.get("/metrics"), json.dumps(daemon.get("/v1/audit?limit=500"))]
    shown.append(json.dumps(daemon.get("/v1/diagnostics")))
    for text in shown:
        for secret in secrets:
            assert secret not in text
    for file in daemon.data.parent.iterdir():
        for secret in secrets if file.is_file() else ():
            assert secret.encode() not in file.read_bytes(), file


def answered(line: socket.socket) -> bytes:
    """All that comes until the other side ends it."""
    found = b""
    while piece := line.recv(65_536):
        found += piece
    return found


@pytest.mark.parametrize("path", ["/console/login", "/v1/auth/login"])
def test_a_login_whose_body_does_not_come_holds_nobody_up(daemon: Daemon, path: str) -> None:
    """BC-087: as many as may wait for a body send one byte of it; somebody else logs in."""
    kind = FORM if "console" in path else "application/json"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: 1000\r\n\r\n"
    )
    held = [line_to(daemon) for _ in range(64)]
    try:
        for line in held:
            line.sendall(head.encode() + b"{")
        login = {"username": "ada", "password": PASSWORD}
        assert daemon.call("POST", "/v1/auth/login", login, key="").status == 200
        assert {answered(line)[9:12] for line in held} == {b"408"}
    finally:
        for line in held:
            line.close()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_form_larger_than_a_form_is_refused_before_it_is_read(
    daemon: Daemon, chunked: bool
) -> None:
    """BC-085: by what its length says, or where it passes the bound."""
    length = "Transfer-Encoding: chunked" if chunked else "Content-Length: 200000000"
    head = f"POST /console/login HTTP/1.1\r\nHost: x\r\nContent-Type: {FORM}\r\n{length}\r\n\r\n"
    piece = b"username=" + b"x" * 1_200_000
    with line_to(daemon) as line:
        line.sendall(head.encode())
        line.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece[:1_000])
        answer = answered(line)
    assert answer[9:12] == b"413", answer[:300]


@pytest.mark.parametrize(
    "line",
    [
        "Content-Length: 5", "Transfer-Encoding: chunked", "Content-Length: 5\r\nContent-Length: 6",
        "Authorization: Bearer x\r\nAuthorization: Bearer y",
    ],
)  # fmt: skip
def test_nothing_is_smuggled_behind_an_upgrade(daemon: Daemon, edge: Edge, line: str) -> None:
    """BC-086: a handshake with a body is no handshake, and what follows is not answered."""
    head = (
        f"GET {path_of(edge.id)} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{line}\r\n\r\n"
    )
    with line_to(daemon) as sock:
        sock.sendall(head.encode() + b"0\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        sock.settimeout(20)
        told = answered(sock)
    assert told[9:12] in (b"400", b"401"), told[:300]
    assert told.count(b"HTTP/1.1 ") == 1

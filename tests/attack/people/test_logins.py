"""Who keeps whom out by trying passwords, and who gets more tries than he should."""

import http.client
import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Event

import pytest

from feltd.identity.throttle import ACCOUNT_FREE, ADDRESS_FREE
from tests.daemon.running import PATIENCE_S, Daemon

PASSWORD = "correct horse battery"
Daemons = Callable[..., Daemon]

_names = count(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logins")


@pytest.fixture(scope="module")
def proxied(folder: Path) -> Iterator[Daemon]:
    """A daemon behind a proxy on this machine, which says who calls."""
    daemon = Daemon(folder / "proxied.db", "--trust-proxy", "127.0.0.1/32")
    try:
        yield daemon.init().start()
    finally:
        daemon.close()


def user(daemon: Daemon) -> str:
    name = f"user-{next(_names)}"
    daemon.post("/v1/users", {"username": name, "password": PASSWORD, "roles": {"acme": "viewer"}})
    return name


def login(daemon: Daemon, name: str, password: str = PASSWORD, address: str = "") -> int:
    told = {"X_Forwarded_For": address} if address else {}
    body = {"username": name, "password": password}
    return daemon.call("POST", "/v1/auth/login", body, key="", **told).status


def test_guesses_at_once_from_everywhere_are_as_few_as_one_after_another(proxied: Daemon) -> None:
    name = user(proxied)

    def guess(number: int) -> int:
        return login(proxied, name, f"wrong {number}", f"198.51.100.{number}")

    with ThreadPoolExecutor(32) as many:
        told = Counter(many.map(guess, range(64)))

    assert told[401] == ACCOUNT_FREE
    assert told[429] == 64 - ACCOUNT_FREE


def test_strangers_who_try_a_name_keep_its_user_out_nowhere_he_is_known(proxied: Daemon) -> None:
    """Nor on the machine of the daemon: there is always somebody who may come in."""
    name = user(proxied)
    assert login(proxied, name, address="192.0.2.50") == 200

    for number in range(ACCOUNT_FREE + 1):
        told = login(proxied, name, "wrong", f"203.0.113.{number}")
    assert told == 429

    assert login(proxied, name, address="203.0.113.200") == 429, "from where he never was"
    assert login(proxied, name, address="192.0.2.50") == 200
    assert login(proxied, name) == 200, "on this machine"


def test_a_spoofed_address_before_the_proxys_own_is_nobody(proxied: Daemon) -> None:
    """What the client wrote stands before what the proxy added, in one header or in several."""
    mallory = "198.18.0.9"
    for number in range(ADDRESS_FREE):
        spoofed = f"10.1.{number}.1, ::ffff:10.2.0.{number}, garbage, {mallory}"
        assert login(proxied, f"nobody-{number}", "wrong", spoofed) == 401

    for spoofed in (f"192.0.2.77, {mallory}", f"127.0.0.1,{mallory}", f"::ffff:{mallory}",
                    f"[::ffff:{mallory}]:443", f"{mallory}:1234"):  # fmt: skip
        assert login(proxied, "nobody-else", "wrong", spoofed) == 429, spoofed
    others = {"Forwarded": "for=192.0.2.1", "X_Real_IP": "192.0.2.2", "X_Client_IP": "192.0.2.3"}
    body = {"username": "nobody-else", "password": "wrong"}
    told = proxied.call("POST", "/v1/auth/login", body, key="", X_Forwarded_For=mallory, **others)
    assert told.status == 429


def over_ipv4_and_6(folder: Path) -> Daemon:
    daemon = Daemon(folder / "both.db", "--host", "::", "--insecure-http",
                    "--max-connections-per-address", "16")  # fmt: skip
    return daemon.init()


def own_address() -> str | None:
    """An address of this machine that is not loopback; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.254", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_ipv4_seen_through_a_socket_of_ipv6_is_an_address_as_any(folder: Path) -> None:
    """A stranger's tries are not everybody's, and this machine stays this machine."""
    here = own_address()
    daemon = over_ipv4_and_6(folder)
    try:
        port = int(daemon.start().url.rpartition(":")[2])

        def call(address: str, name: str, password: str) -> tuple[int, str]:
            talk = http.client.HTTPConnection(address, port, timeout=PATIENCE_S)
            try:
                body = json.dumps({"username": name, "password": password})
                talk.request("POST", "/v1/auth/login", body, {"Content-Type": "application/json"})
                answer = talk.getresponse()
                answer.read()
                return answer.status, answer.headers.get("Set-Cookie", "")
            finally:
                talk.close()

        daemon.url = f"http://127.0.0.1:{port}"
        name = user(daemon)
        if here is not None and not here.startswith("127."):
            for number in range(ADDRESS_FREE + 1):
                told = call(here, f"nobody-{number}", "wrong")
            assert told[0] == 429
        status, cookie = call("127.0.0.1", name, PASSWORD)

        assert status == 200
        assert cookie.startswith("feltd_session="), "within this machine no TLS is needed"
        # The cap of an address is that of each IPv4 address, and of a whole network of IPv6.
        crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(16)]
        try:
            one = socket.create_connection(("127.0.0.1", port), PATIENCE_S, ("127.0.0.2", 0))
            with one:
                one.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert one.recv(64).startswith(b"HTTP/1.1 200")
        finally:
            for one in crowd:
                one.close()
    finally:
        daemon.close()


def test_a_flood_of_passwords_takes_no_room_from_the_work(folder: Path) -> None:
    """Each waits for its turn outside the limit of calls at work, which is for those with keys."""
    daemon = Daemon(folder / "flood.db", "--trust-proxy", "127.0.0.1/32", "--max-in-flight", "8")
    try:
        daemon.init().start()
        over = Event()

        def flood(number: int) -> set[str]:
            codes: set[str] = set()
            for guess in count():
                if over.is_set():
                    return codes
                body = {"username": f"n-{number}-{guess}", "password": "wrong"}
                told = daemon.call(
                    "POST", "/v1/auth/login", body, key="",
                    X_Forwarded_For=f"10.{number}.{guess // 250}.{guess % 250}",
                )  # fmt: skip
                codes.add(told.body["detail"])
            raise AssertionError

        with ThreadPoolExecutor(24) as many:
            floods = [many.submit(flood, number) for number in range(24)]
            try:
                told = Counter(daemon.call("GET", "/v1/workloads").status for _ in range(60))
            finally:
                over.set()
        said = set().union(*(one.result() for one in floods))

        assert told == {200: 60}
        assert "authentication temporarily unavailable" in said
        assert "server is at its in-flight request limit" not in said
    finally:
        daemon.close()

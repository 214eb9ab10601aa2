"""A stranger who opens connections by the hundred and never says what he wants, over TLS."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.daemon.conftest import daemons as daemons
from tests.daemon.running import PATIENCE_S, Daemon
from tests.transport.certificates import Authority
from tests.transport.conftest import authority as authority

pytestmark = pytest.mark.needs("openssl")
Daemons = Callable[..., Daemon]

#: Twice as many as are let in from everywhere.
MOST, EACH, TRIED = 120, 90, 240


def files(daemon: Daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


def memory_kib(daemon: Daemon) -> int:
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def secured(daemons: Daemons, authority: Authority, most: int = MOST, each: int = EACH) -> Daemon:
    cert, key = authority.issue("one")
    flags = ("--tls-cert", str(cert), "--tls-key", str(key))
    caps = ("--max-connections", str(most), "--max-connections-per-address", str(each))
    daemon = daemons("feltd.db", *flags, *caps).start()
    daemon.tls = authority.client()
    daemon.url = f"https://localhost:{urlsplit(daemon.url).port}"
    return daemon


@contextmanager
def silent(daemon: Daemon, number: int, source: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    """Connections that are open, and on which nobody says a word."""
    port = urlsplit(daemon.url).port or 0
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                socket.create_connection(("127.0.0.1", port), PATIENCE_S, (source, 0))
            )
            for _ in range(number)
        ]


def is_cut(one: socket.socket, patience_s: float = PATIENCE_S) -> bool:
    """Whether the daemon ends it while it is waited for."""
    one.settimeout(patience_s)
    try:
        return one.recv(1) == b""
    except ConnectionError:
        return True
    except (TimeoutError, BlockingIOError):
        return False


def settled(daemon: Daemon, most: int) -> int:
    """Open files once there are no more than `most`, or when patience ends."""
    ends_s = time.monotonic() + PATIENCE_S
    while (found := files(daemon)) > most and time.monotonic() < ends_s:
        time.sleep(0.02)
    return found


def test_handshakes_that_are_never_finished_are_connections_as_any(
    daemons: Daemons, authority: Authority
) -> None:
    daemon = secured(daemons, authority)
    assert daemon.get("/health")["status"] == "healthy"
    before = settled(daemon, files(daemon))

    with silent(daemon, TRIED) as held:
        # Those beyond the cap of an address are cut at once, before anything is spent on them.
        assert all(is_cut(one) for one in held[EACH:])
        assert settled(daemon, before + EACH) <= before + EACH
        assert not any(is_cut(one, 0.0) for one in held[:EACH]), "in time for a handshake"
        with silent(daemon, TRIED, "127.0.0.2") as others:
            # At the cap of all the crowd gives way until both have as many.
            assert settled(daemon, before + MOST) <= before + MOST
            assert all(is_cut(one) for one in others[MOST // 2 :])
            assert not any(is_cut(one, 0.0) for one in others[: MOST // 2 - 1])
            # The operator's own socket has room of its own.
            with socket.socket(socket.AF_UNIX) as local:
                local.settimeout(PATIENCE_S)
                local.connect(f"{daemon.data}.sock")
                local.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert local.recv(64).startswith(b"HTTP/1.1 200")

    assert daemon.get("/health")["status"] == "healthy"
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.told()


def test_an_unfinished_handshake_ends_by_itself_and_holds_little_memory(
    daemons: Daemons, authority: Authority
) -> None:
    daemon = secured(daemons, authority, 600, 600)
    assert daemon.get("/health")["status"] == "healthy"
    before, before_kib = files(daemon), memory_kib(daemon)

    with silent(daemon, 400) as held:
        for number, one in enumerate(held):
            # A record that is longer than what follows, a byte of it, or nothing at all.
            one.sendall((b"\x16\x03\x01\x40\x00", b"\x16", b"")[number % 3])
        ends_s = time.monotonic() + PATIENCE_S
        while files(daemon) < before + 400 and time.monotonic() < ends_s:
            time.sleep(0.02)
        assert (memory_kib(daemon) - before_kib) / len(held) < 160, "KiB for a stranger"
        assert daemon.get("/health")["status"] == "healthy"
        assert settled(daemon, before + 2) <= before + 2

    assert daemon.stop() == 0
    assert "Traceback" not in daemon.told()


def test_a_stop_waits_for_nobody_who_is_still_shaking_hands(
    daemons: Daemons, authority: Authority
) -> None:
    daemon = secured(daemons, authority)
    with silent(daemon, 20):
        assert daemon.get("/health")["status"] == "healthy"
        assert daemon.stop() == 0
    assert '"event": "stopped"' in daemon.told()
    assert "Traceback" not in daemon.told()

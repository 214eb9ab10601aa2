"""What a service manager hears: ready, alive after real round trips, stopping; not when stuck."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.daemon.running import PATIENCE_S, Daemon

#: Each commit takes longer than a round trip of the watchdog may (5 s), and than the test.
STUCK = {"FELTD_TEST_SLOW_COMMIT_MS": "120000"}


class Manager:
    """A fake NOTIFY_SOCKET, and what came."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def waiting(self) -> list[str]:
        """What came since the last look."""
        self._socket.setblocking(False)
        heard = []
        while True:
            try:
                heard.append(self._socket.recv(4_096).decode())
            except BlockingIOError:
                return heard

    def hear(self, begins: str) -> list[str]:
        """Wait for a message that begins so; all up to it."""
        self._socket.settimeout(PATIENCE_S)
        heard = [""]
        while not heard[-1].startswith(begins):
            heard.append(self._socket.recv(4_096).decode())
        return heard[1:]

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify.sock")
    yield made
    made.close()


def test_ready_then_alive_then_stopping(daemons: Callable[..., Daemon], manager: Manager) -> None:
    daemon = daemons(NOTIFY_SOCKET=str(manager.path), WATCHDOG_USEC="400000").start()
    assert manager.hear("READY=1")[-1] == f"READY=1\nSTATUS=serving {daemon.url}"
    for _ in range(3):
        assert manager.hear("WATCHDOG=1")[-1] == "WATCHDOG=1"
    assert daemon.stop() == 0
    heard = manager.hear("STOPPING=1")
    assert heard[-1] == "STOPPING=1\nSTATUS=stopping: SIGTERM"
    # Nobody is told that it lives while it ends.
    assert manager.waiting() == []


def test_a_storage_that_does_not_come_back_starves_the_watchdog(
    daemons: Callable[..., Daemon], manager: Manager
) -> None:
    """The process answers, and still is not called alive: systemd would start it again."""
    daemon = daemons(NOTIFY_SOCKET=str(manager.path), WATCHDOG_USEC="400000", **STUCK).start()
    manager.hear("READY=1")
    ends_s = time.monotonic() + PATIENCE_S
    # From the first commit on nothing comes back: readiness says so within its own second.
    while (found := daemon.call("GET", "/health/ready")).status == 200:
        assert time.monotonic() < ends_s
    assert found.body["code"] == "STORAGE_STALLED"
    # What was on its way when it began.
    manager.waiting()
    for _ in range(4):
        assert daemon.call("GET", "/health/ready").body["code"] == "STORAGE_STALLED"
        assert daemon.call("GET", "/health").status == 200
    assert manager.waiting() == []
    daemon.kill()


def test_a_manager_that_is_gone_ends_nothing(
    daemons: Callable[..., Daemon], tmp_path: Path
) -> None:
    for address in (str(tmp_path / "nobody"), "@feltd-nobody", "x" * 200):
        daemon = daemons(NOTIFY_SOCKET=address, WATCHDOG_USEC="400000")
        daemon.start()
        assert daemon.get("/health")["status"] == "healthy"
        assert daemon.stop() == 0
        daemon.data.unlink()
        (tmp_path / "signing.keyring").unlink()


def test_the_watchdog_of_another_process_is_not_fed(
    daemons: Callable[..., Daemon], manager: Manager
) -> None:
    daemon = daemons(NOTIFY_SOCKET=str(manager.path), WATCHDOG_USEC="400000", WATCHDOG_PID="1")
    daemon.start()
    manager.hear("READY=1")
    assert daemon.stop() == 0
    heard = manager.waiting()
    assert [line.split("\n")[0] for line in heard] == ["STOPPING=1"]

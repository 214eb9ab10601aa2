"""Sockets that a service manager opened: served all at once, keyed, and kept over a restart."""

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from feltd.api.listen import ListenProblem
from feltd.config import Config, ConfigProblem
from feltd.daemon.handed import FIRST_FD, handed_sockets
from tests.daemon.running import FELTD, PATIENCE_S, Daemon

Daemons = Callable[..., Daemon]

#: Puts the sockets it was started with at 3 and above, as a service manager does, then serves.
LAUNCH = """
import fcntl, os, sys
handed = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 100) for fd in sys.argv[1].split(",")]
for place, fd in enumerate(handed, 3):
    os.dup2(fd, place)
os.environ |= {"LISTEN_FDS": str(len(handed)), "LISTEN_PID": str(os.getpid())}
os.execvp(sys.argv[2], sys.argv[2:])
"""


class OverUnix(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(self._path)


def ask(talk: http.client.HTTPConnection, path: str, key: str = "") -> tuple[int, Any]:
    with closing(talk):
        talk.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
        with talk.getresponse() as answer:
            return answer.status, json.loads(answer.read())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


def launch(daemon: Daemon, *handed: socket.socket, flags: tuple[str, ...] = ()) -> None:
    """Start the daemon on these sockets; it gets its own copies."""
    fds = [one.fileno() for one in handed]
    command = (sys.executable, "-c", LAUNCH, ",".join(map(str, fds)), *FELTD, "serve")
    with daemon.log.open("a") as log:
        daemon.process = subprocess.Popen(
            (*command, "--data", str(daemon.data), *flags),
            stdout=subprocess.PIPE, stderr=log, text=True, pass_fds=fds,
        )  # fmt: skip
    assert daemon.process.stdout is not None
    daemon.told_at_start = daemon.process.stdout.readline().strip()
    assert daemon.told_at_start, daemon.told()


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[tuple[socket.socket, socket.socket]]:
    """One for the network and one for this machine, listening, nobody serving."""
    with ExitStack() as stack:
        network = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        here = stack.enter_context(socket.socket(socket.AF_UNIX))
        here.bind(str(tmp_path / "handed.sock"))
        here.listen()
        yield network, here


@pytest.mark.needs("systemd-socket-activate")
@pytest.mark.parametrize("kinds", [("tcp",), ("unix",), ("tcp", "unix")], ids="+".join)
def test_systemd_socket_activate_has_them_served(
    daemons: Daemons, tmp_path: Path, kinds: tuple[str, ...]
) -> None:
    daemon, path, port = daemons(), str(tmp_path / "given.sock"), free_port()
    places = {"tcp": f"127.0.0.1:{port}", "unix": path}
    listening = [word for kind in kinds for word in ("--listen", places[kind])]
    with daemon.log.open("a") as log:
        daemon.process = subprocess.Popen(
            ("systemd-socket-activate", *listening, *FELTD, "serve", "--data", str(daemon.data)),
            stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    ways = {
        "tcp": lambda: http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S),
        "unix": lambda: OverUnix(path),
    }
    while "Listening on" not in daemon.told() or daemon.told().count("Listening") < len(kinds):
        assert daemon.process.poll() is None, daemon.told()
    for kind in kinds:
        assert ask(ways[kind](), "/health")[1]["status"] == "healthy", daemon.told()
        # Neither is the operator's: without a key there is nothing to see.
        assert ask(ways[kind](), "/v1/keys")[0] == 401
        assert ask(ways[kind](), "/v1/keys", daemon.key)[0] == 200
    assert daemon.process.stdout is not None
    urls = {"tcp": f"http://127.0.0.1:{port}", "unix": f"unix:{path}"}
    assert daemon.process.stdout.readline().split() == [urls[kind] for kind in kinds]
    # The operator's own is there beside them.
    assert ask(OverUnix(f"{daemon.data}.sock"), "/v1/keys")[0] == 200
    assert daemon.stop() == 0, daemon.told()
    assert os.path.exists(path) == ("unix" in kinds)  # it was not ours to remove


def test_connections_wait_while_the_daemon_is_restarted(
    daemons: Daemons, sockets: tuple[socket.socket, socket.socket]
) -> None:
    daemon = daemons()
    network, here = sockets
    address, path = network.getsockname(), here.getsockname()
    launch(daemon, network, here)
    assert daemon.told_at_start.split() == [f"http://127.0.0.1:{address[1]}", f"unix:{path}"]
    assert daemon.stop() == 0
    # Nobody serves now; both are let in all the same, and answered by the next one.
    waiting = [http.client.HTTPConnection(*address, timeout=PATIENCE_S), OverUnix(path)]
    for talk in waiting:
        talk.request("GET", "/health")
    launch(daemon, network, here)
    for talk in waiting:
        with closing(talk), talk.getresponse() as answer:
            assert json.loads(answer.read())["status"] == "healthy"
    assert daemon.stop() == 0
    assert os.path.exists(path)


def test_a_socket_open_to_the_network_is_refused_like_a_host(daemons: Daemons) -> None:
    daemon = daemons()
    with socket.create_server(("0.0.0.0", 0)) as handed:
        fd = handed.fileno()
        ran = subprocess.run(
            (sys.executable, "-c", LAUNCH, str(fd), *FELTD, "serve", "--data", str(daemon.data)),
            capture_output=True, text=True, timeout=PATIENCE_S, check=False, pass_fds=[fd],
        )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "LISTEN_FDS 3, bound to 0.0.0.0 is outside loopback: give --tls-cert" in ran.stderr


def env(**told: str) -> dict[str, str]:
    return {"LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "feltd.socket", **told}


def test_what_is_for_another_process_is_left_alone_and_told_to_nobody_else() -> None:
    for told in (env(LISTEN_FDS="1", LISTEN_PID="1"), env(LISTEN_FDS="1", LISTEN_PID="x"), env()):
        assert handed_sockets(Config(), told) == ()
        assert told == {}


@pytest.mark.parametrize("count", ["x", "-1", "65", "1" * 5_000, "٣"])
def test_a_number_of_sockets_that_is_none_is_a_plain_sentence(count: str) -> None:
    with pytest.raises(ListenProblem, match="is no number of sockets"):
        handed_sockets(Config(), env(LISTEN_FDS=count))


def test_a_socket_that_is_not_there_is_a_plain_sentence() -> None:
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    with pytest.raises(ListenProblem, match="is not open"):
        handed_sockets(Config(), env(LISTEN_FDS=str(free - FIRST_FD + 1)))


def test_a_flag_comes_before_the_service_manager() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mine:
        told = env(LISTEN_FDS="1")
        assert handed_sockets(Config(fd=mine.fileno()), told) == (mine.fileno(),)
        assert told == {}
    with socket.create_server(("0.0.0.0", 0)) as mine, pytest.raises(ConfigProblem, match="--fd"):
        handed_sockets(Config(fd=mine.fileno()), {})

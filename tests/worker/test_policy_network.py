"""network_policy: none reaches nothing, loopback only the attempt itself, inherit what the worker
does."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.programs import failure, run

pytestmark = pytest.mark.needs("bwrap")

PERL = "perl -MSocket -e '{}'"
#: Make a socket of a family, and say which that was.
MAKE = PERL.format("socket(my $s, {family}, SOCK_STREAM, 0) or die qq($!\\n); print {family}")
CONNECT = PERL.format(
    "socket(my $s, AF_INET, SOCK_STREAM, 0) or die qq(no socket: $!\\n);"
    " connect($s, sockaddr_in({port}, inet_aton(q({host})))) or die qq(no way: $!\\n); print 1"
)
TALK = PERL.format(
    "socket(my $l, AF_INET, SOCK_STREAM, 0) or die; bind($l, sockaddr_in(0, INADDR_LOOPBACK))"
    " or die $!; listen($l, 1); my $to = getsockname($l); socket(my $c, AF_INET, SOCK_STREAM, 0);"
    " connect($c, $to) or die $!; print 1"
)
UNIX, INET, INET6, NETLINK, PACKET, VSOCK = 1, 2, 10, 16, 17, 40


@pytest.fixture
def listening() -> Iterator[int]:
    """A port of this machine's loopback on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def test_inherit_reaches_what_the_worker_reaches(listening: int) -> None:
    assert run(CONNECT.format(port=listening, host="127.0.0.1")) == 1


@pytest.mark.parametrize("files", ["inherit", "scratch", "none"])
@pytest.mark.parametrize("network", ["none", "loopback"])
def test_nobody_outside_is_reached(listening: int, network: str, files: str) -> None:
    command = CONNECT.format(port=listening, host="127.0.0.1")
    _, message = failure(command, network_policy=network, filesystem_policy=files)
    _, far = failure(
        CONNECT.format(port=443, host="192.0.2.1"), network_policy=network, filesystem_policy=files
    )

    assert "no way: Connection refused" in message if network == "loopback" else "no socket" in far
    assert "no way: Network is unreachable" in far if network == "loopback" else "no socket" in far


def test_loopback_lets_an_attempt_talk_to_itself() -> None:
    assert run(TALK, network_policy="loopback") == 1


@pytest.mark.parametrize("family", [INET, INET6, NETLINK, PACKET, VSOCK])
def test_none_allows_no_socket_that_leaves_the_machine(family: int) -> None:
    """A namespace alone would let a virtual machine's program speak to its host by AF_VSOCK."""
    _, message = failure(MAKE.format(family=family), network_policy="none")

    assert "Address family not supported" in message


@pytest.mark.parametrize("network", ["none", "loopback"])
def test_a_program_may_have_sockets_among_files_that_are_its_own(network: str) -> None:
    members = {"network_policy": network, "filesystem_policy": "scratch"}
    assert run(MAKE.format(family=UNIX), **members) == UNIX


@pytest.mark.parametrize("network", ["none", "loopback"])
def test_nobody_is_reached_by_the_machines_files(tmp_path: Path, network: str) -> None:
    """Whoever opens a daemon's socket is its operator: a program without a network is not."""
    place = tmp_path / "feltd.db.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place))
        server.listen()
        command = PERL.format(
            "socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die qq(no socket: $!\\n);"
            f" connect($s, sockaddr_un(q({place}))) or die; print 1"
        )

        assert run(command) == 1
        assert "no socket" in failure(command, network_policy=network)[1]


@pytest.mark.parametrize("network", ["none", "loopback"])
def test_pairs_of_sockets_are_no_network(network: str) -> None:
    pair = PERL.format("socketpair(my $a, my $b, AF_UNIX, SOCK_STREAM, 0) or die; print 1")
    assert run(pair, network_policy=network) == 1


@pytest.mark.parametrize("family", [PACKET, VSOCK])
def test_loopback_is_no_way_round_either(family: int) -> None:
    _, message = failure(MAKE.format(family=family), network_policy="loopback")

    assert "Address family not supported" in message


def test_the_network_alone_leaves_the_files_as_they_are() -> None:
    command = "ls /root >/dev/null 2>&1; pwd; ls -d /home"
    assert run(command, network_policy="none") == run(command)

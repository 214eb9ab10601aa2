"""A few strangers who hold every connection there may be, and somebody else who comes."""

import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlsplit

from tests.daemon.conftest import daemons as daemons
from tests.daemon.running import PATIENCE_S, Daemon

MOST, EACH = 40, 20
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


@contextmanager
def resting(daemon: Daemon, number: int, source: str) -> Iterator[list[socket.socket]]:
    """Connections between two calls."""
    with ExitStack() as stack:
        made = [stack.enter_context(opened(daemon, source)) for _ in range(number)]
        for one in made:
            assert answered(one)
        yield made


def opened(daemon: Daemon, source: str) -> socket.socket:
    port = urlsplit(daemon.url).port or 0
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S, (source, 0))


def answered(one: socket.socket) -> bool:
    """Whether a call on it is answered, rather than cut."""
    one.settimeout(PATIENCE_S)
    try:
        one.sendall(HEALTH)
        reply = http.client.HTTPResponse(one)
        reply.begin()
        reply.read()
    except (ConnectionError, http.client.HTTPException):
        return False
    return reply.status == 200


def started(daemons: Callable[..., Daemon]) -> Daemon:
    caps = ("--max-connections", str(MOST), "--max-connections-per-address", str(EACH))
    return daemons("feltd.db", *caps).start()


def test_somebody_with_one_connection_gets_in_and_the_crowd_gives_way(
    daemons: Callable[..., Daemon],
) -> None:
    """Workers behind the crowd's back keep their leases: who has few is never cut for others."""
    daemon = started(daemons)
    with (
        resting(daemon, 1, "127.0.0.9") as few,
        resting(daemon, EACH, "127.0.0.2") as crowd,
        resting(daemon, EACH - 1, "127.0.0.3") as other,
    ):
        with opened(daemon, "127.0.0.4") as mine:
            assert answered(mine)
            assert answered(few[0])
        left = sum(answered(one) for one in (*crowd, *other))
        assert left == MOST - 2, "one gave way"
        assert answered(few[0])


def test_who_has_as_many_as_the_others_is_refused_at_the_cap(
    daemons: Callable[..., Daemon],
) -> None:
    """Else they would cut each other without end."""
    daemon = started(daemons)
    homes = [f"127.0.0.{number}" for number in range(10, 10 + MOST)]
    with ExitStack() as stack:
        held = [stack.enter_context(resting(daemon, 1, home))[0] for home in homes]
        with opened(daemon, "127.0.0.200") as late:
            assert not answered(late)
        assert all(answered(one) for one in held)


def test_calls_at_work_are_not_cut_for_anybody(daemons: Callable[..., Daemon]) -> None:
    daemon = started(daemons)
    poll = (
        f"GET /v1/events?wait_ms=20000&after={daemon.get('/v1/events')['head']} HTTP/1.1\r\n"
        f"Host: x\r\nAuthorization: Bearer {daemon.key}\r\n\r\n"
    ).encode()
    with (
        resting(daemon, EACH, "127.0.0.2") as one,
        resting(daemon, EACH, "127.0.0.3") as two,
    ):
        for line in (*one, *two):
            line.sendall(poll)
        with socket.socket(socket.AF_UNIX) as local:
            local.connect(f"{daemon.data}.sock")
            parked = 0
            while parked < MOST:
                local.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
                reply = http.client.HTTPResponse(local)
                reply.begin()
                told = reply.read().decode()
                parked = int(float(told.partition("\nfeltd_long_polls ")[2].split()[0]))
        with opened(daemon, "127.0.0.4") as mine:
            assert not answered(mine)
        for line in (*one, *two):
            line.setblocking(False)
            with suppress(BlockingIOError):
                assert line.recv(1), "cut"

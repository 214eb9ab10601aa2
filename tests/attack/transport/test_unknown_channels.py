"""A WebSocket whose client has not said who it is: it may say that, and nothing more."""

from urllib.parse import urlsplit

import pytest

from tests.api.channel.conftest import crew as crew
from tests.api.channel.conftest import daemon as daemon
from tests.api.channel.talk import Wire, frame_of
from tests.api.claims.conftest import Crew
from tests.daemon.running import Daemon


def stranger(daemon: Daemon, worker_id: str) -> Wire:
    address = urlsplit(daemon.url)
    return Wire.open(
        (address.hostname or "", address.port or 0), f"/v1/workers/{worker_id}/channel"
    )


@pytest.mark.parametrize("finished", [True, False])
def test_a_stranger_is_given_no_memory(daemon: Daemon, finished: bool) -> None:
    """Two thousand of them, a mebibyte each, would be two gigabytes for five seconds."""
    wire = stranger(daemon, "nobody")
    try:
        wire.raw(frame_of(b"x" * 5_000, fin=finished))
        assert wire.ended() == (4413, "a frame is at most 4096 bytes")
    finally:
        wire.close()


def test_who_says_who_he_is_may_go_on_at_once_with_a_large_frame(crew: Crew) -> None:
    edge = crew.worker()
    wire = stranger(edge.daemon, edge.id)
    try:
        head, tail = b'{"id": 1, "claim": {"request_id": "', b'"}}'
        large = head + b"x" * (1024 * 1024 - len(head) - len(tail)) + tail
        wire.raw(frame_of(b'{"auth": "%s"}' % edge.key.encode()) + frame_of(large))
        assert wire.answer(1)["code"] == "WORKLOAD_INVALID"
    finally:
        wire.close()

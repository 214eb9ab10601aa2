"""One person with many sessions has the streams of one key, and leaves seats to everybody else."""

from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from feltd.api.stream import STREAMS_OF_KEY_MAX
from tests.console.town import PASSWORD, Town


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path)
    yield made
    made.close()


def listening(town: Town, session: str) -> tuple[HTTPConnection, HTTPResponse]:
    """A stream as an open page holds one."""
    address = urlsplit(town.url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=30)
    connection.request("GET", "/console/stream", headers={"Authorization": f"Bearer {session}"})
    return connection, connection.getresponse()


def test_all_sessions_of_a_viewer_share_the_seats_of_one(town: Town) -> None:
    body = {"username": "vic", "password": PASSWORD}
    sessions = [town.daemon.post("/v1/auth/login", body, key="")["session"] for _ in range(2)]
    held = [listening(town, sessions[number % 2]) for number in range(STREAMS_OF_KEY_MAX)]
    try:
        assert {answer.status for _, answer in held} == {200}
        for session in sessions:
            connection, refused = listening(town, session)
            assert refused.status == 503
            connection.close()
        connection, answer = listening(town, town.login("olga"))
        assert answer.status == 200
        connection.close()
    finally:
        for connection, _ in held:
            connection.close()

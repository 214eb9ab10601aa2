"""One daemon with real keys for the stories of a file, and channels that are closed after each."""

from collections.abc import Callable, Iterator

import pytest

from tests.api.channel.talk import Wire, channel
from tests.api.claims.conftest import Crew
from tests.daemon.running import Daemon, Edge

Opens = Callable[..., Wire]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for the stories of a file."""
    running = Daemon(tmp_path_factory.mktemp("channel") / "feltd.db", "--tick-ms", "200")
    try:
        yield running.init().start()
    finally:
        running.close()


@pytest.fixture
def crew(daemon: Daemon) -> Crew:
    """An application of its own for each story."""
    return Crew(daemon)


@pytest.fixture
def opens() -> Iterator[Opens]:
    """Opens channels, and closes them when the story is over."""
    made: list[Wire] = []

    def open_one(edge: Edge, **headers: str) -> Wire:
        made.append(channel(edge, **headers))
        return made[-1]

    yield open_one
    for wire in made:
        wire.close()

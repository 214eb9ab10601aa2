"""One daemon whose events are read, and the people who read them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.events.listening import Reader, reader
from tests.daemon.conftest import daemons
from tests.daemon.running import Daemon, Mesh, people

__all__ = ["daemons"]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("events")
    running = Daemon(folder / "feltd.db", "--tick-ms", "200").init().start()
    yield running
    running.close()


@pytest.fixture(scope="module")
def crew(daemon: Daemon) -> Mesh:
    return people(daemon)


@pytest.fixture
def mine(daemon: Daemon) -> Reader:
    """A reader of tenant t, with a key of its own."""
    return reader(daemon, "t")

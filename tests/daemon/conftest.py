"""Daemons of a test: made on its own folder, ended with it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.daemon.running import Daemon

#: Fast enough for a test, and far from the shortest heartbeat interval.
TICK = ("--tick-ms", "100")


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Makes a daemon, its database initialised; every process ends with the test."""
    made: list[Daemon] = []

    def make(name: str = "feltd.db", *flags: str, **env: str) -> Daemon:
        daemon = Daemon(tmp_path / name, *TICK, *flags, env=env)
        made.append(daemon)
        return daemon.init()

    yield make
    for daemon in made:
        daemon.close()


@pytest.fixture
def daemon(daemons: Callable[..., Daemon]) -> Daemon:
    """One daemon, running."""
    return daemons().start()

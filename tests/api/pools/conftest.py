"""One daemon with real keys for all stories of a file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.running import Daemon, Mesh, people


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("pools")
    running = Daemon(folder / "feltd.db", "--tick-ms", "200").init().start()
    yield running
    running.close()


@pytest.fixture(scope="module")
def crew(daemon: Daemon) -> Mesh:
    return people(daemon)

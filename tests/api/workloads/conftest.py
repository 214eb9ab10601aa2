"""One daemon with real keys for all stories of a file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.running import Daemon, Edge, Mesh, people


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("workloads")
    running = Daemon(folder / "feltd.db", "--tick-ms", "200").init().start()
    yield running
    running.close()


@pytest.fixture(scope="module")
def crew(daemon: Daemon) -> Mesh:
    return people(daemon, max_priority=900)


@pytest.fixture(scope="module")
def edge(daemon: Daemon, crew: Mesh) -> Edge:
    worker = Edge(daemon, "edge", crew.registrar_key)
    assert worker.beat().status == 200
    return worker

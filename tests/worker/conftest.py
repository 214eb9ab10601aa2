"""Real daemons and real worker processes; what a story starts ends with it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.daemon.running import Daemon
from tests.worker.crew import Crew
from tests.worker.programs import hidden as hidden

TICK = ("--tick-ms", "200")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for the stories that do it no harm; each has an application of its own."""
    daemon = Daemon(tmp_path_factory.mktemp("worker") / "feltd.db", *TICK).init().start()
    yield daemon
    daemon.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon of this story alone, which it may kill."""
    daemon = Daemon(tmp_path / "feltd.db", *TICK).init().start()
    yield daemon
    daemon.close()


@pytest.fixture
def crew_of(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[Daemon], Crew]]:
    """Makes the crew of a daemon: an application, a key for its workers, its worker processes."""
    made: list[Crew] = []

    def make(daemon: Daemon) -> Crew:
        crew = Crew(daemon, tmp_path, request.node.name)
        made.append(crew)
        return crew

    yield make
    for crew in made:
        crew.close()


@pytest.fixture
def crew(shared: Daemon, crew_of: Callable[[Daemon], Crew]) -> Crew:
    """A crew on the shared daemon."""
    return crew_of(shared)

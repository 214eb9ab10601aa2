"""Stories of why end with every promise asked: looking changes nothing."""

from collections.abc import Iterator

import pytest

from feltd.mesh import promises
from tests.mesh.world import Mesh


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    world = Mesh()
    yield world
    if not world.by_hand:
        world.sweep()
        broken = world.run(lambda tx, _, now: promises.ask(tx))
        assert [(one.id, one.rows) for one in broken] == []
    world.close()

"""After each story of this room every promise is asked of the rows."""

from collections.abc import Iterator

import pytest

from feltd.mesh import promises
from tests.mesh.world import Mesh


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    world = Mesh()
    yield world
    if not world.by_hand:
        assert world.run(lambda tx, _, now: promises.ask(tx)) == []
    world.close()

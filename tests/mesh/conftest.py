"""The mesh of a story: one world in memory, made anew for each test."""

from collections.abc import Iterator

import pytest

from tests.mesh.world import Mesh


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    world = Mesh()
    yield world
    world.close()

"""The cast of the stories that need workers with keys of their own."""

import pytest

from tests.mesh.workers.stories import House
from tests.mesh.world import Mesh


@pytest.fixture
def house(mesh: Mesh) -> House:
    return House(mesh)

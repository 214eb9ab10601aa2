"""The cast of the workers' stories."""

import pytest

from tests.mesh.workers.stories import House
from tests.mesh.world import Mesh


@pytest.fixture
def house(mesh: Mesh) -> House:
    return House(mesh)

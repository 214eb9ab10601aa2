"""The world of a story of compaction, made anew for each test."""

from collections.abc import Iterator

import pytest

from tests.state.compaction.world import Kept


@pytest.fixture
def kept() -> Iterator[Kept]:
    world = Kept()
    yield world
    world.close()

"""The state of a story: one world in memory, made anew for each test."""

from collections.abc import Iterator

import pytest

from tests.state.world import State


@pytest.fixture
def state() -> Iterator[State]:
    world = State()
    yield world
    world.close()

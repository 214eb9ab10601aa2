"""The calendar of a story: one world in memory, and all that is promised of it at the end."""

from collections.abc import Iterator

import pytest

from feltd.state import promises
from tests.state.schedules.world import Calendar


@pytest.fixture
def calendar() -> Iterator[Calendar]:
    world = Calendar()
    yield world
    if not world.by_hand:
        assert world.run(lambda tx, _, now: promises.ask(tx)) == []
    world.close()

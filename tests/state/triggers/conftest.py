"""The shop of a story, and all that is promised of it at the end."""

from collections.abc import Iterator

import pytest

from feltd.state import promises
from tests.state.triggers.world import Shop


@pytest.fixture
def shop() -> Iterator[Shop]:
    world = Shop()
    yield world
    if not world.by_hand:
        assert world.run(lambda tx, _, now: promises.ask(tx)) == []
    world.close()

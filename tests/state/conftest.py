"""The state of a story: one world in memory, made anew for each test."""

from collections.abc import Iterator

import pytest

from feltd.state.promised import RECORDS
from tests.state.world import State


@pytest.fixture
def state() -> Iterator[State]:
    world = State()
    yield world
    if not world.by_hand:
        broken = [(one.says, world.conn.execute(one.sql).fetchall()) for one in RECORDS]
        assert [(says, [tuple(row) for row in rows]) for says, rows in broken if rows] == []
    world.close()

"""The house the stories of identity play in."""

from collections.abc import Iterator

import pytest

from tests.identity.house import House


@pytest.fixture
def house() -> Iterator[House]:
    """An empty house: no keys, no grants, nobody but the local operator."""
    it = House()
    yield it
    it.conn.close()

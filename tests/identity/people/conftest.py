"""The town the stories of people play in."""

from collections.abc import Iterator

import pytest

from feltd.state import promises
from feltd.store.tx import Tx
from tests.identity.people.town import Town


@pytest.fixture
def town() -> Iterator[Town]:
    """Nobody lives here yet; when the story is over every promise about people holds."""
    it = Town()
    yield it
    broken = [one for one in promises.ask(Tx(it.conn)) if one.id in ("I21", "PEOPLE", "JSON")]
    it.conn.close()
    assert not broken

"""One town for the tests of a module, and a browser for those that need one."""

from collections.abc import AsyncIterator, Iterator

import pytest
from playwright.async_api import Browser

from tests.console.browser import chromium
from tests.console.town import Town


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """A daemon with people, and rows of every kind."""
    made = Town(tmp_path_factory.mktemp("town"))
    try:
        made.fill()
        yield made
    finally:
        made.close()


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """A town of one story alone, without rows and workers."""
    made = Town(tmp_path_factory.mktemp("own"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """Chromium."""
    async with chromium() as opened:
        yield opened

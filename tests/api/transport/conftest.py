"""One running house for the tests that need no settings of their own."""

from collections.abc import Iterator

import pytest

from tests.api.transport.kit import House, serving


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with serving() as running:
        yield running


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)

"""Every asynchronous test of the executor runs on asyncio."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"

"""What every test shares: one event loop backend, and skipping by the name of a missing program."""

import shutil

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for program in marker.args:
            if shutil.which(program) is None:
                pytest.skip(f"needs {program}")

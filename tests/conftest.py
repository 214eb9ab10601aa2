"""What every test shares: one event loop backend, and skipping by the name of a missing program.

Also one place for compiled modules: hundreds of tests start processes of feltd.
"""

import os
import shutil
import signal
import sys

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Where Python keeps no bytecode, each process would compile all of feltd for itself.

    It is kept beside pytest's own memory then, so that whoever wants none in the tree has none.
    """
    if os.environ.get("PYTHONDONTWRITEBYTECODE") and hasattr(config, "cache"):
        kept = str(config.cache.mkdir("bytecode"))
        del os.environ["PYTHONDONTWRITEBYTECODE"]
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = kept
        sys.dont_write_bytecode = False
    # Under nohup, or behind `&`, these are ignored, and so by every process that a test starts.
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(
                number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
            )


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for program in marker.args:
            if shutil.which(program) is None:
                pytest.skip(f"needs {program}")

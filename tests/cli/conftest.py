"""A real daemon, and the command line as it is typed beside it."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.running import FELTD, Daemon

PATIENCE_S = 60.0


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for every story; each works in a tenant of its own."""
    made = Daemon(tmp_path_factory.mktemp("cli") / "feltd.db", "--tick-ms", "200").init().start()
    yield made
    made.close()


class Typed:
    """Runs commands. `ok` wants exit code 0, `json` its JSON, `code` answers whatever it was."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        kept = {name: text for name, text in os.environ.items() if not name.startswith("FELTD_")}
        self.env = kept | env

    def __call__(self, *words: str, given: str | None = None) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            (*FELTD, *words), cwd=self.folder, env=self.env, input=given, capture_output=True,
            text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip

    def ok(self, *words: str, given: str | None = None) -> str:
        ran = self(*words, given=given)
        assert ran.returncode == 0, (words, ran.returncode, ran.stdout, ran.stderr)
        return ran.stdout

    def json(self, *words: str, given: str | None = None) -> Any:
        return json.loads(self.ok(*words, "--json", given=given))


@pytest.fixture
def local(daemon: Daemon, tmp_path: Path) -> Typed:
    """The operator on the daemon's own machine."""
    return Typed(tmp_path, FELTD_DATA=str(daemon.data))


@pytest.fixture
def away(daemon: Daemon, tmp_path: Path) -> Callable[[str], Typed]:
    """Somebody elsewhere, with a key."""
    return lambda key: Typed(tmp_path, FELTD_URL=daemon.url, FELTD_KEY=key)

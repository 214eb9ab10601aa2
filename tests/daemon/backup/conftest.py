"""Daemons and what is needed to see a backup at work."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from feltd.store.backup import PARTIAL
from tests.daemon.conftest import TICK, daemon, daemons
from tests.daemon.running import PATIENCE_S, Answer, Daemon, Mesh, create, people

__all__ = ["daemon", "daemons"]

#: One input; so many of them make a file that takes a while to copy.
INPUT = "x" * 200_000


def enlarge(daemon: Daemon, mesh: Mesh, count: int = 40) -> None:
    """Work with large inputs: 8 MB of it take a while to copy and verify."""
    for number in range(count):
        create(daemon, mesh, f"large-{number}", input=INPUT)


def folder_of(daemon: Daemon) -> Path:
    return daemon.data.parent / "backups"


def drafts(daemon: Daemon) -> list[str]:
    """Unfinished copies in the folder."""
    folder = folder_of(daemon)
    return [name for name in os.listdir(folder) if PARTIAL in name] if folder.exists() else []


def eventually(what: Callable[[], Any]) -> Any:
    """The first truth of it."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        if found := what():
            return found
        time.sleep(0.005)
    raise AssertionError("it never came true")


def jobs_of(daemon: Daemon) -> list[int]:
    """The processes that make a backup for this daemon."""
    found = []
    for task in Path(f"/proc/{daemon.pid}/task").iterdir():
        for pid in (task / "children").read_text().split():
            if "backup_job" in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(int(pid))
    return found


class Asking(threading.Thread):
    """A call for a backup that is waited for elsewhere."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon=True)
        self._of = daemon
        self.answer: Answer | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._of.call("POST", "/v1/backups")
        except (OSError, HTTPException):
            return

    def told(self) -> Answer:
        self.join()
        assert self.answer is not None
        return self.answer


def stopped_halfway(daemon: Daemon) -> tuple[Asking, list[int]]:
    """A backup in the middle of its work, its processes held there; and the call that waits."""
    for _ in range(20):
        asking = Asking(daemon)
        eventually(lambda asking=asking: drafts(daemon) or not asking.is_alive())
        pids = jobs_of(daemon)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        if pids and drafts(daemon):
            return asking, pids
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        asking.join()
        for file in folder_of(daemon).glob("feltd-*"):
            file.unlink()
    raise AssertionError("every backup was ready before it could be held")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon of the module, on a database that takes a while to copy; started where it is not."""
    made = Daemon(tmp_path_factory.mktemp("large") / "feltd.db", *TICK).init()
    made.start()
    enlarge(made, people(made))
    yield made
    made.close()


@pytest.fixture
def busy(large: Daemon) -> Daemon:
    """The same, running, without any backup."""
    if large.process is None or large.process.poll() is not None:
        large.start()
    for file in folder_of(large).glob("feltd-*"):
        file.unlink()
    return large


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder for a database that was put back."""
    made = tmp_path / "elsewhere"
    made.mkdir()
    return made


def copied(file: str, to: Path) -> Path:
    """A backup with its manifest, in another folder."""
    source = Path(file)
    shutil.copy(source.with_suffix(".json"), to / source.with_suffix(".json").name)
    return Path(shutil.copy(source, to / source.name))

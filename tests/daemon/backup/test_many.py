"""Backup after backup under writes, a part of them killed: what has a name is whole, all of it.

A few in each run; thirty and more by hand.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import pytest

from feltd.daemon.restoring import look
from feltd.store.backup import listing
from feltd.store.connect import open_copy
from tests.daemon.backup.conftest import drafts, eventually, folder_of, jobs_of
from tests.daemon.load import Load, crew
from tests.daemon.running import Daemon, people


@pytest.mark.parametrize("times", [2, pytest.param(60, marks=pytest.mark.soak)])
def test_what_has_a_name_is_whole_whenever_its_making_was_killed(
    daemons: Callable[..., Daemon], times: int
) -> None:
    """BC-076: every acknowledged creation of before is in each that was answered."""
    daemon = daemons("feltd.db", "--backup-keep", "100").start()
    mesh = people(daemon)
    *edges, holder = crew(daemon, mesh, 5)
    load = Load(daemon, mesh, edges, holder)
    load.begin()
    chance = random.Random(times)
    answered: list[tuple[str, set[str]]] = []
    try:
        for number in range(times):
            eventually(lambda: len(load.created) > 20)
            before = set(load.created)
            killer = None
            if number % 2:
                delay_s = chance.uniform(0.0, 0.6)
                killer = threading.Thread(target=_kill, args=(daemon, delay_s))
                killer.start()
            with suppress(OSError, HTTPException):
                answer = daemon.call("POST", "/v1/backups")
                if answer.status == 201:
                    assert answer.body["broken"] == []
                    answered.append((answer.body["path"], before))
                else:
                    assert answer.body["code"] == "STORAGE_UNAVAILABLE", answer
            if killer is not None:
                killer.join()
    finally:
        load.end()
    assert not load.wrong
    assert drafts(daemon) == []
    assert len(answered) >= times // 2
    assert {path for path, _ in answered} <= {one.path for one in listing(folder_of(daemon))}
    names = sorted(file.stem for file in folder_of(daemon).glob("*.db"))
    assert names == sorted(file.stem for file in folder_of(daemon).glob("*.json"))
    for path, before in answered:
        examined = look(Path(path)).examined
        assert examined.broken == ()
        copy = open_copy(Path(path))
        there = {row[0] for row in copy.execute("SELECT workload_id FROM workloads")}
        copy.close()
        assert before <= there


def _kill(daemon: Daemon, delay_s: float) -> None:
    time.sleep(delay_s)
    for pid in jobs_of(daemon):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

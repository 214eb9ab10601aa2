"""Putting a backup back is killed at every step: there is the whole of it or nothing, and again."""

import os
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from feltd.daemon.restoring import restore
from feltd.store.connect import open_copy
from tests.daemon.running import Daemon, create, feltd, people

#: What a step may leave behind that is no harm and nobody's.
REMAINS = {"feltd.db.restoring", "signing.keyring.new"}
#: What leaves a trace in a folder.
STEPS = ("open", "os.link", "os.rename", "os.remove")


def killed(step: int, folder: Path, act: Callable[[], object]) -> bool:
    """Do it in a process that dies before its nth step in the folder; False if it ended before."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return status != 0
    seen = 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if event in STEPS and str(folder) in str(arguments[0]):
            seen += 1
            if seen == step:
                os.kill(os.getpid(), 9)

    try:
        sys.addaudithook(watch)
        act()
    finally:
        os._exit(0)


def test_a_backup_is_there_whole_or_not_at_all_wherever_its_return_was_cut_off(
    daemons: Callable[..., Daemon], tmp_path: Path
) -> None:
    """BC-076, BC-010: nothing half has the name of the database, and the same command goes on."""
    daemon = daemons().start()
    mesh = people(daemon)
    jobs = {create(daemon, mesh, f"k{number}")["workload_id"] for number in range(3)}
    made = Path(daemon.post("/v1/backups")["path"])
    daemon.stop()
    own = daemon.data.parent / "signing.keyring"
    steps = 0
    for step in range(1, 100):
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        target, ring = folder / "feltd.db", folder / "signing.keyring"

        put = partial(restore, made, target, own, ring)
        if not killed(step, folder, put):
            break
        steps += 1
        whole = target.exists()
        if not whole:
            put()
        beside = {one.name for one in folder.iterdir()} - REMAINS
        assert beside == {"feltd.db", "feltd.db.lock", "feltd.db.mark", "signing.keyring"}, step
        with closing(open_copy(target)) as copy:
            assert {row[0] for row in copy.execute("SELECT workload_id FROM workloads")} == jobs
            assert copy.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        if whole:
            served = target
    assert steps >= 8
    again = Daemon(served)
    again.key = daemon.key
    try:
        listed = again.start().get("/v1/workloads", key=mesh.submitter_key)["items"]
    finally:
        again.close()
    assert {one["workload_id"] for one in listed} == jobs


def test_a_database_is_made_however_often_its_making_was_cut_off(tmp_path: Path) -> None:
    """BC-079: killed at each step, the same command goes on, or the way out is told."""
    steps = 0
    named = []
    for step in range(1, 200):
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        daemon = Daemon(folder / "feltd.db")
        if not killed(step, folder, daemon.init):
            break
        steps += 1
        if daemon.data.exists():
            named.append(daemon)
        else:
            assert daemon.init().key
    assert steps >= 10
    assert named
    for daemon in named:
        # What it is, and what to do, whatever else its making left there.
        told = feltd("keys", "list", "--data", str(daemon.data))
        assert (told.returncode, "never initialised. Remove it" in told.stderr) == (1, True)
        daemon.data.unlink()
        assert daemon.init().key

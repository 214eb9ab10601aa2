"""Backups of a database that nobody serves: made by the same job, under the daemon's lock.

The database is only read: a backup before an upgrade does not upgrade it.
"""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from feltd.cli.ending import ended_as_by_ctrl_c
from feltd.config import Config
from feltd.daemon import backup_job
from feltd.daemon.backup_job import Order, Said
from feltd.daemon.place import take_lock
from feltd.errors import Refused
from feltd.store.backup import listing

#: How long a job may take to clear up after itself.
LET_GO_S = 5.0


def create_alone(
    data: Path,
    backup_dir: str | None,
    keep: int | None,
    tell: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Make one backup; the manifest as JSON has it. `tell` hears how far it is.

    Refuses as a daemon's backup does; LockHeld where somebody has the database.
    """
    config = Config(data=str(data), backup_dir=backup_dir)
    order = Order(str(config.path), str(config.backup_path), keep or config.backup_keep)
    started_at_ms = int(time.time() * 1_000)
    with take_lock(config.path), ended_as_by_ctrl_c():
        job = subprocess.Popen(
            backup_job.arguments(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert job.stdin is not None
            assert job.stdout is not None
            job.stdin.write(backup_job.order_line(order))
            job.stdin.flush()
            for line in job.stdout:
                said = backup_job.heard(line)
                if said.code:
                    raise Refused(said.code, said.detail, committed=False)
                if said.made is not None:
                    made: dict[str, Any] = msgspec.to_builtins(said.made)
                    return made
                tell(_shown(said, started_at_ms))
        finally:
            _let_go(job)
    raise Refused("STORAGE_UNAVAILABLE", "the backup's process ended", committed=False)


def list_alone(data: Path, backup_dir: str | None) -> dict[str, Any]:
    """The backups of a database, as the daemon's answer has them."""
    config = Config(data=str(data), backup_dir=backup_dir)
    mine = [one for one in listing(config.backup_path) if one.database == str(config.path)]
    return {"items": msgspec.to_builtins(mine), "folder": str(config.backup_path)}


def _shown(said: Said, started_at_ms: int) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.structs.asdict(said)
    return shown | {"started_at_ms": started_at_ms}


def _let_go(job: "subprocess.Popen[bytes]") -> None:
    assert job.stdin is not None
    assert job.stdout is not None
    job.stdin.close()
    try:
        job.wait(LET_GO_S)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()
    job.stdout.close()

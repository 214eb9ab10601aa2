"""Backups of other versions: an older one is upgraded by its start, a newer one refused."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.daemon.running import Daemon, feltd
from tests.daemon.test_upgrade import FIRST, newest, old

__all__ = ["old"]


def test_a_backup_of_before_an_upgrade_is_put_back_and_upgraded_by_its_start(
    old: Daemon, elsewhere: Path
) -> None:
    ran = feltd("backup", "create", "--data", str(old.data), "--json")
    assert ran.returncode == 0, ran.stderr
    made = json.loads(ran.stdout)
    assert (made["schema"], newest(old.data)) == (FIRST, FIRST), "a backup upgrades nothing"
    verified = feltd("backup", "verify", made["path"])
    assert (verified.returncode, "older than this feltd" in verified.stderr) == (0, True)
    data = elsewhere / "feltd.db"
    assert feltd("backup", "restore", made["path"], "--data", str(data)).returncode == 0
    restored = Daemon(data, *old.flags)
    try:
        restored.start()
        assert restored.check().returncode == 0
        with closing(sqlite3.connect(f"file:{data}?mode=ro", uri=True)) as shell:
            live = shell.execute("SELECT count(*) FROM claims WHERE ended_at_ms IS NULL")
            assert live.fetchone()[0] == 0
            ends = "SELECT count(*) FROM claims WHERE end_kind = 'restored'"
            assert shell.execute(ends).fetchone()[0] > 0
    finally:
        restored.close()
    assert newest(data) > FIRST


def test_a_backup_of_a_later_version_is_refused_with_the_way_out(
    old: Daemon, elsewhere: Path
) -> None:
    ran = feltd("backup", "create", "--data", str(old.data), "--json")
    later = Path(shutil.copy(json.loads(ran.stdout)["path"], elsewhere / "later.db"))
    with closing(sqlite3.connect(later)) as shell:
        shell.execute("PRAGMA user_version = 999")
    for arguments in (("verify",), ("restore", "--data", str(elsewhere / "new.db"))):
        ran = feltd("backup", arguments[0], str(later), *arguments[1:])
        assert ran.returncode == 1
        assert "newer than this feltd" in ran.stderr
        assert "Traceback" not in ran.stderr
    assert not (elsewhere / "new.db").exists()

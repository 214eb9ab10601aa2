"""`feltd init` and `feltd migrate`: a database is made once, and never touched by accident."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.daemon.running import Daemon, feltd


def test_a_new_database_has_a_keyring_and_one_key_shown_once(tmp_path: Path) -> None:
    data = tmp_path / "feltd.db"
    ran = feltd("init", "--data", str(data))
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0
    assert lines[0] == f"database created: {data}"
    assert lines[1].startswith("API key created (id: ")
    assert lines[1].endswith("). This secret will not be shown again:")
    secret = lines[2]
    assert secret.startswith("felt_s_")
    assert len(lines) == 3
    for name in ("feltd.db", "signing.keyring", "feltd.db.lock"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert secret.encode() not in stored
    assert secret.split("_")[3].encode() not in stored


def test_an_existing_database_is_left_alone(tmp_path: Path) -> None:
    data, keyring = tmp_path / "feltd.db", tmp_path / "signing.keyring"
    assert feltd("init", "--data", str(data)).returncode == 0
    before = data.read_bytes(), keyring.read_bytes()
    again = feltd("init", "--data", str(data))
    assert again.returncode == 1
    assert f"{data} exists already. Nothing was changed." in again.stderr
    assert feltd("init", "--if-missing", "--data", str(data)).returncode == 0
    assert (data.read_bytes(), keyring.read_bytes()) == before


def test_one_keyring_serves_every_database_of_a_folder(tmp_path: Path) -> None:
    assert feltd("init", "--data", str(tmp_path / "a.db")).returncode == 0
    ring = (tmp_path / "signing.keyring").read_bytes()
    assert feltd("init", "--data", str(tmp_path / "b.db")).returncode == 0
    assert (tmp_path / "signing.keyring").read_bytes() == ring


def test_the_key_can_go_to_a_file(tmp_path: Path) -> None:
    key = tmp_path / "admin.key"
    ran = feltd("init", "--data", str(tmp_path / "a.db"), "--key-file", str(key))
    assert ran.returncode == 0
    assert "felt_s_" not in ran.stdout
    assert key.stat().st_mode & 0o777 == 0o600
    daemon = Daemon(tmp_path / "a.db")
    daemon.key = key.read_text().strip()
    daemon.start()
    assert daemon.get("/v1/auth/me")["principal"]["scopes"] == ["*"]
    daemon.close()
    taken = feltd("init", "--data", str(tmp_path / "b.db"), "--key-file", str(key))
    assert taken.returncode == 1
    assert not (tmp_path / "b.db").exists()


@pytest.mark.parametrize("where", ["absent/feltd.db", "file/feltd.db"])
def test_a_place_that_cannot_be_written_is_told_in_a_sentence(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("")
    ran = feltd("init", "--data", str(tmp_path / where))
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: ")
    assert "Traceback" not in ran.stderr


def test_an_empty_file_is_nobodys_database(tmp_path: Path) -> None:
    data = tmp_path / "feltd.db"
    data.touch()
    assert feltd("init", "--data", str(data)).returncode == 1
    assert data.read_bytes() == b""


def test_health_and_its_acknowledgement_go_over_the_local_socket(
    daemons: Callable[..., Daemon],
) -> None:
    daemon = daemons()
    daemon.start()
    daemon.stop()
    daemon.data.with_name(daemon.data.name + ".mark").unlink()
    daemon.start()
    data = str(daemon.data)
    told = feltd("health", "--data", data)
    assert told.returncode == 1
    assert "STORAGE_RECOVERED: the database is an earlier one" in told.stdout
    done = feltd("health", "acknowledge", "--data", data)
    expected = "acknowledged: recovered-incomplete-write; the daemon is healthy\n"
    assert (done.returncode, done.stdout) == (0, expected)
    assert json.loads(feltd("health", "--data", data, "--json").stdout)["status"] == "healthy"
    with closing(sqlite3.connect(daemon.data)) as shell:
        acts = shell.execute("SELECT actor FROM audit WHERE action = 'acknowledge'").fetchall()
    assert acts == [("service:local",)]

"""Signing keys that a service manager hands over, and those beside the database without it."""

import os
from pathlib import Path

import pytest

from feltd.cli.init import make_keyring
from feltd.config import load
from tests.daemon.running import Daemon, feltd


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    folder = tmp_path / "credentials"
    folder.mkdir(0o700)
    return folder


def test_they_come_before_the_default_and_after_what_was_said(
    credentials: Path, tmp_path: Path
) -> None:
    env = {"CREDENTIALS_DIRECTORY": str(credentials)}
    beside = tmp_path / "signing.keyring"
    loaded = load({"data": str(tmp_path / "feltd.db")}, env)
    assert (loaded.config.keyring_path, loaded.sources["keyring"]) == (beside, "default")
    handed = credentials / "signing.keyring"
    handed.touch()
    loaded = load({}, env)
    assert (loaded.config.keyring_path, loaded.sources["keyring"]) == (handed, "credential")
    loaded = load({}, env | {"FELTD_KEYRING": "mine"})
    assert (loaded.config.keyring, loaded.sources["keyring"]) == ("mine", "environment")


def test_the_first_start_signs_with_them_and_makes_no_others(
    credentials: Path, tmp_path: Path
) -> None:
    make_keyring(credentials / "signing.keyring")
    os.chmod(credentials / "signing.keyring", 0o400)
    os.chmod(credentials, 0o500)
    env = {"CREDENTIALS_DIRECTORY": str(credentials)}
    data = tmp_path / "feltd.db"
    key_file = tmp_path / "admin.key"
    words = ("init", "--if-missing", "--data", str(data), "--key-file", str(key_file))
    assert feltd(*words, env=env).returncode == 0
    assert not (tmp_path / "signing.keyring").exists()
    daemon = Daemon(data, env=env)
    daemon.key = key_file.read_text().strip()
    try:
        daemon.start()
        assert daemon.get("/v1/auth/me")["subject"]["kind"] == "service"
        assert daemon.stop() == 0
        # Without the credential there are no keys: a plain sentence, not new ones.
        daemon.env = {}
        ran = feltd("serve", "--data", str(data), "--port", "0")
        assert (ran.returncode, ran.stdout) == (1, "")
        assert "signing.keyring does not exist" in ran.stderr
        assert "Traceback" not in ran.stderr
    finally:
        daemon.close()

"""A password that somebody put into an address is said on by nothing: no screen, no journal."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.daemon.running import FELTD, Daemon

ADDRESSES = [
    "http://bob:hunter2pw@127.0.0.1:9",
    "http://:hunter2pw@127.0.0.1:9/",
    "ftp://bob:hunter2pw@127.0.0.1",
    "http://bob:hunter2pw@:9",
    "bob:hunter2pw@127.0.0.1:9",
    "http://bob:hunter2pw@[::1",
]


@pytest.mark.parametrize(
    ("verb", "address"),
    [
        *((("doctor",), address) for address in ADDRESSES),
        *(
            (verb, address)
            for verb in (("health",), ("worker", "list"))
            for address in ADDRESSES[2:4]
        ),
    ],
)
def test_no_command_says_the_password_of_its_address(verb: tuple[str, ...], address: str) -> None:
    asked = subprocess.run(
        [*FELTD, *verb],
        env=os.environ | {"FELTD_URL": address, "FELTD_KEY": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert asked.returncode != 0
    assert "hunter2pw" not in asked.stdout + asked.stderr
    assert "Traceback" not in asked.stderr


@pytest.mark.parametrize("verb", [("config", "show"), ("config", "show", "--json"), ("serve",)])
def test_the_address_of_a_replica_keeps_its_password(tmp_path: Path, verb: tuple[str, ...]) -> None:
    Daemon(tmp_path / "feltd.db").init()
    asked = subprocess.run(
        [*FELTD, *verb],
        env=os.environ
        | {
            "FELTD_REPLICA": "s3://key:hunter2pw@bucket/x",
            "FELTD_DATA": str(tmp_path / "feltd.db"),
            "FELTD_PORT": "99999",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert asked.stdout + asked.stderr
    assert "hunter2pw" not in asked.stdout + asked.stderr

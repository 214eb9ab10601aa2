"""The systemd unit is sound, and it starts what exists."""

import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).resolve().parents[2] / "systemd" / "feltd.service"


@pytest.mark.needs("systemd-analyze")
def test_systemd_finds_nothing_to_say_about_the_unit() -> None:
    ran = subprocess.run(
        ["systemd-analyze", "verify", str(UNIT)], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


@pytest.mark.needs("systemd-analyze")
def test_the_unit_is_sandboxed() -> None:
    ran = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=15", str(UNIT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout


def test_the_unit_waits_for_readiness_and_longer_than_a_graceful_stop() -> None:
    lines = UNIT.read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line and line[0] not in "#[")
    assert settings["Type"] == "notify"
    assert int(settings["TimeoutStopSec"]) > 10
    assert int(settings["LimitNOFILE"]) > 2_048 + 256
    assert settings["UMask"] == "0077"
    assert "75" in settings["RestartPreventExitStatus"].split()

"""`feltd demo` shows the main job with two faults, tells the truth and leaves nothing behind."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Typed
from tests.daemon.running import FELTD


@pytest.mark.timeout(180)
def test_the_demo_recovers_refuses_checks_and_leaves_nothing(tmp_path: Path) -> None:
    ran = Typed(tmp_path, TMPDIR=str(tmp_path))("demo")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    for said in (
        "SIGKILL in the middle",
        "SIGSTOP in the middle",
        "recovered",
        "late write",
        "409 WORKLOAD_STALE_FENCE",
        "every promise holds",
        "workloads a second",
    ):
        assert said in ran.stdout
    steps = ran.stdout.partition("Try next")[2]
    assert steps.count("\n  feltd ") + steps.count("\n  FELTD_URL") == 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(180)
def test_the_fence_demo_shows_the_refused_write_and_the_damage_without_a_fence(
    tmp_path: Path,
) -> None:
    typed = Typed(tmp_path, TMPDIR=str(tmp_path))
    ran = typed("demo", "--fence", "--keep", "kept")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "refused: token" in ran.stdout
    assert "written over: the file says 10" in ran.stdout
    kept = tmp_path / "kept"
    assert (kept / "fenced.txt").read_text() == "12"
    assert (kept / "unfenced.txt").read_text() == "10"
    notes = [json.loads(line) for line in (kept / "notes.jsonl").read_text().splitlines()]
    (late,) = [note for note in notes if note["what"] == "refused"]
    assert late["token"] < late["highest"] == int((kept / "fenced.txt.fence").read_text())
    # Nothing else came of the demo, and the file it kept holds every promise.
    assert [one.name for one in tmp_path.iterdir()] == ["kept"]
    assert typed("check", "--data", "kept/demo.db").returncode == 0


@pytest.mark.timeout(180)
def test_a_demo_whose_daemon_dies_fails_and_leaves_nothing(tmp_path: Path) -> None:
    typed = Typed(tmp_path, TMPDIR=str(tmp_path))
    playing = subprocess.Popen(
        (*FELTD, "demo"), env=typed.env, cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert playing.stdout is not None
    for line in playing.stdout:
        if line.startswith("  workers"):
            break
    [lock] = tmp_path.glob("feltd-demo-*/demo.db.lock")
    os.kill(int(re.findall(r"\d+", lock.read_text())[0]), signal.SIGKILL)
    _said, trouble = playing.communicate(timeout=120)

    assert playing.returncode == 1
    assert "UNREACHABLE" in trouble
    assert "Traceback" not in trouble
    assert list(tmp_path.iterdir()) == []


#: A shell starts what it puts in the background with SIGINT ignored, and so would what it starts.
HEARS_SIGINT = (
    sys.executable,
    "-c",
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL);"
    " os.execv(sys.argv[1], sys.argv[1:])",
)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_demo_that_is_told_to_end_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    typed = Typed(tmp_path, TMPDIR=str(tmp_path))
    playing = subprocess.Popen(
        (*HEARS_SIGINT, *FELTD, "demo"), env=typed.env, cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert playing.stdout is not None
    for line in playing.stdout:
        if line.startswith("  workers"):
            break
    [lock] = tmp_path.glob("feltd-demo-*/demo.db.lock")
    daemon = int(re.findall(r"\d+", lock.read_text())[0])
    playing.send_signal(number)
    _said, trouble = playing.communicate(timeout=120)

    assert (playing.returncode, trouble.strip()) == (130, "interrupted")
    with pytest.raises(ProcessLookupError):
        os.kill(daemon, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_not_played_in(tmp_path: Path) -> None:
    ran = Typed(tmp_path)("demo", "--keep", str(tmp_path))

    assert ran.returncode == 2
    assert list(tmp_path.iterdir()) == []

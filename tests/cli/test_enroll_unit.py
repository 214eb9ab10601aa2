"""`feltd enroll --unit`: what one feltd-worker@NAME needs, and a real worker run from it."""

import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from feltd.cli.enroll_unit import _quoted
from tests.cli.conftest import PATIENCE_S, Typed
from tests.daemon.running import FELTD, Daemon, create, people

OF = ("--tenant", "t", "--application", "a", "--capability", "documents.extract")


def settings(env_file: Path) -> dict[str, str]:
    """An EnvironmentFile= as systemd reads these lines."""
    lines = [line for line in env_file.read_text().splitlines() if line and line[0] != "#"]
    return dict(line.split("=", 1) for line in lines)


def test_the_files_of_a_unit_are_private_and_the_commands_put_them_in_their_place(
    local: Typed, daemon: Daemon
) -> None:
    ran = local("enroll", *OF, "--unit", "edge-1", "--url", daemon.url, "--runs", "jobs:worker")
    assert ran.returncode == 0, ran.stderr
    key_file = local.folder / "feltd-worker-edge-1" / "feltd-worker.edge-1.key"
    env_file = key_file.with_name("edge-1.env")
    assert key_file.stat().st_mode & 0o777 == 0o600
    assert env_file.stat().st_mode & 0o777 == 0o600
    assert key_file.parent.stat().st_mode & 0o777 == 0o700
    key = key_file.read_text().strip()
    assert key not in ran.stdout + ran.stderr + env_file.read_text()
    assert settings(env_file) == {"FELTD_URL": daemon.url, "FELTD_RUNS": "jobs:worker"}
    commands = [shlex.split(line) for line in ran.stdout.splitlines()]
    assert [words[0] for words in commands] == ["install", "install", "systemctl", "rm"]
    assert commands[0][-1] == "/etc/credstore/feltd-worker.edge-1.key"
    assert commands[1][-1] == "/etc/feltd/workers/edge-1.env"
    assert commands[2][-1] == "feltd-worker@edge-1.service"


def test_a_worker_runs_from_them_under_its_own_name_alone(local: Typed, daemon: Daemon) -> None:
    made = local.json(
        "enroll", *OF, "--unit", "edge-2", "--folder", "made", "--url", daemon.url,
        "--runs", "--exec 'cat' --quiet",
    )  # fmt: skip
    assert "secret" not in made
    key_file, env_file = local.folder / made["key_file"], local.folder / made["env_file"]
    of_unit = settings(env_file)
    env = local.env | of_unit | {"FELTD_KEY_FILE": str(key_file)}
    env.pop("FELTD_DATA")
    words = shlex.split(of_unit["FELTD_RUNS"])

    wrong = subprocess.run(
        (*FELTD, "worker", "run", "--name", "another", "--on-drain", "park", *words),
        env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert wrong.returncode == 1, wrong.stderr

    command = (*FELTD, "worker", "run", "--name", "edge-2", "--on-drain", "park", *words)
    with (local.folder / "worker.log").open("w") as log:
        worker = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        made_of = create(daemon, people(daemon), "of the unit", input={"page": 1})
        path = f"/v1/workloads/{made_of['workload_id']}"
        ends_s = time.monotonic() + PATIENCE_S
        while (found := daemon.get(path))["state"] != "COMPLETED":
            assert time.monotonic() < ends_s, (found, (local.folder / "worker.log").read_text())
            time.sleep(0.05)
        local.ok("worker", "drain", "edge-2", "--reason", "maintenance")
        time.sleep(0.3)
        assert worker.poll() is None, "a drained worker of a unit parks"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE_S) in (0, 143)
    finally:
        worker.kill()


def test_nothing_is_ever_overwritten_and_no_key_is_made_for_it(
    local: Typed, daemon: Daemon
) -> None:
    folder = local.folder / "feltd-worker-edge-3"
    folder.mkdir()
    (folder / "edge-3.env").write_text("mine\n")
    before = len(daemon.get("/v1/grants")["items"])
    ran = local("enroll", *OF, "--unit", "edge-3")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "edge-3.env exists" in ran.stderr
    assert os.listdir(folder) == ["edge-3.env"]
    assert (folder / "edge-3.env").read_text() == "mine\n"
    assert len(daemon.get("/v1/grants")["items"]) == before


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("jobs:worker", "jobs:worker"),
        ("--exec 'jq \".page\"' --quiet", "--exec 'jq \".page\"' --quiet"),
        ("'a b'", "\"'a b'\""),
        ("--exec 'printf \\n'", "\"--exec 'printf \\\\n'\""),
        (" a $b", '" a \\$b"'),
        ("", ""),
    ],
)
def test_a_value_is_written_as_systemd_reads_it(text: str, written: str) -> None:
    assert _quoted(text) == written


def test_what_makes_no_unit_is_a_plain_sentence(local: Typed) -> None:
    for words, said in (
        (("--unit", "../edge"), "letters, digits"),
        (("--unit", "a b"), "letters, digits"),
        (("--unit", "edge", "--key-file", "k"), "--unit goes without"),
        (("--unit", "edge", "--runs", "a\nFELTD_KEY=b"), "one line"),
        (("--url", "http://a"), "go with --unit"),
    ):
        ran = local("enroll", *OF, *words)
        assert (ran.returncode, said in ran.stderr) == (2, True), ran.stderr


def test_a_folder_in_which_others_could_replace_the_files_is_refused(
    local: Typed, daemon: Daemon
) -> None:
    """Root installs what lies there, and a service runs it."""
    shared = local.folder / "feltd-worker-edge-9"
    shared.mkdir()
    shared.chmod(0o777)
    asked = ("enroll", *OF, "--unit", "edge-9", "--url", daemon.url)
    ran = local(*asked)
    assert (ran.returncode, list(shared.iterdir())) == (1, [])
    assert "others could change what lies in" in ran.stderr
    shared.chmod(0o755)
    assert local(*asked).returncode == 0


def test_a_key_file_that_cannot_be_read_is_a_plain_sentence(local: Typed, tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for path, said in ((tmp_path / "none", "cannot be read"), (binary, "holds no key")):
        away = Typed(tmp_path, FELTD_URL="http://127.0.0.1:9", FELTD_KEY_FILE=str(path))
        ran = away("worker", "run", "--exec", "cat")
        assert ran.returncode != 0
        assert f"FELTD_KEY_FILE {path} {said}" in ran.stderr
        assert "Traceback" not in ran.stderr
        assert json.dumps(ran.stdout) == '""'

"""The units are sound, sandboxed, and start what exists: their lines are run as systemd would."""

import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from feltd.cli.main import cli
from tests.daemon.running import PATIENCE_S, Daemon, create, people

UNITS = Path(__file__).resolve().parents[2] / "systemd"
SERVICES = ("feltd.service", "feltd-worker@.service", "feltd-backup.service")
EVERY = (*SERVICES, "feltd.socket", "feltd-backup.timer")


def settings(name: str) -> dict[str, list[str]]:
    """The settings of a unit, each with all its values."""
    found: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text().splitlines():
        setting, equals, value = line.partition("=")
        if equals and line[0] not in "#[":
            found.setdefault(setting, []).append(value)
    return found


def run(*words: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False
    )


@pytest.mark.needs("systemd-analyze")
@pytest.mark.parametrize("name", EVERY)
def test_systemd_finds_nothing_to_say_about_a_unit(name: str, tmp_path: Path) -> None:
    for one in EVERY:
        shutil.copy(UNITS / one, tmp_path)
    ran = run("systemd-analyze", "verify", tmp_path / name.replace("@.", "@edge-1."))
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


@pytest.mark.needs("systemd-analyze")
@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_sandboxed(name: str) -> None:
    ran = run("systemd-analyze", "security", "--offline=true", "--threshold=15", UNITS / name)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.needs("systemd-sysusers")
def test_the_users_are_made_and_no_unit_names_another(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    ran = run("systemd-sysusers", f"--root={tmp_path}", UNITS / "feltd.sysusers")
    assert ran.returncode == 0, ran.stderr
    made = {line.split(":")[0] for line in (tmp_path / "etc/passwd").read_text().splitlines()}
    assert made == {"feltd", "feltd-worker"}
    for name in EVERY:
        found = settings(name)
        for setting in ("User", "Group", "SocketUser", "SocketGroup"):
            assert set(found.get(setting, [])) <= made
    # A worker must not be able to read the database.
    assert settings("feltd-worker@.service")["User"] != settings("feltd.service")["User"]
    assert settings("feltd-backup.service")["User"] == settings("feltd.service")["User"]


@pytest.mark.needs("systemd-tmpfiles")
def test_the_folders_of_secrets_are_roots_own(tmp_path: Path) -> None:
    (tmp_path / "etc/feltd/workers").mkdir(parents=True)
    env_file = tmp_path / "etc/feltd/workers/edge-1.env"
    env_file.touch(0o666)
    ran = run("systemd-tmpfiles", "--create", f"--root={tmp_path}", UNITS / "feltd.tmpfiles")
    assert ran.returncode == 0, ran.stderr
    modes = {
        str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777
        for path in tmp_path.rglob("*")
        if path.name not in ("etc", "run")
    }
    assert modes == {
        "etc/feltd": 0o755,
        "etc/feltd/workers": 0o755,
        "etc/feltd/workers/edge-1.env": 0o640,
        "etc/credstore": 0o700,
        "run/feltd": 0o755,
    }


def test_the_unit_waits_for_readiness_and_longer_than_a_graceful_stop() -> None:
    found = settings("feltd.service")
    assert found["Type"] == ["notify"]
    assert int(found["TimeoutStopSec"][0]) > 10
    assert int(found["LimitNOFILE"][0]) > 2_048 + 256
    assert found["UMask"] == ["0077"]
    assert found["RestartPreventExitStatus"] == ["2 75"]
    # A name, not a path: a credential that is not there is no reason not to start.
    assert found["LoadCredential"] == ["signing.keyring:feltd.signing.keyring"]


def test_a_worker_whose_name_was_taken_is_not_started_again() -> None:
    found = settings("feltd-worker@.service")
    assert found["Restart"] == ["on-failure"]
    assert "3" in found["RestartPreventExitStatus"][0].split()
    assert int(found["TimeoutStopSec"][0]) > 25
    assert "--on-drain park" in found["ExecStart"][0]
    assert found["EnvironmentFile"] == ["/etc/feltd/workers/%i.env"]
    assert found["LoadCredential"] == ["feltd.key:feltd-worker.%i.key"]
    assert "FELTD_KEY_FILE=%d/feltd.key" in found["Environment"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_command_of_a_unit_exists_with_its_options(name: str) -> None:
    found = settings(name)
    for line in (*found.get("ExecStartPre", []), *found["ExecStart"]):
        words = shlex.split(line)
        assert words[:2] == ["/usr/bin/env", "feltd"]
        group, place = cli, 2
        context = click.Context(cli)
        while isinstance(group, click.Group):
            command = group.get_command(context, words[place])
            assert command is not None, line
            group, place = command, place + 1  # type: ignore[assignment]
        known = {flag for one in group.params for flag in one.opts}
        assert {word for word in words[place:] if word.startswith("--")} <= known, line


def environment(found: dict[str, list[str]], **more: str) -> dict[str, str]:
    """What systemd would set: its own few, those of the unit, and the folders it makes."""
    bin_folder = Path(sys.executable).parent
    here = dict(one.split("=", 1) for one in found.get("Environment", []))
    here["PATH"] = f"{bin_folder}:{here['PATH']}"
    return here | {"LANG": "C.UTF-8"} | more


def as_systemd(line: str, env: dict[str, str]) -> list[str]:
    """A command line with ${NAME} put in."""
    return [re.sub(r"\$\{(\w+)\}", lambda m: env[m[1]], word) for word in shlex.split(line)]


def test_the_first_start_the_reload_and_the_stop_of_the_service(tmp_path: Path) -> None:
    """ExecStartPre= twice, as over a restart; ExecStart=; ExecReload=; the signal of a stop."""
    found = settings("feltd.service")
    state = tmp_path / "state"
    state.mkdir(mode=0o750)
    env = environment(found, STATE_DIRECTORY=str(state), FELTD_PORT="0")
    before = as_systemd(found["ExecStartPre"][0], env)
    for _ in range(2):
        ran = subprocess.run(before, env=env, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
    assert (state / "admin.key").stat().st_mode & 0o777 == 0o600
    daemon = Daemon(state / "feltd.db")
    daemon.key = (state / "admin.key").read_text().strip()
    with daemon.log.open("a") as log:
        daemon.process = subprocess.Popen(
            as_systemd(found["ExecStart"][0], env),
            env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    try:
        assert daemon.process.stdout is not None
        daemon.url = daemon.process.stdout.readline().strip()
        assert daemon.get("/v1/auth/me")["subject"]["kind"] == "service"
        reload = found["ExecReload"][0].replace("$MAINPID", str(daemon.pid))
        assert subprocess.run(shlex.split(reload), check=False).returncode == 0
        assert daemon.get("/health")["status"] == "healthy"
        assert daemon.stop() == 0
    finally:
        daemon.close()


def test_a_worker_unit_that_is_told_nothing_to_run_says_so_and_stays_down(tmp_path: Path) -> None:
    found = settings("feltd-worker@.service")
    env = environment(found, FELTD_URL="http://127.0.0.1:9", FELTD_RUNS="")
    line = found["ExecStart"][0].replace("%i", "edge-1").replace("$FELTD_RUNS", "")
    ran = subprocess.run(
        shlex.split(line), env=env, cwd=tmp_path, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert str(ran.returncode) in found["RestartPreventExitStatus"][0].split()
    assert "MODULE:HANDLERS" in ran.stderr


def test_a_worker_unit_runs_from_what_enroll_made_and_gives_way_to_its_namesake(
    daemons: Callable[..., Daemon], tmp_path: Path
) -> None:
    """Its files put in their place by the commands that enroll printed, below another root."""
    daemon = daemons().start()
    of = ("--tenant", "t", "--application", "a", "--capability", "documents.extract")
    unit = ("--unit", "edge-1", "--folder", "made", "--url", daemon.url, "--runs", "--exec cat")
    told = subprocess.run(
        (sys.executable, "-m", "feltd", "enroll", "--data", str(daemon.data), *of, *unit),
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    root = tmp_path / "root"
    for line in told.stdout.splitlines():
        words = shlex.split(line)
        if words[0] == "install":
            words[-1] = f"{root}{words[-1]}"
            assert subprocess.run(words, cwd=tmp_path, check=False).returncode == 0

    found = settings("feltd-worker@.service")
    (env_file,), (credential,) = found["EnvironmentFile"], found["LoadCredential"]
    lines = (root / env_file.replace("%i", "edge-1").lstrip("/")).read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line and line[0] != "#")
    name, _, source = credential.partition(":")
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    kept = root / "etc/credstore" / source.replace("%i", "edge-1")
    assert kept.stat().st_mode & 0o777 == 0o600
    shutil.copy(kept, credentials / name)
    env = environment(found, **given)
    env["FELTD_KEY_FILE"] = env["FELTD_KEY_FILE"].replace("%d", str(credentials))
    line = found["ExecStart"][0].replace("%i", "edge-1")
    line = line.replace("$FELTD_RUNS", given["FELTD_RUNS"])

    work = create(daemon, people(daemon), "a", input={"page": 1})
    processes = []
    try:
        for _ in range(2):
            processes.append(subprocess.Popen(shlex.split(line), env=env, cwd=tmp_path))
            eventually(lambda: len(daemon.get("/v1/workers")["items"]) == 1)
            eventually(lambda: is_done(daemon, work))
        # The second took the name: the first ends, and systemd leaves it ended.
        first = processes[0].wait(PATIENCE_S)
        assert str(first) in found["RestartPreventExitStatus"][0].split()
        processes[1].terminate()
        assert processes[1].wait(PATIENCE_S) == 0
    finally:
        for process in processes:
            process.kill()


def is_done(daemon: Daemon, work: dict[str, Any]) -> bool:
    return bool(daemon.get(f"/v1/workloads/{work['workload_id']}")["state"] == "COMPLETED")


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something is so."""
    ends_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < ends_s, "it never came to hold"
        time.sleep(0.02)

"""`feltd users`: people made by the operator of the machine, and from afar by who may."""

import os
import pty
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner

from feltd.cli.users import users
from tests.cli.conftest import Typed
from tests.daemon.running import Daemon

PASSWORD = "canary-password-11aa"
ANOTHER = "canary-password-22bb"


def password(folder: Path, text: str = PASSWORD) -> str:
    """A file with it."""
    path = folder / f"{text}.pw"
    path.write_text(f"{text}\n")
    return str(path)


def logs_in(daemon: Daemon, name: str, text: str) -> bool:
    body = {"username": name, "password": text}
    return daemon.call("POST", "/v1/auth/login", body, key="").status == 200


def test_the_operator_makes_lists_changes_and_disables_a_user(
    local: Typed, daemon: Daemon, tmp_path: Path
) -> None:
    file = password(tmp_path)

    made = local.json("users", "create", "ada", "--role", "acme=admin", "--password-file", file)
    told = local.ok("users", "role", "ada", "--role", "globex=viewer", "--take", "acme")
    listed = local.json("users", "list")

    assert (made["username"], made["roles"]) == ("ada", {"acme": "admin"})
    assert told == "roles of ada: globex=viewer\n"
    assert [one["roles"] for one in listed if one["username"] == "ada"] == [{"globex": "viewer"}]
    assert "ada" in local.ok("users", "list")
    assert logs_in(daemon, "ada", PASSWORD)
    again = local("users", "create", "ADA", "--password-file", file)
    assert (again.returncode, again.stderr.split(":")[0]) == (1, "USER_EXISTS")
    assert local.ok("users", "disable", "ada") == "user disabled: ada\n"
    assert not logs_in(daemon, "ada", PASSWORD)
    assert local("users", "disable", "never-made").stderr.startswith("USER_NOT_FOUND")


def test_a_person_works_from_afar_by_his_session_and_gives_no_more_than_he_has(
    local: Typed, away: Callable[[str], Typed], daemon: Daemon, tmp_path: Path
) -> None:
    file = password(tmp_path)
    local.ok("users", "create", "boss", "--role", "here=admin", "--password-file", file)
    login = {"username": "boss", "password": PASSWORD}
    boss = away(daemon.post("/v1/auth/login", login, key="")["session"])

    boss.ok("users", "create", "hand", "--role", "here=operator", "--password-file", file)
    beyond = boss("users", "create", "x", "--role", "there=viewer", "--password-file", file)

    assert {one["username"] for one in boss.json("users", "list")} >= {"boss", "hand"}
    assert (beyond.returncode, beyond.stderr.split(":")[0]) == (1, "FORBIDDEN")
    assert boss("worker", "list").returncode == 0


def test_whoever_knows_the_old_password_changes_it_from_anywhere(
    local: Typed, away: Callable[[str], Typed], daemon: Daemon, tmp_path: Path
) -> None:
    old, new = password(tmp_path), password(tmp_path, ANOTHER)
    local.ok("users", "create", "carol", "--password-file", old)
    stranger = away("")

    wrong = stranger("users", "passwd", "carol", "--old-password-file", new, "--password-file", new)
    told = stranger.ok(
        "users", "passwd", "carol", "--old-password-file", old, "--password-file", new
    )

    assert (wrong.returncode, wrong.stderr.split(":")[0]) == (1, "UNAUTHENTICATED")
    assert told == "password changed: carol\n"
    assert logs_in(daemon, "carol", ANOTHER)
    assert not logs_in(daemon, "carol", PASSWORD)


def test_the_operator_replaces_a_forgotten_password_and_ends_the_sessions(
    local: Typed, daemon: Daemon, tmp_path: Path
) -> None:
    local.ok("users", "create", "dan", "--password-file", password(tmp_path))
    login = {"username": "dan", "password": PASSWORD}
    session = daemon.post("/v1/auth/login", login, key="")["session"]

    local.ok("users", "passwd", "dan", "--password-file", "-", given=f"{ANOTHER}\n")

    assert daemon.call("GET", "/v1/auth/me", key=session).status == 401
    assert logs_in(daemon, "dan", ANOTHER)


def test_words_that_mean_nothing_are_a_usage_error(tmp_path: Path) -> None:
    file = password(tmp_path)
    for words in (
        ("create", "eve", "--role", "admin", "--password-file", file),
        ("create", "eve", "--role", "acme=owner", "--password-file", file),
        ("create", "eve", "--role", "a=viewer", "--role", "a=admin", "--password-file", file),
        ("create", "eve", "--password-file", str(tmp_path / "none")),
        ("create", "eve"),
        ("role", "eve"),
        ("role", "eve", "--role", "acme=viewer", "--take", "acme"),
        ("passwd", "eve", "--old-password-file", file, "--password-file", file),
    ):
        ran = CliRunner().invoke(users, words, env={"FELTD_URL": None, "FELTD_DATA": "none.db"})
        assert (ran.exit_code, ran.stdout) == (2, ""), words


def test_users_are_made_before_the_first_start(tmp_path: Path) -> None:
    alone = Typed(tmp_path)
    alone.ok("init", "--data", "feltd.db", "--key-file", "admin.key")
    file = password(tmp_path)

    alone.ok("users", "create", "ada", "--role", "*=admin", "--password-file", file,
             "--data", "feltd.db")  # fmt: skip

    assert alone.json("users", "list", "--data", "feltd.db")[0]["roles"] == {"*": "admin"}
    assert PASSWORD.encode() not in (tmp_path / "feltd.db").read_bytes()


def test_a_typed_password_is_asked_for_twice_and_never_shown(
    local: Typed, daemon: Daemon, tmp_path: Path
) -> None:
    said = typed(local, ["users", "create", "typist"], f"{PASSWORD}\n{PASSWORD}\n")

    assert "user created: typist" in said
    assert PASSWORD not in said
    assert logs_in(daemon, "typist", PASSWORD)


def typed(local: Typed, words: list[str], keys: str) -> str:
    """What a terminal shows of a command that asks, a line typed at each question."""
    pid, screen = pty.fork()
    if pid == 0:
        os.chdir(local.folder)
        os.execve(sys.executable, [sys.executable, "-m", "feltd", *words], local.env)
    shown, lines, ends_s = "", keys.splitlines(keepends=True), time.monotonic() + 60
    try:
        while time.monotonic() < ends_s:
            ready, _, _ = select.select([screen], [], [], 1)
            if ready:
                try:
                    got = os.read(screen, 4_096).decode()
                except OSError:
                    break
                shown += got
                if got.rstrip().endswith(":") and lines:
                    # The terminal stops echoing only after the question stands there.
                    time.sleep(0.2)
                    os.write(screen, lines.pop(0).encode())
    finally:
        os.close(screen)
        os.waitpid(pid, 0)
    return shown

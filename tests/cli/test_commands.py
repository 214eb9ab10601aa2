"""Every command says how it is used, and ends with the exit code it earned."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from feltd.cli.main import COMMANDS, cli, run
from tests.cli.conftest import Typed
from tests.daemon.running import Daemon


def every_command() -> Iterator[tuple[str, ...]]:
    ctx = click.Context(cli)
    for name in cli.list_commands(ctx):
        command = cli.get_command(ctx, name)
        assert command is not None, name
        yield (name,)
        if isinstance(command, click.Group):
            yield from ((name, inner) for inner in command.list_commands(ctx))


@pytest.mark.parametrize("words", list(every_command()), ids=" ".join)
def test_each_command_has_help_with_examples(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(cli, [*words, "--help"], prog_name="feltd")

    assert shown.exit_code == 0, shown.output
    assert "Examples:" in shown.output
    assert f"feltd {' '.join(words)}" in shown.output.partition("Examples:")[2]


def test_the_overview_names_every_command_without_importing_one() -> None:
    shown = CliRunner().invoke(cli, ["--help"])

    assert shown.exit_code == 0
    assert all(name in shown.output for name in COMMANDS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_code_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert "_FELTD_COMPLETE" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["keys"],
        ["keys", "create"],
        ["keys", "revoke"],
        ["keys", "create", "--name", "x", "--expires", "soon"],
        ["worker", "run"],
        ["worker", "run", "a:b", "--exec", "true"],
        ["worker", "run", "a:b", "--definition", "x"],
        ["workload", "create", "x", "--input", "{"],
        ["workload", "create", "x", "--input", "@/nowhere"],
        ["workload", "create", "x", "--label", "none"],
        ["grants", "issue", "--subject", "ci", "--tenant", "t", "--application", "a"],
        ["keys", "list"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_meant_is_a_usage_error(words: list[str], tmp_path: Path) -> None:
    ran = Typed(tmp_path)(*words)

    assert ran.returncode == 2, ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stderr.strip()


def test_no_daemon_is_said_in_words_with_the_next_step(tmp_path: Path) -> None:
    gone = Typed(tmp_path, FELTD_URL="http://127.0.0.1:9", FELTD_KEY="k")("worker", "list")
    assert gone.returncode == 1
    assert gone.stderr.startswith("UNREACHABLE: no answer from http://127.0.0.1:9")
    assert "next: start the daemon" in gone.stderr

    none = Typed(tmp_path)("worker", "list", "--data", "none.db")
    assert none.returncode == 1
    assert none.stderr == "error: no database at none.db: run 'feltd init --data none.db'\n"

    idle = Typed(tmp_path)
    idle.ok("init", "--data", "idle.db")
    told = idle("worker", "list", "--data", "idle.db")
    assert told.returncode == 1
    assert "no daemon serves idle.db" in told.stderr
    assert "feltd serve --data idle.db" in told.stderr


def test_a_refusal_is_its_code_its_detail_and_the_next_step(local: Typed) -> None:
    ran = local("worker", "show", "worker_000000000000000000000000")

    assert ran.returncode == 1
    assert ran.stdout == ""
    first, *rest = ran.stderr.splitlines()
    assert first.startswith("WORKER_NOT_FOUND: ")
    assert rest == [
        "next: look for its id or name: feltd worker list (see /errors/WORKER_NOT_FOUND)"
    ]


@pytest.mark.parametrize(
    ("words", "code", "step"),
    [
        ("grants revoke nothing", "GRANT_NOT_FOUND", "feltd grants list"),
        ("grants show nothing", "GRANT_NOT_FOUND", "feltd grants list"),
        ("keys revoke --id nothing", "KEY_NOT_FOUND", "feltd keys list"),
        ("workload show nothing", "WORKLOAD_NOT_FOUND", "feltd workload list"),
        ("workload cancel nothing", "WORKLOAD_NOT_FOUND", "feltd workload list"),
        ("worker drain worker_0", "WORKER_NOT_FOUND", "feltd worker list"),
        ("claim evict claim_0 --reason stuck", "CLAIM_NOT_FOUND", "feltd claim list"),
    ],
)
def test_whoever_names_what_is_not_there_is_told_where_names_are(
    local: Typed, words: str, code: str, step: str
) -> None:
    ran = local(*words.split())

    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(f"{code}: ")
    assert ran.stderr.splitlines()[-1].startswith("next: look for its id")
    assert f": {step} (see" in ran.stderr


def test_a_key_that_is_not_set_is_named(daemon: Daemon, tmp_path: Path) -> None:
    none = Typed(tmp_path, FELTD_URL=daemon.url)("worker", "list")
    wrong = Typed(tmp_path, FELTD_URL=daemon.url, FELTD_KEY="nonsense")("worker", "list")

    assert (none.returncode, wrong.returncode) == (1, 1)
    assert "next: FELTD_KEY is not set: give it a key of this daemon" in none.stderr
    assert "next: give FELTD_KEY a key of this daemon that still works" in wrong.stderr


def test_a_database_that_is_served_is_no_reason_to_fail_for_if_missing(
    daemon: Daemon, tmp_path: Path
) -> None:
    """systemd runs it before each start: it must pass where there is nothing to make."""
    typed = Typed(tmp_path)
    beside = typed("init", "--if-missing", "--data", str(daemon.data))
    again = typed("init", "--data", str(daemon.data))

    assert (beside.returncode, beside.stdout) == (0, "")
    assert beside.stderr == f"{daemon.data} exists already\n"
    assert again.returncode == 1
    assert "exists already. Nothing was changed." in again.stderr


def test_each_member_that_does_not_fit_is_pointed_at(local: Typed) -> None:
    ran = local(
        "workload", "create", "has space", "--tenant", "t", "--application", "a", "--label", "!=x"
    )

    assert ran.returncode == 1
    assert ran.stderr.startswith("WORKLOAD_INVALID: /definition_id: ")
    assert ran.stderr.count("/definition_id") == 1, "what the detail says is not said again"


def test_the_id_of_a_worker_is_worked_out_without_a_daemon(tmp_path: Path) -> None:
    typed = Typed(tmp_path)
    assert typed.ok("worker", "id", "t", "a", "edge").strip() == "worker_cce6afc4b175e9a47f212537"
    named = typed.ok("worker", "id", "acme", "docs", "edge-1").strip()
    assert named == "worker_7ae616376f57fc43b8a4e5f6"


def test_a_worker_without_an_address_or_without_its_module_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text("worker = 5\n")
    bare = Typed(tmp_path)("worker", "run", "--exec", "true")
    assert bare.returncode == 2
    assert "FELTD_URL is not set: give it the address that 'feltd serve' prints" in bare.stderr

    typed = Typed(tmp_path, FELTD_URL="http://127.0.0.1:9", FELTD_KEY="k")
    for target, said in (
        ("jobs", "MODULE:HANDLERS"),
        ("nojobs:worker", "no module 'nojobs'"),
        ("jobs:nothing", "no 'nothing'"),
        ("jobs:worker", "no Worker"),
    ):
        ran = typed("worker", "run", target)
        assert (ran.returncode, said in ran.stderr) == (2, True), ran.stderr

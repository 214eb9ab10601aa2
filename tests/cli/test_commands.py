"""Every command says how it is used, and ends with the exit code it earned."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from feltd.cli.main import COMMANDS, cli, run
from tests.cli.conftest import Typed


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
    assert rest[-1].startswith("next: register: ")
    assert "/errors/WORKER_NOT_FOUND" in rest[-1]


def test_each_member_that_does_not_fit_is_pointed_at(local: Typed) -> None:
    ran = local(
        "workload", "create", "has space", "--tenant", "t", "--application", "a", "--label", "!=x"
    )

    assert ran.returncode == 1
    assert ran.stderr.startswith("WORKLOAD_INVALID: ")
    assert "at /definition_id" in ran.stderr


def test_the_id_of_a_worker_is_worked_out_without_a_daemon(tmp_path: Path) -> None:
    typed = Typed(tmp_path)
    assert typed.ok("worker", "id", "t", "a", "edge").strip() == "worker_cce6afc4b175e9a47f212537"
    named = typed.ok("worker", "id", "acme", "docs", "edge-1").strip()
    assert named == "worker_7ae616376f57fc43b8a4e5f6"


def test_a_worker_without_an_address_or_without_its_module_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text("worker = 5\n")
    bare = Typed(tmp_path)("worker", "run", "jobs:worker")
    assert (bare.returncode, "FELTD_URL is not set" in bare.stderr) == (2, True)

    typed = Typed(tmp_path, FELTD_URL="http://127.0.0.1:9", FELTD_KEY="k")
    for target, said in (
        ("jobs", "MODULE:HANDLERS"),
        ("nojobs:worker", "no module 'nojobs'"),
        ("jobs:nothing", "no 'nothing'"),
        ("jobs:worker", "no Worker"),
    ):
        ran = typed("worker", "run", target)
        assert (ran.returncode, said in ran.stderr) == (2, True), ran.stderr

"""The manual page, the completion a shell evaluates, and the measurement of a machine."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from feltd.cli.main import COMMANDS
from tests.cli.conftest import Typed


@pytest.fixture
def typed(tmp_path: Path) -> Typed:
    return Typed(tmp_path)


@pytest.mark.needs("man")
def test_the_manual_page_reads_without_a_warning(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "feltd.1").write_text(typed.ok("man"))
    read = subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "feltd.1"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
        env={"MANWIDTH": "200", "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TERM": "dumb"},
    )  # fmt: skip
    assert read.stderr == ""
    # Bold is a letter struck twice.
    shown = re.sub(".\x08", "", read.stdout)
    missing = [name for name in COMMANDS if f"feltd {name}" not in shown]
    assert not missing
    # As they are typed: roff would turn a bare hyphen and a backslash into something else.
    assert "feltd backlog --json" in shown
    assert "EXIT STATUS" in shown


def test_every_option_of_serve_is_in_the_manual(typed: Typed) -> None:
    page = typed.ok("man").replace("\\-", "-")
    flags = [word for word in typed.ok("serve", "--help").split() if word.startswith("--")]
    assert len(flags) > 20
    assert [flag for flag in flags if flag not in page and flag != "--help"] == []


@pytest.mark.needs("bash")
def test_bash_completes_commands_and_options(typed: Typed, tmp_path: Path) -> None:
    """Evaluated as the README has it, with the variables a shell sets while somebody types."""
    (tmp_path / "complete.bash").write_text(typed.ok("completion", "bash"))
    script = """
        source complete.bash 2>/dev/null || exit 9
        COMP_WORDS=(feltd hol); COMP_CWORD=1; _feltd_completion feltd; echo "${COMPREPLY[@]}"
        COMPREPLY=(); COMP_WORDS=(feltd worker dr); COMP_CWORD=2; _feltd_completion feltd
        echo "${COMPREPLY[@]}"
    """
    ran = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True,
        env=typed.env | {"PATH": _path_with_feltd()},
    )  # fmt: skip
    assert ran.stdout.splitlines() == ["hold", "drain"]


def test_a_machine_is_measured_and_nothing_is_left(typed: Typed, tmp_path: Path) -> None:
    figures = typed.json("bench", "--seconds", "5")
    assert [one["what"] for one in figures] == [
        "fsync of 4 KiB",
        "create, 200 a call",
        "cycles, 1 worker",
        "cycles, 16 workers",
    ]
    assert all(one["per_second"] > 0 and one["p50_ms"] <= one["p99_ms"] for one in figures)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_measured_is_refused(typed: Typed) -> None:
    assert typed("bench", "--folder", "/nowhere").returncode == 2


def _path_with_feltd() -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

"""The README says what the code does."""

import re
import shlex
from collections.abc import Iterator

import click

from feltd.cli.main import cli
from tests.tidy.tables import README, rendered

#: What may stand before a command: settings, and another user.
BEFORE = r"(?:\w+=(?:\$\([^)]*\)|\S+) |runuser -u feltd -- |\.venv/bin/)*"


def test_the_tables_of_the_readme_are_those_of_the_code() -> None:
    text = README.read_text()
    assert rendered(text) == text, "run: python -m tests.tidy.tables"


def test_the_commands_of_the_readme_exist_with_their_options() -> None:
    commands = list(_commands())
    wrong = [fault for words in commands if (fault := _fault(words))]

    assert len(commands) > 60
    assert not wrong, "\n".join(wrong)


def test_the_links_within_the_readme_lead_somewhere() -> None:
    text = README.read_text()
    headings = re.findall(r"(?m)^##+ (.*)$", text)
    anchors = {re.sub(r"[^a-z0-9 -]", "", one.lower()).replace(" ", "-") for one in headings}

    assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= anchors


def _commands() -> Iterator[list[str]]:
    """The words behind each `feltd` of the shell blocks and of the prose, one command each."""
    text = README.read_text()
    blocks = "\n".join(re.findall(r"(?ms)^```sh\n(.*?)^```", text)).replace("\\\n", " ")
    lines = re.sub(r"<<'END'\n.*?\nEND", "", blocks, flags=re.S).splitlines()
    lines += re.findall(r"`([^`\n]*)`", re.sub(r"(?ms)^```.*?^```", "", text))
    for line in lines:
        for part in re.split(r"&&|[|;]", re.split(r"\s# ", line)[0]):
            found = re.fullmatch(rf"\s*{BEFORE}feltd ([a-z-].*)", part)
            if found and "…" not in part:
                yield shlex.split(found[1])


def _fault(words: list[str]) -> str:
    """What is wrong with a command; nothing if it is there and takes its options."""
    command: click.Command = cli
    rest = list(words)
    while isinstance(command, click.Group) and rest:
        inner = command.get_command(click.Context(command), rest[0])
        if inner is None:
            break
        command = inner
        rest.pop(0)
    if isinstance(command, click.Group) and not command.invoke_without_command:
        return f"feltd {shlex.join(words)}: no such command"
    taken = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    given = [word.split("=")[0] for word in rest[: _before_dashes(rest)] if word[:2] == "--"]
    unknown = [name for name in given if name not in taken | {"--help"}]
    return f"feltd {shlex.join(words)}: {', '.join(unknown)}" if unknown else ""


def _before_dashes(words: list[str]) -> int:
    return words.index("--") if "--" in words else len(words)

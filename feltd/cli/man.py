"""`feltd man`: the manual page, made from the commands themselves, so that it never tells another.

One page holds every command with its options and examples; it is roff, as man(1) reads it.
"""

import re
from collections.abc import Iterator

import click

from feltd import __version__
from feltd.cli.output import Examples

EXITS = (
    ("0", "done"),
    ("1", "refused or failed; code and detail are on stderr"),
    ("2", "the command line was wrong"),
    ("3", "another process took the worker's name"),
    ("75", "another daemon holds the file"),
)
VARIABLES = (
    ("FELTD_URL", "where the daemon is, for commands that talk to one"),
    ("FELTD_KEY", "the key they show"),
    ("FELTD_DATA", "the database file, in place of --data"),
    ("FELTD_<SETTING>", "each setting of feltd serve; feltd config show names them"),
)
FILES = (
    ("feltd.db", "the database, with -wal and -shm while it is open"),
    ("feltd.db.mark", "how far it had come, to find out when an older file was put back"),
    ("feltd.db.lock", "held by the daemon that serves it"),
    ("feltd.db.sock", "the local operator's way in, mode 0600"),
    ("signing.keyring", "the keys that sign grants, mode 0600; not part of a backup"),
    ("backups/", "what feltd backup create makes"),
)


@click.command(
    cls=Examples,
    examples=("feltd man | man -l -", "feltd man > /usr/local/share/man/man1/feltd.1"),
    short_help="Print the manual page.",
)
def man() -> None:
    """Print the manual page of feltd and all its commands, as man(1) reads it."""
    from feltd.cli.main import cli

    click.echo("\n".join(page(cli)))


def page(cli: click.Group) -> Iterator[str]:
    """The lines of the page."""
    yield f'.TH FELTD 1 "" "feltd {__version__}" "User Commands"'
    yield from (".SH NAME", "feltd \\- durable work for processes anywhere, under lease and fence")
    yield from (".SH SYNOPSIS", ".B feltd", ".I COMMAND", "[\\fIOPTIONS\\fR]")
    yield ".SH DESCRIPTION"
    yield from _text(cli.help or "")
    yield ".SH COMMANDS"
    yield from _commands(cli, click.Context(cli, info_name="feltd"))
    for title, rows in (
        ("EXIT STATUS", EXITS),
        ("ENVIRONMENT", VARIABLES),
        ("FILES", FILES),
    ):
        yield f".SH {title}"
        for name, told in rows:
            yield from (".TP", f".B {_plain(name)}", _plain(told))
    yield from (".SH SEE ALSO", ".BR sqlite3 (1),", ".BR systemd.service (5)")


def _commands(group: click.Group, ctx: click.Context) -> Iterator[str]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if command is None or command.hidden:
            continue
        below = click.Context(command, info_name=name, parent=ctx)
        usage = " ".join(command.collect_usage_pieces(below))
        yield f".SS {_plain(below.command_path)} {_plain(usage)}"
        yield from _text(command.help or command.short_help or "")
        for parameter in command.get_params(below):
            told = parameter.get_help_record(below)
            if told is not None and "--help" not in parameter.opts:
                yield from (".TP", f".B {_plain(told[0])}", _plain(told[1]) or "\\&")
        yield from _examples(command.epilog or "")
        if isinstance(command, click.Group):
            yield from _commands(command, below)


def _text(told: str) -> Iterator[str]:
    """The paragraphs of a help text; those behind a backspace stay as they are."""
    for paragraph in re.split(r"\n\s*\n", told.strip()):
        yield ".PP"
        if paragraph.lstrip().startswith("\b"):
            yield from (".nf", *(_plain(line) for line in paragraph.splitlines()[1:]), ".fi")
        else:
            yield _plain(" ".join(paragraph.split()))


def _examples(epilog: str) -> Iterator[str]:
    lines = [line for line in epilog.splitlines() if line.strip("\b ")]
    if lines:
        yield from (".PP", ".nf", *(_plain(line) for line in lines), ".fi")


def _plain(text: str) -> str:
    """A line that roff prints as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in {".", "'"} else text

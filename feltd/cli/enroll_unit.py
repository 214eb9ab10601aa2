"""What `feltd enroll --unit` leaves behind: the files of one feltd-worker@NAME.service.

They are written into a folder of one's own, not where systemd reads them: the worker's machine is
often another one, and only root writes there. An existing file is never touched.
"""

import os
import re
import shlex
import stat
from pathlib import Path
from typing import Any, NamedTuple

import click

from feltd.cli.output import say_json
from feltd.cli.parse import refuse_existing, write_private
from feltd.store.connect import StoreProblem

#: Also a part of file names and of a credential's name.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
URL_DEFAULT = "http://127.0.0.1:7610"
CREDENTIALS = "/etc/credstore"
SETTINGS = "/etc/feltd/workers"

ENV = """\
# Settings of feltd-worker@{name}. The key is not here, but in {credentials}/{key}.
FELTD_URL={url}
# What it runs, as 'feltd worker run' takes it: jobs:worker (from /etc/feltd/workers/jobs.py), or
# --exec 'jq .page', and options such as --concurrency 4.
FELTD_RUNS={runs}
# The certificate of a private authority:
#SSL_CERT_FILE=/etc/feltd/authority.pem
"""


class Unit(NamedTuple):
    """One unit to be: its name, and where its files are written."""

    name: str
    folder: Path
    url: str
    runs: str

    @property
    def key_file(self) -> Path:
        """The credential."""
        return self.folder / f"feltd-worker.{self.name}.key"

    @property
    def env_file(self) -> Path:
        """The settings."""
        return self.folder / f"{self.name}.env"

    def commands(self) -> list[str]:
        """What root does on the worker's machine, in the folder's place."""
        key, env = shlex.quote(str(self.key_file)), shlex.quote(str(self.env_file))
        return [
            f"install -D -m 0600 {key} {CREDENTIALS}/{self.key_file.name}",
            f"install -D -m 0640 {env} {SETTINGS}/{self.env_file.name}",
            f"systemctl enable --now feltd-worker@{self.name}.service",
            f"rm {key} {env}",
        ]


def unit_of(name: str, folder: str | None, url: str | None, runs: str | None) -> Unit:
    """The unit as it was asked for. A usage error where it cannot be, or where a file is there."""
    if not NAME.fullmatch(name):
        raise click.UsageError(
            f"--unit {name!r}: up to 64 letters, digits, '.', '_' and '-', a letter or digit first"
        )
    url = url or os.environ.get("FELTD_URL") or URL_DEFAULT
    for flag, text in (("--url", url), ("--runs", runs or "")):
        if not text.isprintable():
            raise click.UsageError(f"{flag} must be one line of text")
    unit = Unit(name, Path(folder or f"feltd-worker-{name}"), url, runs or "")
    if unit.folder.exists():
        _refuse_shared(unit.folder)
    refuse_existing(str(unit.key_file))
    refuse_existing(str(unit.env_file))
    return unit


def write(unit: Unit, secret: str) -> None:
    """Make the folder and both files. Raises StoreProblem or OSError."""
    unit.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _refuse_shared(unit.folder)
    write_private(str(unit.key_file), secret)
    text = ENV.format(
        name=unit.name,
        credentials=CREDENTIALS,
        key=unit.key_file.name,
        url=_quoted(unit.url),
        runs=_quoted(unit.runs),
    )
    write_private(str(unit.env_file), text.rstrip("\n"))


def _refuse_shared(folder: Path) -> None:
    """Refuse a folder whose files somebody else may replace: root installs them and runs them."""
    found = folder.stat()
    if found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o022:
        raise StoreProblem(
            f"others could change what lies in {folder} (mode {stat.S_IMODE(found.st_mode):04o}).",
            "Name a folder of your own with --folder, or run chmod go-w on it.",
        )


def say(unit: Unit, made: dict[str, Any], *, as_json: bool) -> None:
    """What was made, without the secret; to people the commands alone on stdout, to be kept."""
    if as_json:
        say_json(
            {name: one for name, one in made.items() if name != "secret"}
            | {
                "unit": f"feltd-worker@{unit.name}.service",
                "key_file": str(unit.key_file),
                "env_file": str(unit.env_file),
                "commands": unit.commands(),
            }
        )
        return
    click.echo(
        f"key {made['key_id']} for feltd-worker@{unit.name}.service: {unit.key_file}\n"
        f"settings: {unit.env_file}" + ("" if unit.runs else ", where FELTD_RUNS is to be set"),
        err=True,
    )
    click.echo("next, as root on the worker's machine:", err=True)
    for command in unit.commands():
        click.echo(command)


def _quoted(text: str) -> str:
    """A value as an EnvironmentFile= has it; in quotes only where it would be read as another."""
    if text == text.strip() and not re.search(r"""\\|^['"#]""", text):
        return text
    return '"' + re.sub(r'(["\\`$])', r"\\\1", text) + '"'

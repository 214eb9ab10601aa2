"""`feltd doctor`: one screen, a line for each thing that may be wrong, with the command that helps.

It only looks. It works beside a running daemon, for a file that nobody serves, and from afar.
"""

import os
import sqlite3
from collections.abc import Generator, Iterator
from pathlib import Path

import click

from feltd.api.health import wal_reset_affected
from feltd.api.listen import find_local_socket
from feltd.cli.doctor import asked as asking
from feltd.cli.doctor import files, rows
from feltd.cli.doctor.asked import Asked
from feltd.cli.doctor.files import Place
from feltd.cli.doctor.findings import Finding, fail, ok
from feltd.cli.output import CONTROLS, Examples, on_terminal, say_json
from feltd.cli.remote import DATA_DEFAULT, remote, serves
from feltd.clock import wall_ms
from feltd.config import ConfigProblem, load
from feltd.errors import Refused
from feltd.store.connect import StoreProblem
from feltd.worker.client import Client

COLOURS = {"OK": "green", "WARN": "yellow", "FAIL": "red"}


@click.command(
    cls=Examples,
    examples=(
        "feltd doctor --data /var/lib/feltd/feltd.db",
        "FELTD_URL=https://feltd.example FELTD_KEY=… feltd doctor",
        "feltd doctor --json | jq '.findings[] | select(.level != \"OK\")'",
    ),
    short_help="Look at everything that may be wrong.",
)
@remote
def doctor(data: str | None, as_json: bool) -> int:
    """Look at everything that may be wrong; name the command that helps.

    With --data: the files of a database on this machine, and its daemon if one runs. Without it:
    the daemon at FELTD_URL with FELTD_KEY, else that of ./feltd.db. Nothing is changed. Exit code
    1 when a line says FAIL.
    """
    found = list(examine(data))
    if as_json:
        levels = [one.level for one in found]
        worst = next(level for level in ("FAIL", "WARN", "OK") if level in levels)
        say_json({"worst": worst, "findings": [one._asdict() for one in found]})
    else:
        show(found)
    return 1 if any(one.level == "FAIL" for one in found) else 0


def examine(data: str | None) -> Iterator[Finding]:
    """Every finding, in the order of the screen; it asks and reads, and changes nothing."""
    url = os.environ.get("FELTD_URL")
    if data is None and url:
        yield from _afar(url)
        return
    path = Path(data or DATA_DEFAULT).absolute()
    try:
        yield from _here(path)
    except OSError as error:
        seen = f"{error.filename or path}: {error.strerror or error}"
        yield fail("files", seen, files.AS_ITS_USER)


def show(found: list[Finding]) -> None:
    """Print the screen: what fails first stays where it belongs, its help under it."""
    width = max(len(one.check) for one in found)
    for one in found:
        level = f"{one.level:<4}"
        if on_terminal():
            level = click.style(level, fg=COLOURS[one.level], bold=one.level != "OK")
        click.echo(f"{level}  {one.check:<{width}}  {one.seen.translate(CONTROLS)}")
        if one.helps:
            click.echo(f"      {'':<{width}}  -> {one.helps.translate(CONTROLS)}")
    wrong = sum(one.level == "FAIL" for one in found)
    look = sum(one.level == "WARN" for one in found)
    click.echo(f"{len(found)} looked at: {wrong} failed, {look} to look at")


def _afar(url: str) -> Iterator[Finding]:
    try:
        client = Client(url, patience_ms=0)
    except ValueError as error:
        yield fail("daemon", str(error), "correct FELTD_URL and FELTD_KEY")
        return
    with client:
        asked = Asked(client)
        if not asked.reach():
            helps = "start it there (feltd serve), or correct FELTD_URL"
            yield fail("daemon", asked.trouble, helps)
            return
        yield from asked.findings(nearby=False)
        yield from asked.from_afar()


def _here(data: Path) -> Iterator[Finding]:
    wrong = files.identity(data)
    if wrong is not None:
        yield wrong
        return
    asked = None
    pid, _ = files.holder(data)
    if not pid:
        helps = f"systemctl start feltd, or: feltd serve --data {data}"
        yield fail("daemon", f"no daemon serves {data}", helps)
    else:
        asked = yield from _served(data, pid)
    place = _place(data, asked)
    if isinstance(place, Finding):
        yield place
        return
    yield from files.files(place, served=asked is not None)
    if asked is None and not pid:
        yield from _rows(data)


def _served(data: Path, pid: int) -> Generator[Finding, None, Asked | None]:
    """Lines of the daemon that holds the file; answers the daemon, None where it is silent."""
    socket = find_local_socket(str(data))
    if not serves(socket):
        told = "not for this user" if not os.access(socket, os.W_OK) else "nobody listens"
        if Path(socket).exists() and told == "not for this user":
            seen = f"process {pid} serves {data}; its socket is not for this user"
            yield fail("daemon", seen, files.AS_ITS_USER)
        else:
            yield asking.silence(*files.holder(data), f"{socket}: {told}")
        return None
    with Client(socket=socket, patience_ms=0) as client:
        asked = Asked(client)
        if not asked.reach():
            yield asking.silence(*files.holder(data), asked.trouble)
            return None
        yield from asked.findings(nearby=True)
        return asked


def _place(data: Path, asked: Asked | None) -> Place | Finding:
    if asked is not None and asked.diagnostics is not None:
        told = asked.diagnostics["place"]
        return Place(data, Path(told["keyring"]), Path(told["backup_dir"]))
    file = os.environ.get("FELTD_CONFIG")
    try:
        config = load({"data": str(data)}, file=Path(file) if file else None).config
    except ConfigProblem as problem:
        return fail("settings", str(problem), "feltd config show")
    return Place(data, config.keyring_path, config.backup_path)


def _rows(data: Path) -> Iterator[Finding]:
    try:
        found = files.look(data)
    except StoreProblem as problem:
        yield fail("rows", problem.detail, problem.remedy)
        return
    except (sqlite3.Error, Refused) as error:
        yield fail("rows", f"the rows cannot be read: {error}", f"feltd check --data {data}")
        return
    affected = wal_reset_affected(sqlite3.sqlite_version_info)
    yield asking.engine(sqlite3.sqlite_version, affected)
    yield ok("rows", f"{found.instance_id}, read without a daemon")
    yield from rows.judge(found, wall_ms())

"""`feltd migrate`: bring a database to this version's schema, or say what that would do."""

from pathlib import Path

import click

from feltd.cli.output import Examples, json_option, say_json
from feltd.daemon.place import HELD, no_database, take_lock
from feltd.store import migrate as migrations
from feltd.store.connect import open_local
from feltd.store.lock import LockHeld


@click.command(
    cls=Examples,
    examples=("feltd migrate --check --data feltd.db", "feltd migrate --data feltd.db"),
    short_help="Bring a database to this version.",
)
@click.option("--data", default="feltd.db", envvar="FELTD_DATA", help="the database file")
@click.option("--check", "only_check", is_flag=True, help="change nothing, tell what would be done")
@json_option
def migrate(data: str, only_check: bool, as_json: bool) -> int:
    """Apply the migrations this version ships and the database lacks; `serve` does so too.

    Each file is one transaction. With --check every page is read and nothing is changed; it works
    beside a running daemon.
    """
    path = Path(data).absolute()
    if not path.exists():
        raise no_database(path)
    if only_check:
        plan = migrations.check(path, deep=True)
        _say(as_json, "pending", plan.pending, f"schema {plan.version}, the pages are sound")
        return 0
    try:
        with take_lock(path):
            migrations.check(path)
            conn = open_local(path, read_only=False)
            try:
                applied = migrations.apply(conn)
            finally:
                conn.close()
    except LockHeld as held:
        click.echo(f"error: {held}", err=True)
        return HELD
    _say(as_json, "applied", applied, "the database is up to date")
    return 0


def _say(as_json: bool, what: str, names: list[str], otherwise: str) -> None:
    if as_json:
        say_json({what: names})
        return
    for name in names:
        click.echo(f"{what}: {name}")
    if not names:
        click.echo(otherwise)

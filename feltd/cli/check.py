"""`feltd check`: ask the file whether every promise holds. It only reads, beside a daemon too."""

import sqlite3
from pathlib import Path
from typing import Any

import click

from feltd.cli.output import Examples, json_option, say_json
from feltd.daemon.place import no_database
from feltd.state import promises
from feltd.store import migrate, sidecar
from feltd.store.connect import open_local, unusable
from feltd.store.tx import Tx


@click.command(
    cls=Examples,
    examples=("feltd check --data feltd.db", "feltd check --json | jq .broken"),
    short_help="Test every promise against the file.",
)
@click.option("--data", default="feltd.db", envvar="FELTD_DATA", help="the database file")
@json_option
def check(data: str, as_json: bool) -> int:
    """Test every promise against the rows, recompute the audit chain, read every page.

    One line for each promise: held, or broken with the rows that break it; then exit code 1. The
    file is only read, in one transaction, so it may be run beside a live daemon.
    """
    path = Path(data).absolute()
    if not path.exists():
        raise no_database(path)
    # The mark first: a live daemon only moves on from it.
    mark = sidecar.read(path)
    migrate.check(path)
    conn = open_local(path, read_only=True)
    try:
        conn.execute("BEGIN")
        tx = Tx(conn)
        broken = promises.ask(tx, mark.commit_seq if mark else None)
        broken += promises.walk(tx)[1]
        damage = migrate.quick_check(conn)
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    finally:
        conn.close()
    if as_json:
        say_json(_document(broken, damage))
    else:
        _print(broken, damage)
    return 1 if broken or damage else 0


def _document(broken: list[promises.Broken], damage: list[str]) -> dict[str, Any]:
    wrong = {one.id for one in broken}
    return {
        "held": [one for one in promises.ids() if one not in wrong],
        "broken": [one._asdict() for one in broken],
        "damage": damage,
    }


def _print(broken: list[promises.Broken], damage: list[str]) -> None:
    rows: dict[str, list[str]] = {}
    for one in broken:
        rows.setdefault(one.id, []).extend(one.rows)
    for promise_id in promises.ids():
        held = "held  " if promise_id not in rows else "BROKEN"
        click.echo(f"{promise_id:<12} {held} {promises.says(promise_id)}")
        for row in rows.get(promise_id, ()):
            click.echo(f"                    {row}")
    sound = "sound " if not damage else "DAMAGED"
    click.echo(f"{'pages':<12} {sound} every page and reference was read")
    for found in damage:
        click.echo(f"                    {found}")

"""`feltd check`: ask the file whether every promise holds. It only reads, beside a daemon too."""

import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from feltd.cli.output import CONTROLS, Examples, json_option, say_json
from feltd.daemon import auditfile
from feltd.daemon.place import no_database
from feltd.mesh import chain
from feltd.mesh.promised import Broken
from feltd.state import promises
from feltd.store import migrate, schema, sidecar
from feltd.store.connect import open_local, unusable
from feltd.store.tx import Tx

#: What is looked into beside the promises, and what each says.
SAYS = {
    "CHECKS": "every row keeps to the CHECKs of the schema",
    "SCHEMA": "the schema is the one that this feltd ships",
    "MIRROR": "the database tells what its audit file tells",
}


NO_MARK = (
    "no mark that can be read lies beside it: had somebody computed the whole chain anew, or put "
    "an earlier file in its place, nothing here would tell"
)


class Found(NamedTuple):
    """What is broken, which pages are damaged, the ids that were looked into.

    `marked`: the mark beside the file was there to be compared with.
    """

    broken: list[Broken]
    damage: list[str]
    ids: list[str]
    marked: bool


@click.command(
    cls=Examples,
    examples=(
        "feltd check --data feltd.db",
        "feltd check --audit /var/log/feltd/audit.jsonl",
        "feltd check --json | jq .broken",
    ),
    short_help="Test every promise against the file.",
)
@click.option("--data", default="feltd.db", envvar="FELTD_DATA", help="the database file")
@click.option(
    "--audit",
    "mirrors",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Compare with a mirror that `feltd serve --audit` wrote; may be repeated.",
)
@json_option
def check(data: str, mirrors: tuple[Path, ...], as_json: bool) -> int:
    """Test every promise against the rows, recompute the audit chain, read every page.

    One line for each promise: held, or broken with the rows that break it; then exit code 1. The
    file is only read, in one transaction, so it may be run beside a live daemon. An audit row
    before the mark beside the file that was edited or deleted is named; so are rows that a mirror
    has otherwise, of those that retention has left.
    """
    path = Path(data).absolute()
    if not path.exists():
        raise no_database(path)
    # Mark and mirrors first: a live daemon only moves on from them.
    mark = sidecar.read(path)
    ends = [(mirror, mirror.stat().st_size) for mirror in mirrors]
    applied = len(migrate.check(path).applied)
    conn = open_local(path, read_only=True)
    try:
        # A text that is none is told by its row, and ends no look at the others.
        conn.text_factory = partial(str, encoding="utf-8", errors="replace")
        conn.execute("BEGIN")
        tx = Tx(conn)
        broken = promises.ask(tx, mark.commit_seq if mark else None)
        broken += promises.walk(tx)[1]
        broken += promises.marked(tx, mark.audit_head) if mark else []
        broken += _rules(conn, applied)
        broken += [one for mirror, end in ends for one in _mirrored(tx, mirror, end)]
        damage = migrate.quick_check(conn)
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    finally:
        conn.close()
    ids = [*promises.ids(), "CHECKS", "SCHEMA", *(("MIRROR",) if mirrors else ())]
    found = Found(broken, damage, ids, mark is not None)
    if as_json:
        say_json(_document(found))
    else:
        _print(found)
    return 1 if broken or damage else 0


def _rules(conn: sqlite3.Connection, applied: int) -> Iterator[Broken]:
    """What the schema would have refused, and what was done to the schema."""
    pure = schema.shipped(applied)
    try:
        for name, rows in (
            ("CHECKS", schema.violations(conn, pure)),
            ("SCHEMA", schema.altered(conn, pure)),
        ):
            if rows:
                yield Broken(name, SAYS[name], rows)
    finally:
        pure.close()


def _mirrored(tx: Tx, mirror: Path, end: int) -> Iterator[Broken]:
    wrong = chain.compare(tx, auditfile.lines(mirror, end))
    if wrong:
        yield Broken("MIRROR", SAYS["MIRROR"], [f"{mirror}: {told}" for told in wrong])


def _document(found: Found) -> dict[str, Any]:
    wrong = {one.id for one in found.broken}
    return {
        "held": [one for one in found.ids if one not in wrong],
        "broken": [one._asdict() for one in found.broken],
        "damage": found.damage,
        "marked": found.marked,
    }


def _print(found: Found) -> None:
    rows: dict[str, list[str]] = {}
    for one in found.broken:
        rows.setdefault(one.id, []).extend(one.rows)
    for promise_id in found.ids:
        held = "held  " if promise_id not in rows else "BROKEN"
        click.echo(f"{promise_id:<12} {held} {SAYS.get(promise_id) or promises.says(promise_id)}")
        for row in rows.get(promise_id, ()):
            click.echo(f"                    {row}".translate(CONTROLS))
    sound = "sound " if not found.damage else "DAMAGED"
    click.echo(f"{'pages':<12} {sound} every page and reference was read")
    for told in found.damage:
        click.echo(f"                    {told}".translate(CONTROLS))
    if not found.marked:
        click.echo(NO_MARK, err=True)

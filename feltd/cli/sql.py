"""`feltd sql`: questions to the file in SQL, and twenty that are asked at three in the morning.

Each of the twenty is a file of its own, so that it runs in the shell of SQLite as well. The file is
only read, beside a running daemon too.
"""

import csv
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import click

from feltd.cli.output import Examples, cell, json_option, on_terminal, say_json, table
from feltd.daemon.place import no_database
from feltd.store import migrate, query

NAME = re.compile(r"(\d\d)_([a-z0-9_]+)\.sql")
#: A line of a question that says what a parameter is for; without a default it must be given.
PARAMETER = re.compile(r"-- :([a-z]+)( = (\S+))?: (.+)")
INTEGER = re.compile(r"-?\d{1,18}")
ROWS = 1_000
ROWS_MAX = 1_000_000
TIMEOUT_S = 10.0
#: A single function of SQLite may compute for hours and hears nothing meanwhile: then the process
#: ends, so that it does not hold back the write-ahead log.
DEAF_S = 5.0


class Parameter(NamedTuple):
    """What may be set in a question; `default` is what it takes otherwise."""

    name: str
    default: str | None
    says: str


class Question(NamedTuple):
    """One of the twenty: its number, name and sentence, what may be set, and the query."""

    number: int
    name: str
    asks: str
    parameters: tuple[Parameter, ...]
    sql: str


@click.command(
    cls=Examples,
    examples=(
        "feltd sql --questions",
        "feltd sql --question 7 --set minutes=1440",
        "feltd sql --question 16 --set id=workload_0193a5c2d1f07c5e9b1f4c2a6e8d7b90 --csv",
        "feltd sql 'SELECT * FROM v_workers' --json | jq",
        "feltd sql --question 4 --show | sqlite3 -readonly -box feltd.db",
    ),
    short_help="Ask the file in SQL, or one of 20 questions.",
)
@click.argument("query_text", metavar="[QUERY]", required=False)
@click.option("--data", default="feltd.db", envvar="FELTD_DATA", help="the database file")
@click.option("--questions", "listed", is_flag=True, help="List the twenty questions.")
@click.option("--question", metavar="N", help="Ask this one: its number or name.")
@click.option("--show", is_flag=True, help="With --question: print its SQL and ask nothing.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="The value of :NAME in the query.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option(
    "--rows", type=click.IntRange(1, ROWS_MAX), default=ROWS, show_default=True,
    help="At most so many rows.",
)  # fmt: skip
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0.1, 600), default=TIMEOUT_S,
    show_default=True, help="Seconds after which the query is ended.",
)  # fmt: skip
@json_option
def sql(
    query_text: str | None, data: str, listed: bool, question: str | None, show: bool,
    settings: tuple[str, ...], as_csv: bool, rows: int, timeout_s: float, as_json: bool,
) -> int:  # fmt: skip
    """Run one query on the database file, which is only read; beside a running daemon too.

    QUERY - or none, in a pipe - is read from stdin. Views show readable times: v_workers, v_queue,
    v_live_claims, v_attempts, v_dead_letters, v_why, v_timeline, v_audit, v_holds, v_triggers,
    v_changes, v_keys, v_expiring, v_users, v_sessions. Digests of secrets read as NULL.
    """
    if listed:
        _list(as_json)
        return 0
    if question is not None and query_text is not None:
        raise click.UsageError("ask one question: QUERY or --question")
    chosen = None if question is None else named(question)
    if show:
        if chosen is None:
            raise click.UsageError("--show prints the SQL of --question N")
        click.echo(chosen.sql, nl=False)
        return 0
    text = chosen.sql if chosen else _text(query_text)
    given = _given(settings)
    if chosen:
        _complete(chosen, given)
    path = Path(data).absolute()
    if not path.exists():
        raise no_database(path)
    try:
        with _ended_after(timeout_s + DEAF_S):
            answer = query.ask(path, text, given, rows_max=rows, timeout_s=timeout_s)
    except query.QueryProblem as problem:
        if "no such" in str(problem) and (pending := migrate.check(path).pending):
            lacks = f"this database lacks {', '.join(pending)}: feltd migrate"
            raise query.QueryProblem(f"{problem} ({lacks})") from problem
        raise
    _print(answer, as_json, as_csv)
    if answer.more:
        click.echo(f"more than {rows} rows: --rows", err=True)
    return 0


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Have the process end, exit code 1, if what is within takes longer."""

    def end() -> None:
        click.echo("error: the question was ended: it took too long", err=True)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def questions() -> list[Question]:
    """The twenty, in order."""
    found = []
    for file in (files("feltd") / "cli" / "questions").iterdir():
        if (part := NAME.fullmatch(file.name)) is not None:
            found.append(_read(int(part[1]), part[2], file.read_text(encoding="utf-8")))
    return sorted(found)


def named(text: str) -> Question:
    """The question of this number or name. Raises UsageError for none."""
    for one in questions():
        if text in (str(one.number), one.name, one.name.replace("_", "-")):
            return one
    raise click.UsageError(f"there is no question {text!r}: feltd sql --questions")


def _read(number: int, name: str, text: str) -> Question:
    head = [line for line in text.splitlines() if line.startswith("-- ")]
    parameters = [
        Parameter(one[1], one[3], one[4]) for one in map(PARAMETER.fullmatch, head) if one
    ]
    return Question(number, name, head[0].removeprefix("-- "), tuple(parameters), text)


def _list(as_json: bool) -> None:
    found = questions()
    if as_json:
        say_json(
            [
                {
                    "question": one.number,
                    "name": one.name,
                    "asks": one.asks,
                    "parameters": [item._asdict() for item in one.parameters],
                    "sql": one.sql,
                }
                for one in found
            ]
        )
        return
    for one in found:
        click.echo(f"{one.number:>2}  {one.asks}")
        for item in one.parameters:
            click.echo(f"      --set {item.name}={item.default or '…'}  {item.says}")
    click.echo("\nfeltd sql --question N asks one; --show prints its SQL.", err=True)


def _text(query_text: str | None) -> str:
    if query_text is None and sys.stdin.isatty():
        raise click.UsageError("what is the query? feltd sql 'SELECT …', or feltd sql --questions")
    return sys.stdin.read() if query_text in (None, "-") else str(query_text)


def _given(settings: Sequence[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for one in settings:
        name, equals, value = one.partition("=")
        if not equals or not name.isidentifier():
            raise click.UsageError(f"--set takes NAME=VALUE, not {one!r}")
        given[name] = int(value) if INTEGER.fullmatch(value) else value
    return given


def _complete(chosen: Question, given: dict[str, Any]) -> None:
    """Refuse what the question does not know, and ask for what it cannot do without."""
    for name in given:
        if name not in {one.name for one in chosen.parameters}:
            raise click.UsageError(f"question {chosen.number} has no :{name}")
    for one in chosen.parameters:
        needed = one.default is None and not one.says.startswith("only ")
        if needed and one.name not in given:
            raise click.UsageError(f"of which? --set {one.name}=… ({one.says})")


def _print(answer: query.Answer, as_json: bool, as_csv: bool) -> None:
    shown = [tuple(_plain(value) for value in row) for row in answer.rows]
    if as_json:
        say_json([dict(zip(answer.columns, row, strict=True)) for row in shown])
    elif as_csv:
        lines = [tuple(answer.columns), *shown]
        if on_terminal():
            # In a file every byte stays; on a screen none of them moves the cursor.
            lines = [tuple(map(cell, line)) for line in lines]
        csv.writer(sys.stdout, lineterminator="\n").writerows(lines)
    elif answer.rows or on_terminal():
        # By place, not by name: two columns may have one name.
        columns = [(cell(name), str(place)) for place, name in enumerate(answer.columns)]
        table(
            ({str(place): value for place, value in enumerate(row)} for row in shown),
            columns,
            empty="no rows",
        )
    else:
        click.echo("no rows", err=True)


def _plain(value: Any) -> Any:
    return f"x'{value.hex()}'" if isinstance(value, bytes) else value

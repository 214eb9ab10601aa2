"""`feltd audit`: who did what, in the order it was done; in a pipe also a mirror of the chain."""

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from feltd.cli.output import Examples, cell, when
from feltd.cli.remote import connect, remote
from feltd.worker.client import Client

PAGE = 500
WAIT_MS = 25_000
#: Rows shown when nobody says from where.
LAST = 50
#: How far back they are looked for; further back somebody has to say.
REACHES = (200, 5_000, 100_000)


@click.command(
    "audit",
    cls=Examples,
    examples=(
        "feltd audit",
        "feltd audit --subject workload_0193a5c2d1f07c5e9b1f4c2a6e8d7b90",
        "feltd audit --actor human:ann --follow",
        "feltd audit --after 0 --all --json > audit.jsonl",
    ),
)
@click.option("--follow", is_flag=True, help="Go on with what comes.")
@click.option(
    "--after",
    type=click.IntRange(0),
    metavar="N",
    help=f"Begin behind row N, 0: at the oldest kept. Not given: the last {LAST}.",
)
@click.option("--actor", help="Only what this one did: kind:id.")
@click.option("--action", help="Only this verb.")
@click.option("--subject", help="Only what was done to this: an id.")
@click.option("--all", "whole", is_flag=True, help="Also the rows that seal events.")
@remote
def audit(
    data: str | None, as_json: bool, follow: bool, after: int | None, whole: bool, **narrow: Any
) -> None:
    """Print who did what to whom, oldest first.

    With --json one whole row a line, as in the file of `feltd serve --audit`: with --all and
    --after 0 they are the chain, and `feltd check --audit FILE` compares it with the database.
    """
    query = {name: text for name, text in narrow.items() if text}
    if not whole:
        query["kind"] = "act"
    with connect(data) as client:
        given = after is not None
        shown: list[dict[str, Any]] = []
        if after is None:
            shown, after = _last(client, query)
        for row in shown:
            _say(row, as_json)
        if given or follow:
            for row in _rows(client, query, after, follow):
                _say(row, as_json)


def line(row: dict[str, Any]) -> str:
    """One row as a person reads it."""
    if row["kind"] == "commit":
        words: list[str | None] = [
            "commit",
            f"events {row['first_event_seq']} to {row['last_event_seq']}",
        ]
    else:
        reason = None if row["reason"] is None else f"“{row['reason']}”"
        words = [row["actor"], row["action"], row["subject"], reason]
    shown = "  ".join(cell(word) for word in words if word)
    return f"{when(row['wall_at_ms'])}  {row['seq']}  {shown}"


def _say(row: dict[str, Any], as_json: bool) -> None:
    click.echo(msgspec.json.encode(row) if as_json else line(row))


def _rows(
    client: Client, query: dict[str, Any], after: int, follow: bool
) -> Iterator[dict[str, Any]]:
    """The rows behind `after`; with `follow` also those that come, for ever."""
    while True:
        page = _page(client, query | {"after": after, "wait_ms": WAIT_MS if follow else 0})
        yield from page["items"]
        after = page["next_after"]
        if after >= page["head"] and not follow:
            return


def _last(client: Client, query: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """The last rows that are asked for, and the number behind which others may come.

    The chain is read forwards: each look begins further back, until there are enough.
    """
    head: int = _page(client, {"limit": 1})["head"]
    for reach in REACHES:
        begin = max(head - reach, 0)
        found = [row for row in _rows(client, query, begin, False) if row["seq"] <= head]
        if len(found) >= LAST or not begin:
            break
    return found[-LAST:], head


def _page(client: Client, query: dict[str, Any]) -> dict[str, Any]:
    page: dict[str, Any] = client.call("GET", "/v1/audit", query={"limit": PAGE} | query)
    return page

"""`feltd workload timeline`: the whole life of one workload on a page, each step with its wait."""

from typing import Any

import click

from feltd.cli.output import Examples, say_json, table
from feltd.cli.remote import connect, remote
from feltd.worker.client import Client
from feltd.worker.feed import PAGE

COLUMNS = (
    ("at", "happened_at_ms"),
    ("after", "after"),
    ("what", "kind"),
    ("state", "state"),
    ("attempt", "attempt"),
    ("worker_id", "worker_id"),
    ("token", "fencing_token"),
    ("end", "end"),
    ("not before", "wait_at_ms"),
    ("by", "actor"),
)


@click.command(cls=Examples, examples=("feltd workload timeline workload_0193",))
@click.argument("workload_id")
@remote
def timeline(data: str | None, as_json: bool, workload_id: str) -> None:
    """Print everything that happened to a workload, oldest first, and how long each step took.

    `after` is the time since the step before it.
    """
    with connect(data) as client:
        happened = _whole(client, workload_id)
    if as_json:
        say_json(happened)
    else:
        table(steps(happened), COLUMNS, empty="nothing is kept of what happened to it")


def steps(happened: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the page: attempts numbered, times since the step before."""
    rows: list[dict[str, Any]] = []
    attempts: dict[int, int] = {}
    before_ms = happened[0]["at_ms"] if happened else 0
    for event in happened:
        token, until_ms = event.get("fencing_token"), event.get("eligible_at_ms")
        if event["kind"] == "claim" and token is not None:
            attempts[token] = len(attempts) + 1
        states = (event.get("from"), event.get("to"))
        rows.append(
            {
                **event,
                "happened_at_ms": event["at_ms"],
                "after": span(event["at_ms"] - before_ms),
                "state": " → ".join(state for state in states if state),
                "attempt": attempts.get(token) if token is not None else None,
                "wait_at_ms": until_ms if until_ms and until_ms > event["at_ms"] else None,
            }
        )
        before_ms = event["at_ms"]
    return rows


def span(ms: int) -> str:
    """A duration as a person reads it: 0.250s, 12.0s, 3m 05s, 2h 10m, 4d 03h."""
    if ms < 10_000:
        return f"{ms // 1_000}.{ms % 1_000:03}s"
    if ms < 60_000:
        return f"{ms // 1_000}.{ms % 1_000 // 100}s"
    seconds = ms // 1_000
    if seconds < 3_600:
        return f"{seconds // 60}m {seconds % 60:02}s"
    if seconds < 86_400:
        return f"{seconds // 3_600}h {seconds % 3_600 // 60:02}m"
    return f"{seconds // 86_400}d {seconds % 86_400 // 3_600:02}h"


def _whole(client: Client, workload_id: str) -> list[dict[str, Any]]:
    happened: list[dict[str, Any]] = []
    while True:
        after = happened[-1]["seq"] if happened else 0
        page = client.workload_events(workload_id, after)["items"]
        happened += page
        if len(page) < PAGE:
            return happened

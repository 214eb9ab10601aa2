"""`feltd compact`: clear now what is past its time, or see what that would be."""

import sys
from typing import Any

import click

from feltd.cli.output import Examples, facts, say_json
from feltd.cli.remote import connect, remote
from feltd.model.compaction import COUNTED_MAX


@click.command(
    cls=Examples,
    examples=("feltd compact --dry-run --data feltd.db", "feltd compact --data feltd.db --json"),
    short_help="Clear what is past its time now.",
)
@click.option("--dry-run", is_flag=True, help="Only tell what would be cleared.")
@remote
def compact(data: str | None, as_json: bool, dry_run: bool) -> None:
    """Clear what is past its time, until nothing of it is left; the daemon does so by itself.

    It works behind everybody else, in small steps: claims go on beside it. Ctrl-C ends it between
    two steps, and nothing is lost. Without a daemon the database is taken for the length of this.
    """
    with connect(data, or_alone=True) as client:
        found = client.call("POST", "/v1/compactions", {"dry_run": dry_run})
        pruned, rewrote_log = dict(found["pruned"]), found["rewrote_log"]
        while found["more"] and not dry_run:
            _progress(pruned)
            found = client.call("POST", "/v1/compactions", {})
            rewrote_log = rewrote_log or found["rewrote_log"]
            for table, rows in found["pruned"].items():
                pruned[table] = pruned.get(table, 0) + rows
    outcome = {**found, "pruned": dict(sorted(pruned.items())), "rewrote_log": rewrote_log}
    if as_json:
        say_json(outcome)
    else:
        _show(outcome)


def _progress(pruned: dict[str, int]) -> None:
    told = ", ".join(f"{table} {rows}" for table, rows in sorted(pruned.items()))
    click.echo(f"cleared so far: {told or 'nothing yet'}", err=True)
    sys.stderr.flush()


def _show(outcome: dict[str, Any]) -> None:
    pruned = outcome["pruned"]
    did = "would be cleared" if outcome["dry_run"] else "cleared"
    if not pruned:
        click.echo(f"nothing {did}")
    else:
        click.echo(f"{did}, in rows:")
        facts(
            (table, f"{rows}+" if _capped(outcome, rows) else rows)
            for table, rows in pruned.items()
        )
    if not outcome["dry_run"]:
        click.echo(
            "the file gave space back" if outcome["rewrote_log"] else "the file kept its size"
        )
    for one in outcome["held_back"]:
        click.echo(f"the log of {one['tenant_id']} is kept behind {one['seq']} for {one['by']}")


def _capped(outcome: dict[str, Any], rows: int) -> bool:
    return bool(outcome["dry_run"] and outcome["more"] and rows == COUNTED_MAX)

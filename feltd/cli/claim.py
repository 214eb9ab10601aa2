"""`feltd claim`: who holds what until when, and taking it away by hand."""

from typing import Any

import click

from feltd.cli.output import ExamplesGroup, say_json, table
from feltd.cli.remote import connect, remote

COLUMNS = (
    ("claim_id", "claim_id"),
    ("workload_id", "workload_id"),
    ("worker_id", "worker_id"),
    ("attempt", "attempt_number"),
    ("issued", "issued_at_ms"),
    ("expires", "expires_at_ms"),
    ("end", "end"),
    ("state", "state"),
)


@click.group(
    cls=ExamplesGroup,
    examples=("feltd claim list --live", "feltd claim evict claim_17 --reason 'stuck'"),
)
def claim() -> None:
    """See who holds which work, and take it away."""


@claim.command(
    "list", examples=("feltd claim list --live", "feltd claim list --worker worker_7ae616376f57")
)
@click.option("--live", is_flag=True, help="Only claims that hold.")
@click.option("--worker", "worker_id", help="Only of this worker.")
@click.option("--workload", "workload_id", help="Only of this workload.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True)
@remote
def list_(data: str | None, as_json: bool, live: bool, limit: int, **query: Any) -> None:
    """List claims, newest first."""
    with connect(data) as client:
        found = client.claims(limit, live=True if live else None, **query)
    if as_json:
        say_json(found)
    else:
        table(found, COLUMNS, empty="no claims")


@claim.command(examples=("feltd claim evict claim_17 --reason 'stuck' --to DEAD_LETTERED",))
@click.argument("claim_id")
@click.option("--reason", required=True, help="Kept in the audit.")
@click.option(
    "--to", type=click.Choice(["READY", "DEAD_LETTERED"]), default="READY", show_default=True
)
@click.option("--spend-attempt", is_flag=True, help="Let it count as an attempt.")
@remote
def evict(data: str | None, as_json: bool, claim_id: str, **body: Any) -> None:
    """End a live claim; its holder's writes are refused from now on."""
    with connect(data) as client:
        workload = client.evict(claim_id, **body)
    if as_json:
        say_json(workload)
    else:
        click.echo(f"{claim_id} ended: {workload.get('workload_id')} is {workload.get('state')}")

"""`feltd health`: what a daemon says of itself, and taking note of what its start found."""

import click

from feltd.cli.output import ExamplesGroup, cell, facts, say_json, when
from feltd.cli.remote import connect, remote

SHOWN = (
    "status",
    "storage",
    "storage_detail",
    "last_stop",
    "membership",
    "clock",
    "keeper",
    "version",
    "git_commit",
    "transport",
    "auth",
    "uptime_ms",
)


@click.group(
    cls=ExamplesGroup,
    invoke_without_command=True,
    examples=("feltd health --data feltd.db", "feltd health acknowledge --data feltd.db"),
    short_help="What the daemon says of itself.",
)
@remote
@click.pass_context
def health(ctx: click.Context, data: str | None, as_json: bool) -> int:
    """What the daemon says of itself, with the reasons; exit code 1 while it is degraded."""
    if ctx.invoked_subcommand is not None:
        ctx.obj = data
        return 0
    with connect(data) as client:
        found = client.health()
    if as_json:
        say_json(found)
    else:
        facts((name, found.get(name)) for name in SHOWN)
        for one in found["reasons"]:
            click.echo(f"{one['code']}: {cell(one['detail'])} (since {when(one['since_at_ms'])})")
    return 0 if found["status"] == "healthy" else 1


@health.command(examples=("feltd health acknowledge --data feltd.db",))
@remote
@click.pass_context
def acknowledge(ctx: click.Context, data: str | None, as_json: bool) -> None:
    """Take note of what the start found. It degrades the health no longer."""
    with connect(data or ctx.obj) as client:
        client.acknowledge()
        found = client.health()
    if as_json:
        say_json(found)
    else:
        click.echo(f"acknowledged: {found['storage']}; the daemon is {found['status']}")

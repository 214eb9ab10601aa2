"""`feltd trigger`: have changes of records, or the clock, make work. Always answers in JSON.

Alone it lists. It asks the daemon; where none serves the file, the same rules run under its lock.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click

from feltd.cli.output import Examples, say_json
from feltd.cli.parse import json_value
from feltd.cli.remote import connect, data_option
from feltd.worker.client import Client

VERBS = "define|list|status|evaluate|show|enable|disable|delete|preview|run"
USAGE = f"trigger <{VERBS}> [--data path] [--input trigger.json]"

tenant_option = click.option(
    "--tenant", metavar="NAME", help="Whose triggers; all that the key may see if not given."
)


class Verbs(click.Group):
    """The verbs of a trigger; without one, its list, with another, how it is used."""

    command_class = Examples

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None:
            raise click.UsageError(USAGE, ctx)
        return super().resolve_command(ctx, args)


def asking(command: Any) -> Any:
    """Add the options of every verb: whose file, whose triggers, and --json as everywhere."""
    flag = click.option(
        "--json", "_as_json", is_flag=True, expose_value=False, help="JSON, as without."
    )
    return data_option(tenant_option(flag(command)))


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    epilog="\b\nExamples:\n  feltd trigger\n  feltd trigger define --input trigger.json\n"
    "  feltd trigger status --data feltd.db\n  feltd trigger evaluate --tenant acme",
)
@asking
@click.pass_context
def trigger(ctx: click.Context, data: str | None, tenant: str | None) -> None:
    """Have changes of records, or the clock, make work. Without a verb: the list."""
    ctx.obj = {"data": data, "tenant": tenant}
    if ctx.invoked_subcommand is None:
        with connect(data, tenant=tenant, or_alone=True) as client:
            say_json(client.triggers())


@trigger.command("list", examples=("feltd trigger list", "feltd trigger list --tenant acme"))
@asking
@click.pass_obj
def list_(asked: dict[str, Any], data: str | None, tenant: str | None) -> None:
    """List triggers, newest first."""
    with _connect(asked, data, tenant) as client:
        say_json(client.triggers())


@trigger.command(
    examples=(
        "feltd trigger define --input trigger.json",
        "feltd trigger define --input - < trigger.json",
    )
)
@click.option("--input", "path", metavar="FILE", help="The definition as JSON; - reads stdin.")
@asking
@click.pass_obj
def define(asked: dict[str, Any], data: str | None, tenant: str | None, path: str | None) -> None:
    """Make or replace a trigger, and print the whole list after that."""
    if path is None:
        raise click.UsageError("trigger define requires --input trigger.json")
    if path != "-" and not Path(path).exists():
        raise click.UsageError(f"--input: there is no file {path}")
    body = json_value(path if path == "-" else f"@{path}", "--input")
    if not isinstance(body, dict):
        raise click.UsageError("--input holds no JSON object")
    with _connect(asked, data, tenant) as client:
        client.define_trigger(body)
        say_json(client.triggers())


@trigger.command(examples=("feltd trigger status", "feltd trigger status --tenant acme"))
@asking
@click.pass_obj
def status(asked: dict[str, Any], data: str | None, tenant: str | None) -> None:
    """How many there are, how far each has come, and why some stand still."""
    with _connect(asked, data, tenant) as client:
        say_json(client.trigger_status())


@trigger.command(examples=("feltd trigger evaluate",))
@asking
@click.pass_obj
def evaluate(asked: dict[str, Any], data: str | None, tenant: str | None) -> None:
    """Judge changes now; prints the workloads that were made."""
    with _connect(asked, data, tenant) as client:
        say_json(client.evaluate_triggers())


@trigger.command(examples=("feltd trigger show ship-paid-orders",))
@click.argument("trigger_id")
@asking
@click.pass_obj
def show(asked: dict[str, Any], data: str | None, tenant: str | None, trigger_id: str) -> None:
    """Show one trigger, how far it has come and how it fares."""
    with _connect(asked, data, tenant) as client:
        say_json(client.trigger(trigger_id))


@trigger.command(examples=("feltd trigger enable ship-paid-orders",))
@click.argument("trigger_id")
@asking
@click.pass_obj
def enable(asked: dict[str, Any], data: str | None, tenant: str | None, trigger_id: str) -> None:
    """Have a trigger go on where it stood; what changed meanwhile is judged."""
    with _connect(asked, data, tenant) as client:
        say_json(client.enable_trigger(trigger_id))


@trigger.command(examples=("feltd trigger disable ship-paid-orders --reason 'no stock'",))
@click.argument("trigger_id")
@click.option("--reason", help="Kept in the audit and shown.")
@asking
@click.pass_obj
def disable(
    asked: dict[str, Any],
    data: str | None,
    tenant: str | None,
    trigger_id: str,
    reason: str | None,
) -> None:
    """Stop a trigger; what changes within seven days waits for it."""
    with _connect(asked, data, tenant) as client:
        say_json(client.disable_trigger(trigger_id, reason))


@trigger.command(examples=("feltd trigger delete ship-paid-orders",))
@click.argument("trigger_id")
@asking
@click.pass_obj
def delete(asked: dict[str, Any], data: str | None, tenant: str | None, trigger_id: str) -> None:
    """Delete a trigger; what it made stays."""
    with _connect(asked, data, tenant) as client:
        client.delete_trigger(trigger_id)
        say_json({"trigger_id": trigger_id, "deleted": True})


@trigger.command(examples=("feltd trigger preview nightly-report --count 10",))
@click.argument("trigger_id")
@click.option("--count", type=click.IntRange(1, 100), default=5, show_default=True)
@asking
@click.pass_obj
def preview(
    asked: dict[str, Any], data: str | None, tenant: str | None, trigger_id: str, count: int
) -> None:
    """Show which of the newest changes, or the next instants, would fire; makes nothing."""
    with _connect(asked, data, tenant) as client:
        say_json(client.preview_trigger(trigger_id, count))


@trigger.command(examples=("feltd trigger run nightly-report",))
@click.argument("trigger_id")
@asking
@click.pass_obj
def run(asked: dict[str, Any], data: str | None, tenant: str | None, trigger_id: str) -> None:
    """Run a schedule now, out of turn; none of its instants is used up."""
    with _connect(asked, data, tenant) as client:
        say_json(client.run_trigger(trigger_id))


def _connect(
    asked: dict[str, Any], data: str | None, tenant: str | None
) -> AbstractContextManager[Client]:
    """The client, by the options of the verb, else by those that stand before it."""
    where, whose = data or asked["data"], tenant or asked["tenant"]
    return connect(where, tenant=whose, or_alone=True)

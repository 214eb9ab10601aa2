"""`feltd hold`: keep work from being claimed, and let it go again."""

from typing import Any
from urllib.parse import quote

import click

from feltd.cli.output import ExamplesGroup, facts, say_json, table
from feltd.cli.parse import DURATION, expiry
from feltd.cli.remote import connect, remote

COLUMNS = (
    ("hold_id", "hold_id"),
    ("scope", "scope"),
    ("value", "value"),
    ("tenant", "tenant_id"),
    ("held by", "held_by"),
    ("since", "held_at_ms"),
    ("until", "until_at_ms"),
    ("reason", "reason"),
)


@click.group(
    cls=ExamplesGroup,
    examples=(
        "feltd hold create definition documents.extract --tenant acme --reason 'pages are lost'",
        "feltd hold list",
        "feltd hold delete hold_4fT0aB3kdL",
    ),
)
def hold() -> None:
    """Hold work: nothing it touches is claimed until the hold ends; what runs goes on."""


@hold.command(
    examples=(
        "feltd hold create all --reason 'the disk is moved' --for 2h",
        "feltd hold create tenant --tenant acme --reason 'the invoice is open'",
        "feltd hold create pool gpu --tenant acme --reason 'new driver'",
    )
)
@click.argument("scope", type=click.Choice(["all", "tenant", "application", "pool", "definition"]))
@click.argument("value", required=False)
@click.option("--reason", required=True, help="Kept in the audit and shown.")
@click.option("--tenant", "tenant", help="Whose work; the key's only tenant as a rule.")
@click.option("--for", "for_ms", type=DURATION, help="It ends by itself then.")
@remote
def create(
    data: str | None,
    as_json: bool,
    scope: str,
    value: str | None,
    reason: str,
    tenant: str | None,
    for_ms: int | None,
) -> None:
    """Hold everybody's work, a tenant's, or one application, pool or definition (or def#rev)."""
    body: dict[str, Any] = {"scope": scope, "reason": reason}
    if value is not None:
        body["value"] = value
    if for_ms is not None:
        body["until_at_ms"] = expiry(for_ms)
    with connect(data, tenant=tenant, or_alone=True) as client:
        placed = client.call("POST", "/v1/holds", body, keyed=True)
    if as_json:
        say_json(placed)
    else:
        facts(placed.items())


@hold.command("list", examples=("feltd hold list", "feltd hold list --tenant acme"))
@click.option("--tenant", "tenant")
@remote
def list_(data: str | None, as_json: bool, tenant: str | None) -> None:
    """List the holds that stand, newest first."""
    with connect(data, tenant=tenant, or_alone=True) as client:
        found = list(client.pages("/v1/holds", limit=500))
    if as_json:
        say_json(found)
    else:
        table(found, COLUMNS, empty="nothing is held")


@hold.command(examples=("feltd hold delete hold_4fT0aB3kdL", "feltd hold delete hold_at_start"))
@click.argument("hold_id")
@click.option("--tenant", "tenant")
@remote
def delete(data: str | None, as_json: bool, hold_id: str, tenant: str | None) -> None:
    """Lift a hold; waiting workers look for work at once."""
    with connect(data, tenant=tenant, or_alone=True) as client:
        client.call("DELETE", f"/v1/holds/{quote(hold_id, safe='')}")
    if as_json:
        say_json({"hold_id": hold_id, "deleted": True})
    else:
        click.echo(f"hold lifted: {hold_id}")

"""`feltd group`: look at the workloads of one name, wait for them, seal and cancel them."""

from typing import Any
from urllib.parse import quote

import click

from feltd.cli.output import ExamplesGroup, facts, say_json
from feltd.cli.remote import connect, remote
from feltd.worker.client import Client

WAIT_MS = 20_000

tenant_option = click.option(
    "--tenant", help="Whose group it is; the key's only tenant if not given."
)


@click.group(
    cls=ExamplesGroup,
    examples=(
        "feltd group show night-42",
        "feltd group seal night-42 && feltd group wait night-42",
        "feltd group cancel night-42 --reason 'wrong input'",
    ),
)
def group() -> None:
    """See, await, seal and cancel groups; `feltd workload create --group` makes them."""


@group.command(examples=("feltd group show night-42",))
@click.argument("name")
@tenant_option
@remote
def show(data: str | None, as_json: bool, name: str, tenant: str | None) -> None:
    """Show a group, its workloads counted by state."""
    with connect(data, tenant=tenant) as client:
        _show(client.call("GET", _path(name)), as_json)


@group.command(examples=("feltd group wait night-42 --tenant acme",))
@click.argument("name")
@tenant_option
@remote
def wait(data: str | None, as_json: bool, name: str, tenant: str | None) -> int:
    """Wait until a group is sealed and all of it has ended. Exit 1 if not all is COMPLETED."""
    with connect(data, tenant=tenant) as client:
        found = client.call("GET", _path(name))
        while not found["ended"]:
            query = {"wait_ms": WAIT_MS}
            found = client.call("GET", _path(name), query=query, wait_ms=WAIT_MS)
    well = set(found["counts"]) <= {"COMPLETED"}
    _show(found, as_json)
    return 0 if well else 1


@group.command(examples=("feltd group seal night-42",))
@click.argument("name")
@tenant_option
@remote
def seal(data: str | None, as_json: bool, name: str, tenant: str | None) -> None:
    """Close a group to new workloads. From then on work may depend on group:NAME."""
    with connect(data, tenant=tenant) as client:
        _show(client.call("POST", _path(name, "seal"), {}), as_json)


@group.command(examples=("feltd group cancel night-42 --force --reason 'wrong input'",))
@click.argument("name")
@click.option("--force", is_flag=True, help="Do not wait for holders: fence them at once.")
@click.option("--reason", help="Kept in the audit.")
@tenant_option
@remote
def cancel(
    data: str | None, as_json: bool, name: str, force: bool, reason: str | None, tenant: str | None
) -> None:
    """Cancel every workload of a group that has not ended, 500 at a time."""
    body: dict[str, Any] = {"force": force}
    if reason:
        body["reason"] = reason
    with connect(data, tenant=tenant) as client:
        changed = _cancel_all(client, name, body)
    if as_json:
        say_json({"changed": changed, "remaining": 0})
    else:
        click.echo(f"{name}: {changed} called off")


def _cancel_all(client: Client, name: str, body: dict[str, Any]) -> int:
    changed = 0
    while True:
        done = client.call("POST", _path(name, "cancel"), body)
        changed += int(done["changed"])
        if not done["remaining"] or not done["changed"]:
            return changed


def _path(name: str, *verb: str) -> str:
    return "/".join(("/v1/groups", quote(name, safe=""), *verb))


def _show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say_json(found)
        return
    counts = found.pop("counts")
    facts([*found.items(), *counts.items()])

"""`feltd pool`: which workers may run the work that names a pool, and how much at once."""

from typing import Any
from urllib.parse import quote

import click

from feltd.cli.output import ExamplesGroup, facts, say_json, table
from feltd.cli.parse import labels
from feltd.cli.remote import connect, remote

COLUMNS = (
    ("pool_id", "pool_id"),
    ("tenant", "tenant_id"),
    ("application", "application_id"),
    ("name", "name"),
    ("members", "members"),
    ("active", "active"),
    ("ceiling", "max_concurrency"),
)
#: What a pool is made of, in a body.
MEMBERS = (
    "pool_id",
    "name",
    "application_id",
    "capabilities",
    "required_labels",
    "worker_ids",
    "listed",
    "max_concurrency",
)


def contents(command: Any) -> Any:
    """Add the options that say who is in a pool."""
    for option in reversed(
        (
            click.option("--name", help="What people call it; its id as a rule."),
            click.option("--application", "application_id", help="Only for work of this one."),
            click.option(
                "--capability", "capabilities", multiple=True, help="Each member was granted it."
            ),
            click.option("--label", "pairs", multiple=True, help="key=value; each member has it."),
            click.option(
                "--worker", "worker_ids", multiple=True, help="Only these workers, by their ids."
            ),
            click.option(
                "--max-concurrency", type=click.IntRange(1), help="Claims of it at once, at most."
            ),
        )
    ):
        command = option(command)
    return command


@click.group(
    cls=ExamplesGroup,
    examples=(
        "feltd pool create gpu --tenant acme --label accelerator=gpu --max-concurrency 8",
        "feltd pool list",
        "feltd pool update gpu --tenant acme --max-concurrency 4",
    ),
)
def pool() -> None:
    """Make pools of workers; work that names one runs nowhere else."""


@pool.command(examples=("feltd pool create gpu --tenant acme --capability render --label zone=a",))
@click.argument("pool_id")
@click.option("--tenant", "tenant", help="Whose pool it is; the key's only tenant as a rule.")
@contents
@remote
def create(
    data: str | None, as_json: bool, pool_id: str, tenant: str | None, **members: Any
) -> None:
    """Make a pool. Without conditions every worker of the tenant is a member."""
    body = {"pool_id": pool_id, "name": pool_id, **_said(members)}
    with connect(data, tenant=tenant) as client:
        _shown(client.call("POST", "/v1/pools", body), as_json)


@pool.command("list", examples=("feltd pool list --tenant acme",))
@click.option("--tenant", "tenant")
@remote
def list_(data: str | None, as_json: bool, tenant: str | None) -> None:
    """List pools, newest first."""
    with connect(data, tenant=tenant) as client:
        found = list(client.pages("/v1/pools", limit=500))
    if as_json:
        say_json(found)
    else:
        table(found, COLUMNS, empty="no pools")


@pool.command(examples=("feltd pool show gpu --tenant acme",))
@click.argument("pool_id")
@click.option("--tenant", "tenant")
@remote
def show(data: str | None, as_json: bool, pool_id: str, tenant: str | None) -> None:
    """Show one pool, its members and live claims counted."""
    with connect(data, tenant=tenant) as client:
        _shown(client.call("GET", _path(pool_id)), as_json)


@pool.command(
    examples=(
        "feltd pool update gpu --tenant acme --max-concurrency 4",
        "feltd pool update gpu --tenant acme --worker worker_7ae616376f57fc43b8a4e5f6",
        "feltd pool update gpu --tenant acme --no-ceiling --any-worker",
    )
)
@click.argument("pool_id")
@click.option("--tenant", "tenant")
@contents
@click.option("--no-ceiling", is_flag=True, help="Take the ceiling away.")
@click.option("--any-worker", is_flag=True, help="List no workers: who meets the rest is a member.")
@remote
def update(
    data: str | None,
    as_json: bool,
    pool_id: str,
    tenant: str | None,
    no_ceiling: bool,
    any_worker: bool,
    **members: Any,
) -> None:
    """Change a pool for new claims; what is not named stays, live claims go on."""
    said = _said(members)
    if no_ceiling and "max_concurrency" in said:
        raise click.UsageError("--no-ceiling and --max-concurrency exclude each other")
    if any_worker and "worker_ids" in said:
        raise click.UsageError("--any-worker and --worker exclude each other")
    if no_ceiling:
        said["max_concurrency"] = None
    if any_worker:
        said |= {"worker_ids": [], "listed": False}
    elif "worker_ids" in said:
        said["listed"] = True
    with connect(data, tenant=tenant) as client:
        now = client.call("GET", _path(pool_id))
        body = {name: now.get(name) for name in MEMBERS} | said
        _shown(client.call("PUT", _path(pool_id), body), as_json)


@pool.command(examples=("feltd pool delete gpu --tenant acme",))
@click.argument("pool_id")
@click.option("--tenant", "tenant")
@remote
def delete(data: str | None, as_json: bool, pool_id: str, tenant: str | None) -> None:
    """Delete a pool. Work that names it waits until it is made again."""
    with connect(data, tenant=tenant) as client:
        client.call("DELETE", _path(pool_id))
    if as_json:
        say_json({"pool_id": pool_id, "deleted": True})
    else:
        click.echo(f"pool deleted: {pool_id}")


def _said(members: dict[str, Any]) -> dict[str, Any]:
    """The members that were named."""
    said = {name: value for name, value in members.items() if value not in (None, ())}
    pairs = said.pop("pairs", None)
    if pairs is not None:
        said["required_labels"] = labels(pairs)
    return {name: list(one) if isinstance(one, tuple) else one for name, one in said.items()}


def _shown(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say_json(found)
    else:
        facts(found.items())


def _path(pool_id: str) -> str:
    return f"/v1/pools/{quote(pool_id, safe='')}"

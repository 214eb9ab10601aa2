"""`feltd keys`: make, list, revoke and rotate API keys; a secret is printed once, unwrapped."""

from typing import Any

import click

from feltd.cli.output import ExamplesGroup, say_json, table
from feltd.cli.parse import DURATION, expiry, refuse_existing, write_private
from feltd.cli.remote import connect, remote
from feltd.identity.presets import PRESETS

COLUMNS = (
    ("key_id", "key_id"),
    ("name", "name"),
    ("subject", "subject_type"),
    ("tenants", "tenants"),
    ("scopes", "scopes"),
    ("expires", "expires_at_ms"),
    ("last used", "last_used_at_ms"),
    ("revoked", "revoked_reason"),
)


@click.group(
    cls=ExamplesGroup,
    examples=(
        "feltd keys create --data feltd.db --name ci --tenant acme --for submitter",
        "feltd keys list --data feltd.db",
        "feltd keys revoke --data feltd.db --id 0aB3kdL9xQ2z",
    ),
)
def keys() -> None:
    """Make and end API keys. Nobody can hand out more than he holds himself."""


@keys.command(
    examples=(
        "feltd keys create --name metrics --for metrics --tenant '*'",
        "feltd keys create --name ci --tenant acme --scope workloads:create --expires 90d",
        "feltd keys create --name edge --worker worker_7ae616376f57fc43b8a4e5f6",
    )
)
@click.option("--name", required=True, help="A title for people.")
@click.option("--scope", "scopes", multiple=True, help="A scope; may be repeated.")
@click.option("--for", "preset", type=click.Choice(sorted(PRESETS)), help="The usual scopes.")
@click.option("--namespace", "namespaces", multiple=True, help="Daemons it works on: default.")
@click.option("--tenant", "tenants", multiple=True, help="A tenant, or '*'; may be repeated.")
@click.option("--worker", "worker_id", help="Make it the key of this worker and nothing else.")
@click.option("--grant", "grant_id", help="Id of the grant used where a call names none.")
@click.option("--id", "identity_id", help="Who the key acts as; the key itself if not given.")
@click.option("--agent", is_flag=True, help="It belongs to an agent, not to a service.")
@click.option("--expires", type=DURATION, help="How long it works, such as 90d.")
@click.option("--key-file", metavar="FILE", help="Write the secret to a new file (0600) instead.")
@remote
def create(
    data: str | None,
    as_json: bool,
    name: str,
    scopes: tuple[str, ...],
    preset: str | None,
    expires: int | None,
    key_file: str | None,
    agent: bool,
    **members: Any,
) -> None:
    """Make a key. Its secret is shown once and stored nowhere."""
    refuse_existing(key_file)
    wanted = sorted({*scopes, *(PRESETS[preset] if preset else ())})
    body: dict[str, Any] = {"name": name, **{k: v for k, v in members.items() if v}}
    if wanted:
        body["scopes"] = wanted
    if agent:
        body["subject_type"] = "agent"
    if expires is not None:
        body["expires_at_ms"] = expiry(expires)
    with connect(data, or_alone=True) as client:
        made = client.create_key(**body)
    show_secret(made, as_json=as_json, key_file=key_file)


@keys.command("list", examples=("feltd keys list", "feltd keys list --json"))
@remote
def list_(data: str | None, as_json: bool) -> None:
    """List the keys of your tenants, newest first. No secret is ever shown again."""
    with connect(data, or_alone=True) as client:
        found = client.keys()
    if as_json:
        say_json(found)
    else:
        table(found, COLUMNS, empty="no keys")


@keys.command(examples=("feltd keys revoke --id 0aB3kdL9xQ2z",))
@click.argument("key_id", required=False)
@click.option("--id", "named", help="Id of the key.")
@remote
def revoke(data: str | None, as_json: bool, key_id: str | None, named: str | None) -> None:
    """End a key, and the keys it obtained, at once."""
    key_id = _one(key_id, named)
    with connect(data, or_alone=True) as client:
        client.revoke_key(key_id)
    if as_json:
        say_json({"key_id": key_id, "revoked": True})
    else:
        click.echo(f"API key revoked: {key_id}")


@keys.command(examples=("feltd keys rotate --id 0aB3kdL9xQ2z --overlap 1h",))
@click.argument("key_id", required=False)
@click.option("--id", "named", help="Id of the key.")
@click.option("--overlap", type=DURATION, default="24h", help="How long the old one works on.")
@click.option("--key-file", metavar="FILE", help="Write the secret to a new file (0600) instead.")
@remote
def rotate(
    data: str | None,
    as_json: bool,
    key_id: str | None,
    named: str | None,
    overlap: int,
    key_file: str | None,
) -> None:
    """Make a successor of a key with the same rights."""
    refuse_existing(key_file)
    key_id = _one(key_id, named)
    with connect(data, or_alone=True) as client:
        made = client.rotate_key(key_id, overlap)
    show_secret(made, as_json=as_json, key_file=key_file)


def show_secret(made: dict[str, Any], *, as_json: bool, key_file: str | None) -> None:
    """Print a new key: the secret on a line of its own, or into a file that was asked for."""
    if key_file is not None:
        write_private(key_file, made["secret"])
        made = {**{k: v for k, v in made.items() if k != "secret"}, "key_file": key_file}
    if as_json:
        say_json(made)
    elif key_file is not None:
        click.echo(f"API key created (id: {made['key_id']}). Its secret is in {key_file}")
    else:
        key_id = made["key_id"]
        click.echo(f"API key created (id: {key_id}). This secret will not be shown again:")
        click.echo(made["secret"])


def _one(argument: str | None, option: str | None) -> str:
    named = argument or option
    if not named or (argument and option and argument != option):
        raise click.UsageError("name one key: --id KEY_ID")
    return named

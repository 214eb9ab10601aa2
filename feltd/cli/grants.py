"""`feltd grants`: signed permissions, issued, narrowed, extended and ended."""

from typing import Any

import click

from feltd.cli.output import ExamplesGroup, facts, say_json, table
from feltd.cli.parse import DURATION, expiry, json_value
from feltd.cli.remote import connect, remote

COLUMNS = (
    ("grant_id", "id"),
    ("subject", "subject"),
    ("tenant", "tenant_id"),
    ("application", "application_id"),
    ("capabilities", "capabilities"),
    ("expires", "expires_at_ms"),
    ("status", "status"),
    ("revision", "revision"),
)


def contents(command: Any) -> Any:
    """Add the options that say what a grant allows."""
    for option in reversed(
        (
            click.option("--capability", "capabilities", multiple=True, help="May be repeated."),
            click.option(
                "--resource",
                "resources",
                multiple=True,
                help="A URI, or all that begin with it where it ends in '*'; may be repeated.",
            ),
            click.option("--constraints", help="JSON: max_concurrency, max_workers, labels …"),
        )
    ):
        command = option(command)
    return command


@click.group(
    cls=ExamplesGroup,
    examples=(
        "feltd grants issue --subject service:ci --tenant acme --application docs \\\n"
        "      --capability workload:capability:extract --expires 90d",
        "feltd grants revoke grant_0aB3kdL9xQ2z --reason 'laptop lost'",
    ),
)
def grants() -> None:
    """Issue and end grants: what a subject may do in one tenant and application."""


@grants.command(
    examples=(
        "feltd grants issue --subject service:ci --tenant acme --application docs \\\n"
        "      --capability workload:capability:extract",
    )
)
@click.option("--subject", required=True, help="Who may use it, as kind:id (service:ci).")
@click.option("--tenant", required=True)
@click.option("--application", required=True)
@click.option("--expires", type=DURATION, default="365d", show_default=True)
@contents
@remote
def issue(
    data: str | None, as_json: bool, subject: str, tenant: str, application: str,
    expires: int, **members: Any,
) -> None:  # fmt: skip
    """Issue a grant; its token is the proof that it was given."""
    body = {
        "subject": _subject(subject),
        "tenant_id": tenant,
        "application_id": application,
        "expires_at_ms": expiry(expires),
        **_content(members),
    }
    with connect(data, or_alone=True) as client:
        _shown(client.issue_grant(**body), as_json)


@grants.command(
    examples=("feltd grants attenuate grant_0aB3kdL9xQ2z --subject agent:helper --expires 1h",)
)
@click.argument("parent")
@click.option("--subject", required=True, help="Who may use the child, as kind:id.")
@click.option("--expires", type=DURATION, help="Not later than the parent's; the same by default.")
@contents
@remote
def attenuate(
    data: str | None, as_json: bool, parent: str, subject: str, expires: int | None, **members: Any
) -> None:
    """Hand on a part of a grant. Each member is at most what the parent allows."""
    with connect(data, or_alone=True) as client:
        of = client.grant(parent)["grant"]
        body = {
            "subject": _subject(subject),
            "tenant_id": of["tenant_id"],
            "application_id": of["application_id"],
            "expires_at_ms": of["expires_at_ms"] if expires is None else expiry(expires),
            "parent_grant": of["id"],
            **_kept(of),
            **_content(members),
        }
        _shown(client.issue_grant(**body), as_json)


@grants.command("list", examples=("feltd grants list --tenant acme",))
@click.option("--tenant", "tenant_id")
@click.option("--application", "application_id")
@remote
def list_(data: str | None, as_json: bool, **query: Any) -> None:
    """List grants, newest first."""
    with connect(data, or_alone=True) as client:
        found = client.grants(**query)
    if as_json:
        say_json(found)
        return
    for one in found:
        one["subject"] = f"{one['subject']['kind']}:{one['subject']['id']}"
    table(found, COLUMNS, empty="no grants")


@grants.command(examples=("feltd grants show grant_0aB3kdL9xQ2z",))
@click.argument("grant_id")
@remote
def show(data: str | None, as_json: bool, grant_id: str) -> None:
    """Show one grant with its token."""
    with connect(data, or_alone=True) as client:
        _shown(client.grant(grant_id), as_json)


@grants.command(
    examples=(
        "feltd grants extend grant_0aB3kdL9xQ2z --expires 365d",
        "feltd grants extend grant_0aB3kdL9xQ2z --capability worker:register "
        "--capability worker:capability:scan",
    )
)
@click.argument("grant_id")
@click.option("--expires", type=DURATION, help="From now.")
@contents
@remote
def extend(
    data: str | None, as_json: bool, grant_id: str, expires: int | None, **members: Any
) -> None:
    """Change a grant; what is not named stays. Claims that exceed it afterwards end."""
    with connect(data, or_alone=True) as client:
        now = client.grant(grant_id)["grant"]
        body = {"expires_at_ms": now["expires_at_ms"], **_kept(now), **_content(members)}
        if expires is not None:
            body["expires_at_ms"] = expiry(expires)
        _shown(client.replace_grant(grant_id, **body), as_json)


@grants.command(examples=("feltd grants revoke grant_0aB3kdL9xQ2z --reason 'laptop lost'",))
@click.argument("grant_id")
@click.option("--reason", help="Kept in the audit.")
@remote
def revoke(data: str | None, as_json: bool, grant_id: str, reason: str | None) -> None:
    """End a grant for ever. Its descendants end with it, and their keys and claims."""
    with connect(data, or_alone=True) as client:
        ended = client.revoke_grant(grant_id, **({"reason": reason} if reason else {}))
    if as_json:
        say_json(ended)
        return
    click.echo(f"grant revoked: {grant_id}")
    click.echo(f"claims ended: {len(ended['fenced_claims'])}, still to end: {ended['remaining']}")


def _shown(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say_json(answer)
        return
    grant = answer["grant"]
    pairs = [(name, grant[name]) for name in grant if name not in ("contract_version", "subject")]
    pairs.insert(1, ("subject", f"{grant['subject']['kind']}:{grant['subject']['id']}"))
    facts(pairs)
    if answer.get("fenced_claims"):
        facts([("claims ended", len(answer["fenced_claims"]))])
    click.echo("token:")
    click.echo(answer["token"])


def _subject(text: str) -> dict[str, str]:
    kind, colon, name = text.partition(":")
    if not colon or not name:
        raise click.UsageError(f"--subject {text!r}: write kind:id, such as service:ci")
    return {"kind": kind, "id": name}


def _kept(grant: dict[str, Any]) -> dict[str, Any]:
    return {name: grant.get(name) for name in ("capabilities", "resources", "constraints")}


def _content(members: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if members["capabilities"]:
        body["capabilities"] = list(members["capabilities"])
    if members["resources"]:
        body["resources"] = [scope(uri) for uri in members["resources"]]
    if members["constraints"] is not None:
        body["constraints"] = json_value(members["constraints"], "--constraints")
    return body


def scope(uri: str) -> dict[str, str]:
    """A resource scope: one URI, or all that begin with what stands before a trailing '*'."""
    return {"kind": "RESOURCE_PREFIX" if uri.endswith("*") else "EXACT", "uri": uri}

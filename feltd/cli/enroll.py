"""`feltd enroll`: all that a worker process needs, as one key.

A grant for a subject of its own, and a key bound to that grant which may register workers and do
nothing else. Revoking the grant ends every process that was started with it. The daemon's own
worker needs the grant alone.
"""

import contextlib
import secrets
from typing import Any

import click

from feltd.cli import enroll_unit
from feltd.cli.grants import scope
from feltd.cli.keys import show_secret
from feltd.cli.output import Examples, say_json
from feltd.cli.parse import DURATION, expiry, refuse_existing
from feltd.cli.remote import connect, remote
from feltd.identity.executors import EXECUTOR
from feltd.worker.refusal import Refusal


@click.command(
    cls=Examples,
    examples=(
        "feltd enroll --data feltd.db --tenant acme --application docs --capability extract \\\n"
        "      --key-file worker.key",
        "FELTD_URL=http://127.0.0.1:7610 FELTD_KEY=$(cat worker.key) feltd worker run jobs:worker",
        "feltd enroll --data feltd.db --tenant acme --application docs --executor",
        "feltd enroll --tenant acme --application docs --capability extract --unit edge-1 \\\n"
        "      --url https://felt.example.org --runs jobs:worker",
    ),
)
@click.option("--tenant", required=True)
@click.option("--application", required=True)
@click.option(
    "--capability",
    "capabilities",
    multiple=True,
    help="What its work may ask for; at least one, may be repeated.",
)
@click.option("--concurrency", type=click.IntRange(1, 1_024), help="Most work a process may hold.")
@click.option("--expires", type=DURATION, default="365d", show_default=True)
@click.option("--key-file", metavar="FILE", help="Write the secret to a new file (0600) instead.")
@click.option(
    "--executor", is_flag=True, help="For the daemon's own worker (feltd serve --worker): no key."
)
@click.option("--unit", metavar="NAME", help="For feltd-worker@NAME.service, the worker NAME.")
@click.option("--folder", metavar="DIR", help="Of --unit: write its files there.")
@click.option("--url", help="Of --unit: the daemon as that machine reaches it; FELTD_URL.")
@click.option("--runs", metavar="TEXT", help="Of --unit: what follows 'feltd worker run'.")
@remote
def enroll(
    data: str | None,
    as_json: bool,
    tenant: str,
    application: str,
    capabilities: tuple[str, ...],
    concurrency: int | None,
    expires: int,
    key_file: str | None,
    executor: bool,
    unit: str | None,
    **of_unit: str | None,
) -> None:
    """Make a grant and a key for worker processes of one application.

    The key is all such a process needs, as FELTD_KEY, beside the daemon's address as FELTD_URL.
    With --executor the grant is for the worker inside the daemon: it runs the capability programs
    of this tenant and application, and needs no key.

    With --unit the key registers the worker of that name alone. A new folder gets the unit's
    credential and settings; the commands that put them in their place are printed.
    """
    if not executor and not capabilities:
        raise click.UsageError("Missing option '--capability'.")
    _refuse_beside(executor, key_file, unit, of_unit)
    refuse_existing(key_file)
    made_for = None if unit is None else enroll_unit.unit_of(unit, **of_unit)
    subject = str(EXECUTOR.id) if executor else f"enroll-{secrets.token_hex(6)}"
    ends_at_ms = expiry(expires)
    constraints: dict[str, Any] = {} if concurrency is None else {"max_concurrency": concurrency}
    with connect(data, or_alone=True) as client:
        name = "feltd" if executor else unit or "*"
        issued = client.issue_grant(
            subject={"kind": "service", "id": subject},
            tenant_id=tenant,
            application_id=application,
            capabilities=["worker:register", *(f"worker:capability:{c}" for c in capabilities)],
            resources=[scope(f"flow://{application}/workers/{name}")],
            constraints=constraints,
            expires_at_ms=ends_at_ms,
        )
        grant_id = issued["grant"]["id"]
        if executor:
            _show_grant(issued["grant"], as_json)
            return
        try:
            made = client.create_key(
                name=subject,
                scopes=["workers:register"],
                tenants=[tenant],
                subject_type="service",
                identity_id=subject,
                grant_id=grant_id,
                expires_at_ms=ends_at_ms,
            )
            if made_for is not None:
                enroll_unit.write(made_for, made["secret"])
        except BaseException:
            # A grant whose key nobody has would only lie about.
            with contextlib.suppress(Refusal):
                client.revoke_grant(grant_id, reason="its key could not be made")
            raise
    made["grant_id"] = grant_id
    if made_for is not None:
        enroll_unit.say(made_for, made, as_json=as_json)
    else:
        show_secret(made, as_json=as_json, key_file=key_file)
    if not as_json:
        click.echo(f"grant: {grant_id} (feltd grants revoke {grant_id} ends its workers)", err=True)


def _refuse_beside(
    executor: bool, key_file: str | None, unit: str | None, of_unit: dict[str, str | None]
) -> None:
    """Refuse options that do not go together."""
    if executor and key_file is not None:
        raise click.UsageError("--executor makes no key: leave --key-file out")
    if unit is not None and (executor or key_file is not None):
        raise click.UsageError("--unit goes without --executor and --key-file")
    if unit is None and any(of_unit.values()):
        raise click.UsageError("--folder, --url and --runs go with --unit")


def _show_grant(grant: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say_json({"grant_id": grant["id"], "grant": grant})
        return
    place = f"tenant {grant['tenant_id']}, application {grant['application_id']}"
    click.echo(f"grant: {grant['id']}")
    click.echo(
        f"a daemon started with --worker runs the programs of {place} under it "
        f"(feltd grants revoke {grant['id']} ends that)",
        err=True,
    )

"""`feltd worker`: run a worker process; look at, drain, recover and remove workers."""

import hashlib
import time
from typing import Any

import click

from feltd.cli.output import ExamplesGroup, facts, json_option, say_json, table
from feltd.cli.parse import DURATION, expiry
from feltd.cli.remote import connect, remote, worker_named
from feltd.cli.why import worker_why
from feltd.cli.worker_run import run

COLUMNS = (
    ("worker_id", "worker_id"),
    ("name", "name"),
    ("application", "application_id"),
    ("lifecycle", "lifecycle"),
    ("health", "health"),
    ("active", "capacity.active"),
    ("of", "capacity.concurrency"),
    ("last seen", "last_seen_at_ms"),
    ("offline", "offline_reason"),
    ("drain", "drain.reason"),
    ("quarantine", "quarantine.reason"),
)
#: Between looks at a worker that is being drained.
LOOK_EVERY_S = 0.3


class Workers(ExamplesGroup):
    """`verify` brings a daemon and a wire of its own along: it is loaded when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted((*super().list_commands(ctx), "verify"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name != "verify":
            return super().get_command(ctx, cmd_name)
        from feltd.cli.verify.command import verify

        return verify


@click.group(
    cls=Workers,
    examples=(
        "feltd worker run jobs:worker",
        "feltd worker list --lifecycle READY",
        "feltd worker drain worker_7ae616376f57fc43b8a4e5f6 --wait",
    ),
)
def worker() -> None:
    """Run a worker process, and operate the workers of a daemon."""


worker.add_command(run)
worker.add_command(worker_why)


@worker.command("list", examples=("feltd worker list", "feltd worker list --lifecycle OFFLINE"))
@click.option("--tenant", "tenant_id")
@click.option("--application", "application_id")
@click.option("--lifecycle")
@click.option("--health")
@click.option("--pool", "pool_id", help="Only members of this pool.")
@click.option("--label", help="key=value")
@click.option("--limit", type=click.IntRange(1), default=500, show_default=True)
@remote
def list_(data: str | None, as_json: bool, limit: int, **query: Any) -> None:
    """List workers."""
    with connect(data) as client:
        found = client.workers(limit, **query)
    if as_json:
        say_json(found)
    else:
        table(found, COLUMNS, empty="no workers")


@worker.command(examples=("feltd worker show edge-1", "feltd worker show worker_7ae6163 --json"))
@click.argument("worker_id")
@click.option("--recent", type=click.IntRange(0, 100), default=10, show_default=True)
@remote
def show(data: str | None, as_json: bool, worker_id: str, recent: int) -> None:
    """Show one worker, by its id or its name, with its last claims."""
    with connect(data) as client:
        found = client.worker(worker_named(client, worker_id), recent=recent)
    if as_json:
        say_json(found)
        return
    apart = ("recent", "drain", "quarantine")
    facts((name, value) for name, value in found.items() if name not in apart)
    if found.get("drain"):
        drain = found["drain"]
        facts([("drain", f"by {drain.get('by')}: {drain.get('reason') or 'no reason given'}")])
    if found.get("quarantine"):
        kept = found["quarantine"]
        facts([("quarantine", f"by {kept.get('by')}: {kept.get('reason')}")])
        facts([("quarantined until", kept.get("until_at_ms"))])
    if found.get("recent"):
        click.echo()
        table(
            found["recent"],
            (
                ("claim_id", "claim_id"), ("workload_id", "workload_id"),
                ("definition", "definition_id"), ("attempt", "attempt_number"),
                ("ended", "ended_at_ms"), ("end", "end"), ("state", "state"),
            ),
            empty="",
        )  # fmt: skip


@worker.command(
    examples=("feltd worker drain edge-1 --reason 'new kernel' --wait", "feltd worker drain edge-1")
)
@click.argument("worker_id")
@click.option("--reason", help="Kept in the audit and shown.")
@click.option(
    "--until",
    type=click.Choice(["resumed", "registered"]),
    help="What ends it: a resume (as a rule), or the worker's next registration.",
)
@click.option(
    "--no-renew-after", "no_renew_after_ms", type=DURATION, help="Let leases end by then."
)
@click.option("--wait", is_flag=True, help="Wait until nothing is left in its hands.")
@remote
def drain(data: str | None, as_json: bool, worker_id: str, wait: bool, **members: Any) -> None:
    """Give a worker no more work. It finishes what it holds, and its process ends with 0."""
    body = {name: value for name, value in members.items() if value is not None}
    with connect(data) as client:
        worker_id = worker_named(client, worker_id)
        answer = client.drain(worker_id, body)
        while wait and answer["outstanding_claims"]:
            time.sleep(LOOK_EVERY_S)
            shown = client.worker(worker_id)
            answer = {**answer, "worker": shown}
            if not shown["claims"]:
                answer |= {"outstanding_claims": [], "safe_to_stop": True}
    if as_json:
        say_json(answer)
        return
    held = answer["outstanding_claims"]
    click.echo(f"{worker_id} is {answer['worker']['lifecycle']}")
    if answer["safe_to_stop"]:
        click.echo("nothing is left in its hands: safe to stop")
    else:
        facts([("still held", len(held)), ("safe_at_ms", answer.get("safe_at_ms"))])


@worker.command(
    examples=(
        "feltd worker quarantine edge-1 --reason 'its disk fails'",
        "feltd worker quarantine edge-1 --reason 'under watch' --for 2h",
    )
)
@click.argument("worker_id")
@click.option("--reason", required=True, help="Kept in the audit and shown.")
@click.option("--for", "for_ms", type=DURATION, help="It ends by itself then.")
@remote
def quarantine(
    data: str | None, as_json: bool, worker_id: str, reason: str, for_ms: int | None
) -> None:
    """Give a worker no new work, whichever process is behind it; what it holds goes on."""
    body: dict[str, Any] = {"reason": reason}
    if for_ms is not None:
        body["until_at_ms"] = expiry(for_ms)
    with connect(data) as client:
        worker_id = worker_named(client, worker_id)
        found = client.call("POST", f"/v1/workers/{worker_id}/quarantine", body)
    if as_json:
        say_json(found)
    else:
        click.echo(f"{worker_id} is quarantined; it holds {len(found['claims'])} claims")


@worker.command(examples=("feltd worker unquarantine edge-1",))
@click.argument("worker_id")
@remote
def unquarantine(data: str | None, as_json: bool, worker_id: str) -> None:
    """End a quarantine."""
    with connect(data) as client:
        worker_id = worker_named(client, worker_id)
        found = client.call("POST", f"/v1/workers/{worker_id}/unquarantine", {})
    if as_json:
        say_json(found)
    else:
        click.echo(f"{worker_id} may take work again: it is {found['lifecycle']}")


def _operation(name: str, doc: str, example: str) -> None:
    """Add a command that is one call on one worker."""

    @worker.command(name, help=doc, examples=(example,))
    @click.argument("worker_id")
    @remote
    def operate(data: str | None, as_json: bool, worker_id: str) -> None:
        with connect(data) as client:
            worker_id = worker_named(client, worker_id)
            found = getattr(client, "remove_worker" if name == "remove" else name)(worker_id)
        if as_json:
            say_json(found or {"worker_id": worker_id, "removed": True})
        elif name == "remove":
            click.echo(f"{worker_id} was removed")
        else:
            click.echo(f"{worker_id} is {found['lifecycle']}")


_operation("resume", "End a drain: the worker may take work again.", "feltd worker resume edge-1")
_operation(
    "recover",
    "Let an OFFLINE worker reconcile within one timeout.",
    "feltd worker recover edge-1",
)
_operation("remove", "Remove a worker that holds nothing.", "feltd worker remove edge-1")


@worker.command("id", examples=("feltd worker id acme docs edge-1",))
@click.argument("tenant")
@click.argument("application")
@click.argument("name")
@json_option
def id_(tenant: str, application: str, name: str, as_json: bool) -> None:
    """Print the id a worker of this name has; asks no daemon."""
    digest = hashlib.sha256(f"{tenant}:{application}:{name}".encode()).hexdigest()
    worker_id = f"worker_{digest[:24]}"
    if as_json:
        say_json({"worker_id": worker_id})
    else:
        click.echo(worker_id)

"""`feltd workload edit`, `run-now` and `bulk`: changes to work that stands already."""

from collections.abc import Callable
from typing import Any

import click
import msgspec

from feltd.cli.output import Examples, ExamplesGroup, on_terminal, say_json
from feltd.cli.parse import DURATION, expiry, labels
from feltd.cli.remote import connect, remote
from feltd.clock import wall_ms
from feltd.worker.client import Client

PRIORITY = click.IntRange(-1_000, 1_000)
STATES = ("PENDING", "READY", "CLAIMED", "RUNNING", "CHECKPOINTED", "DEAD_LETTERED")
#: Members of an edit; --set names one of them, or a place inside.
MEMBERS = (
    "priority",
    "not_before_at_ms",
    "placement",
    "timeouts",
    "retry_policy",
    "concurrency",
    "labels",
)


@click.command(
    cls=Examples,
    examples=(
        "feltd workload edit workload_0193 --priority 10",
        "feltd workload edit workload_0193 --set timeouts.execution_ms=600000 \\",
        "      --set retry_policy.max_attempts=5 --set placement.required_labels.zone=b",
        "feltd workload edit workload_0193 --set concurrency=null --label team=web --unlabel tier",
    ),
)
@click.argument("workload_id")
@click.option("--priority", type=PRIORITY)
@click.option("--after", type=DURATION, help="Not before so long from now.")
@click.option("--set", "places", multiple=True, metavar="PLACE=JSON", help="null: its default.")
@click.option("--label", "pairs", multiple=True, help="key=value; may be repeated.")
@click.option("--unlabel", "keys", multiple=True, help="Take a label away; may be repeated.")
@remote
def edit(
    data: str | None, as_json: bool, workload_id: str, priority: int | None, after: int | None,
    places: tuple[str, ...], pairs: tuple[str, ...], keys: tuple[str, ...],
) -> None:  # fmt: skip
    """Change a workload that nobody holds. What is not named stays as it is."""
    body: dict[str, Any] = {}
    for place in places:
        _set(body, place)
    if priority is not None:
        body["priority"] = priority
    if after is not None:
        body["not_before_at_ms"] = expiry(after)
    named: dict[str, Any] = {**labels(pairs), **dict.fromkeys(keys)}
    if named:
        body["labels"] = {**(body.get("labels") or {}), **named}
    if not body:
        raise click.UsageError("say what to change: --priority, --after, --set, --label, --unlabel")
    with connect(data) as client:
        _changed(client.call("PATCH", f"/v1/workloads/{workload_id}", body), as_json)


@click.command("run-now", cls=Examples, examples=("feltd workload run-now workload_0193",))
@click.argument("workload_id")
@remote
def run_now(data: str | None, as_json: bool, workload_id: str) -> int:
    """Let a workload run at once, whatever backoff or instant it waits for.

    What is PENDING still waits for its dependencies, a dead letter for a requeue: exit 1.
    """
    with connect(data) as client:
        body = {"not_before_at_ms": 0}
        found = client.call("PATCH", f"/v1/workloads/{workload_id}", body)
    _changed(found, as_json)
    if found["state"] == "DEAD_LETTERED":
        click.echo(f"it is a dead letter: feltd workload requeue {workload_id}", err=True)
    elif found["state"] == "PENDING":
        click.echo("it waits for its dependencies", err=True)
    return 0 if found["state"] == "READY" else 1


@click.group(
    cls=ExamplesGroup,
    examples=(
        "feltd workload bulk requeue --failure transient --dry-run",
        "feltd workload bulk cancel --state READY --definition extract --yes",
    ),
)
def bulk() -> None:
    """Cancel, requeue or reprioritise everything a filter lets through, 500 at a time."""


def narrowed(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the filter of the list, --dry-run and --yes."""
    for option in reversed(
        (
            click.option("--state", type=click.Choice(STATES)),
            click.option("--application", "application_id"),
            click.option("--definition", "definition_id"),
            click.option("--worker", "worker_id", help="What it holds now."),
            click.option("--trigger"),
            click.option("--group"),
            click.option("--label", multiple=True, help="key=value; may be repeated."),
            click.option("--failure", "failure_kind", help="What it died of."),
            click.option("--older-than", type=DURATION, help="Created so long ago, or longer."),
            click.option("--tenant", "tenant_id"),
            click.option("--all", "everything", is_flag=True, help="Without any filter."),
            click.option("--dry-run", is_flag=True, help="Only count."),
            click.option("--yes", is_flag=True, help="Do not ask."),
        )
    ):
        command = option(command)
    return remote(command)


@bulk.command("cancel", examples=("feltd workload bulk cancel --group import-7 --yes",))
@narrowed
def bulk_cancel(**given: Any) -> int:
    """Cancel what nobody holds, and ask the holders of the rest to stop."""
    return _bulk("cancel", None, **given)


@bulk.command(
    "requeue",
    examples=(
        "feltd workload bulk requeue --failure lease_expired --dry-run",
        "feltd workload bulk requeue --definition extract --priority 5 --yes",
    ),
)
@click.option("--priority", type=PRIORITY, help="Give them this priority, too.")
@narrowed
def bulk_requeue(priority: int | None, **given: Any) -> int:
    """Bring dead letters back, their attempts counted anew."""
    return _bulk("requeue", priority, **given)


@bulk.command(
    "reprioritise",
    examples=("feltd workload bulk reprioritise --label team=web --priority 20 --yes",),
)
@click.option("--priority", type=PRIORITY, required=True)
@narrowed
def bulk_reprioritise(priority: int, **given: Any) -> int:
    """Give waiting work another priority. What a worker holds keeps its own."""
    return _bulk("reprioritise", priority, **given)


def _bulk(
    action: str,
    priority: int | None,
    *,
    data: str | None,
    as_json: bool,
    older_than: int | None,
    label: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    yes: bool,
    **query: Any,
) -> int:
    wanted = {name: value for name, value in query.items() if value is not None}
    if label:
        labels(label)
        wanted["label"] = list(label)
    if older_than is not None:
        wanted["created_before_ms"] = wall_ms() - older_than
    if not wanted and not everything:
        raise click.UsageError("say which workloads: a filter, or --all")
    body: dict[str, Any] = {"action": action, "filter": wanted}
    if priority is not None:
        body["priority"] = priority
    with connect(data) as client:
        counted = client.call("POST", "/v1/workloads/bulk", {**body, "dry_run": True})
        if dry_run:
            say_json(counted) if as_json else click.echo(_many(counted["matched"], action))
            return 0
        if counted["matched"] and not yes:
            _confirm(counted["matched"], action)
        changed, remaining = _until_done(client, body)
    if as_json:
        say_json({"changed": changed, "remaining": remaining})
    else:
        click.echo(f"{_counted(changed)}: {action} done")
    if remaining:
        click.echo(f"{remaining} are left that could not be changed", err=True)
    return 1 if remaining else 0


def _until_done(client: Client, body: dict[str, Any]) -> tuple[int, int]:
    """Chunk by chunk, until nothing is left or nothing moves; what was changed, what is left."""
    changed = 0
    while True:
        answer = client.call("POST", "/v1/workloads/bulk", body, keyed=True)
        changed += answer["changed"]
        if not answer["remaining"] or not answer["changed"]:
            return changed, answer["remaining"]
        click.echo(f"{changed} done, {answer['remaining']} to go", err=True)


def _counted(count: int) -> str:
    return "1 workload" if count == 1 else f"{count} workloads"


def _many(matched: int, action: str) -> str:
    count = f"{matched} or more workloads" if matched >= 10_000 else _counted(matched)
    return f"{count} to {action}"


def _confirm(matched: int, action: str) -> None:
    if not on_terminal():
        raise click.UsageError(f"{_many(matched, action)}: say --yes, or look with --dry-run")
    click.confirm(f"{_many(matched, action)}. Go on?", abort=True)


def _set(body: dict[str, Any], place: str) -> None:
    """Put the value of PLACE=JSON where its dotted place is; what is no JSON is a string."""
    path, equals, text = place.partition("=")
    first, *inner = path.split(".")
    if not equals or first not in MEMBERS or not all(inner):
        raise click.UsageError(f"{place!r}: write PLACE=JSON, with a place in {', '.join(MEMBERS)}")
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = text
    within = body
    for name in (first, *inner[:-1]) if inner else ():
        found = within.get(name)
        within[name] = found if isinstance(found, dict) else {}
        within = within[name]
    within[inner[-1] if inner else first] = value


def _changed(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say_json(found)
    else:
        click.echo(f"{found['workload_id']} is {found['state']}, priority {found['priority']}")

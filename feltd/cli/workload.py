"""`feltd workload`: create, look at, follow, cancel and requeue work."""

import secrets
from typing import Any

import click

from feltd.cli.asking import asking
from feltd.cli.asking import body as asked
from feltd.cli.output import ExamplesGroup, cell, facts, say_json, table, when
from feltd.cli.parse import DURATION, expiry, json_value, labels
from feltd.cli.placement import place
from feltd.cli.remote import connect, remote
from feltd.cli.timeline import timeline
from feltd.cli.why import workload_why
from feltd.cli.workload_change import bulk, edit, run_now
from feltd.clock import wall_ms
from feltd.worker.client import Client

FINAL = ("COMPLETED", "CANCELLED", "DEAD_LETTERED")
WAIT_MS = 20_000
COLUMNS = (
    ("workload_id", "workload_id"),
    ("definition", "definition_id"),
    ("state", "state"),
    ("priority", "priority"),
    ("attempts", "attempt_number"),
    ("created", "created_at_ms"),
    ("failure", "failure.kind"),
)
KIND_COLUMNS = (
    ("failure", "failure_kind"),
    ("workloads", "workloads"),
    ("newest", "newest_workload_id"),
    ("definition", "newest_definition_id"),
    ("at", "newest_at_ms"),
    ("message", "newest_message"),
)
STATES = ("PENDING", "READY", "CLAIMED", "RUNNING", "CHECKPOINTED", *FINAL)


@click.group(
    cls=ExamplesGroup,
    examples=(
        "feltd workload create extract --data feltd.db --tenant acme --application docs \\\n"
        "      --key page-17 --input '{\"page\": 17}' --wait",
        "feltd workload list --state DEAD_LETTERED",
    ),
)
def workload() -> None:
    """Create, watch, cancel and requeue work."""


workload.add_command(timeline)
workload.add_command(edit)
workload.add_command(run_now)
workload.add_command(bulk)
workload.add_command(place)
workload.add_command(workload_why)


@workload.command(
    examples=(
        "feltd workload create extract --tenant acme --application docs --input '{\"page\": 17}'",
        "feltd workload create extract --key page-17 --input @page.json --priority 5 --wait",
        "feltd workload create report --depends-on group:pages --total-timeout 2h --group night",
    )
)
@click.argument("definition")
@click.option("--key", "idempotency_key", help="Names this work for ever; random if not given.")
@click.option("--input", "given", help="JSON, @FILE or - for stdin.")
@click.option("--tenant", "tenant_id")
@click.option("--application", "application_id")
@click.option("--capability", "capabilities", multiple=True, help="A worker must hold it.")
@click.option("--grant", "authorization_grant", help="Token; the key's bound grant if not given.")
@click.option("--priority", type=click.IntRange(-1_000, 1_000))
@click.option("--label", "pairs", multiple=True, help="key=value; may be repeated.")
@click.option("--attempts", type=click.IntRange(1, 1_000), help="Most attempts, 3 if not given.")
@click.option("--after", type=DURATION, help="Not before so long from now.")
@asking
@click.option("--wait", is_flag=True, help="Wait until it is final; exit 1 if not COMPLETED.")
@remote
def create(
    data: str | None, as_json: bool, definition: str, given: str | None,
    capabilities: tuple[str, ...], pairs: tuple[str, ...], attempts: int | None,
    after: int | None, wait: bool, idempotency_key: str | None, **members: Any,
) -> int:  # fmt: skip
    """Create a workload of DEFINITION. The same key and body give the first one again."""
    body = asked(members)
    body |= {k: v for k, v in members.items() if v is not None}
    body["definition_id"] = definition
    key = idempotency_key or body.get("idempotency_key") or secrets.token_hex(16)
    body["idempotency_key"] = key
    if given is not None:
        body["input"] = json_value(given, "--input")
    if capabilities:
        body["capability_snapshot"] = list(capabilities)
    if pairs:
        body["labels"] = labels(pairs)
    if attempts is not None:
        body["retry_policy"] = {"max_attempts": attempts}
    if after is not None:
        body["not_before_at_ms"] = expiry(after)
    with connect(data) as client:
        made = client.create(body)
        if wait:
            made = _until_final(client, made["workload_id"])
    if as_json:
        say_json(made)
    elif wait:
        _show(made)
    else:
        click.echo(made["workload_id"])
    return 1 if wait and made["state"] != "COMPLETED" else 0


@workload.command(
    "list",
    examples=(
        "feltd workload list --state READY",
        "feltd workload list --label team=web --json",
        "feltd workload list --state DEAD_LETTERED --by-kind",
    ),
)
@click.option("--state", type=click.Choice(STATES))
@click.option("--application", "application_id")
@click.option("--definition", "definition_id")
@click.option("--worker", "worker_id")
@click.option("--label", help="key=value")
@click.option("--group", help="Of this group.")
@click.option("--failure", "failure_kind")
@click.option("--by-kind", is_flag=True, help="Count dead letters by what they died of.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True)
@remote
def list_(data: str | None, as_json: bool, limit: int, by_kind: bool, **query: Any) -> None:
    """List workloads, newest first."""
    with connect(data) as client:
        if by_kind:
            _by_kind(client, as_json, query)
            return
        found = client.workloads(limit, **query)
    if as_json:
        say_json(found)
        return
    for one in found:
        one["attempt_number"] = len(one.get("attempts") or ()) or one.get("attempt_number")
    table(found, COLUMNS, empty="no workloads")


def _by_kind(client: Client, as_json: bool, query: dict[str, Any]) -> None:
    asked = {name for name, value in query.items() if value is not None}
    if not asked <= {"state", "application_id"} or query["state"] not in (None, FINAL[-1]):
        raise click.UsageError("--by-kind counts dead letters: only --application narrows it")
    narrowed = {name: query[name] for name in asked - {"state"}}
    found = client.call("GET", "/v1/dead-letters", query=narrowed)
    if as_json:
        say_json(found)
        return
    table(found["items"], KIND_COLUMNS, empty="no dead letters")
    if found["capped"]:
        click.echo("there are more than were counted", err=True)


@workload.command(examples=("feltd workload show workload_0193",))
@click.argument("workload_id")
@remote
def show(data: str | None, as_json: bool, workload_id: str) -> None:
    """Show one workload with its attempts, result or failure."""
    with connect(data) as client:
        found = client.workload(workload_id)
    if as_json:
        say_json(found)
    else:
        _show(found)


@workload.command(examples=("feltd workload watch workload_0193",))
@click.argument("workload_id")
@remote
def watch(data: str | None, as_json: bool, workload_id: str) -> int:
    """Print what happens to a workload until it is final. Exit 1 if it is not COMPLETED then."""
    with connect(data) as client:
        after = 0
        while True:
            found = client.workload(workload_id)
            after = _print_events(client, workload_id, after, as_json)
            if found["state"] in FINAL:
                return 0 if found["state"] == "COMPLETED" else 1
            # Short waits: every step is told soon, and the last one at once.
            client.workload(workload_id, 500)


@workload.command(examples=("feltd workload logs workload_0193 --follow",))
@click.argument("workload_id")
@click.option("--follow", is_flag=True, help="Go on until the workload is final.")
@remote
def logs(data: str | None, as_json: bool, workload_id: str, follow: bool) -> None:
    """Print the log lines of a workload, oldest first."""
    with connect(data) as client:
        after = 0
        while True:
            final = not follow or client.workload(workload_id)["state"] in FINAL
            page = client.workload_logs(workload_id, after, 0 if final else 2_000)
            for line in page["items"]:
                after = max(after, line["seq"])
                if as_json:
                    say_json(line)
                else:
                    click.echo(f"{when(line['at_ms'])} {line['level']:<5} {cell(line['text'])}")
            if final and not page["items"]:
                return


@workload.command(examples=("feltd workload cancel workload_0193 --force --reason 'wrong input'",))
@click.argument("workload_id")
@click.option("--force", is_flag=True, help="Do not wait for the holder: fence it at once.")
@click.option("--reason", help="Kept in the audit.")
@remote
def cancel(
    data: str | None, as_json: bool, workload_id: str, force: bool, reason: str | None
) -> None:
    """Cancel a workload; one that is held is told to its holder."""
    body: dict[str, Any] = {"force": force}
    if reason:
        body["reason"] = reason
    with connect(data) as client:
        _changed(client.cancel(workload_id, **body), as_json)


@workload.command(
    examples=("feltd workload requeue workload_0193 --input @corrected.json --priority 10",)
)
@click.argument("workload_id")
@click.option("--input", "given", help="Another input: JSON, @FILE or -.")
@click.option("--priority", type=click.IntRange(-1_000, 1_000))
@remote
def requeue(
    data: str | None, as_json: bool, workload_id: str, given: str | None, priority: int | None
) -> None:
    """Give a dead letter another life. Its attempts are counted anew, its history stays."""
    body: dict[str, Any] = {}
    if given is not None:
        body["input"] = json_value(given, "--input")
    if priority is not None:
        body["priority"] = priority
    with connect(data) as client:
        _changed(client.requeue(workload_id, **body), as_json)


def _changed(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say_json(found)
        return
    asked = ", cancel requested" if found.get("cancel_requested") else ""
    click.echo(f"{found['workload_id']} is {found['state']}{asked}")


def _until_final(client: Client, workload_id: str) -> dict[str, Any]:
    while True:
        found: dict[str, Any] = client.workload(workload_id, WAIT_MS)
        if found["state"] in FINAL:
            return found


def _print_events(client: Client, workload_id: str, after: int, as_json: bool) -> int:
    while True:
        page = client.workload_events(workload_id, after)
        for event in page["items"]:
            after = max(after, event["seq"])
            if as_json:
                say_json(event)
                continue
            states = "→".join(s for s in (event.get("from"), event.get("to")) if s)
            token = event.get("fencing_token")
            words = (event["kind"], states, event.get("end"), f"token {token}" if token else None)
            click.echo(f"{when(event['at_ms'])}  " + "  ".join(str(w) for w in words if w))
        if not page["items"]:
            return after


def _waits_for(found: dict[str, Any]) -> str | None:
    """What a workload waits for, as far as its own row tells; None where it does not wait."""
    if found["state"] == "PENDING":
        names = found.get("dependencies") or []
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f"the end of {', '.join(names[:3])}{more}"
    if found["state"] != "READY":
        return None
    now_ms, eligible_at_ms = wall_ms(), found.get("eligible_at_ms") or 0
    attempts = len(found.get("attempts") or ())
    if eligible_at_ms <= now_ms:
        again = " again" if attempts else ""
        return f"a worker: none has taken it{again} yet, see feltd why"
    if attempts and (found.get("not_before_at_ms") or 0) <= now_ms:
        return f"the end of its backoff after attempt {attempts}: {when(eligible_at_ms)}"
    return f"its not_before: {when(eligible_at_ms)}"


def _show(found: dict[str, Any]) -> None:
    skipped = ("attempts", "retry_policy", "timeouts", "runtime_policy", "placement")
    shown = [(name, value) for name, value in found.items() if name not in skipped]
    place = next((at for at, (name, _value) in enumerate(shown, 1) if name == "state"), len(shown))
    facts([*shown[:place], ("waits for", _waits_for(found)), *shown[place:]])
    attempts = found.get("attempts") or []
    if attempts:
        click.echo()
        table(
            attempts,
            (
                ("attempt", "number"), ("claim_id", "claim_id"), ("worker_id", "worker_id"),
                ("issued", "issued_at_ms"), ("ended", "ended_at_ms"), ("end", "end"),
                ("failure", "failure.message"),
            ),
            empty="",
        )  # fmt: skip

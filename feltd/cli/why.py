"""`feltd why` and `feltd backlog`: what waits, what keeps it back, and the command that helps."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import click

from feltd.cli.output import Examples, facts, say_json, table, when
from feltd.cli.remote import connect, remote, worker_named
from feltd.worker.client import Client

REASONS = (
    ("reason", "code"),
    ("what is", "detail"),
    ("what helps", "remedy"),
    ("worker", "worker_id"),
)
QUEUE = (
    ("definition", "definition_id"),
    ("application", "where"),
    ("workloads", "workloads"),
    ("oldest", "oldest_ready_at_ms"),
    ("reason", "code"),
    ("what is", "detail"),
    ("what helps", "remedy"),
)
KINDS = (
    ("definition", "definition_id"),
    ("application", "where"),
    ("pool", "pool_id"),
    ("ready", "ready"),
    ("backoff", "waiting.backoff"),
    ("not before", "waiting.not_before"),
    ("dependencies", "waiting.dependencies"),
    ("held", "waiting.held"),
    ("running", "running"),
    ("workers", "eligible_workers"),
    ("free", "free_slots"),
    ("oldest", "oldest_ready_at_ms"),
    ("blocked by", "codes"),
    ("capped", "capped"),
)
#: What a kind of work is told of that nothing keeps back.
ITS_TURN = {
    "code": "ITS_TURN",
    "detail": "workers fit it, and take it in its turn",
    "remedy": "start more workers, or wait",
}
RUNS = {"code": "RUNS", "detail": "all of it is held by workers", "remedy": "wait"}


def narrowed(command: Any) -> Any:
    """Add the options that say of which work."""
    for option in reversed(
        (
            click.option("--tenant", "tenant_id"),
            click.option("--application", "application_id"),
            click.option("--definition", "definition_id"),
            click.option("--pool", "pool_id"),
            click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True),
        )
    ):
        command = option(command)
    return remote(command)


@click.command(
    cls=Examples,
    examples=(
        "feltd why",
        "feltd why workload_0193a5c2d1f07c5e9b1f4c2a6e8d7b90",
        "feltd why edge-1",
        "feltd why --application docs --json",
    ),
)
@click.argument("what", metavar="[WORKLOAD|WORKER]", required=False)
@narrowed
def why(data: str | None, as_json: bool, what: str | None, **query: Any) -> None:
    """Say why work waits, and what changes that.

    Of a WORKLOAD: why it stands as it does. Of a WORKER, by its id or name: why it gets no work,
    and whether its machine may be stopped. Without either: of everything that waits, kind by kind,
    what has waited longest first.
    """
    with connect(data) as client:
        if what is None:
            _queue(_backlog(client, query), as_json)
        elif what.startswith("workload_"):
            _workload(client, what, as_json)
        else:
            _worker(client, what, as_json)


@click.command(
    cls=Examples,
    examples=(
        "feltd backlog",
        "feltd backlog --pool gpu --json",
        "feltd backlog --json | jq '[.items[] | .ready - .free_slots] | add'",
    ),
)
@narrowed
def backlog(data: str | None, as_json: bool, **query: Any) -> None:
    """Count what waits, kind by kind: the number an autoscaler asks for.

    READY counts what may be taken now but for what blocks it. Counts stop at 10,000.
    """
    with connect(data) as client:
        found = _backlog(client, query)
    if as_json:
        say_json(found)
        return
    for one in found["items"]:
        one["where"] = _where(one)
        one["codes"] = list(dict.fromkeys(cause["code"] for cause in one["blocked"]))
    table(found["items"], KINDS, empty="nothing waits")
    _left_out(found)


@click.command(
    "why",
    cls=Examples,
    examples=("feltd workload why workload_0193a5c2d1f07c5e9b1f4c2a6e8d7b90",),
)
@click.argument("workload_id")
@remote
def workload_why(data: str | None, as_json: bool, workload_id: str) -> None:
    """Say why a workload stands as it does, and what changes that."""
    with connect(data) as client:
        _workload(client, workload_id, as_json)


@click.command(
    "why",
    cls=Examples,
    examples=("feltd worker why edge-1", "feltd worker why worker_7ae616376f57fc43b8a4e5f6"),
)
@click.argument("worker_id")
@remote
def worker_why(data: str | None, as_json: bool, worker_id: str) -> None:
    """Say why a worker gets no work, and whether its machine may be stopped."""
    with connect(data) as client:
        _worker(client, worker_id, as_json)


def _workload(client: Client, workload_id: str, as_json: bool) -> None:
    found = client.call("GET", f"/v1/workloads/{quote(workload_id, safe='')}/why")
    if as_json:
        say_json(found)
        return
    click.echo(f"{found['workload_id']} is {found['state']}")
    _reasons(found)


def _worker(client: Client, named: str, as_json: bool) -> None:
    worker_id = worker_named(client, named)
    found = client.call("GET", f"/v1/workers/{quote(worker_id, safe='')}/why")
    if as_json:
        say_json(found)
        return
    click.echo(f"{found['worker_id']} is {found['lifecycle']} and {found['health']}")
    facts([("may I stop this machine", _may_stop(found))])
    _reasons(found)


def _may_stop(found: Mapping[str, Any]) -> str:
    held, worker_id = found["claims"], found["worker_id"]
    if found["safe_to_stop"]:
        return "yes, nothing is in its hands"
    if found["safe_at_ms"] is not None:
        return f"not yet: it holds {held}; at the latest {when(found['safe_at_ms'])}"
    return f"no: it holds {held}; let it finish first: feltd worker drain {worker_id} --wait"


def _reasons(found: Mapping[str, Any]) -> None:
    reasons = found["reasons"]
    columns = REASONS if any(one.get("worker_id") for one in reasons) else REASONS[:-1]
    table(reasons, columns, empty="no reason is known")


def _backlog(client: Client, query: Mapping[str, Any]) -> dict[str, Any]:
    asked = {name: value for name, value in query.items() if value is not None}
    found: dict[str, Any] = client.call("GET", "/v1/backlog", query=asked)
    return found


def _queue(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say_json(found)
        return
    lines = []
    for one in found["items"]:
        shown = {**one, "where": _where(one)}
        for cause in one["blocked"] or [_unblocked(one)]:
            lines.append({**shown, "workloads": one["ready"], **cause})
    table(lines, QUEUE, empty="nothing waits")
    _left_out(found)


def _unblocked(one: Mapping[str, Any]) -> dict[str, Any]:
    return ITS_TURN if one["ready"] else {**RUNS, "workloads": one["running"]}


def _where(one: Mapping[str, Any]) -> str:
    return f"{one['tenant_id']}/{one['application_id']}"


def _left_out(found: Mapping[str, Any]) -> None:
    if found["left_out"]:
        click.echo(f"{found['left_out']} kinds more: narrow it, or raise --limit", err=True)

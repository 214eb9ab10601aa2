"""`feltd placement`: who was chosen for work that was given away, and why not the others.

`feltd workload place`, which gives it, stands here too: both show the same rules.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import click

from feltd.cli.output import Examples, ExamplesGroup, facts, say_json, table
from feltd.cli.parse import DURATION, labels
from feltd.cli.remote import connect, remote, worker_named

COLUMNS = (
    ("decision_id", "decision_id"),
    ("workload_id", "workload_id"),
    ("selected worker", "selected_worker"),
    ("claim_id", "claim_id"),
    ("eligible", "eligible"),
    ("refused", "refusals"),
    ("at", "evaluated_at_ms"),
    ("by", "decided_by"),
)
CANDIDATES = (
    ("eligible worker", "worker_id"),
    ("affinity", "affinity"),
    ("active", "active"),
    ("concurrency", "concurrency"),
)
REFUSED = (("refused worker", "worker_id"), ("first rule", "rule"), ("rules", "rules"))
FACTS = (
    *("decision_id", "workload_id", "selected_worker", "claim_id", "reason"),
    *("decided_by", "evaluated_at_ms", "inputs_digest"),
)
#: A lease that leaves its worker time to hear of it.
LEASE_MS = 60_000


@click.group(
    cls=ExamplesGroup,
    examples=("feltd placement list --workload workload_0193", "feltd placement show placement_7"),
)
def placement() -> None:
    """See why work that was given away went to the worker it went to, or to nobody."""


@placement.command(
    "list",
    examples=("feltd placement list", "feltd placement list --workload workload_0193 --json"),
)
@click.option("--workload", "workload_id", help="Only about this workload.")
@click.option("--worker", help="Only those that chose this worker: its id or name.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True)
@remote
def list_(
    data: str | None, as_json: bool, workload_id: str | None, worker: str | None, limit: int
) -> None:
    """List decisions, newest first. Work that workers pull is not decided, so not here."""
    query: dict[str, Any] = {"workload_id": workload_id, "limit": min(limit, 500)}
    found: list[dict[str, Any]] = []
    with connect(data) as client:
        if worker is not None:
            query["worker_id"] = worker_named(client, worker)
        for one in client.pages("/v1/placements", **query):
            found.append(one)
            if len(found) == limit:
                break
    if as_json:
        say_json(found)
        return
    for one in found:
        one["eligible"] = len(one["eligible_workers"])
        one["refusals"] = len(one["refused"])
    table(found, COLUMNS, empty="no decisions")


@placement.command(examples=("feltd placement show placement_7 --json",))
@click.argument("decision_id")
@remote
def show(data: str | None, as_json: bool, decision_id: str) -> int:
    """Show one decision and decide it once more from what it read: exit 1 if they differ."""
    with connect(data) as client:
        found = client.call("GET", f"/v1/placements/{quote(decision_id, safe='')}")
    if as_json:
        say_json(found)
    else:
        facts((name, found.get(name)) for name in FACTS)
        facts([("decided again", "the same" if found["agrees"] else "NOT the same")])
        _judged(found)
    return 0 if found["agrees"] else 1


@click.command(
    cls=Examples,
    examples=(
        "feltd workload place workload_0193 --dry-run",
        "feltd workload place workload_0193 --worker edge-1",
        "feltd workload place workload_0193 --require zone=east --prefer disk=ssd",
    ),
)
@click.argument("workload_id")
@click.option("--worker", help="Give it to this worker: its id or name; else one is chosen.")
@click.option("--dry-run", is_flag=True, help="Say what would be decided; give and store nothing.")
@click.option("--lease", "lease_ms", type=DURATION, default=LEASE_MS, help="60s if not given.")
@click.option("--require", multiple=True, help="key=value it must have too; may be repeated.")
@click.option("--avoid", multiple=True, help="key=value it must not have either.")
@click.option("--prefer", multiple=True, help="key=value that puts a worker first.")
@click.option("--pool", "pool_id", help="Only a member of this pool.")
@remote
def place(
    data: str | None, as_json: bool, workload_id: str, worker: str | None, dry_run: bool,
    lease_ms: int, require: tuple[str, ...], avoid: tuple[str, ...], prefer: tuple[str, ...],
    pool_id: str | None,
) -> int:  # fmt: skip
    """Give waiting work to a worker, named or chosen, instead of waiting for a pull.

    Most labels of --prefer come first, then who holds least, then who can hold most, then the
    least id. What is said here narrows the placement of the workload, and never widens it. The
    worker hears of it at its next beat; a lease of less than two of its beats becomes that.
    With --dry-run, exit 1 if nobody could take it.
    """
    if dry_run and worker is not None:
        raise click.UsageError("--dry-run looks at every worker: leave --worker out")
    policy: dict[str, Any] = {
        "required_labels": labels(require),
        "anti_affinity": labels(avoid),
        "affinity": labels(prefer),
    }
    if pool_id is not None:
        policy["pool_id"] = pool_id
    path = f"/v1/workloads/{quote(workload_id, safe='')}"
    with connect(data) as client:
        if dry_run:
            return _tried(client.call("POST", f"{path}/placement", policy), as_json)
        body: dict[str, Any] = {"lease_ms": lease_ms, "placement": policy}
        if worker is not None:
            body["worker_id"] = worker_named(client, worker)
        claim = client.call("POST", f"{path}/claim", body)
    if as_json:
        say_json(claim)
    else:
        given = f"{claim['workload_id']} is given to {claim['worker_id']}"
        click.echo(f"{given}: {claim['claim_id']}")
    return 0


def _tried(found: Mapping[str, Any], as_json: bool) -> int:
    if as_json:
        say_json(found)
    else:
        names = ("workload_id", "state", "selected_worker", "reason", "evaluated_at_ms", "unread")
        facts((name, found.get(name)) for name in names)
        _judged(found)
    return 0 if found.get("selected_worker") else 1


def _judged(found: Mapping[str, Any]) -> None:
    """Who could take it, and what keeps each other worker away."""
    eligible = found.get("candidates")
    if eligible is None:
        eligible = [{"worker_id": one} for one in found["eligible_workers"]]
    columns = CANDIDATES if "candidates" in found else CANDIDATES[:1]
    for rows, which in ((eligible, columns), (found["refused"], REFUSED)):
        if rows:
            click.echo()
            table(rows, which, empty="")

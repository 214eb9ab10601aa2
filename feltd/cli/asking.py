"""The options of `feltd workload create` that say how work waits and runs."""

from collections.abc import Callable
from typing import Any

import click

from feltd.cli.parse import DURATION, json_value, labels

#: Option → (member of the body, member within it).
TIMEOUTS = {
    "queue": "queue_ms",
    "start": "start_ms",
    "execution": "execution_ms",
    "total": "total_ms",
}

OPTIONS = (
    click.option("--body", help="All of it as JSON, @FILE or -; other options replace members."),
    click.option(
        "--depends-on", "dependencies", multiple=True, metavar="ID|group:NAME",
        help="Wait for it; may be repeated.",
    ),
    click.option(
        "--dependency-policy", type=click.Choice(["all_completed", "all_finished"]),
        help="Whether it runs only if they were completed, as it does if not given.",
    ),
    click.option("--group", help="The group it belongs to."),
    click.option("--pool", "pool_id", help="Only workers of this pool run it."),
    click.option("--require", multiple=True, help="key=value a worker must have."),
    click.option("--avoid", multiple=True, help="key=value a worker must not have."),
    click.option("--prefer", multiple=True, help="key=value it is left for, for a while."),
    click.option("--concurrency", help="KEY:LIMIT, at most LIMIT of the key at once."),
    click.option("--rate", help="KEY:LIMIT/PERIOD as mail:10/1m."),
    click.option("--queue-timeout", "queue", type=DURATION, help="Longest wait once READY."),
    click.option("--start-timeout", "start", type=DURATION, help="From claim to start."),
    click.option("--execution-timeout", "execution", type=DURATION, help="From start to end."),
    click.option("--total-timeout", "total", type=DURATION, help="From its creation to its end."),
    click.option("--runtime-policy", help="JSON or @FILE: max_duration_ms, network_policy, …"),
)  # fmt: skip


def asking(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; `body` makes a body of what they said."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def body(said: dict[str, Any]) -> dict[str, Any]:
    """Take what the options said out of `said`; the members of a body, those of --body first."""
    given_body = json_value(said.pop("body"), "--body")
    made = {} if given_body is None else given_body
    if not isinstance(made, dict):
        raise click.UsageError("--body is a JSON object")
    members: dict[str, Any] = {
        "dependencies": list(said.pop("dependencies")),
        "dependency_policy": said.pop("dependency_policy"),
        "group": said.pop("group"),
        "runtime_policy": json_value(said.pop("runtime_policy"), "--runtime-policy"),
        "concurrency": _concurrency(said.pop("concurrency")),
        "rate": _rate(said.pop("rate")),
    }
    parts: dict[str, dict[str, Any]] = {
        "timeouts": {member: said.pop(name) for name, member in TIMEOUTS.items()},
        "placement": {
            "pool_id": said.pop("pool_id"),
            "required_labels": labels(said.pop("require")),
            "anti_affinity": labels(said.pop("avoid")),
            "affinity": labels(said.pop("prefer")),
        },
    }
    made |= {name: value for name, value in members.items() if value not in (None, [])}
    for name, part in parts.items():
        given = {member: value for member, value in part.items() if value not in (None, {})}
        if given:
            made[name] = {**(made.get(name) or {}), **given}
    return made


def _concurrency(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    key, _, limit = text.rpartition(":")
    if not key or not limit.isdigit():
        raise click.UsageError(f"--concurrency {text!r}: write KEY:LIMIT, as printer:1")
    return {"key": key, "limit": int(limit)}


def _rate(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    key, _, rest = text.rpartition(":")
    limit, slash, period = rest.partition("/")
    if not key or not slash or not limit.isdigit():
        raise click.UsageError(f"--rate {text!r}: write KEY:LIMIT/PERIOD, as mail:10/1m")
    return {"key": key, "limit": int(limit), "period_ms": DURATION.convert(period, None, None)}

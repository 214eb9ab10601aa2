"""One look at a daemon for the screen, and what changed since looks before it.

It asks four short questions and keeps what a key may not see out, so that a key with less shows
less. Rates come from the daemon's own counters over the last half minute.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct, field
from prometheus_client.parser import text_string_to_metric_families

from feltd.worker.client import Client
from feltd.worker.refusal import Refusal

T = TypeVar("T")

#: The daemon counts its rows again every five seconds: a shorter span would jump.
SPAN_S = 30.0
#: Kinds of work asked of; the first has waited longest.
KINDS = 100
WORKERS = 500
ANSWER_S = 5.0
IN_HANDS = ("CLAIMED", "RUNNING", "CHECKPOINTED")

Counts = dict[str, float]


class Waits(Struct, frozen=True, kw_only=True):
    """The kind of work that has waited longest."""

    kind: str
    ready: int
    waited_ms: int
    code: str
    detail: str
    remedy: str


class Bar(Struct, frozen=True, kw_only=True):
    """One worker: how much of what it can hold it holds."""

    name: str
    tenant_id: str
    lifecycle: str
    active: int
    concurrency: int
    quarantined: bool
    draining: bool
    seen_ms_ago: int | None


class Look(Struct, frozen=True, kw_only=True):
    """One look; `missing` names what the key may not see, with the reason."""

    url: str
    status: str
    version: str
    uptime_ms: int
    reasons: list[str]
    workloads: Counts = field(default_factory=dict)
    retrying: int | None = None
    oldest: Waits | None = None
    rates: Counts = field(default_factory=dict)
    gauges: Counts = field(default_factory=dict)
    totals: Counts = field(default_factory=dict)
    workers: list[Bar] = field(default_factory=list)
    more_workers: int = 0
    missing: dict[str, str] = field(default_factory=dict)


class Watch:
    """Looks at one daemon again and again."""

    def __init__(
        self, client: Client, url: str, elapsed_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._url = url
        self._elapsed_s = elapsed_s
        self._seen: deque[tuple[float, Counts]] = deque()

    def look(self) -> Look:
        """One look. Raises Unreachable, or Refusal where not even the health is told."""
        missing: dict[str, str] = {}

        def asked(what: str, ask: Callable[[], T]) -> T | None:
            try:
                return ask()
            except Refusal as refusal:
                missing[what] = f"{refusal.code}: {refusal.detail}"
                return None

        get = self._get
        health = get("/health")
        text = asked("metrics", lambda: self._client.metrics(answer_s=ANSWER_S, patience_ms=0))
        backlog = asked("backlog", lambda: get("/v1/backlog", limit=KINDS))
        workers = asked("workers", lambda: get("/v1/workers", limit=WORKERS)["items"])
        counts = numbers(text) if text else {}
        return Look(
            url=self._url,
            status=health["status"],
            version=health["version"],
            uptime_ms=health["uptime_ms"],
            reasons=[f"{one['code']}: {one['detail']}" for one in health["reasons"]],
            workloads=_labelled(counts, "feltd_workloads"),
            retrying=None if backlog is None else _retrying(backlog),
            oldest=None if backlog is None else _oldest(backlog),
            rates=self._rates(counts),
            gauges={name: counts[name] for name in GAUGES if name in counts},
            totals=_totals(counts),
            workers=_bars(workers or (), backlog),
            missing=missing,
        )

    def _get(self, path: str, **query: Any) -> Any:
        return self._client.call("GET", path, query=query, answer_s=ANSWER_S, patience_ms=0)

    def _rates(self, counts: Counts) -> Counts:
        """Each a second, over what is remembered of the last SPAN_S."""
        at_s, totals = self._elapsed_s(), _totals(counts)
        if self._seen and any(totals.get(name, 0) < was for name, was in self._seen[-1][1].items()):
            self._seen.clear()  # another daemon answers: it counts from nothing
        self._seen.append((at_s, totals))
        while len(self._seen) > 2 and at_s - self._seen[0][0] > SPAN_S:
            self._seen.popleft()
        since_s, before = self._seen[0]
        if at_s <= since_s:
            return {}
        return {name: (totals[name] - before.get(name, 0.0)) / (at_s - since_s) for name in totals}


GAUGES = (
    "feltd_in_flight",
    "feltd_long_polls",
    "feltd_channels",
    "feltd_connections",
    "feltd_writer_queue",
    "feltd_wal_bytes",
    "feltd_database_bytes",
    "feltd_disk_free_bytes",
    "feltd_oldest_ready_seconds",
    "feltd_trigger_lag_changes",
    "feltd_backup_age_seconds",
)


def numbers(text: str) -> Counts:
    """Every sample of a scrape but for histograms, as `name` or `name{label=value}`."""
    found: Counts = {}
    for family in text_string_to_metric_families(text):
        if family.type != "histogram":
            for sample in family.samples:
                label = next((f"{{{key}={value}}}" for key, value in sample.labels.items()), "")
                if len(sample.labels) > 1:
                    label = "{" + ",".join(f"{k}={v}" for k, v in sample.labels.items()) + "}"
                whole = sample.value.is_integer()
                found[sample.name + label] = int(sample.value) if whole else sample.value
    return found


def _labelled(counts: Counts, name: str) -> Counts:
    """Of a family with one label: its values by that label."""
    return {
        key.partition("=")[2][:-1]: value
        for key, value in counts.items()
        if key.startswith(name + "{")
    }


def _totals(counts: Counts) -> Counts:
    if not counts:
        return {}
    ends = _labelled(counts, "feltd_attempts_ended_total")
    return {
        "claims": counts.get("feltd_claims_total", 0.0),
        "completed": ends.get("completed", 0.0),
        "ended otherwise": sum(ends.values()) - ends.get("completed", 0.0),
        "calls": sum(v for k, v in counts.items() if k.startswith("feltd_requests_total")),
        "sheds": sum(_labelled(counts, "feltd_requests_shed_total").values()),
        "fence refusals": sum(_labelled(counts, "feltd_fence_refusals_total").values()),
        "leases recovered": counts.get("feltd_leases_recovered_total", 0.0),
    }


def _retrying(backlog: dict[str, Any]) -> int:
    return sum(one["waiting"]["backoff"] for one in backlog["items"])


def _oldest(backlog: dict[str, Any]) -> Waits | None:
    waiting = [one for one in backlog["items"] if one.get("oldest_ready_at_ms") is not None]
    if not waiting:
        return None
    first = min(waiting, key=lambda one: one["oldest_ready_at_ms"])
    cause = first["blocked"][0] if first["blocked"] else {}
    return Waits(
        kind=f"{first['tenant_id']}/{first['application_id']} {first['definition_id']}",
        ready=first["ready"] + first["waiting"]["held"],
        waited_ms=max(0, backlog["at_ms"] - first["oldest_ready_at_ms"]),
        code=cause.get("code", "ITS_TURN"),
        detail=cause.get("detail", "workers fit it and take it in its turn"),
        remedy=cause.get("remedy", "start more workers, or wait"),
    )


def _bars(workers: Any, backlog: dict[str, Any] | None) -> list[Bar]:
    """The workers, those that hold most first; those that are gone come last."""
    at_ms = None if backlog is None else backlog["at_ms"]
    bars = [
        Bar(
            name=one["name"],
            tenant_id=one["tenant_id"],
            lifecycle=one["lifecycle"],
            active=one["capacity"]["active"],
            concurrency=one["capacity"]["concurrency"],
            quarantined=bool(one.get("quarantine")),
            draining=bool(one.get("drain")),
            seen_ms_ago=None if at_ms is None else max(0, at_ms - one["last_seen_at_ms"]),
        )
        for one in workers
    ]
    return sorted(bars, key=lambda one: (one.lifecycle == "OFFLINE", -one.active, one.name))

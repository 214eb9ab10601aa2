"""What the daemon counts of itself, as Prometheus text, on a registry of its own.

Counting is plain integers on the event loop (a library counter costs a lock each time, and the
writer reports 40,000 operations a second); the library renders them at a scrape. No label ever
holds a worker or a tenant.
"""

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from feltd.api.request import Reply, Request, text_reply
from feltd.api.routes import Route
from feltd.errors import PastDeadline, Refused
from feltd.mesh import measures
from feltd.mesh.states import WORKER_LIFECYCLES, WORKLOAD_STATES

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Rows are counted again after this; a scrape in between shows the last look.
LOOK_EVERY_S = 5.0
#: Seconds; from the fastest commit on this kind of disk to the request deadline.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
#: The fenced verbs, whose refusals tell of superseded workers.
FENCED = frozenset({"start", "renew", "checkpoint", "complete", "fail", "release", "log"})


class Spread:
    """One histogram: counts by bucket and the sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, measured: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, measured)] += 1
        self.sum += measured

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as the text format wants them."""
        total, rows = 0, []
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            total += count
            rows.append((str(bound), float(total)))
        return rows


class Metrics:
    """The counts of one daemon; the observer of admission and of the writer. Loop only."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = {}
        self.request_seconds: dict[str, Spread] = {}
        self.sheds: dict[str, int] = {"in_flight": 0, "body_memory": 0}
        self.past_deadline: dict[str, int] = {"false": 0, "unknown": 0}
        self.fence_refusals: dict[str, int] = {}
        self.operations: dict[tuple[str, str], int] = {}
        self.wait_seconds = Spread()
        self.run_seconds = Spread()
        self.commit_seconds = Spread()
        self.batch_size = Spread(SIZES)
        self.claims = 0
        self.ends: dict[str, int] = {}
        self.outage_credit_ms = 0
        #: Rows cleared by compaction, by table, and how often it gave space back.
        self.compacted: dict[str, int] = {}
        self.logs_rewritten = 0
        self.looked: measures.Measures | None = None
        self.event_seq = 0
        #: Told of each keep-alive call that was shed: the writer counts it as not heard.
        self.on_shed_keep_alive: Callable[[], None] = lambda: None
        #: Told of each fenced write that was refused: somebody may be watching for it.
        self.on_fence_refused: Callable[[], None] = lambda: None
        self._looked_s = float("-inf")
        self._context: Any = None
        self._registry = CollectorRegistry(auto_describe=False)

    def watch(self, context: Any, event_seq: int) -> None:
        """Show the gauges of this daemon; events are counted after `event_seq`."""
        self._context = context
        self.event_seq = event_seq
        self._registry.register(self)

    # The observer of admission

    def shed(self, reason: str, keep_alive: bool) -> None:
        """A call was refused for lack of room."""
        self.sheds[reason] = self.sheds.get(reason, 0) + 1
        if keep_alive:
            self.on_shed_keep_alive()

    def answered(self, operation: str, status: int, seconds: float) -> None:
        """An HTTP call was answered."""
        key = (operation, status)
        self.requests[key] = self.requests.get(key, 0) + 1
        spread = self.request_seconds.get(operation)
        if spread is None:
            spread = self.request_seconds[operation] = Spread()
        spread.observe(seconds)

    def refused(self, operation: str, refused: Refused) -> None:
        """An answer was a refusal."""
        if operation in FENCED:
            self.fence_refused(refused.code)
        if isinstance(refused, PastDeadline):
            self.past_deadline[str(refused.facts["committed"]).lower()] += 1

    # The observer of the writer

    def operation(self, name: str, outcome: str, wait_s: float, run_s: float) -> None:
        """One operation was answered."""
        key = (name, outcome)
        self.operations[key] = self.operations.get(key, 0) + 1
        self.wait_seconds.observe(wait_s)
        self.run_seconds.observe(run_s)

    def batch(self, size: int, commit_s: float) -> None:
        """One transaction was committed or taken back."""
        self.batch_size.observe(size)
        self.commit_seconds.observe(commit_s)

    # Told by handlers and the daemon

    def fence_refused(self, code: str) -> None:
        """A fenced write was refused; an exchange tells it for each of its items."""
        self.fence_refusals[code] = self.fence_refusals.get(code, 0) + 1
        self.on_fence_refused()

    async def look(self) -> None:
        """Count the rows again when the last look is too old; a failing storage shows old ones."""
        if time.monotonic() - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = time.monotonic()
        try:
            found = await self._context.readers.read(measures.measure, self.event_seq)
        except Refused:
            return
        self.looked, self.event_seq = found, found.event_seq
        self.claims += found.claims
        for kind, times in found.ends.items():
            self.ends[kind] = self.ends.get(kind, 0) + times

    def text(self) -> bytes:
        """Everything, in the text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """The families; called by the library at each scrape."""
        yield from self._of_requests()
        yield from self._of_the_writer()
        yield from self._of_the_mesh()
        if self._context is not None:
            yield from _of_the_daemon(self._context)

    def _of_requests(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "feltd_requests", "HTTP calls answered", labels=("operation", "status")
        )
        for (operation, status), times in self.requests.items():
            requests.add_metric((operation, str(status)), times)
        yield requests
        seconds = HistogramMetricFamily(
            "feltd_request_seconds", "Time to the answer", labels=("operation",)
        )
        for operation, spread in self.request_seconds.items():
            seconds.add_metric((operation,), spread.buckets(), spread.sum)
        yield seconds
        yield _counters("feltd_requests_shed", "Calls refused for room", "reason", self.sheds)
        yield _counters(
            "feltd_request_deadline_exceeded",
            "Calls that ran past their deadline",
            "committed",
            self.past_deadline,
        )
        yield _counters(
            "feltd_fence_refusals", "Fenced writes refused", "code", self.fence_refusals
        )

    def _of_the_writer(self) -> Iterable[Metric]:
        for name, told, spread in (
            ("feltd_writer_wait_seconds", "Time an operation waited", self.wait_seconds),
            ("feltd_writer_run_seconds", "Time an operation ran", self.run_seconds),
            ("feltd_writer_commit_seconds", "Time of a COMMIT", self.commit_seconds),
            ("feltd_writer_batch_size", "Operations in one transaction", self.batch_size),
        ):
            family = HistogramMetricFamily(name, told)
            family.add_metric((), spread.buckets(), spread.sum)
            yield family

    def _of_the_mesh(self) -> Iterable[Metric]:
        yield _counter("feltd_claims", "Claims made since the start", self.claims)
        yield _counters("feltd_attempts_ended", "Claims ended", "end", self.ends)
        recovered = self.ends.get("lease_expired", 0)
        yield _counter("feltd_leases_recovered", "Claims ended by their lease", recovered)
        yield _counter(
            "feltd_outage_credit_ms", "Time given back after outages", self.outage_credit_ms
        )
        yield _counters("feltd_operations_compacted", "Rows cleared", "table", self.compacted)
        yield _counter("feltd_log_rewritten", "Times space was given back", self.logs_rewritten)
        if (looked := self.looked) is None:
            return
        states = dict.fromkeys(WORKLOAD_STATES, 0) | looked.workloads
        yield _gauges("feltd_workloads", "Workloads stored", "state", states)
        lifecycles = dict.fromkeys(WORKER_LIFECYCLES, 0) | looked.workers
        yield _gauges("feltd_workers", "Workers registered", "lifecycle", lifecycles)
        oldest_s = looked.oldest_ready_ms / 1_000
        for name, told, count in (
            ("feltd_oldest_ready_seconds", "Longest wait at a head", oldest_s),
            ("feltd_grants_expiring", "Grants ending in a week", looked.grants_expiring),
            ("feltd_keys_expiring", "Keys ending in a week", looked.keys_expiring),
            (
                "feltd_trigger_lag_changes",
                "Changes the slowest enabled trigger has not judged",
                looked.trigger_lag_changes,
            ),
            ("feltd_triggers_disabled", "Triggers that stand still", looked.triggers_disabled),
        ):
            yield _gauge(name, told, count)


def _of_the_daemon(context: Any) -> Iterable[Metric]:
    """Gauges read from the live parts."""
    admission, writer, health = context.stack.admission, context.writer, context.health
    path: Path = context.config.path
    health.look()
    for name, told, count in (
        ("feltd_in_flight", "Calls at work", admission.in_flight),
        ("feltd_long_polls", "Long polls parked", admission.long_polls),
        ("feltd_channels", "Channels of workers open", context.channels()),
        ("feltd_streams", "Event streams open", context.streams.open),
        ("feltd_connections", "Connections open", context.connections()),
        ("feltd_writer_queue", "Operations waiting for the writer", writer.waiting),
        ("feltd_wal_bytes", "Size of the write-ahead log", writer.wal_bytes),
        ("feltd_database_bytes", "Size of the database", path.stat().st_size),
        ("feltd_disk_free_bytes", "Free bytes beside the database", free_bytes(path)),
        ("feltd_backup_age_seconds", "Age of the newest backup; -1: none", context.backup_age_s()),
        ("feltd_storage_clean", "1: nothing unacknowledged was found", health.storage_sound),
        ("feltd_clock_healthy", "1: wall and lease clock agree", context.clock.healthy()),
    ):
        yield _gauge(name, told, float(count))
    if health.keeper is not None:
        records = health.keeper.records
        ages = {name: record.last_ok_ms / 1_000 for name, record in records.items()}
        yield _gauges("feltd_keeper_last_ok_seconds", "Unix time of success", "task", ages)
        failures = {name: record.failures for name, record in records.items()}
        yield _counters("feltd_keeper_failures", "Failures of a task", "task", failures)


def free_bytes(path: Path) -> int:
    """Bytes an unprivileged user may still write beside the database."""
    found = os.statvfs(path.parent)
    return found.f_bavail * found.f_frsize


def _counter(name: str, told: str, count: float) -> Metric:
    return CounterMetricFamily(name, told, value=count)


def _gauge(name: str, told: str, count: float) -> Metric:
    return GaugeMetricFamily(name, told, value=count)


def _counters(name: str, told: str, label: str, counts: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(name, told, labels=(label,))
    for key, count in counts.items():
        family.add_metric((key,), count)
    return family


def _gauges(name: str, told: str, label: str, counts: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, told, labels=(label,))
    for key, count in counts.items():
        family.add_metric((key,), count)
    return family


async def get_metrics(request: Request) -> Reply:
    """GET /metrics: Prometheus text."""
    await request.app.metrics.look()
    return text_reply(200, request.app.metrics.text(), MEDIA_TYPE)


def routes(metrics_open: bool) -> tuple[Route, ...]:
    """The one route; with `metrics_open` it asks for no key."""
    return (
        Route(
            method="GET",
            path="/metrics",
            operation="metrics",
            tag="health",
            handler=get_metrics,
            summary="Counters and gauges as Prometheus text",
            scope=None if metrics_open else "metrics:read",
            auth="none" if metrics_open else "scope",
            admission="exempt",
        ),
    )


ROUTES = routes(metrics_open=False)

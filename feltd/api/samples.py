"""The last hour and the last day of a daemon, in memory: what the console's plots show.

A chore of the keeper takes a sample every ten seconds out of counters that are kept anyway. Nothing
is stored: a restart begins anew, and Prometheus is the place for years. The samples are of the
whole daemon, so only who may see all of it reads them.
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from msgspec import Struct

from feltd.api.metrics import Metrics, Spread
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.clock import wall_ms
from feltd.errors import Refused
from feltd.mesh import pulse
from feltd.store.readers import Readers

EVERY_MS = 10_000
#: Samples of an hour, ten seconds each, and of a day, a minute each.
HOUR, DAY = 360, 1_440
#: Slices of events in one sample: 400,000 in ten seconds are far beyond what one writer does.
SLICES_MAX = 8
#: Calls that wait for something to happen: how long they take says nothing of the daemon.
WAITING = frozenset(
    {
        "pull",
        "exchange",
        "list_events",
        "list_changes",
        "get_workload",
        "get_group",
        "list_workload_logs",
        "channel",
        "console_stream",
    }
)


class Counts(Struct, frozen=True):
    """The counters at one moment: what ever happened, and spreads in seconds by bucket."""

    creations: int
    claims: int
    completions: int
    failures: int
    sheds: int
    fence_refusals: int
    requests: tuple[int, ...]
    commits: tuple[int, ...]


class Sample(Struct, frozen=True):
    """One stretch of time that ended at `at_ms` (wall). Rates are per second."""

    at_ms: int
    creations: float
    claims: float
    completions: float
    failures: float
    sheds: int
    fence_refusals: int
    request_p50_ms: float | None
    request_p99_ms: float | None
    commit_p99_ms: float | None


class Ring:
    """Samples of one length, the newest `length` of them."""

    def __init__(self, every_ms: int, length: int) -> None:
        self.every_ms = every_ms
        self.samples: deque[Sample] = deque(maxlen=length)
        self._before: Counts | None = None
        self._before_s = 0.0

    def take(self, counts: Counts, bounds: Sequence[float], at_s: float, at_ms: int) -> None:
        """Put down what happened since the last one, when that is long enough ago."""
        before, gone_s = self._before, at_s - self._before_s
        # A round may come a little early; half a tick is none.
        if before is not None and gone_s < self.every_ms / 1_000 - 0.5:
            return
        self._before, self._before_s = counts, at_s
        if before is not None:
            self.samples.append(_sample(before, counts, bounds, gone_s, at_ms))


class Samples:
    """What the console remembers of its daemon. Used on the event loop alone."""

    def __init__(self, metrics: Metrics, readers: Readers) -> None:
        self.hour = Ring(EVERY_MS, HOUR)
        self.day = Ring(60_000, DAY)
        self._metrics = metrics
        self._readers = readers
        self._event_seq: int | None = None
        self._happened = dict.fromkeys(("creations", "claims", "completions", "failures"), 0)

    def newest(self) -> Sample | None:
        """The last stretch of ten seconds; None before the first has ended."""
        return self.hour.samples[-1] if self.hour.samples else None

    async def take(self) -> None:
        """Take a sample now; the keeper's chore. A storage that fails leaves a gap."""
        try:
            await self._count()
        except Refused:
            return
        counts = self._counts()
        bounds = self._metrics.commit_seconds.bounds
        at_s, at_ms = time.monotonic(), wall_ms()
        self.hour.take(counts, bounds, at_s, at_ms)
        self.day.take(counts, bounds, at_s, at_ms)

    async def _count(self) -> None:
        if self._event_seq is None:
            self._event_seq = self._metrics.event_seq
        for _ in range(SLICES_MAX):
            found = await self._readers.read(pulse.happened, self._event_seq)
            self._event_seq = found.seq
            for name in self._happened:
                self._happened[name] += getattr(found, name)
            if found.whole:
                return

    def _counts(self) -> Counts:
        metrics = self._metrics
        spreads = [
            spread
            for operation, spread in metrics.request_seconds.items()
            if operation not in WAITING and not operation.endswith("_stream")
        ]
        return Counts(
            **self._happened,
            sheds=sum(metrics.sheds.values()),
            fence_refusals=sum(metrics.fence_refusals.values()),
            requests=_added(spreads, len(metrics.commit_seconds.counts)),
            commits=tuple(metrics.commit_seconds.counts),
        )


def percentile_ms(counts: Sequence[int], bounds: Sequence[float], share: float) -> float | None:
    """Where `share` of what was counted lies below, within its bucket on a straight line.

    None where nothing was counted. What lies beyond the last bound is told as that bound.
    """
    total = sum(counts)
    if not total:
        return None
    wanted, passed, low = share * total, 0, 0.0
    for count, bound in zip(counts, bounds, strict=False):
        if count and passed + count >= wanted:
            return round((low + (bound - low) * (wanted - passed) / count) * 1_000, 3)
        passed, low = passed + count, bound
    return round(bounds[-1] * 1_000, 3)


def _sample(
    before: Counts, after: Counts, bounds: Sequence[float], gone_s: float, at_ms: int
) -> Sample:
    def rate(name: str) -> float:
        more: int = getattr(after, name) - getattr(before, name)
        return round(more / gone_s, 3)

    requests = _more(before.requests, after.requests)
    return Sample(
        at_ms=at_ms,
        creations=rate("creations"),
        claims=rate("claims"),
        completions=rate("completions"),
        failures=rate("failures"),
        sheds=after.sheds - before.sheds,
        fence_refusals=after.fence_refusals - before.fence_refusals,
        request_p50_ms=percentile_ms(requests, bounds, 0.5),
        request_p99_ms=percentile_ms(requests, bounds, 0.99),
        commit_p99_ms=percentile_ms(_more(before.commits, after.commits), bounds, 0.99),
    )


def _more(before: Sequence[int], after: Sequence[int]) -> list[int]:
    return [new - old for old, new in zip(before, after, strict=True)]


def _added(spreads: Iterable[Spread], length: int) -> tuple[int, ...]:
    total = [0] * length
    for spread in spreads:
        for place, count in enumerate(spread.counts):
            total[place] += count
    return tuple(total)


class SamplesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How far back: an hour by ten seconds, a day by minutes."""

    span: Literal["hour", "day"] = "hour"


async def list_samples(request: Request) -> Reply:
    """GET /console/samples: a column for each thing that is plotted."""
    samples: Samples = request.app.samples
    ring = samples.hour if request.query(SamplesQuery).span == "hour" else samples.day
    rows = list(ring.samples)
    columns: dict[str, Any] = {
        name: [getattr(row, name) for row in rows] for name in Sample.__struct_fields__
    }
    return reply(200, {"every_ms": ring.every_ms} | columns, {"Cache-Control": "no-store"})


ROUTES = (
    Route(
        method="GET",
        path="/console/samples",
        operation="console_samples",
        tag="console",
        handler=list_samples,
        summary="The last hour or day in columns, for plots",
        scope="metrics:read",
        query=SamplesQuery,
        page=True,
    ),
)

"""Whether the daemon is well: what the start found, what the clocks and the keeper say.

`/health` answers from memory alone, so that it answers while the disk does not. Nothing here is a
promise: the storage label says what was seen, never that data is safe.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import structlog
from msgspec import Struct

from feltd import __version__
from feltd.api.repeats import submit_once
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.clock import LeaseClock, wall_ms
from feltd.errors import Refused
from feltd.mesh import ledger
from feltd.model.base import Ask
from feltd.model.health import HealthAnswer, NotReady, ReadinessAnswer, ReadyAnswer, Reason
from feltd.store.probe import Probe
from feltd.store.readers import Readers
from feltd.store.tx import Row

T = TypeVar("T")

CLEAN = "clean"
RECOVERED = "recovered-incomplete-write"
#: Without a finished round for so many ticks, or this long, the keeper has stopped keeping.
ROUNDS_MISSED = 5
ROUND_MS_MIN = 10_000
#: A WAL past this is held open by somebody's long read; past it every read gets slower.
WAL_BYTES_MAX = 64 * 1024 * 1024
#: Below this a checkpoint may not find room for what is committed.
DISK_FREE_BYTES_MIN = 64 * 1024 * 1024
#: SQLite from here on has the fix of the WAL-reset fault; these older ones have it too.
WAL_RESET_FIXED = (3, 51, 3)
WAL_RESET_BACKPORTS = ((3, 50, 7), (3, 44, 6))
READY_SHARED_MS = 1_000
#: How reasons begin that degrade the daemon: membership, clock, storage (what a foreign hand broke
#: among it), keeper, and the limits of WAL and disk. Others are told: a person has time to act.
DEGRADING = ("CLOCK_", "DISK_", "FOREIGN_", "KEEPER_", "MEMBERSHIP_", "STORAGE_", "WAL_")
#: Every 503 says when to ask again; a probe costs little.
RETRY_AFTER = {"Retry-After": "1"}

log = structlog.get_logger("feltd.health")


class Finding(NamedTuple):
    """What the start found: the storage label, its detail, and how the last run ended."""

    label: str = CLEAN
    detail: Mapping[str, int | None] | None = None
    last_stop: str = CLEAN


class Keeping(Protocol):
    """What health asks the keeper."""

    records: dict[str, Any]
    round_at_s: float


class Health:
    """The memory behind /health. `note` and the members may be set from any thread."""

    def __init__(
        self,
        finding: Finding,
        clock: LeaseClock,
        *,
        tick_ms: int = 1_000,
        transport: str = "http",
        auth: bool = True,
    ) -> None:
        self.finding = finding
        self.acknowledged = finding.label == CLEAN
        self.keeper: Keeping | None = None
        #: Lease time until which workers get the time back in which they could not be heard.
        self.recovering_until_ms = 0
        #: Why nothing is accepted any more, while the daemon stops; '' before.
        self.stopping = ""
        #: Whether the daemon has workers of its own.
        self.autonomous = False
        self._clock = clock
        self._tick_ms = tick_ms
        self._transport = transport
        self._auth = auth
        self._started_s = time.monotonic()
        self._reasons: dict[str, Reason] = {}
        if not self.acknowledged:
            self.note("STORAGE_RECOVERED", _told(finding))

    def note(self, code: str, detail: str | None) -> None:
        """Hold `detail` as a reason under `code` since its first note; None ends it."""
        if detail is None:
            self._reasons.pop(code, None)
            return
        before = self._reasons.get(code)
        since_at_ms = before.since_at_ms if before else wall_ms()
        self._reasons[code] = Reason(code, detail, since_at_ms)

    def acknowledge(self) -> None:
        """An operator has seen what the start found; it degrades nothing any more."""
        self.acknowledged = True
        self.note("STORAGE_RECOVERED", None)

    @property
    def storage_sound(self) -> bool:
        """Whether the storage is clean, or what was found is acknowledged, and works."""
        return self.acknowledged and not any(code.startswith("STORAGE_") for code in self._reasons)

    @property
    def damaged(self) -> bool:
        """Whether a check of the pages found damage."""
        return "STORAGE_DAMAGED" in self._reasons

    def look(self) -> dict[str, Any]:
        """The members of GET /health, judged now."""
        self._look_at_clock()
        self._look_at_keeper()
        recovering = self.recovering_until_ms > self._clock.now().lease_ms
        self.note(
            "MEMBERSHIP_RECOVERING",
            "workers are given back the time in which the daemon could not hear them"
            if recovering
            else None,
        )
        reasons = sorted(self._reasons.values(), key=lambda one: (one.since_at_ms, one.code))
        found = self.finding
        version = sqlite3.sqlite_version_info
        members: dict[str, Any] = {
            "status": overall_status(any(one.code.startswith(DEGRADING) for one in reasons)),
            "version": __version__,
            "git_commit": os.environ.get("FELTD_GIT_COMMIT") or "unknown",
            "runtime": "self-hosted",
            "storage": found.label,
            "fabric": "healthy",
            "membership": "recovering" if recovering else "healthy",
            "clock": "healthy" if self._clock.healthy() else "unhealthy",
            "keeper": "failing" if "KEEPER_FAILING" in self._reasons else "healthy",
            "execution": "autonomous" if self.autonomous else "external",
            "last_stop": found.last_stop,
            "transport": self._transport,
            "auth": "on" if self._auth else "off",
            "uptime_ms": int((time.monotonic() - self._started_s) * 1_000),
            "sqlite": {
                "version": sqlite3.sqlite_version,
                "wal_reset_affected": wal_reset_affected(version),
            },
            "reasons": reasons,
        }
        if found.detail is not None:
            members["storage_detail"] = dict(found.detail)
        return members

    def _look_at_clock(self) -> None:
        skew_ms = self._clock.skew_ms()
        self.note(
            "CLOCK_STEPPED",
            None
            if self._clock.healthy()
            else f"the wall clock is {skew_ms} ms from the lease clock; leases follow the latter",
        )

    def _look_at_keeper(self) -> None:
        if self.keeper is None:
            return
        failing = [
            f"{name} failed {record.failing} times in a row, last success at "
            f"{record.last_ok_ms or 'no time'}: {record.trouble}"
            for name, record in self.keeper.records.items()
            if record.failing
        ]
        silent_ms = (time.monotonic() - self.keeper.round_at_s) * 1_000
        if silent_ms > max(ROUNDS_MISSED * self._tick_ms, ROUND_MS_MIN):
            failing.append(f"no round has ended for {int(silent_ms)} ms")
        self.note("KEEPER_FAILING", "; ".join(failing) or None)


def overall_status(reasons: bool) -> str:
    """`healthy` iff nothing stands against it."""
    return "degraded" if reasons else "healthy"


def wal_reset_affected(version: tuple[int, ...]) -> bool:
    """Whether this SQLite can lose commits when two connections write and checkpoint.

    feltd keeps to one writer that alone checkpoints, so it is told, not suffered.
    """
    if version >= WAL_RESET_FIXED or version < (3, 7, 0):
        return False
    return not any(version[:2] == fixed[:2] and version >= fixed for fixed in WAL_RESET_BACKPORTS)


def _told(finding: Finding) -> str:
    found = dict(finding.detail or {})
    told = []
    if found.get("discarded_bytes"):
        told.append(
            f"{found['discarded_bytes']} bytes of an incomplete write at byte "
            f"{found['byte_offset']} of the WAL were discarded"
        )
    if "missing_commits" in found:
        missing = found["missing_commits"]
        count = "an unknown number of commits" if missing is None else f"{missing} commits"
        told.append(f"the database is an earlier one: {count} are missing; live claims ended")
    return "; ".join(told) or "the storage was recovered"


class ReadyQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`strict`: also not ready while a recovered storage is not acknowledged."""

    strict: bool = False


class Shared(Generic[T]):
    """One answer for all who ask within a second, made once however many wait for it."""

    def __init__(self, make: Callable[[], Awaitable[T]], shared_ms: int = READY_SHARED_MS) -> None:
        self._make = make
        self._shared_ms = shared_ms
        self._task: asyncio.Future[T] | None = None
        self._made_s = 0.0

    async def get(self) -> T:
        """The shared answer, or the refusal everybody shares."""
        fresh = time.monotonic() - self._made_s < self._shared_ms / 1_000
        if self._task is None or (self._task.done() and not fresh):
            self._task = asyncio.ensure_future(self._make())
            self._task.add_done_callback(self._done)
        return await asyncio.shield(self._task)

    def _done(self, task: asyncio.Future[T]) -> None:
        self._made_s = time.monotonic()
        if not task.cancelled():
            # Looked at here, so that an answer nobody waits for leaves no warning behind.
            task.exception()


async def get_health(request: Request) -> Reply:
    """GET /health: always 200, from memory."""
    return reply(200, request.app.health.look())


async def get_ready(request: Request) -> Reply:
    """GET /health/ready: a real read and a write at most five seconds old, within one second."""
    query = request.query(ReadyQuery)
    app = request.app
    health: Health = app.health
    members: dict[str, Any] = {
        "ready": True,
        "storage": health.finding.label,
        "durable_format": f"feltd-sqlite/{app.schema_version}",
    }
    started_s = time.monotonic()
    try:
        if health.stopping:
            raise Refused("STORAGE_UNAVAILABLE", health.stopping)
        if health.damaged:
            raise Refused("STORAGE_PROBE_FAILED", "the database is damaged")
        members["probe_ms"] = await app.probe.ready()
    except Refused as refused:
        return reply(
            503,
            NotReady(
                error=refused.detail,
                code=refused.code,
                probe_ms=int((time.monotonic() - started_s) * 1_000),
            ),
            RETRY_AFTER,
        )
    if query.strict and not health.acknowledged:
        return reply(503, members | {"ready": False}, RETRY_AFTER)
    return reply(200, members)


async def durable_ledger(probe: Probe, readers: Readers) -> Row:
    """The ledger after one durable write. Refuses STORAGE_PROBE_FAILED; the log says why."""
    try:
        await probe.durable()
        return await readers.read(ledger.read, None)
    except Refused as refused:
        log.error("readiness worker failed", code=refused.code, detail=refused.detail)
        told = "readiness check temporarily unavailable"
        raise Refused("STORAGE_PROBE_FAILED", told, committed=False) from refused


async def get_readiness(request: Request) -> Reply:
    """GET /v1/readiness: one durable write, shared by all who ask within a second."""
    app = request.app
    found = await app.readiness.get()
    return reply(
        200,
        {
            "status": "ready",
            "authority": "sqlite",
            "state_version": found["commit_seq"],
            "instance_id": found["instance_id"],
            "storage": app.health.finding.label,
        },
    )


async def acknowledge_storage(request: Request) -> Reply:
    """POST /v1/health/acknowledge: what the start found degrades nothing any more."""
    ask = Ask(caller=request.caller, body=None, id=request.app.health.finding.label)
    await submit_once(request, ledger.acknowledge, ask)
    request.app.health.acknowledge()
    return reply(204)


ROUTES = (
    Route(
        method="GET",
        path="/health",
        also=("/v1/health",),
        operation="health",
        tag="health",
        handler=get_health,
        summary="How the daemon is, from memory",
        auth="none",
        admission="exempt",
        answer=HealthAnswer,
        responses={200: "Process liveness"},
    ),
    Route(
        method="GET",
        path="/health/ready",
        operation="ready",
        tag="health",
        handler=get_ready,
        summary="Whether the storage answers",
        auth="none",
        admission="exempt",
        query=ReadyQuery,
        answer=ReadyAnswer,
        responses={200: "Storage and scoped-operation readiness", 503: "Not ready"},
        plain={503: NotReady | ReadyAnswer},
    ),
    Route(
        method="GET",
        path="/v1/readiness",
        operation="readiness",
        tag="health",
        handler=get_readiness,
        summary="Whether a durable write succeeds",
        answer=ReadinessAnswer,
        auth="any",
        admission="exempt",
    ),
    Route(
        method="POST",
        path="/v1/health/acknowledge",
        operation="acknowledge",
        tag="health",
        handler=acknowledge_storage,
        summary="Take note of what the start found",
        scope="daemon:operate",
        status=204,
    ),
)

"""Health as it crosses the wire: what the daemon is seen to be, and why it is not well.

Observations only; no member promises anything about the data.
"""

from typing import Literal

from msgspec import Struct

from feltd.model.base import Count, Instant

StorageLabel = Literal["clean", "recovered-incomplete-write"]


class Reason(Struct, frozen=True):
    """One reason why the daemon is degraded; `since_at_ms` is wall time."""

    code: str
    detail: str
    since_at_ms: Instant


class StorageDetail(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was discarded of the WAL, or how many commits are missing (null: nobody knows)."""

    byte_offset: Count = 0
    discarded_bytes: Count = 0
    missing_commits: Count | None = 0


class Engine(Struct, frozen=True):
    """The SQLite in use."""

    version: str
    wal_reset_affected: bool


class HealthAnswer(Struct, frozen=True, kw_only=True):
    """`GET /health`."""

    status: Literal["healthy", "degraded"]
    version: str
    git_commit: str
    runtime: Literal["self-hosted"]
    storage: StorageLabel
    storage_detail: StorageDetail | None = None
    fabric: Literal["healthy"]
    membership: Literal["healthy", "recovering"]
    clock: Literal["healthy", "unhealthy"]
    keeper: Literal["healthy", "failing"]
    execution: Literal["autonomous", "external"]
    last_stop: Literal["clean", "unclean"]
    transport: Literal["http", "https"]
    auth: Literal["on", "off"]
    uptime_ms: Count
    sqlite: Engine
    reasons: tuple[Reason, ...]


class ReadyAnswer(Struct, frozen=True, kw_only=True):
    """`GET /health/ready`, also with 503 while strictly not ready."""

    ready: bool
    storage: StorageLabel
    durable_format: str
    probe_ms: Count


class NotReady(Struct, frozen=True, kw_only=True):
    """`GET /health/ready` when the probe failed; `error` says how, `code` is one of the table."""

    ready: Literal[False] = False
    error: str
    code: str
    probe_ms: Count


class ReadinessAnswer(Struct, frozen=True, kw_only=True):
    """`GET /v1/readiness`; `state_version` counts commits."""

    status: Literal["ready"]
    authority: Literal["sqlite"]
    state_version: Count
    instance_id: str
    storage: StorageLabel

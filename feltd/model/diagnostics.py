"""What a daemon tells of itself for whoever looks after it: `GET /v1/diagnostics`.

Never a bearer, a password, a digest, or the input, output or state of anybody's work.
"""

from typing import Any

from msgspec import Struct

from feltd.model.base import Count, Instant
from feltd.model.checkup import Checkup
from feltd.model.health import HealthAnswer


class KeeperRecord(Struct, frozen=True, kw_only=True):
    """How one periodic task has fared; `last_ok_at_ms` 0: never yet."""

    last_ok_at_ms: Instant
    failing: Count
    failures: Count
    changed: Count
    trouble: str


class RecentRefusal(Struct, frozen=True, kw_only=True):
    """One call that was refused."""

    at_ms: Instant
    operation: str
    code: str
    status: int
    request_id: str


class Place(Struct, frozen=True, kw_only=True):
    """Where the daemon runs and what it has open."""

    pid: int
    python: str
    system: str
    data: str
    keyring: str
    backup_dir: str
    wal_bytes: Count
    database_bytes: Count
    disk_free_bytes: Count
    connections: Count
    in_flight: Count
    long_polls: Count
    streams: Count
    writer_queue: Count


class Diagnostics(Struct, frozen=True, kw_only=True):
    """`parts` that could not be read are left out and named in `missing` with the reason."""

    at_ms: Instant
    version: str
    health: HealthAnswer
    config: dict[str, Any]
    config_from: dict[str, str]
    place: Place
    keeper: dict[str, KeeperRecord]
    refusals: dict[str, Count]
    recent_refusals: list[RecentRefusal]
    log: list[str]
    metrics: str
    missing: dict[str, str]
    checkup: Checkup | None = None
    rows: dict[str, Count] | None = None
    pragmas: dict[str, Any] | None = None
    schema: list[str] | None = None

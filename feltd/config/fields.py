"""The settings themselves: a field each, its unit in its name, its bounds and reason beside it."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

DAY_MS = 86_400_000
YEARS_MS = 3_650 * DAY_MS


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings; lower and upper bounds are inclusive."""

    data: Annotated[str, Meta(min_length=1, description="the database file")] = "feltd.db"
    host: Annotated[str, Meta(min_length=1, description="address to bind")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="TCP port; 0 takes a free one")] = 7610
    fd: Annotated[
        Annotated[int, Meta(ge=3)] | None,
        Meta(description="a listening socket handed in; 0-2 are stdio"),
    ] = None
    namespace: Annotated[
        str,
        Meta(
            pattern=r"\A(?!\.{1,2}\Z)[A-Za-z0-9._@+\-]{1,128}\Z",
            description="keys work only on a daemon whose namespace they list",
        ),
    ] = "default"
    max_in_flight: Annotated[
        int,
        Meta(
            ge=1,
            le=4_096,
            description="requests at work at once; the database serialises, so more only hides "
            "overload",
        ),
    ] = 64
    request_deadline_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=600_000,
            description="time at work; below 100 ms a slow disk would refuse everything",
        ),
    ] = 10_000
    body_deadline_ms: Annotated[
        int, Meta(ge=100, le=600_000, description="a body must have arrived by then")
    ] = 10_000
    max_connections: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="surplus connections are cut; 256 file descriptors stay free beside them",
        ),
    ] = 2_048
    max_connections_per_address: Annotated[
        int, Meta(ge=1, le=100_000, description="so that one client cannot take them all")
    ] = 512
    graceful_ms: Annotated[
        int, Meta(ge=100, le=600_000, description="a stop ends within it; TimeoutStopSec is above")
    ] = 10_000
    tick_ms: Annotated[
        int, Meta(ge=10, le=60_000, description="one keeper round; failures show a tick late")
    ] = 1_000
    heartbeat_interval_ms: Annotated[
        int,
        Meta(ge=1_000, le=300_000, description="default for workers; below 1 s is only load"),
    ] = 10_000
    heartbeat_timeout_ms: Annotated[
        int, Meta(ge=2_000, le=3_600_000, description="default; at least two beats may be lost")
    ] = 30_000
    on_worker_lost: Annotated[
        Literal["end", "lease"],
        Meta(description="a failed worker's claims end at once, or run to their lease's end"),
    ] = "end"
    allowed_origins: Annotated[
        tuple[str, ...], Meta(description="exact origins browsers may call from; they add up")
    ] = ()
    audit: Annotated[
        str | None, Meta(description="append each audit row to this file, one JSON a line")
    ] = None
    metrics_open: Annotated[bool, Meta(description="/metrics without a key")] = False
    open_signup: Annotated[
        bool, Meta(description="people may make themselves users; they have no role until given")
    ] = False
    hold_claims: Annotated[
        bool, Meta(description="start with everybody's work held, until the hold is deleted")
    ] = False
    keyring: Annotated[
        str | None,
        Meta(description="signing keys; default signing.keyring, handed over or by the database"),
    ] = None
    accept_clock: Annotated[
        bool, Meta(description="start although the wall clock is a day behind the stored mark")
    ] = False
    check_at_start: Annotated[
        bool, Meta(description="read every page before serving, after a clean stop too")
    ] = False
    tls_cert: Annotated[str | None, Meta(description="PEM certificate chain")] = None
    tls_key: Annotated[str | None, Meta(description="PEM private key of it")] = None
    trust_proxy: Annotated[
        tuple[str, ...],
        Meta(
            description="networks of proxies before feltd; their X-Forwarded-For and -Proto count"
        ),
    ] = ()
    insecure_http: Annotated[bool, Meta(description="clear text outside loopback")] = False
    no_auth: Annotated[bool, Meta(description="no keys; loopback only")] = False
    worker: Annotated[
        bool, Meta(description="run the programs of tenants whose grants name feltd-executor")
    ] = False
    backup_dir: Annotated[
        str | None, Meta(description="folder of backups; default backups beside the database")
    ] = None
    backup_keep: Annotated[
        int, Meta(ge=1, le=500, description="older backups of this database are removed")
    ] = 14
    replica: Annotated[
        str | None, Meta(description="URL or folder that Litestream replicates the database to")
    ] = None
    retain_changes_ms: Annotated[
        int, Meta(ge=0, le=YEARS_MS, description="changes of records nobody waits for; 0: for ever")
    ] = DAY_MS
    consumer_limit_ms: Annotated[
        int, Meta(ge=0, le=YEARS_MS, description="a consumer so far behind is dropped; 0: never")
    ] = DAY_MS
    retain_workloads_ms: Annotated[
        int, Meta(ge=0, le=YEARS_MS, description="COMPLETED and CANCELLED work; 0: for ever")
    ] = 7 * DAY_MS
    retain_dead_letters_ms: Annotated[
        int, Meta(ge=0, le=YEARS_MS, description="dead letters; 0: until somebody decides")
    ] = 0
    retain_deleted_ms: Annotated[
        int,
        Meta(ge=0, le=YEARS_MS, description="keys of cleared work, versions of deleted records"),
    ] = 7 * DAY_MS
    retain_decisions_ms: Annotated[
        int, Meta(ge=0, le=YEARS_MS, description="placement decisions; 0: for ever")
    ] = 7 * DAY_MS
    retain_events_ms: Annotated[
        int, Meta(ge=0, le=YEARS_MS, description="events; a feed further behind is told 410")
    ] = 30 * DAY_MS
    retain_audit_ms: Annotated[
        int, Meta(ge=0, le=YEARS_MS, description="audit rows whose events are gone; 0: for ever")
    ] = 365 * DAY_MS
    retain_workers_ms: Annotated[
        int, Meta(ge=0, le=YEARS_MS, description="removed and silent workers without claims")
    ] = 30 * DAY_MS
    retain_keys_ms: Annotated[
        int, Meta(ge=0, le=YEARS_MS, description="worker keys and sessions that ended; 0: for ever")
    ] = 30 * DAY_MS
    compact_every_ms: Annotated[
        int, Meta(ge=100, le=DAY_MS, description="how often what is past its time is cleared")
    ] = 60_000

    @property
    def path(self) -> Path:
        """The database file, absolute."""
        return Path(self.data).absolute()

    @property
    def audit_path(self) -> Path | None:
        """The file audit rows are appended to, absolute."""
        return None if self.audit is None else Path(self.audit).absolute()

    @property
    def keyring_path(self) -> Path:
        """The file of signing keys, absolute."""
        if self.keyring is not None:
            return Path(self.keyring).absolute()
        return self.path.parent / "signing.keyring"

    @property
    def backup_path(self) -> Path:
        """The folder backups are put into, absolute."""
        if self.backup_dir is not None:
            return Path(self.backup_dir).absolute()
        return self.path.parent / "backups"

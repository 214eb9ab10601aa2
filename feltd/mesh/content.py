"""What a registration says, checked, bounded by its grant, and written as the columns of a worker.

Pure: nothing is read or stored here. A registration whose columns are the row's changes nothing.
"""

from msgspec import to_builtins
from msgspec.json import encode

from feltd.errors import Refused
from feltd.mesh import secrets, terms
from feltd.model.grant import Grant
from feltd.model.worker import CONCURRENCY_MAX, HEARTBEAT_TIMEOUT_MS_MAX, Registration

#: Columns a registration says; the row differs in one of them: changed content.
COLUMNS = (
    "runtime",
    "version",
    "declared_capabilities",
    "granted_capabilities",
    "workload_kinds",
    "resource_profile",
    "labels",
    "concurrency",
    "heartbeat_interval_ms",
    "heartbeat_timeout_ms",
    "authorization_grant_id",
    "authority_expires_at_ms",
)


def check(told: Registration) -> None:
    """Refuse WORKER_INVALID for what the members alone cannot show, and secrets in labels."""
    concurrency = told.capacity.concurrency
    interval_ms, timeout_ms = told.heartbeat_interval_ms, told.heartbeat_timeout_ms
    if concurrency < 1:
        raise _invalid("/capacity/concurrency", "concurrency must be positive")
    if concurrency > CONCURRENCY_MAX:
        raise _invalid("/capacity/concurrency", f"concurrency is at most {CONCURRENCY_MAX}")
    if interval_ms is not None and timeout_ms is not None and timeout_ms < 2 * interval_ms:
        raise _invalid(
            "/heartbeat_timeout_ms",
            f"heartbeat_timeout_ms {timeout_ms} is less than twice"
            f" heartbeat_interval_ms {interval_ms}",
        )
    secrets.screen_labels(told.labels)


def columns(
    told: Registration, grant: Grant | None, *, interval_ms: int, timeout_ms: int
) -> dict[str, object]:
    """The columns of COLUMNS that this registration comes to under its grant.

    `interval_ms` and `timeout_ms` are the daemon's, for a worker that names none. Refuses
    WORKER_UNAUTHORIZED for what the grant does not allow.
    """
    offer = terms.Offer(
        runtime=told.runtime,
        declared=told.capabilities,
        workload_kinds=told.workload_kinds,
        labels=told.labels,
    )
    allowed = terms.of(grant, offer)
    cap = None if grant is None else grant.constraints.max_concurrency
    if cap is not None and told.capacity.concurrency > cap:
        raise Refused("WORKER_UNAUTHORIZED", f"the grant allows a concurrency of at most {cap}")
    beat_ms, silence_ms = _pace(told, grant, interval_ms, timeout_ms)
    return {
        "runtime": told.runtime,
        "version": told.version,
        "declared_capabilities": _text(allowed.declared),
        "granted_capabilities": _text(allowed.granted),
        "workload_kinds": _text(allowed.workload_kinds),
        "resource_profile": _text(to_builtins(told.resource_profile)),
        "labels": _text(allowed.labels),
        "concurrency": told.capacity.concurrency,
        "heartbeat_interval_ms": beat_ms,
        "heartbeat_timeout_ms": silence_ms,
        "authorization_grant_id": None if grant is None else grant.id,
        "authority_expires_at_ms": None if grant is None else grant.chain_expires_at_ms,
    }


def _pace(
    told: Registration, grant: Grant | None, default_interval_ms: int, default_timeout_ms: int
) -> tuple[int, int]:
    """Interval and timeout: as said, else the daemon's, fitted to the one that was said."""
    cap_ms = None if grant is None else grant.constraints.heartbeat_timeout_ms
    interval_ms, timeout_ms = told.heartbeat_interval_ms, told.heartbeat_timeout_ms
    if timeout_ms is None:
        timeout_ms = max(default_timeout_ms, 2 * (interval_ms or 0))
        timeout_ms = min(timeout_ms, cap_ms or HEARTBEAT_TIMEOUT_MS_MAX)
    if cap_ms is not None and timeout_ms > cap_ms:
        raise Refused(
            "WORKER_UNAUTHORIZED", f"the grant allows a heartbeat_timeout_ms of at most {cap_ms}"
        )
    if interval_ms is None:
        interval_ms = min(default_interval_ms, timeout_ms // 2)
    if timeout_ms < 2 * interval_ms:
        raise Refused(
            "WORKER_UNAUTHORIZED",
            f"heartbeat_interval_ms {interval_ms} is too long for the grant's {timeout_ms}",
        )
    return interval_ms, timeout_ms


def _invalid(pointer: str, detail: str) -> Refused:
    return Refused("WORKER_INVALID", detail, errors=[{"pointer": pointer, "detail": detail}])


def _text(value: object) -> str:
    return encode(value, order="deterministic").decode()

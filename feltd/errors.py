"""The one table of refusals, and the exception that carries one.

Every refusal a client can meet is a row here: its status and what the client does `next`; what
`GET /errors/<CODE>` tells beside that is in api/explain.py. There is no default row: anything that
is not a `Refused` is a fault of feltd and answers INTERNAL. This file imports nothing of feltd.
"""

from typing import Any, NamedTuple


class Code(NamedTuple):
    """One refusal: `status` is its HTTP status, `next` one of NEXTS, `title` a short sentence."""

    code: str
    status: int
    next: str
    title: str


NEXTS = (
    "repeat",
    "wait",
    "pull",
    "drop_claim",
    "reconcile",
    "register",
    "fix_clock",
    "fix_request",
    "stop",
    "ask_operator",
)

_ROWS = (
    Code("WORKER_INVALID", 422, "fix_request", "The call about a worker does not fit"),
    Code("WORKER_UNAUTHORIZED", 403, "stop", "The grant does not allow this worker"),
    Code("WORKER_NOT_FOUND", 404, "register", "Worker not found"),
    Code(
        "WORKER_HEARTBEAT_REJECTED",
        409,
        "register",
        "The heartbeat names another worker, version or capability version",
    ),
    Code(
        "WORKER_CLOCK_INVALID", 409, "fix_clock", "The worker's clock is too far from the daemon's"
    ),
    Code(
        "WORKER_RECOVERY_REQUIRED",
        409,
        "reconcile",
        "An offline worker must reconcile first, or stop if it was drained",
    ),
    Code("WORKER_TRANSITION_DENIED", 409, "fix_request", "The lifecycle has no such edge"),
    Code("WORKER_BUSY", 409, "ask_operator", "The worker or its name is in use"),
    Code("WORKER_POOL_EXISTS", 409, "fix_request", "Worker pool exists"),
    Code("WORKER_POOL_NOT_FOUND", 404, "fix_request", "Worker pool not found"),
    Code(
        "WORKER_RECONCILIATION_DENIED", 409, "register", "The reconciliation names another contract"
    ),
    Code("MESH_NO_ELIGIBLE_WORKER", 409, "ask_operator", "No worker may take this workload now"),
    Code("MESH_PLACEMENT_DENIED", 409, "pull", "This worker may not take this workload now"),
    Code("MESH_CLAIM_SCOPE_DENIED", 403, "drop_claim", "The claim is not the caller's"),
    Code("MESH_STALE_FENCE", 409, "drop_claim", "The token is older than one seen, or not live"),
    Code(
        "MESH_CAPABILITY_DENIED",
        403,
        "drop_claim",
        "The worker no longer holds the claim's capabilities",
    ),
    Code("MESH_STORAGE_FAILURE", 503, "repeat", "The storage failed while changing a worker"),
    Code("GRANT_INVALID", 422, "stop", "The grant does not fit"),
    Code("GRANT_NOT_FOUND", 404, "stop", "No such grant"),
    Code("GRANT_DENIED", 403, "stop", "The grant is not usable by the caller"),
    Code("KEY_NOT_FOUND", 404, "fix_request", "No such key"),
    Code("USER_NOT_FOUND", 404, "fix_request", "No such user"),
    Code("USER_EXISTS", 409, "fix_request", "The name is taken"),
    Code("HOLD_NOT_FOUND", 404, "fix_request", "No such hold"),
    Code("CLAIM_NOT_FOUND", 404, "fix_request", "No such claim"),
    Code("GROUP_NOT_FOUND", 404, "fix_request", "No such group"),
    Code("PLACEMENT_NOT_FOUND", 404, "fix_request", "No such placement decision"),
    Code("WORKLOAD_NOT_FOUND", 404, "fix_request", "No such workload"),
    Code("WORKLOAD_INVALID", 422, "fix_request", "The workload does not fit"),
    Code("WORKLOAD_STALE_FENCE", 409, "drop_claim", "The claim has ended"),
    Code("WORKLOAD_TRANSITION_DENIED", 409, "fix_request", "The state has no such edge"),
    Code("WORKLOAD_NOT_READY", 409, "pull", "The workload is not waiting"),
    Code("WORKLOAD_NOT_YET_ELIGIBLE", 409, "wait", "The workload may not run yet"),
    Code("WORKLOAD_UNAUTHORIZED", 403, "stop", "The grant does not cover the workload"),
    Code(
        "WORKLOAD_CAPABILITY_DENIED", 403, "pull", "The worker lacks a capability of the workload"
    ),
    Code("WORKLOAD_DEPENDENCY_INVALID", 422, "fix_request", "A dependency is not there"),
    Code("WORKLOAD_IDEMPOTENCY_CONFLICT", 409, "fix_request", "The key names other work"),
    Code("WORKLOAD_SECRET_IN_TEXT", 422, "fix_request", "The text looks like a secret"),
    Code("WORKLOAD_STORAGE_FAILURE", 503, "repeat", "The storage failed while changing a workload"),
    Code("REQUEST_MALFORMED", 400, "fix_request", "The request cannot be read"),
    Code("REQUEST_INVALID", 422, "fix_request", "The request does not fit"),
    Code("REQUEST_TOO_LARGE", 413, "fix_request", "The request is too large"),
    Code("QUOTA_EXCEEDED", 429, "wait", "The tenant has as many as it may have"),
    Code("LOGIN_THROTTLED", 429, "wait", "Too many attempts to log in"),
    Code("REQUEST_TIMEOUT", 408, "repeat", "The body did not arrive in time"),
    Code("MEDIA_TYPE_UNSUPPORTED", 415, "fix_request", "The body is not plain JSON"),
    Code("UPGRADE_REQUIRED", 426, "fix_request", "The path is a WebSocket"),
    Code("PROTOCOL_UNSUPPORTED", 400, "fix_request", "Another protocol version was asked for"),
    Code("UNAUTHENTICATED", 401, "stop", "No valid key came with the request"),
    Code("FORBIDDEN", 403, "stop", "The key does not allow this"),
    Code("RECORD_NOT_FOUND", 404, "fix_request", "No such record"),
    Code("RECORD_CONFLICT", 412, "fix_request", "The record is not as the call expects it"),
    Code("RECORD_INVALID", 422, "fix_request", "The record does not fit"),
    Code("CONSUMER_NOT_FOUND", 404, "fix_request", "No such consumer"),
    Code("TRIGGER_INVALID", 400, "fix_request", "The trigger does not fit"),
    Code("TRIGGER_UNAUTHORIZED", 400, "fix_request", "The grant does not cover the trigger"),
    Code("TRIGGER_NOT_FOUND", 404, "fix_request", "No such trigger"),
    Code(
        "TRIGGER_STATE_REPLAY_FAILED",
        503,
        "ask_operator",
        "Changes that the trigger has not judged are gone",
    ),
    Code("TRIGGER_STORAGE_FAILURE", 503, "repeat", "The storage failed while changing a trigger"),
    Code("CONSUMER_BEHIND", 409, "fix_request", "The consumer has acknowledged more already"),
    Code("CHANGES_COMPACTED", 410, "ask_operator", "Changes behind that number are not kept"),
    Code("EVENTS_COMPACTED", 410, "ask_operator", "Events behind that number are not kept"),
    Code("ROUTE_NOT_FOUND", 404, "fix_request", "No such path"),
    Code("METHOD_NOT_ALLOWED", 405, "fix_request", "The path has no such method"),
    Code("SERVICE_OVERLOADED", 503, "repeat", "The daemon is at its limit"),
    Code("OUTCOME_UNKNOWN", 503, "repeat", "The call ran past its deadline"),
    Code("STORAGE_UNAVAILABLE", 503, "repeat", "The storage does not answer"),
    Code("STORAGE_PROBE_FAILED", 503, "repeat", "The storage probe failed"),
    Code("STORAGE_STALLED", 503, "repeat", "The storage is too slow"),
    Code("STORAGE_BUSY", 503, "repeat", "Somebody else holds the database"),
    Code("STORAGE_FULL", 503, "repeat", "The disk is full"),
    Code("INTERNAL", 500, "ask_operator", "The daemon has a fault"),
)

TABLE: dict[str, Code] = {row.code: row for row in _ROWS}


class Refused(Exception):
    """A refusal the caller can act on.

    `facts` become members of the problem document; the fact `next` replaces the table's. A code
    that is not in the table cannot be raised.
    """

    def __init__(self, code: str, detail: str, **facts: Any) -> None:
        super().__init__(f"{code}: {detail}")
        self.row = TABLE[code]
        self.code = code
        self.detail = detail
        self.facts = facts

    @property
    def next(self) -> str:
        """What the client does now."""
        return str(self.facts.get("next", self.row.next))

    @property
    def status(self) -> int:
        """The HTTP status of the code."""
        return self.row.status


class PastDeadline(Refused):
    """A call ran past its deadline: not begun (`committed` False), or begun and not over yet."""

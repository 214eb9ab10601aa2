"""The words of `why`: every code with what it means, and how instants, lists and ids are written.

A cause is one sentence about what is, and one about what changes it, with the command that does.
Pure: what is said was read by others. Commands name ids, never names, so that they can be pasted.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from feltd.clock import Now

#: Every code of a cause. Those of one worker are named after the rule that fails.
CODES: dict[str, str] = {
    "DEPENDENCY_UNFINISHED": "it waits for the end of other work",
    "DEPENDENCIES_MORE": "more unfinished dependencies than are told one by one",
    "SETTLING": "all it waited for has ended, and the keeper is about to tell it",
    "NOT_BEFORE": "its not_before has not come",
    "BACKOFF": "an attempt failed, and the next waits",
    "DUE": "its time has come, and the keeper is about to offer it",
    "TIMEOUT_PASSED": "a timeout has passed, and the keeper is about to end it",
    "TIMEOUT_AHEAD": "a timeout ends it unless something happens before",
    "HELD": "a hold keeps it from being claimed",
    "WORKER_POOL_NOT_FOUND": "the pool it names is not there",
    "POOL_FULL": "its pool holds as many claims as its ceiling",
    "KEY_FULL": "its concurrency key is at its limit",
    "RATE_FULL": "its rate key is at its limit",
    "OPENING": "what kept it back has room again, and the keeper is about to open it",
    "NO_WORKER": "no worker is registered in its application",
    "NO_CAPABILITY": "no worker was granted what it asks for",
    "NO_FRESH_WORKER": "workers fit it, and none of them is heard",
    "NO_MATCH": "no worker fits it",
    "WORKERS_UNREAD": "more workers than one look compares",
    "BEHIND": "better ranked work comes first",
    "LEFT_FOR_BETTER": "it is left for a worker that has more of its affinity labels",
    "CLAIMABLE": "a worker could take it now, at its next pull",
    "CLAIMED": "a worker holds it and has not started it",
    "RUNNING": "a worker runs it",
    "CHECKPOINTED": "a worker runs it, and has stored how far it came",
    "ASSIGNED": "it was given to a worker that has not named it yet",
    "LEASE_OVER": "its lease has ended, and the keeper is about to take it back",
    "HOLDER_SILENT": "the worker that holds it is not heard",
    "CANCEL_REQUESTED": "its holder was asked to stop",
    "DEAD_LETTER": "it was given up",
    "COMPLETED": "it is done",
    "CANCELLED": "it was called off",
    "STATE_UNKNOWN": "its row says what is no state: a foreign hand wrote it",
    "WORKER_NOT_READY": "the worker is not READY",
    "WORKER_DRAINING": "the worker is draining",
    "WORKER_QUARANTINED": "the worker is quarantined",
    "WORKER_FULL": "the worker holds as many claims as its concurrency",
    "WORKER_UNHEALTHY": "the worker does not report HEALTHY",
    "WORKER_STALE": "the worker was not heard within its heartbeat timeout",
    "WORKER_UNAUTHORIZED": "the worker's grant has ended or is being compared",
    "GRANT_ENDS": "the worker's grant ends soon",
    "CAPABILITY_MISSING": "the worker was not granted every capability",
    "DEFINITION_NOT_TAKEN": "the worker does not take this definition",
    "RESOURCES_SHORT": "more is asked than the worker's resource profile",
    "LABEL_DIFFERS": "a required label differs",
    "LABEL_AVOIDED": "a label matches one the work avoids",
    "NOT_IN_POOL": "the worker is no member of the pool",
    "NO_WORK": "nothing is waiting in the worker's application",
}

#: The code of each rule of placement.RULES that is about one worker.
OF_RULE: dict[str, str] = {
    "not_ready": "WORKER_NOT_READY",
    "draining": "WORKER_DRAINING",
    "quarantined": "WORKER_QUARANTINED",
    "full": "WORKER_FULL",
    "unhealthy": "WORKER_UNHEALTHY",
    "stale": "WORKER_STALE",
    "grant": "WORKER_UNAUTHORIZED",
    "capabilities": "CAPABILITY_MISSING",
    "workload_kinds": "DEFINITION_NOT_TAKEN",
    "resources": "RESOURCES_SHORT",
    "required_labels": "LABEL_DIFFERS",
    "anti_affinity": "LABEL_AVOIDED",
    "pool": "NOT_IN_POOL",
}

#: Ids and names of one list that are written out.
NAMED_MAX = 3
#: Characters of somebody's own words that one sentence quotes.
QUOTED_CHARS = 200

_UNITS = (("d", 86_400_000, 2), ("h", 3_600_000, 2), ("m", 60_000, 2), ("s", 1_000, 1))


def moment(now: Now, at_ms: int) -> str:
    """A lease instant as a person reads it: UTC of the wall clock, and how far away it is."""
    wall_ms = at_ms + now.wall_ms - now.lease_ms
    try:
        shown = datetime.fromtimestamp(wall_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "the end of all calendars"
    away_ms = at_ms - now.lease_ms
    return f"{shown} (in {span(away_ms)})" if away_ms > 0 else f"{shown} ({span(-away_ms)} ago)"


def of_wall(now: Now, at_ms: int) -> str:
    """As `moment`, for a wall instant."""
    return moment(now, now.lease_from_wall(at_ms))


def span(duration_ms: int) -> str:
    """A duration in its largest fitting unit."""
    for unit, unit_ms, least in _UNITS:
        if duration_ms >= least * unit_ms:
            return f"{duration_ms // unit_ms}{unit}"
    return f"{duration_ms}ms"


def many(count: int, noun: str) -> str:
    """A count with its noun: one worker, 3 workers."""
    return f"one {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(names: Sequence[str], total: int | None = None) -> str:
    """The first NAMED_MAX names, and how many more there are."""
    whole = len(names) if total is None else total
    shown = ", ".join(names[:NAMED_MAX])
    more = whole - min(len(names), NAMED_MAX)
    return f"{shown} and {more:,} more" if more > 0 else shown


def quoted(text: str | None) -> str:
    """Somebody's own words, on one line and bounded."""
    words = " ".join((text or "").split())
    if len(words) > QUOTED_CHARS:
        words = words[: QUOTED_CHARS - 1] + "…"
    return f"“{words}”" if words else "no reason given"

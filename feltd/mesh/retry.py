"""What becomes of a workload when its claim has ended: pure arithmetic over the row and the end.

No statement, no clock, no float: multiplier and jitter are read as thousandths and millionths, and
every product is clamped, so a policy at its bounds stays far below 2^53 - 1. The jitter is a hash
of workload and attempt, so that a replay gives the same instant.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from feltd.clock import Now
from feltd.store.tx import Row

#: Ends that only the daemon gives; a worker's `fail` may not name them.
RESERVED = frozenset(
    {
        "lease_expired",
        "worker_lost",
        "queue_timeout",
        "total_timeout",
        "dependency_failed",
        "restored",
        "authority_lost",
        "released",
        "evicted",
        "cancelled_by_force",
    }
)
#: Ends that are nobody's attempt: nothing is spent and the workload may be taken again at once.
FREE = frozenset({"released", "restored", "authority_lost", "evicted"})
#: So many releases in a row say that no worker wants it; a person looks at it then.
RELEASES_MAX = 100
#: One point of priority is worth a minute of waiting.
PRIORITY_POINT_MS = 60_000
#: Neither backoff nor retry_after_ms goes past a day.
BACKOFF_MS_MAX = 86_400_000

JITTER_SCALE = 1_000_000
MULTIPLIER_SCALE = 1_000


class Backoff(msgspec.Struct, frozen=True):
    """The members of a stored retry policy that decide when a workload may be tried again."""

    initial_backoff_ms: int = 1_000
    multiplier: float = 2
    max_backoff_ms: int = 60_000
    jitter: float = 0.2
    retry_on: Sequence[str] = ("lease_expired", "timeout", "transient", "worker_lost")


_BACKOFF = msgspec.json.Decoder(Backoff)


class Fate(NamedTuple):
    """Where a workload goes after a claim: `eligible_at_ms` on the lease scale, for READY alone."""

    state: str
    eligible_at_ms: int | None
    spent: int
    releases: int


def fate(
    held: Row, now: Now, kind: str, *, to: str | None, spend: bool | None, retry_after_ms: int
) -> Fate:
    """Decide where a workload goes whose claim ends with `kind` (any end but `completed`).

    `held` names cancel_requested, attempts_spent, max_attempts, releases, retry_policy and
    workload_id. `to` is where an operator sends it, `spend` whether that spends an attempt.
    """
    costs = spend if spend is not None else kind not in FREE
    spent = int(costs)
    exhausted = held["attempts_spent"] + spent >= held["max_attempts"]
    releases = held["releases"] + 1 if kind == "released" else 0
    if held["cancel_requested"] or kind == "cancelled_by_force":
        return Fate("CANCELLED", None, spent, releases)
    if to == "DEAD_LETTERED" or exhausted or releases >= RELEASES_MAX:
        return Fate("DEAD_LETTERED", None, spent, releases)
    if kind in FREE or to == "READY":
        return Fate("READY", now.lease_ms, spent, releases)
    policy = _BACKOFF.decode(held["retry_policy"])
    if kind not in policy.retry_on:
        return Fate("DEAD_LETTERED", None, spent, releases)
    wait_ms = delay_ms(policy, held["workload_id"], held["attempts_spent"] + spent)
    wait_ms = max(wait_ms, min(retry_after_ms, BACKOFF_MS_MAX))
    return Fate("READY", now.lease_ms + wait_ms, spent, releases)


def delay_ms(policy: Backoff, workload_id: str, spent: int) -> int:
    """Milliseconds to wait after the `spent`-th attempt (1, 2, …), jitter on top included.

    min(max, initial × multiplier^(spent − 1)), then up to `jitter` of it more.
    """
    factor = round(policy.multiplier * MULTIPLIER_SCALE)
    base_ms = min(policy.initial_backoff_ms, policy.max_backoff_ms)
    for _ in range(spent - 1):
        grown_ms = base_ms * factor // MULTIPLIER_SCALE
        if grown_ms == base_ms or base_ms >= policy.max_backoff_ms:
            break
        base_ms = min(policy.max_backoff_ms, grown_ms)
    share = round(policy.jitter * JITTER_SCALE) * _chance(workload_id, spent) // JITTER_SCALE
    return base_ms + base_ms * share // JITTER_SCALE


def rank(eligible_at_ms: int, priority: int) -> int:
    """The one number work is ordered by: less is sooner.

    So no flood starves anything: work of priority p goes before all work of
    priority q > p that became eligible more than (q − p) minutes after it.
    """
    return eligible_at_ms - priority * PRIORITY_POINT_MS


def _chance(workload_id: str, spent: int) -> int:
    digest = hashlib.sha256(f"{workload_id}/{spent}".encode()).digest()
    return int.from_bytes(digest[:8]) % (JITTER_SCALE + 1)

"""Where work goes when its claim has ended, and when it may be tried again: the law, in own words.

Nothing of feltd's arithmetic is used; of the jitter only its bounds are known.
"""

from typing import Any

from feltd.mesh.retry import FREE, RELEASES_MAX
from feltd.store.tx import Row
from tests.sim.calls import Call
from tests.sim.history import Hold, Violation, Work

DAY_MS = 86_400_000


def check(call: Call, work: Work, hold: Hold, event: Row, body: Any) -> None:
    """An end went where the policy of the work sends it. `work` is as it was before."""
    kind, now_ms = event["end_kind"], call.now.lease_ms
    if kind == "completed":
        return
    evicting = call.verb == "evict"
    spent = work.spent + (call.cmd.body.spend_attempt if evicting else kind not in FREE)
    policy = work.asked.retry
    refused = kind == "released" and work.releases + 1 >= RELEASES_MAX
    last = spent >= policy.max_attempts or refused
    sent_away = evicting and call.cmd.body.to == "DEAD_LETTERED"
    wanted = "DEAD_LETTERED"
    if work.cancel or kind == "cancelled_by_force":
        wanted = "CANCELLED"
    elif kind != "total_timeout" and not sent_away and not last:
        wanted = "READY" if kind in FREE or kind in policy.retry_on else wanted
    if event["to_state"] != wanted:
        raise Violation(f"{work.workload_id} went {kind} to {event['to_state']}: {work}")
    if wanted != "READY":
        return
    low_ms = high_ms = 0
    if kind not in FREE:
        low_ms = policy.initial_backoff_ms * policy.multiplier ** max(0, spent - 1)
        low_ms = int(min(policy.max_backoff_ms, low_ms))
        high_ms = int(low_ms * (1 + policy.jitter)) + 1
        asked_ms = min(_retry_after_ms(call, hold, body) or 0, DAY_MS)
        low_ms, high_ms = max(low_ms, asked_ms), max(high_ms, asked_ms)
    if not low_ms <= event["eligible_at_ms"] - now_ms <= high_ms:
        raise Violation(
            f"{work.workload_id} waits {event['eligible_at_ms'] - now_ms} ms after {kind}, "
            f"known is {low_ms} to {high_ms}: {work}"
        )


def _retry_after_ms(call: Call, hold: Hold, body: Any) -> int | None:
    """What the worker said of when to try again, if it said how its work failed."""
    if call.verb == "reconcile":
        for told in call.cmd.body.results or ():
            if told.fencing_token == hold.token and told.failure is not None:
                return told.failure.retry_after_ms
        return None
    return getattr(body, "retry_after_ms", None)

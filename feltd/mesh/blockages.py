"""What keeps back a whole kind of work, in words: each cause with how many workloads it is true of.

The causes are those of `why`; where they differ from workload to workload, the first in turn stands
for all. Only reads, a bounded number of rows for each kind.
"""

from collections.abc import Mapping

from msgspec import Struct

from feltd.clock import Now
from feltd.mesh import barriers, counting, crowd, misfits, placement, unfinished, waiting
from feltd.model.base import Caller
from feltd.model.why import Blocked, Cause
from feltd.store.tx import Row, Tx

#: Causes told of workers, the nearest to taking it first.
OF_WORKERS_MAX = 3

BEHIND_KEY = """
SELECT l.concurrency_key, l.concurrency_open, w.workload_id
  FROM lanes l
  JOIN workloads w ON w.seq = l.head_seq
 WHERE l.demand_id = :demand_id
   AND l.head_rank IS NOT NULL
   AND (l.concurrency_open = 0 OR l.rate_open = 0)
   AND l.concurrency_open = 0
 LIMIT 1
"""

BEHIND_RATE = """
SELECT l.rate_key, l.rate_open, w.workload_id
  FROM lanes l
  JOIN workloads w ON w.seq = l.head_seq
 WHERE l.demand_id = :demand_id
   AND l.head_rank IS NOT NULL
   AND (l.concurrency_open = 0 OR l.rate_open = 0)
   AND l.concurrency_open = 1
 LIMIT 1
"""

# The terms of workloads_delayed stand as they do in the index, or it would not be used.
NEXT_DELAYED = """
SELECT w.workload_id, w.eligible_at_ms, w.not_before_at_ms
  FROM workloads w
 WHERE w.demand_id = :demand_id
   AND w.due = 0
   AND w.state IN ('PENDING', 'READY')
   AND w.state = 'READY'
 ORDER BY w.eligible_at_ms
 LIMIT 1
"""

FIRST_PENDING = """
SELECT w.seq, w.workload_id
  FROM workloads w
 WHERE w.demand_id = :demand_id
   AND w.due = 0
   AND w.state IN ('PENDING', 'READY')
   AND w.state = 'PENDING'
 LIMIT 1
"""


class Look(Struct, frozen=True):
    """One kind as it was read and counted, and who asks."""

    now: Now
    caller: Caller
    demand: Row
    wanted: placement.Wanted
    pools: Mapping[str, placement.Pool]
    members: crowd.Crowd
    verdict: crowd.Verdict
    counts: counting.Counts


def blocked(tx: Tx, look: Look, hold: placement.Hold | None) -> list[Blocked]:
    """Everything that keeps workloads of a kind back; none where all could be taken now."""
    told = _due(tx, look, hold) if look.counts.ready else []
    return told + _delayed(tx, look) + _pending(tx, look)


def _due(tx: Tx, look: Look, hold: placement.Hold | None) -> list[Blocked]:
    counts, demand, now = look.counts, look.demand, look.now
    told: list[Blocked] = []
    if hold is not None:
        held = barriers.hold(tx, now, look.caller, demand["tenant_id"], hold)
        told.append(_blocked(held, counts.ready))
    owner = (demand["tenant_id"], demand["application_id"])
    pool = barriers.pool(tx, *owner, demand["pool_id"], bool(demand["pool_open"]))
    if pool is not None:
        told.append(_blocked(pool, counts.ready))
    kind = {"demand_id": demand["demand_id"]}
    lane = tx.row(BEHIND_KEY, kind) if counts.key_full else None
    if lane is not None:
        key = barriers.key(tx, lane["concurrency_key"], False, lane["workload_id"])
        told += [] if key is None else [_blocked(key, counts.key_full)]
    lane = tx.row(BEHIND_RATE, kind) if counts.blocked > counts.key_full else None
    if lane is not None:
        rate = barriers.rate(tx, now, lane["rate_key"], False)
        told += [] if rate is None else [_blocked(rate, counts.blocked - counts.key_full)]
    if not look.verdict.eligible:
        subject = misfits.Subject(*owner, look.wanted)
        nobody = misfits.tell(now, subject, look.members, look.verdict, look.pools)
        told += [_blocked(one, counts.ready) for one in nobody[:OF_WORKERS_MAX]]
    return told


def _delayed(tx: Tx, look: Look) -> list[Blocked]:
    """What is for later: its next workload, and the other sort of lateness by its count alone."""
    counts = look.counts
    first = tx.row(NEXT_DELAYED, {"demand_id": look.demand["demand_id"]})
    if first is None:
        return []
    if first["eligible_at_ms"] <= look.now.lease_ms:
        cause = Cause(
            code="DUE",
            detail="its time has come, and it is about to be offered",
            remedy="wait a moment; if it stays so: feltd health",
        )
        return [_blocked(cause, counts.delayed)]
    sorts = {"BACKOFF": counts.backoff, "NOT_BEFORE": counts.not_before}
    nearest = waiting.not_yet(look.now, first, first["workload_id"])
    told = [_blocked(nearest, sorts.pop(nearest.code))]
    for code, count in sorts.items():
        if count:
            other = Cause(
                code=code,
                detail="they wait longer",
                remedy="feltd workload run-now ID lets one run now",
            )
            told.append(_blocked(other, count))
    return told


def _pending(tx: Tx, look: Look) -> list[Blocked]:
    if not look.counts.pending:
        return []
    child = tx.rows(FIRST_PENDING, {"demand_id": look.demand["demand_id"]})[0]
    waits = tx.rows(unfinished.WAITS, {"seq": child["seq"]})
    if not waits:
        return []
    cause = unfinished.of_parent(tx, look.demand["tenant_id"], waits[0])
    more = f", and for {len(waits) - 1} more" if len(waits) > 1 else ""
    return [
        Blocked(
            code=cause.code,
            detail=f"{child['workload_id']}: {cause.detail}{more}",
            remedy=cause.remedy,
            workloads=look.counts.pending,
        )
    ]


def _blocked(cause: Cause, workloads: int) -> Blocked:
    return Blocked(code=cause.code, detail=cause.detail, remedy=cause.remedy, workloads=workloads)

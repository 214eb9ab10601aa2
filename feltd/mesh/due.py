"""What time alone does to waiting work: it becomes due, its wall instant moves, its demand is gone.

Only the keeper calls these, each bounded by a limit and harmless to repeat. Whoever else makes a
row READY offers it himself where it is due (see demands.offer); where it is not, he tells "due" and
the instant, for the keeper's timer.
"""

from typing import NamedTuple

from feltd.clock import Now
from feltd.mesh import deadlines, demands, retry
from feltd.model.base import INTEGER_MAX
from feltd.store.tx import Row, Tx

#: Where in tx.memo stands which demand was looked at last.
PRUNED = "due.pruned"
#: Where in tx.memo stands how far the waiting instants were gone over, and for which offset.
RESCALED = "due.rescaled"
#: Wall and lease time may drift this far apart before instants are moved.
DRIFT_MS_MAX = 1_000

PROMOTE = """
UPDATE workloads
   SET due = 1
 WHERE state = 'READY'
   AND due = 0
   AND seq IN (SELECT w.seq
                 FROM workloads w
                WHERE w.state = 'READY'
                  AND w.due = 0
                  AND w.eligible_at_ms <= :now_ms
                ORDER BY w.eligible_at_ms, w.seq
                LIMIT :limit)
RETURNING seq, tenant_id, application_id, lane_id, demand_id, rank
"""

NEXT_DUE = """
SELECT w.eligible_at_ms
  FROM workloads w
 WHERE w.state = 'READY'
   AND w.due = 0
 ORDER BY w.eligible_at_ms, w.seq
 LIMIT 1
"""

WAITING_FOR_INSTANT = """
SELECT w.seq, w.workload_id, w.not_before_at_ms, w.ready_at_ms, w.priority, w.eligible_at_ms,
       w.timeouts,
       CASE WHEN w.attempts_spent > 0
            THEN (SELECT c.retry_at_ms
                    FROM claims c
                   WHERE c.fencing_token = w.fencing_token
                     AND c.end_state = 'READY') END AS retry_at_ms
  FROM workloads w
 WHERE w.state = 'READY'
   AND w.due = 0
   AND w.not_before_at_ms IS NOT NULL
   AND (w.not_before_at_ms, w.seq) > (:after_ms, :after_seq)
 ORDER BY w.not_before_at_ms, w.seq
 LIMIT :limit
"""

RESCALE = """
UPDATE workloads
   SET eligible_at_ms = :eligible_at_ms,
       rank = :rank
 WHERE seq = :seq
   AND state = 'READY'
   AND due = 0
"""

DEAD = """
SELECT d.demand_id, d.tenant_id, d.application_id,
       EXISTS (SELECT 1 FROM workloads w WHERE w.demand_id = d.demand_id)
       OR EXISTS (SELECT 1
                    FROM lanes l
                   WHERE l.demand_id = d.demand_id
                   LIMIT 1 OFFSET 64) AS live
  FROM demands d
 WHERE d.demand_id > :after
 ORDER BY d.demand_id
 LIMIT :limit
"""


class _Tour(NamedTuple):
    """Rows up to (after_ms, after_seq) stand right for this offset; after_ms None: all do."""

    offset_ms: int
    after_ms: int | None
    after_seq: int


def promote(tx: Tx, limit: int, now: Now) -> tuple[int, int | None]:
    """Put READY rows whose instant has come into the claim index, `limit` at most, and tell it.

    Gives how many, and the lease time of the next one (in the past when the limit cut).
    """
    promoted = tx.rows(PROMOTE, {"now_ms": now.lease_ms, "limit": limit})
    best: dict[int, Row] = {}
    for row in promoted:
        held = best.get(row["lane_id"])
        if held is None or (row["rank"], row["seq"]) < (held["rank"], held["seq"]):
            best[row["lane_id"]] = row
    for row in best.values():
        demands.offer(tx, row["lane_id"], row["demand_id"], row["rank"], row["seq"])
        tx.tell("ready", f"{row['tenant_id']}/{row['application_id']}")
    coming = tx.row(NEXT_DUE)
    return len(promoted), None if coming is None else int(coming["eligible_at_ms"])


def eligible_at_ms(now: Now, not_before_at_ms: int | None) -> int:
    """The lease time at which work made READY now may run: now, or its wall instant if later."""
    if not_before_at_ms is None:
        return now.lease_ms
    return min(max(now.lease_ms, now.lease_from_wall(not_before_at_ms)), INTEGER_MAX)


def rescale(tx: Tx, limit: int, now: Now) -> int:
    """Move waiting rows to where their not_before stands now, `limit` at a time; how many.

    Does nothing until wall and lease time differ by a second more or less than when the rows were
    last gone over; then goes over all of them, in slices. A backoff is on lease time and stays.
    """
    offset_ms = now.wall_ms - now.lease_ms
    tour: _Tour | None = tx.memo.get(RESCALED)
    if tour is None or abs(offset_ms - tour.offset_ms) > DRIFT_MS_MAX:
        tour = _Tour(offset_ms, -1, 0)
    elif tour.after_ms is None:
        return 0
    rows = tx.rows(
        WAITING_FOR_INSTANT,
        {"after_ms": tour.after_ms, "after_seq": tour.after_seq, "limit": limit},
    )
    moved = 0
    for row in rows:
        told_ms = row["not_before_at_ms"] - tour.offset_ms
        instant_ms = max(row["ready_at_ms"], row["retry_at_ms"] or 0, told_ms)
        # Nobody could have taken it before now: queue_ms does not run from an instant before.
        instant_ms = max(instant_ms, min(row["eligible_at_ms"], now.lease_ms))
        instant_ms = min(instant_ms, INTEGER_MAX)
        if instant_ms != row["eligible_at_ms"]:
            moved += tx.change(
                RESCALE,
                {
                    "seq": row["seq"],
                    "eligible_at_ms": instant_ms,
                    "rank": retry.rank(instant_ms, row["priority"]),
                },
            )
            if row["timeouts"] != deadlines.NONE:
                deadlines.arm(tx, now, row["workload_id"])
    last = rows[-1] if len(rows) == limit else None
    tx.memo[RESCALED] = (
        _Tour(tour.offset_ms, None, 0)
        if last is None
        else _Tour(tour.offset_ms, last["not_before_at_ms"], last["seq"])
    )
    return moved


def prune(tx: Tx, limit: int, now: Now) -> int:
    """Delete demands that no live workload names; looks at `limit` of them and goes on next time.

    One with many lanes waits until those are gone (see lanes.prune). Gives how many were deleted.
    Where it stopped is kept in tx.memo: lost, it begins anew.
    """
    looked = tx.rows(DEAD, {"after": tx.memo.get(PRUNED, 0), "limit": limit})
    tx.memo[PRUNED] = looked[-1]["demand_id"] if len(looked) == limit else 0
    return demands.drop(tx, [row for row in looked if not row["live"]])

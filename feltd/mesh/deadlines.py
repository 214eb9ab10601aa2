"""Until when work may wait and run: of a workload's timeouts, the one instant that comes first.

The row in `deadlines` is exact: whoever changes the state of a workload with timeouts calls `arm`
in the same transaction, so the fence may test it: a deadline that has passed is an end, swept or
not, and nothing of the holder's is accepted from that instant on. overdue.py then writes the end.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec.json import Decoder

from feltd.clock import Now
from feltd.mesh.states import LIVE_STATES
from feltd.model.base import INTEGER_MAX
from feltd.model.policy import Timeouts
from feltd.store.tx import Row, Tx

#: The column of a workload without timeouts: nobody needs to call `arm` for it.
NONE = "{}"

READ = """
SELECT w.workload_id, w.state, w.timeouts, w.created_at_ms, w.requeued_at_ms, w.ready_at_ms,
       w.eligible_at_ms, w.started_at_ms, c.issued_at_ms
  FROM workloads w
  LEFT JOIN claims c ON c.fencing_token = w.fencing_token
 WHERE w.workload_id = :workload_id
"""

SET = """
INSERT INTO deadlines (workload_id, at_ms)
VALUES (:workload_id, :at_ms)
ON CONFLICT (workload_id) DO UPDATE
   SET at_ms = excluded.at_ms
"""

DROP = """
DELETE FROM deadlines
 WHERE workload_id = :workload_id
"""

# Only what has not been started: a worker could not say so. The lease must have lived, too.
UNSTARTED = """
SELECT w.workload_id, w.state, w.timeouts, w.created_at_ms, w.requeued_at_ms, w.ready_at_ms,
       w.eligible_at_ms, w.started_at_ms, d.at_ms, k.heartbeat_timeout_ms
  FROM workloads w
  JOIN deadlines d ON d.workload_id = w.workload_id
  JOIN workers k ON k.worker_id = w.claim_worker_id
 WHERE w.state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
   AND w.expires_at_ms > :since_ms
   AND w.state = 'CLAIMED'
   AND d.at_ms > :since_ms
   AND d.at_ms < :now_ms + k.heartbeat_timeout_ms
"""


class Deadline(NamedTuple):
    """The end of one timeout: on the lease scale, which member it is, how the work ends then."""

    at_ms: int
    member: str
    kind: str
    timeout_ms: int


_TIMEOUTS = Decoder(Timeouts)


def total(row: Row | Mapping[str, Any]) -> Deadline | None:
    """The end of total_ms: from the creation, or from the requeue that began it anew."""
    timeout_ms = _TIMEOUTS.decode(row["timeouts"]).total_ms
    if timeout_ms is None:
        return None
    born_ms = max(row["created_at_ms"], row["requeued_at_ms"] or 0)
    return _end(born_ms, "total_ms", "total_timeout", timeout_ms)


def of_state(row: Row | Mapping[str, Any]) -> Deadline | None:
    """The end of the timeout that runs in the row's present state beside total_ms, if any.

    queue_ms runs from max(ready_at_ms, eligible_at_ms), start_ms from issued_at_ms, execution_ms
    from started_at_ms. What is PENDING waits for others: only total_ms bounds it.
    """
    bounds, state = _TIMEOUTS.decode(row["timeouts"]), row["state"]
    if state == "READY" and bounds.queue_ms is not None:
        from_ms = max(row["ready_at_ms"] or 0, row["eligible_at_ms"])
        return _end(from_ms, "queue_ms", "queue_timeout", bounds.queue_ms)
    if state == "CLAIMED" and bounds.start_ms is not None:
        return _end(row["issued_at_ms"], "start_ms", "timeout", bounds.start_ms)
    if state in LIVE_STATES and state != "CLAIMED" and bounds.execution_ms is not None:
        return _end(row["started_at_ms"], "execution_ms", "timeout", bounds.execution_ms)
    return None


def first(row: Row | Mapping[str, Any]) -> Deadline | None:
    """What ends a row as READ gives it, if nothing happens before; of two at once total_ms."""
    if row["state"] not in LIVE_STATES | {"PENDING", "READY"}:
        return None
    ends = [end for end in (total(row), of_state(row)) if end is not None]
    return min(ends, key=lambda end: end.at_ms, default=None)


def arm(tx: Tx, now: Now, workload_id: str) -> None:
    """Write down when a workload with timeouts is to be looked at next; told to the keeper.

    For whoever has just changed its state, its instants or its timeouts. Of work that has ended,
    or is bounded by nothing in its state, no row is kept. Repeating is harmless, save that it
    takes back what an outage credit gave.
    """
    row = tx.rows(READ, {"workload_id": workload_id})[0]
    end = first(row)
    if end is None:
        tx.change(DROP, {"workload_id": workload_id})
        return
    tx.change(SET, {"workload_id": workload_id, "at_ms": end.at_ms})
    tx.tell("deadline", str(end.at_ms))


def credit(tx: Tx, now: Now, since_ms: int) -> int:
    """Give claims not yet started a heartbeat timeout from now to start; how many got it.

    For the outage credit alone: start_ms had not passed at `since_ms`, when the daemon could last
    hear. Never beyond total_ms, and nothing else is extended.
    """
    given = 0
    for row in tx.rows(UNSTARTED, {"now_ms": now.lease_ms, "since_ms": since_ms}):
        until_ms = now.lease_ms + row["heartbeat_timeout_ms"]
        last = total(row)
        if last is not None:
            until_ms = min(until_ms, last.at_ms)
        if until_ms > row["at_ms"]:
            given += tx.change(SET, {"workload_id": row["workload_id"], "at_ms": until_ms})
    return given


def _end(from_ms: int, member: str, kind: str, timeout_ms: int) -> Deadline:
    # not_before may stand at the end of all numbers.
    return Deadline(min(from_ms + timeout_ms, INTEGER_MAX), member, kind, timeout_ms)

"""Ends what outstayed its timeouts: the keeper's bounded pass, and its timer fires within ms.

queue_ms and total_ms make dead letters, total_ms out of held work too; start_ms and execution_ms
end the claim `timeout` under the retry policy. Of two that have passed the earlier one counts, of
a lease and a timeout likewise, so the outcome is the same however late the pass comes.
"""

from functools import partial

from feltd.clock import Now
from feltd.mesh import deadlines, demands, dependencies, events
from feltd.mesh.attempts import End, end_claim
from feltd.mesh.states import LIVE_STATES
from feltd.store.tx import Kept, Row, Tx

OVERDUE = """
SELECT d.workload_id
  FROM deadlines d
 WHERE d.at_ms <= :now_ms
 ORDER BY d.at_ms, d.workload_id
 LIMIT :limit
"""

# Read one by one: the end of one may make another READY, or end it.
READ = """
SELECT d.at_ms, w.workload_id, w.seq, w.tenant_id, w.application_id, w.state, w.timeouts, w.due,
       w.lane_id, w.demand_id, w.created_at_ms, w.requeued_at_ms, w.ready_at_ms, w.eligible_at_ms,
       w.started_at_ms, w.expires_at_ms, w.fencing_token, w.awaited, w.group_name, c.issued_at_ms
  FROM deadlines d
  JOIN workloads w ON w.workload_id = d.workload_id
  LEFT JOIN claims c ON c.fencing_token = w.fencing_token
 WHERE d.workload_id = :workload_id
   AND d.at_ms <= :now_ms
"""

NEXT = """
SELECT d.at_ms
  FROM deadlines d
 ORDER BY d.at_ms, d.workload_id
 LIMIT 1
"""

GIVE_UP = """
UPDATE workloads
   SET state = 'DEAD_LETTERED',
       due = 0,
       lane_id = NULL,
       demand_id = NULL,
       finished_at_ms = :now_ms,
       failure_kind = :kind,
       failure_message = :message
 WHERE workload_id = :workload_id
   AND state IN ('PENDING', 'READY')
"""

#: What a failure says, for people.
MESSAGES = {
    "queue_ms": "no worker took it within its queue_ms of {}",
    "start_ms": "its worker did not start it within its start_ms of {}",
    "execution_ms": "it ran longer than its execution_ms of {}",
    "total_ms": "it was not finished within its total_ms of {}",
}


def end_timeouts(tx: Tx, limit: int, now: Now) -> tuple[int, int | None]:
    """End up to `limit` workloads whose timeout has passed, the longest passed first.

    Gives how many, and the lease time of the next (in the past when the limit cut). Each stands
    alone: one that cannot be ended stays, the others go on, and INTERNAL is raised when all have
    had their turn. Repeating ends what has passed since.
    """
    ended, stuck = 0, list[str]()
    for row in tx.rows(OVERDUE, {"now_ms": now.lease_ms, "limit": limit}):
        try:
            ended += tx.attempt(partial(end_passed, tx, now, row["workload_id"]))
        except Exception as error:
            if tx.lost is not None:
                raise
            stuck.append(f"{row['workload_id']}: {error!r}")
    if stuck:
        raise Kept("INTERNAL", f"{len(stuck)} timeouts cannot be ended, first {stuck[0]}")
    coming = tx.row(NEXT)
    return ended, None if coming is None else int(coming["at_ms"])


def end_passed(tx: Tx, now: Now, workload_id: str) -> int:
    """End a workload whose timeout has passed, whatever its state; 1 when it had, else 0.

    For the pass, and for who must know now what still lives. Repeating does nothing.
    """
    row = tx.row(READ, {"workload_id": workload_id, "now_ms": now.lease_ms})
    if row is None:
        return 0
    end = _passed(row)
    if end is None or end.at_ms > now.lease_ms:
        # Not over, or bounded no more: only a row changed by hand is like that.
        deadlines.arm(tx, now, workload_id)
        return 1
    message = MESSAGES[end.member].format(end.timeout_ms)
    if row["state"] not in LIVE_STATES:
        _give_up(tx, now, row, end.kind, message)
        return 1
    if row["expires_at_ms"] < row["at_ms"]:
        # The lease was over first; only a pass that comes late finds both.
        lapse = f"the lease ended at {row['expires_at_ms']} without a renewal"
        told = End("lease_expired", message=lapse, lapsed=True)
    else:
        told = End(
            end.kind,
            message=message,
            to="DEAD_LETTERED" if end.member == "total_ms" else None,
        )
    end_claim(tx, now, workload_id, told._replace(fencing_token=row["fencing_token"]))
    return 1


def _passed(row: Row) -> deadlines.Deadline | None:
    """Which timeout the row's stored instant is: a credit may have moved start_ms, never total_ms.

    What is stored is the earlier of the two.
    """
    total = deadlines.total(row)
    if total is not None and total.at_ms <= row["at_ms"]:
        return total
    return deadlines.of_state(row)


def _give_up(tx: Tx, now: Now, row: Row, kind: str, message: str) -> None:
    """Make a dead letter of what nobody holds."""
    workload_id = row["workload_id"]
    params = {"workload_id": workload_id, "kind": kind, "message": message}
    tx.change(GIVE_UP, {**params, "now_ms": now.lease_ms})
    deadlines.arm(tx, now, workload_id)
    if row["due"]:
        demands.withdraw(tx, row["lane_id"], row["demand_id"])
        # Who asked in the meantime found a head that may not be taken: let it look again.
        tx.tell("ready", f"{row['tenant_id']}/{row['application_id']}")
    events.tell(
        tx,
        now,
        "time_out",
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        workload_id=workload_id,
        from_state=row["state"],
        to_state="DEAD_LETTERED",
        end_kind=kind,
    )
    tx.tell("workload", workload_id)
    if row["state"] == "PENDING":
        dependencies.forget(tx, row["seq"])
    if row["awaited"] or row["group_name"] is not None:
        dependencies.ended(tx, now, row, "DEAD_LETTERED")

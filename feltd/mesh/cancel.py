"""Calling work off: what nobody holds ends at once, a holder is asked, or fenced when forced."""

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import audit, principals
from feltd.mesh import attempts, deadlines, demands, dependencies, events, workloads
from feltd.mesh.states import LIVE_STATES
from feltd.model.base import Ask, Caller
from feltd.model.workload import Cancel, Workload
from feltd.store.tx import Row, Tx

CANCEL_WAITING = """
UPDATE workloads
   SET state = 'CANCELLED',
       due = 0,
       lane_id = NULL,
       demand_id = NULL,
       finished_at_ms = :now_ms
 WHERE workload_id = :workload_id
   AND state IN ('PENDING', 'READY', 'DEAD_LETTERED')
"""

ASK_HOLDER = """
UPDATE workloads
   SET cancel_requested = 1
 WHERE workload_id = :workload_id
   AND cancel_requested = 0
   AND state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
"""


def cancel(tx: Tx, ask: Ask[Cancel], now: Now) -> Workload:
    """Cancel a workload: at once when nobody holds it or with `force`, else by asking its holder.

    A holder is told at its next heartbeat, renewal or exchange; any end but complete then makes
    it CANCELLED. Repeating changes nothing. For one's own work the scope workloads:create is
    enough, else it takes workloads:operate (FORBIDDEN). Refuses WORKLOAD_NOT_FOUND,
    WORKLOAD_TRANSITION_DENIED for what is COMPLETED.
    """
    principals.confirm(tx, ask.caller, now)
    row = workloads.lookup(tx, ask.caller, ask.id)
    permit(ask.caller, row)
    if row["state"] == "COMPLETED":
        raise Refused("WORKLOAD_TRANSITION_DENIED", "the workload is COMPLETED: that is final")
    actor = str(ask.caller.subject)
    if call_off(tx, now, row, actor, force=ask.body.force):
        body = b"force" if ask.body.force else b""
        audit.act(tx, now, actor, "cancel", ask.id, reason=ask.body.reason, body=body)
    return workloads.shown(tx, workloads.lookup(tx, ask.caller, ask.id))


def call_off(tx: Tx, now: Now, row: Row, actor: str, *, force: bool) -> bool:
    """Cancel what is not final, or ask its holder to; whether that changed anything.

    The row has what a waiting or held workload has to be known by: see groups.MEMBERS. Who may do
    it is the caller's to test, the audit the caller's to write.
    """
    if row["state"] in LIVE_STATES:
        return _cancel_held(tx, now, row, actor, force)
    return _cancel_waiting(tx, now, row, actor)


def permit(caller: Caller, row: Row) -> None:
    """Refuse FORBIDDEN to who may neither operate nor asked for this work itself."""
    own = row["requested_by"] == str(caller.subject) and caller.holds("workloads:create")
    if not own:
        principals.require_scope(caller, "workloads:operate")


def _cancel_waiting(tx: Tx, now: Now, row: Row, actor: str) -> bool:
    workload_id = row["workload_id"]
    if not tx.change(CANCEL_WAITING, {"workload_id": workload_id, "now_ms": now.lease_ms}):
        return False
    if row["timeouts"] != deadlines.NONE:
        deadlines.arm(tx, now, workload_id)
    if row["due"]:
        demands.withdraw(tx, row["lane_id"], row["demand_id"])
    events.tell(
        tx,
        now,
        "cancel",
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        workload_id=workload_id,
        from_state=row["state"],
        to_state="CANCELLED",
        actor=actor,
    )
    tx.tell("workload", workload_id)
    if row["state"] == "PENDING":
        dependencies.forget(tx, row["seq"])
    if row["awaited"] or row["group_name"] is not None:
        dependencies.ended(tx, now, row, "CANCELLED")
    return True


def _cancel_held(tx: Tx, now: Now, row: Row, actor: str, force: bool) -> bool:
    workload_id = row["workload_id"]
    if force:
        attempts.end_claim(tx, now, workload_id, attempts.End("cancelled_by_force", actor=actor))
        return True
    if not tx.change(ASK_HOLDER, {"workload_id": workload_id}):
        return False
    # No state changes yet: the event names none.
    events.tell(
        tx,
        now,
        "cancel",
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        workload_id=workload_id,
        worker_id=row["claim_worker_id"],
        fencing_token=row["fencing_token"],
        actor=actor,
    )
    tx.tell("worker", row["claim_worker_id"])
    return True

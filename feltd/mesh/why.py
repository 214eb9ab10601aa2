"""Why a workload is as it is: every reason in its order, each with what would change it.

A look at one state of the database, by the rules that place and claim work, and nothing of it is
stored. What is READY always has a reason: if nothing keeps it back, the workers that could take it
now are named, and a pull of any of them gets work.
"""

from collections.abc import Callable

from feltd.clock import Now
from feltd.identity import principals
from feltd.mesh import causes, deadlines, underway, unfinished, waiting
from feltd.mesh.states import LIVE_STATES
from feltd.model.base import Ask
from feltd.model.why import Cause, WorkloadWhy
from feltd.store.tx import Row, Tx

READ = """
SELECT w.seq, w.workload_id, w.tenant_id, w.application_id, w.state, w.lane_id, w.demand_id, w.rank,
       w.due, w.eligible_at_ms, w.not_before_at_ms, w.fencing_token, w.claim_worker_id,
       w.expires_at_ms, w.started_at_ms, w.attempt_number, w.attempts_spent, w.max_attempts,
       w.cancel_requested, w.priority, w.ready_at_ms, w.created_at_ms, w.requeued_at_ms,
       w.finished_at_ms, w.definition_id, w.definition_revision, w.capability_snapshot,
       w.placement, w.resources, w.timeouts, w.pool_id, w.failure_kind, w.failure_message,
       w.result_id, d.at_ms AS timeout_at_ms, c.issued_at_ms, c.assigned, c.how
  FROM workloads w
  LEFT JOIN deadlines d ON d.workload_id = w.workload_id
  LEFT JOIN claims c ON c.fencing_token = w.fencing_token
 WHERE w.workload_id = :workload_id
"""

#: What of a dead letter helps more than the general way back.
BACK: dict[str, str] = {
    "execution_error": "correct what failed, or its input: "
    "feltd workload requeue {id} --input @corrected.json",
    "dependency_failed": "bring back what it waited for, then feltd workload requeue {id}",
    "queue_timeout": "see that workers fit it (feltd why), then feltd workload requeue {id}",
    "policy_unenforceable": "start a worker that can enforce its runtime_policy, then "
    "feltd workload requeue {id}",
}
SETTLED = ("COMPLETED", "DEAD_LETTERED", "CANCELLED")
REQUEUE = "feltd workload requeue {id}"


def of_workload(tx: Tx, ask: Ask[None], now: Now) -> WorkloadWhy:
    """Why the workload `ask.id` stands as it does, what keeps it so first; changes nothing.

    A worker's key sees what its worker holds. Refuses WORKLOAD_NOT_FOUND.
    """
    row = tx.row(READ, {"workload_id": ask.id})
    if row is None:
        raise principals.not_found("WORKLOAD_NOT_FOUND")
    if ask.caller.worker_id is None:
        principals.require_tenant(ask.caller, row["tenant_id"], "WORKLOAD_NOT_FOUND")
    elif row["claim_worker_id"] != ask.caller.worker_id:
        raise principals.not_found("WORKLOAD_NOT_FOUND")
    state = row["state"]
    tell: Callable[[Tx, Ask[None], Row, Now], list[Cause]]
    if state == "PENDING":
        tell = unfinished.causes_of
    elif state == "READY":
        tell = waiting.causes_of
    elif state in LIVE_STATES:
        tell = underway.causes_of
    else:
        tell = _settled if state in SETTLED else _unknown
    return WorkloadWhy(
        workload_id=row["workload_id"],
        state=state,
        reasons=tell(tx, ask, row, now) + _timeout(row, now),
        server_time_ms=now.lease_ms,
    )


def _settled(tx: Tx, ask: Ask[None], row: Row, now: Now) -> list[Cause]:
    when = causes.moment(now, row["finished_at_ms"])
    if row["state"] == "COMPLETED":
        detail = f"it was completed {when}: {row['result_id']}"
        return [Cause(code="COMPLETED", detail=detail, remedy="nothing is to be done")]
    if row["state"] == "CANCELLED":
        return [
            Cause(
                code="CANCELLED",
                detail=f"it was called off {when}; that is final",
                remedy="create it again under another idempotency key, if it is wanted after all",
            )
        ]
    kind = row["failure_kind"] or "unknown"
    spent = causes.many(row["attempts_spent"], "attempt")
    return [
        Cause(
            code="DEAD_LETTER",
            detail=f"it was given up {when} after {spent} of {row['max_attempts']}: {kind}, "
            f"{causes.quoted(row['failure_message'])}",
            remedy=BACK.get(kind, REQUEUE).format(id=row["workload_id"]),
        )
    ]


def _unknown(tx: Tx, ask: Ask[None], row: Row, now: Now) -> list[Cause]:
    """A foreign hand wrote what no rule of the schema lets in; it is shown, and left alone."""
    return [
        Cause(
            code="STATE_UNKNOWN",
            detail=f"its row says {causes.quoted(row['state'])}, which is no state",
            remedy="feltd check names every such row; whoever wrote it knows what it was",
        )
    ]


def _timeout(row: Row, now: Now) -> list[Cause]:
    """The timeout that ends it unless something happens before."""
    at_ms = row["timeout_at_ms"]
    if at_ms is None or at_ms <= now.lease_ms:
        return []
    end = deadlines.first(row)
    kind = "timeout" if end is None else f"{end.member} of {causes.span(end.timeout_ms)}"
    remedy = "let it be taken before"
    if row["state"] in ("PENDING", "READY"):
        place = "timeouts" if end is None else f"timeouts.{end.member}"
        remedy += f", or feltd workload edit {row['workload_id']} --set {place}=null"
    return [
        Cause(
            code="TIMEOUT_AHEAD",
            detail=f"then: its {kind} ends {causes.moment(now, at_ms)}",
            remedy=remedy if row["state"] != "RUNNING" else "let its worker finish before",
        )
    ]

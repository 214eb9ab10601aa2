"""Why held work is not done yet: who holds it, since when and until when, and whether he is heard.

For `why`; only reads.
"""

from feltd.clock import Now
from feltd.mesh import causes, crowd
from feltd.model.base import Ask
from feltd.model.why import Cause
from feltd.store.tx import Row, Tx


def causes_of(tx: Tx, ask: Ask[None], row: Row, now: Now) -> list[Cause]:
    """What holds a workload in CLAIMED, RUNNING or CHECKPOINTED, from its row as why.READ gives."""
    worker_id, claim_id = row["claim_worker_id"], f"claim_{row['fencing_token']}"
    holder = crowd.one(tx, now, worker_id)
    name = worker_id if holder is None else holder.row["name"]
    evict = f"feltd claim evict {claim_id} --reason …"
    told: list[Cause] = []
    if row["cancel_requested"]:
        told.append(
            Cause(
                code="CANCEL_REQUESTED",
                detail=f"{name} was asked to stop and has not ended {claim_id} yet",
                remedy=f"wait for its next beat, or feltd workload cancel {ask.id} --force",
                worker_id=worker_id,
            )
        )
    if row["timeout_at_ms"] is not None and row["timeout_at_ms"] <= now.lease_ms:
        told.append(passed(now, row["timeout_at_ms"]))
    if row["expires_at_ms"] <= now.lease_ms:
        told.append(
            Cause(
                code="LEASE_OVER",
                detail=f"the lease of {claim_id} ended {causes.moment(now, row['expires_at_ms'])}, "
                "and it is about to be taken back",
                remedy="wait a moment; if it stays so: feltd health",
                worker_id=worker_id,
            )
        )
    if holder is not None and ("stale" in holder.standing or "not_ready" in holder.standing):
        heard = causes.moment(now, holder.row["last_seen_at_ms"])
        told.append(
            Cause(
                code="HOLDER_SILENT",
                detail=f"{name} is {holder.row['lifecycle']}, last heard {heard}",
                remedy=f"look at its process, or give the work to another: {evict}",
                worker_id=worker_id,
            )
        )
    if row["assigned"]:
        told.append(
            Cause(
                code="ASSIGNED",
                detail=f"it was given to {name}, which has not named it yet",
                remedy=f"wait for its next beat: feltd worker why {worker_id}",
                worker_id=worker_id,
            )
        )
    return [*told, _held(now, row, name, claim_id, evict)]


def passed(now: Now, at_ms: int) -> Cause:
    """A timeout that has passed: nothing of the work is accepted any more."""
    return Cause(
        code="TIMEOUT_PASSED",
        detail=f"a timeout of it ended {causes.moment(now, at_ms)}, and it is about to be ended",
        remedy="wait a moment; if it stays so: feltd health",
    )


def _held(now: Now, row: Row, name: str, claim_id: str, evict: str) -> Cause:
    since_ms = row["started_at_ms"] if row["state"] != "CLAIMED" else row["issued_at_ms"]
    doing = "has claimed it and not started" if row["state"] == "CLAIMED" else "runs it"
    since = "" if since_ms is None else f" since {causes.moment(now, since_ms)}"
    until = causes.moment(now, row["expires_at_ms"])
    return Cause(
        code=row["state"],
        detail=f"{name} {doing}{since}, as {claim_id}, attempt {row['attempt_number']}; "
        f"its lease ends {until} unless it is renewed",
        remedy=f"wait for it, or take it away: {evict}",
        worker_id=row["claim_worker_id"],
    )

"""Groups: workloads of one application under one name, counted, awaited and called off together.

The first workload that names a group makes it; sealing it says that no more come. What waits for a
sealed group is told by dependencies.py. Nothing here walks a whole group in one operation.
"""

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import audit, principals
from feltd.mesh import cancel as cancelling
from feltd.mesh import dependencies, events, parents
from feltd.mesh.states import WORKLOAD_STATES
from feltd.model.base import Ask
from feltd.model.group import (
    COUNT_MAX,
    REMAINING_MAX,
    Group,
    GroupCancellation,
    GroupCancelled,
    GroupId,
)
from feltd.store.tx import Row, Tx

#: Workloads called off in one operation: some 25 ms.
CANCELLED_MAX = 500
#: In this order: work that waits for other work of the group is called off before that ends.
CANCELLABLE = ("PENDING", "READY", "CLAIMED", "RUNNING", "CHECKPOINTED")

READ = """
SELECT g.tenant_id, g.name, g.application_id, g.created_at_ms, g.sealed_at_ms
  FROM workload_groups g
 WHERE g.tenant_id = :tenant_id
   AND g.name = :name
"""

MAKE = """
INSERT INTO workload_groups (tenant_id, name, application_id, created_at_ms)
VALUES (:tenant_id, :name, :application_id, :now_ms)
"""

SEAL = """
UPDATE workload_groups
   SET sealed_at_ms = :now_ms
 WHERE tenant_id = :tenant_id
   AND name = :name
   AND sealed_at_ms IS NULL
"""

COUNT = """
SELECT count(*) AS workloads
  FROM (SELECT w.seq
          FROM workloads w
         WHERE w.tenant_id = :tenant_id
           AND w.group_name = :name
           AND w.state = :state
           AND (:unasked = 0 OR w.cancel_requested = 0)
         LIMIT :count_max) AS counted
"""

# The newest first: what waits for another is newer than it.
MEMBERS = """
SELECT w.workload_id, w.seq, w.tenant_id, w.application_id, w.state, w.timeouts, w.due, w.lane_id,
       w.demand_id, w.claim_worker_id, w.fencing_token, w.awaited, w.group_name, w.requested_by
  FROM workloads w
 WHERE w.tenant_id = :tenant_id
   AND w.group_name = :name
   AND w.state = :state
   AND (:unasked = 0 OR w.cancel_requested = 0)
 ORDER BY w.seq DESC
 LIMIT :limit
"""


def join(tx: Tx, now: Now, tenant_id: str, application_id: str, name: str) -> None:
    """Have a group take one more workload; it is made by its first.

    Refuses WORKLOAD_INVALID for a group that is sealed, or of another application.
    """
    group = {"tenant_id": tenant_id, "name": name}
    row = tx.row(READ, group)
    if row is None:
        tx.change(MAKE, {**group, "application_id": application_id, "now_ms": now.lease_ms})
        return
    detail = None
    if row["application_id"] != application_id:
        detail = "names a group of another application"
    elif row["sealed_at_ms"] is not None:
        detail = "names a sealed group: it takes no more workloads"
    if detail is not None:
        errors = [{"pointer": "/group", "detail": detail}]
        raise Refused("WORKLOAD_INVALID", f"/group: {detail}", errors=errors)


def get(tx: Tx, ask: Ask[GroupId], now: Now) -> Group:
    """A group with how many of its workloads are in each state. Refuses GROUP_NOT_FOUND."""
    return _shown(tx, _lookup(tx, ask.body.tenant_id, ask.body.name))


def seal(tx: Tx, ask: Ask[GroupId], now: Now) -> Group:
    """Close a group to new workloads, for ever; from then on work may wait for all of it.

    Repeating changes nothing. Refuses GROUP_NOT_FOUND.
    """
    principals.confirm(tx, ask.caller, now)
    row = _lookup(tx, ask.body.tenant_id, ask.body.name)
    actor = str(ask.caller.subject)
    if tx.change(SEAL, {**_key(row), "now_ms": now.lease_ms}):
        events.tell(
            tx,
            now,
            "seal",
            tenant_id=row["tenant_id"],
            application_id=row["application_id"],
            actor=actor,
        )
        audit.act(tx, now, actor, "seal", _subject(row))
        dependencies.sealed(tx, now, row["tenant_id"], row["name"])
    return _shown(tx, _lookup(tx, row["tenant_id"], row["name"]))


def cancel(tx: Tx, ask: Ask[GroupCancellation], now: Now) -> GroupCancelled:
    """Call off up to CANCELLED_MAX workloads of a group that have not ended.

    What nobody holds ends at once, a holder is asked, or fenced with `force`. Call again while
    something remains; what has ended stays as it is, and an unsealed group goes on taking work. For
    a group of one's own workloads the scope workloads:create is enough, else it takes
    workloads:operate (FORBIDDEN). Refuses GROUP_NOT_FOUND.
    """
    principals.confirm(tx, ask.caller, now)
    if not ask.caller.holds("workloads:create"):
        principals.require_scope(ask.caller, "workloads:operate")
    row = _lookup(tx, ask.body.tenant_id, ask.body.name)
    cancellation = ask.body.cancel
    actor = str(ask.caller.subject)
    unasked = int(not cancellation.force)
    changed = 0
    for state in CANCELLABLE:
        params = {**_key(row), "state": state, "unasked": unasked}
        for member in tx.rows(MEMBERS, {**params, "limit": CANCELLED_MAX - changed}):
            cancelling.permit(ask.caller, member)
            changed += cancelling.call_off(tx, now, member, actor, force=cancellation.force)
    if changed:
        body = b"force" if cancellation.force else b""
        audit.act(tx, now, actor, "cancel", _subject(row), reason=cancellation.reason, body=body)
    return GroupCancelled(changed, _remaining(tx, row, unasked))


def _lookup(tx: Tx, tenant_id: str, name: str) -> Row:
    row = tx.row(READ, {"tenant_id": tenant_id, "name": name})
    if row is None:
        raise principals.not_found("GROUP_NOT_FOUND")
    return row


def _shown(tx: Tx, row: Row) -> Group:
    counts: dict[str, int] = {}
    for state in WORKLOAD_STATES:
        found = _count(tx, row, state, 0, COUNT_MAX)
        if found:
            counts[state] = found
    sealed = row["sealed_at_ms"] is not None
    return Group(
        group=row["name"],
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        sealed=sealed,
        ended=sealed and not counts.keys() & set(CANCELLABLE),
        counts=counts,
        created_at_ms=row["created_at_ms"],
        sealed_at_ms=row["sealed_at_ms"],
        capped=COUNT_MAX in counts.values(),
    )


def _remaining(tx: Tx, row: Row, unasked: int) -> int:
    found = (_count(tx, row, state, unasked, REMAINING_MAX) for state in CANCELLABLE)
    return min(REMAINING_MAX, sum(found))


def _count(tx: Tx, row: Row, state: str, unasked: int, count_max: int) -> int:
    params = {**_key(row), "state": state, "unasked": unasked, "count_max": count_max}
    return int(tx.rows(COUNT, params)[0]["workloads"])


def _key(row: Row) -> dict[str, str]:
    return {"tenant_id": row["tenant_id"], "name": row["name"]}


def _subject(row: Row) -> str:
    return parents.group_key(row["tenant_id"], row["name"])

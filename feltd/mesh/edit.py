"""Changes what waiting work asks for: its place in the order, where and how long it may run.

A JSON merge patch over the stored columns, taken while nobody holds the work and it is not final.
A row that moves to another lane leaves the old one's head right and is offered to the new one, in
the same transaction. Nothing of what has happened is rewritten, save when it may be tried again.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType, ValidationError, convert, to_builtins
from msgspec.json import decode, encode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import audit, principals
from feltd.mesh import asked, deadlines, demands, editors, events, pools, retry, secrets, workloads
from feltd.mesh.states import FINAL_STATES, LIVE_STATES
from feltd.model.base import INTEGER_MAX, Ask, Labels
from feltd.model.editing import Edit
from feltd.model.policy import Concurrency, Placement, Timeouts, placement_text
from feltd.model.workload import RetryPolicy, Workload
from feltd.store.tx import Row, Tx

EDIT = """
UPDATE workloads
   SET priority = :priority,
       not_before_at_ms = :not_before_at_ms,
       eligible_at_ms = :eligible_at_ms,
       rank = :rank,
       due = :due,
       lane_id = :lane_id,
       demand_id = :demand_id,
       placement = :placement,
       pool_id = :pool_id,
       concurrency = :concurrency,
       gated = :gated,
       timeouts = :timeouts,
       retry_policy = :retry_policy,
       max_attempts = :max_attempts,
       labels = :labels
 WHERE workload_id = :workload_id
   AND state IN ('PENDING', 'READY', 'DEAD_LETTERED')
"""

# Set by the last attempt, for READY work alone; a requeue, with nothing spent, waits for none.
BACKOFF = """
SELECT c.retry_at_ms
  FROM claims c
 WHERE c.fencing_token = :fencing_token
   AND c.end_state = 'READY'
   AND c.retry_at_ms > :now_ms
"""

SKIP_BACKOFF = """
UPDATE claims
   SET retry_at_ms = :now_ms
 WHERE fencing_token = :fencing_token
   AND end_state = 'READY'
   AND retry_at_ms > :now_ms
"""

#: Columns that an edit may change, each as it is stored.
COLUMNS = (
    "priority",
    "not_before_at_ms",
    "eligible_at_ms",
    "placement",
    "concurrency",
    "timeouts",
    "retry_policy",
    "labels",
)


def edit(tx: Tx, ask: Ask[Edit], now: Now) -> Workload:
    """Change a workload that nobody holds and that is not final; what it becomes is shown.

    not_before_at_ms 0 makes it eligible now, past any backoff; another instant never shortens a
    backoff. An edit that changes nothing writes nothing. Refuses WORKLOAD_NOT_FOUND,
    WORKLOAD_TRANSITION_DENIED for work that is held or final, WORKLOAD_INVALID for what does not
    fit, WORKLOAD_UNAUTHORIZED for a priority beyond the caller's grant, WORKER_POOL_NOT_FOUND,
    WORKLOAD_SECRET_IN_TEXT.
    """
    principals.confirm(tx, ask.caller, now)
    principals.require_scope(ask.caller, "workloads:operate")
    row = workloads.lookup(tx, ask.caller, ask.id)
    _require_waiting(row)
    changed = {**dict(row), **_members(ask.body, row)}
    if ask.body.not_before_at_ms is not UNSET:
        changed["eligible_at_ms"] = _eligible_at_ms(tx, now, row, ask.body.not_before_at_ms)
    if all(changed[name] == row[name] for name in COLUMNS):
        return workloads.shown(tx, row)
    if changed["priority"] != row["priority"]:
        editors.permit_priority(tx, ask.caller, now, changed["priority"])
    _check(tx, row, changed)
    _place(tx, now, row, changed)
    actor = str(ask.caller.subject)
    _tell(tx, now, changed, actor)
    audit.act(tx, now, actor, "edit", ask.id, body=encode(_told(ask.body)))
    return workloads.shown(tx, workloads.lookup(tx, ask.caller, ask.id))


def merged(stored: object, patch: object) -> object:
    """A JSON merge patch (RFC 7396) applied: null takes a member away, objects are merged."""
    if not isinstance(patch, dict):
        return patch
    found: dict[str, object] = dict(stored) if isinstance(stored, dict) else {}
    for name, told in patch.items():
        if told is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), told)
    return found


def _require_waiting(row: Row) -> None:
    if row["state"] in LIVE_STATES:
        raise Refused(
            "WORKLOAD_TRANSITION_DENIED",
            f"the workload is {row['state']}: what a worker holds is not changed under it",
        )
    if row["state"] in FINAL_STATES:
        raise Refused(
            "WORKLOAD_TRANSITION_DENIED", f"the workload is {row['state']}: that is final"
        )


def _members(body: Edit, row: Row) -> dict[str, Any]:
    """The columns that a body names, as they will be stored."""
    found: dict[str, Any] = {}
    if body.priority is not UNSET:
        found["priority"] = body.priority or 0
    if body.not_before_at_ms is not UNSET:
        found["not_before_at_ms"] = body.not_before_at_ms or None
    if body.placement is not UNSET:
        placement = _patched("placement", row["placement"], body.placement, Placement)
        found["placement"] = placement_text(placement)
        found["pool_id"] = placement.pool_id
    if body.concurrency is not UNSET:
        found["concurrency"] = None
        if body.concurrency is not None:
            stored = row["concurrency"] or "{}"
            concurrency = _patched("concurrency", stored, body.concurrency, Concurrency)
            found["concurrency"] = asked.text_of(concurrency)
    if body.timeouts is not UNSET:
        timeouts = _patched("timeouts", row["timeouts"], body.timeouts, Timeouts)
        found["timeouts"] = asked.text_of(timeouts)
    if body.retry_policy is not UNSET:
        policy = _patched("retry_policy", row["retry_policy"], body.retry_policy, RetryPolicy)
        told = {**to_builtins(policy), "retry_on": asked.in_order(policy.retry_on)}
        found["retry_policy"] = asked.text_of(convert(told, RetryPolicy))
        found["max_attempts"] = policy.max_attempts
    if body.labels is not UNSET:
        labels = _patched("labels", row["labels"], body.labels, Labels)
        secrets.screen_labels(labels)
        found["labels"] = asked.text_of(labels)
    return found


def _patched(member: str, stored: str, patch: object, shape: Any) -> Any:
    """A stored object with the patch merged into it, as what it must be."""
    told = {} if patch is None else merged(decode(stored), patch)
    try:
        return convert(told, shape)
    except ValidationError as unfit:
        what, _, place = str(unfit).partition(" - at `$")
        steps = place.rstrip("`").replace("[...]", "").split(".")[1:]
        pointer = "/".join(("", member, *steps))
        raise Refused(
            "WORKLOAD_INVALID",
            f"{pointer}: {what}",
            errors=[{"pointer": pointer, "detail": what}],
        ) from None


def _eligible_at_ms(tx: Tx, now: Now, row: Row, not_before_at_ms: int | UnsetType | None) -> int:
    """When the work may run: at its instant and after its backoff, or now when 0 was said.

    Work that could run already keeps the time it has waited.
    """
    if not_before_at_ms == 0:
        tx.change(SKIP_BACKOFF, {"fencing_token": row["fencing_token"], "now_ms": now.lease_ms})
        return min(int(row["eligible_at_ms"]), now.lease_ms)
    told = {"fencing_token": row["fencing_token"], "now_ms": now.lease_ms}
    backoff = tx.row(BACKOFF, told) if row["attempts_spent"] else None
    eligible_at_ms = row["ready_at_ms"] or row["created_at_ms"]
    if backoff is not None:
        eligible_at_ms = max(eligible_at_ms, backoff["retry_at_ms"])
    if isinstance(not_before_at_ms, int):
        eligible_at_ms = max(eligible_at_ms, now.lease_from_wall(not_before_at_ms))
    # Nobody could have taken it before now: queue_ms does not run from an instant before.
    eligible_at_ms = max(eligible_at_ms, min(row["eligible_at_ms"], now.lease_ms))
    return min(int(eligible_at_ms), INTEGER_MAX)


def _check(tx: Tx, row: Row, changed: Mapping[str, Any]) -> None:
    if changed["pool_id"] is not None and changed["pool_id"] != row["pool_id"]:
        pools.require(tx, row["tenant_id"], row["application_id"], changed["pool_id"])
    # One that waits has an attempt to come, a dead letter has had its last.
    spare = 0 if row["state"] == "DEAD_LETTERED" else 1
    if changed["max_attempts"] < row["attempts_spent"] + spare:
        detail = f"{row['attempts_spent']} attempts are spent already"
        raise Refused(
            "WORKLOAD_INVALID",
            f"/retry_policy/max_attempts: {detail}",
            errors=[{"pointer": "/retry_policy/max_attempts", "detail": detail}],
        )


def _place(tx: Tx, now: Now, row: Row, changed: dict[str, Any]) -> None:
    """Store the changed columns, and put the row where it now belongs in the order."""
    waits = row["state"] == "READY"
    changed["rank"] = retry.rank(changed["eligible_at_ms"], changed["priority"])
    changed["due"] = int(waits and changed["eligible_at_ms"] <= now.lease_ms)
    gates = (changed["pool_id"], changed["concurrency"], changed["rate"])
    changed["gated"] = int(any(gate is not None for gate in gates))
    said = [name for name in ("placement", "concurrency") if changed[name] != row[name]]
    if said and row["state"] != "DEAD_LETTERED":
        changed["demand_id"], changed["lane_id"] = editors.demand_of(tx, changed, said)
    tx.change(EDIT, changed)
    if row["due"]:
        demands.withdraw(tx, row["lane_id"], row["demand_id"])
    if changed["due"]:
        demands.offer(tx, changed["lane_id"], changed["demand_id"], changed["rank"], row["seq"])
        # It may fit others now than those who were told of it before.
        tx.tell("ready", f"{row['tenant_id']}/{row['application_id']}")
    elif waits:
        tx.tell("due", str(changed["eligible_at_ms"]))
    if row["timeouts"] != deadlines.NONE or changed["timeouts"] != deadlines.NONE:
        deadlines.arm(tx, now, row["workload_id"])


def _tell(tx: Tx, now: Now, changed: Mapping[str, Any], actor: str) -> None:
    # No state changes: the event names none.
    events.tell(
        tx,
        now,
        "edit",
        tenant_id=changed["tenant_id"],
        application_id=changed["application_id"],
        workload_id=changed["workload_id"],
        eligible_at_ms=changed["eligible_at_ms"],
        actor=actor,
    )


def _told(body: Edit) -> dict[str, Any]:
    told = {name: getattr(body, name) for name in body.__struct_fields__}
    return {name: value for name, value in told.items() if value is not UNSET}

"""The way back for dead letters: the same workload, its history kept, its attempts counted anew."""

from msgspec import UNSET
from msgspec.json import decode, encode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import audit, principals
from feltd.mesh import deadlines, demands, due, editors, events, parents, retry, workloads
from feltd.model.base import Ask
from feltd.model.workload import INPUT_BYTES_MAX, Requeue, Workload
from feltd.store.tx import Row, Tx

REQUEUE = """
UPDATE workloads
   SET state = 'READY',
       due = :due,
       lane_id = :lane_id,
       demand_id = :demand_id,
       rank = :rank,
       eligible_at_ms = :eligible_at_ms,
       ready_at_ms = :now_ms,
       requeued_at_ms = :now_ms,
       finished_at_ms = NULL,
       attempts_spent = 0,
       releases = 0,
       cancel_requested = 0,
       progress = NULL,
       priority = :priority,
       input = :input
 WHERE workload_id = :workload_id
   AND state = 'DEAD_LETTERED'
"""

REQUEUE_PENDING = """
UPDATE workloads
   SET state = 'PENDING',
       due = 0,
       lane_id = :lane_id,
       demand_id = :demand_id,
       rank = :rank,
       eligible_at_ms = :eligible_at_ms,
       ready_at_ms = NULL,
       requeued_at_ms = :now_ms,
       finished_at_ms = NULL,
       attempts_spent = 0,
       releases = 0,
       cancel_requested = 0,
       progress = NULL,
       priority = :priority,
       input = :input
 WHERE workload_id = :workload_id
   AND state = 'DEAD_LETTERED'
"""

# What an attempt kept for the next one speaks of the input it had.
FORGET_CHECKPOINT = """
DELETE FROM checkpoints
 WHERE workload_id = :workload_id
"""


def requeue(tx: Tx, ask: Ask[Requeue], now: Now) -> Workload:
    """Make a dead letter READY again, with another input or priority where the body names one.

    It is PENDING while dependencies of it are unfinished now; those that have ended are forgiven,
    whatever they ended as. What died of it stays dead: each is requeued by itself, after it.
    Attempts are counted anew and total_ms runs anew, numbers and tokens go on. A new input drops
    the checkpoint of the old one; the idempotency key goes on naming what was first asked. Refuses
    WORKLOAD_NOT_FOUND, WORKLOAD_TRANSITION_DENIED for what is no dead letter (a repeat, too),
    WORKLOAD_INVALID for an input of more than 256 KiB, WORKLOAD_UNAUTHORIZED for a priority beyond
    the caller's grant.
    """
    principals.confirm(tx, ask.caller, now)
    principals.require_scope(ask.caller, "workloads:operate")
    row = workloads.lookup(tx, ask.caller, ask.id)
    if row["state"] != "DEAD_LETTERED":
        raise Refused(
            "WORKLOAD_TRANSITION_DENIED",
            f"only a dead letter can be requeued, this workload is {row['state']}",
        )
    text = _input(ask.body, row)
    priority = row["priority"] if ask.body.priority is None else ask.body.priority
    if priority != row["priority"]:
        editors.permit_priority(tx, ask.caller, now, priority)
    actor = str(ask.caller.subject)
    bring_back(tx, now, row, actor, priority=priority, text=text)
    audit.act(tx, now, actor, "requeue", ask.id, body=encode([priority, text]))
    return workloads.shown(tx, workloads.lookup(tx, ask.caller, ask.id))


def bring_back(
    tx: Tx,
    now: Now,
    row: Row,
    actor: str,
    *,
    priority: int,
    text: str,
    place: tuple[int, int] | None = None,
) -> tuple[int, int]:
    """Requeue a dead letter from its row as workloads.READ gives it; `text` is its input.

    Gives the demand_id and lane_id it has now; `place` are they where the caller knows them. Who
    may do it is the caller's to test, the audit the caller's to write.
    """
    workload_id = row["workload_id"]
    demand_id, lane_id = place or editors.demand_of(tx, row)
    eligible_at_ms = due.eligible_at_ms(now, row["not_before_at_ms"])
    rank = retry.rank(eligible_at_ms, priority)
    standing = _standing(tx, row)
    is_due = not standing.waits and eligible_at_ms <= now.lease_ms
    params = {
        "workload_id": workload_id,
        "now_ms": now.lease_ms,
        "due": int(is_due),
        "lane_id": lane_id,
        "demand_id": demand_id,
        "rank": rank,
        "eligible_at_ms": eligible_at_ms,
        "priority": priority,
        "input": text,
    }
    tx.change(REQUEUE_PENDING if standing.waits else REQUEUE, params)
    if standing.waits:
        parents.register(tx, row["seq"], standing)
    if row["timeouts"] != deadlines.NONE:
        deadlines.arm(tx, now, workload_id)
    if text != row["input"]:
        tx.change(FORGET_CHECKPOINT, {"workload_id": workload_id})
    if is_due:
        demands.offer(tx, lane_id, demand_id, rank, row["seq"])
        tx.tell("ready", f"{row['tenant_id']}/{row['application_id']}")
    elif not standing.waits:
        tx.tell("due", str(eligible_at_ms))
    events.tell(
        tx,
        now,
        "requeue",
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        workload_id=workload_id,
        from_state="DEAD_LETTERED",
        to_state=standing.state,
        eligible_at_ms=None if standing.waits else eligible_at_ms,
        actor=actor,
    )
    return demand_id, lane_id


def require_parents_first(tx: Tx, row: Row) -> None:
    """Refuse WORKLOAD_TRANSITION_DENIED for work that needs a dead letter completed.

    For who requeues many: what needs another waits until that is brought back, too. Who requeues
    one by its id knows what he does, and it runs.
    """
    if row["dependencies"] == "[]" or row["dependency_policy"] == "all_finished":
        return
    named = decode(row["dependencies"], type=tuple[str, ...])
    name = parents.dead(tx, row["tenant_id"], row["application_id"], named)
    if name is not None:
        raise Refused(
            "WORKLOAD_TRANSITION_DENIED",
            f"its dependency {name} is DEAD_LETTERED: requeue that first, or this one by itself",
        )


def _standing(tx: Tx, row: Row) -> parents.Standing:
    named = decode(row["dependencies"], type=tuple[str, ...])
    if not named:
        return parents.Standing()
    return parents.again(tx, row["tenant_id"], row["application_id"], named)


def _input(body: Requeue, row: Row) -> str:
    if body.input is UNSET:
        return str(row["input"])
    text = encode(body.input, order="deterministic")
    if len(text) > INPUT_BYTES_MAX:
        detail = f"takes {len(text)} bytes, at most {INPUT_BYTES_MAX} are allowed"
        raise Refused(
            "WORKLOAD_INVALID",
            f"/input: {detail}",
            errors=[{"pointer": "/input", "detail": detail}],
        )
    return text.decode()

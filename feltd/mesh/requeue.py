"""The way back for dead letters: the same workload, its history kept, its attempts counted anew."""

from msgspec import UNSET
from msgspec.json import decode, encode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import audit, principals
from feltd.mesh import deadlines, demands, due, events, retry, workloads
from feltd.model.base import Ask
from feltd.model.policy import Placement
from feltd.model.workload import INPUT_BYTES_MAX, Requeue, Resources, Workload
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

# What an attempt kept for the next one speaks of the input it had.
FORGET_CHECKPOINT = """
DELETE FROM checkpoints
 WHERE workload_id = :workload_id
"""


def requeue(tx: Tx, ask: Ask[Requeue], now: Now) -> Workload:
    """Make a dead letter READY again, with another input or priority where the body names one.

    Attempts are counted anew and total_ms runs anew, numbers and tokens go on. A new input drops
    the checkpoint of the old one; the idempotency key goes on naming what was first asked. Refuses
    WORKLOAD_NOT_FOUND, WORKLOAD_TRANSITION_DENIED for what is no dead letter (a repeat, too),
    WORKLOAD_INVALID for an input of more than 256 KiB.
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
    demand_id, lane_id = _demand(tx, row)
    priority = row["priority"] if ask.body.priority is None else ask.body.priority
    eligible_at_ms = due.eligible_at_ms(now, row["not_before_at_ms"])
    rank = retry.rank(eligible_at_ms, priority)
    is_due = eligible_at_ms <= now.lease_ms
    tx.change(
        REQUEUE,
        {
            "workload_id": ask.id,
            "now_ms": now.lease_ms,
            "due": int(is_due),
            "lane_id": lane_id,
            "demand_id": demand_id,
            "rank": rank,
            "eligible_at_ms": eligible_at_ms,
            "priority": priority,
            "input": text,
        },
    )
    if row["timeouts"] != deadlines.NONE:
        deadlines.arm(tx, now, ask.id)
    if text != row["input"]:
        tx.change(FORGET_CHECKPOINT, {"workload_id": ask.id})
    if is_due:
        demands.offer(tx, lane_id, demand_id, rank, row["seq"])
        tx.tell("ready", f"{row['tenant_id']}/{row['application_id']}")
    else:
        tx.tell("due", str(eligible_at_ms))
    actor = str(ask.caller.subject)
    events.tell(
        tx,
        now,
        "requeue",
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        workload_id=ask.id,
        from_state="DEAD_LETTERED",
        to_state="READY",
        eligible_at_ms=eligible_at_ms,
        actor=actor,
    )
    audit.act(tx, now, actor, "requeue", ask.id, body=encode([priority, text]))
    return workloads.shown(tx, workloads.lookup(tx, ask.caller, ask.id))


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


def _demand(tx: Tx, row: Row) -> tuple[int, int]:
    # A dead letter names no demand, so that the keeper may have deleted it meanwhile.
    return demands.find(
        tx,
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        definition_id=row["definition_id"],
        definition_revision=row["definition_revision"],
        capabilities=decode(row["capability_snapshot"], type=tuple[str, ...]),
        resources=decode(row["resources"], type=Resources),
        placement=decode(row["placement"], type=Placement),
    )

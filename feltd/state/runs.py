"""A schedule run by hand: out of turn, also while it is disabled, and no instant of it is used up.

It acts as the schedule does, in the name and under the grant of who defined it. Whatever refuses it
is told to the caller and counts as no failure of the schedule.
"""

from feltd.clock import Now
from feltd.errors import Refused
from feltd.model.base import Ask
from feltd.model.schedule import Ran
from feltd.state import firing, schedules, triggers
from feltd.state.standing import OnTrigger, known
from feltd.store.tx import Tx

RUN_AT = """
SELECT f.workload_id
  FROM schedule_firings f
 WHERE f.tenant_id = :tenant_id
   AND f.trigger_id = :trigger_id
   AND f.scheduled_at_ms = :at_ms
   AND f.by_hand = 1
"""


def run_now(tx: Tx, ask: Ask[OnTrigger], now: Now) -> Ran:
    """Make one workload of the schedule `ask.id` now, whatever its overlap policy says.

    Repeating makes another one: the Idempotency-Key is the caller's way to repeat. Refuses
    TRIGGER_NOT_FOUND, TRIGGER_INVALID for a state trigger (only changes fire it), and what a
    creation refuses, WORKLOAD_UNAUTHORIZED where the grant of the schedule has ended.
    """
    triggers.confirm(tx, ask, now)
    tenant_id = ask.body.tenant_id
    if known(tx, tenant_id, ask.id)["kind"] != "schedule":
        raise Refused("TRIGGER_INVALID", "a state trigger is fired by changes alone")
    row = schedules.row_of(tx, tenant_id, ask.id)
    name = {"tenant_id": tenant_id, "trigger_id": ask.id}
    at_ms = max(now.wall_ms, 0)
    while tx.row(RUN_AT, {**name, "at_ms": at_ms}) is not None:
        at_ms += 1
    workload_id = schedules.fire(tx, now, row, at_ms, f"run-{at_ms}")
    schedules.deal(tx, now, row, at_ms, workload_id, by_hand=True)
    firing.write_down(tx, now, "run_trigger", row, str(ask.caller.subject))
    return Ran(ask.id, tenant_id, at_ms, workload_id)

"""A schedule run by hand: out of turn, also while it is disabled, and no instant of it is used up.

It acts as the schedule does, in the name and under the grant of who defined it. Whatever refuses it
is told to the caller and counts as no failure of the schedule.
"""

from msgspec import Struct

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import principals
from feltd.model.base import Ask
from feltd.model.schedule import Ran
from feltd.state import firing, schedules
from feltd.store.tx import Tx

WRITE = "triggers:write"

STATE_TRIGGER = """
SELECT t.trigger_id
  FROM triggers t
 WHERE t.tenant_id = :tenant_id
   AND t.trigger_id = :trigger_id
   AND t.kind = 'state'
"""

RUN_AT = """
SELECT f.workload_id
  FROM schedule_firings f
 WHERE f.tenant_id = :tenant_id
   AND f.trigger_id = :trigger_id
   AND f.scheduled_at_ms = :at_ms
   AND f.by_hand = 1
"""


class Run(Struct, frozen=True):
    """Whose schedule is run; the ask's id names it."""

    tenant_id: str


def run_now(tx: Tx, ask: Ask[Run], now: Now) -> Ran:
    """Make one workload of the schedule `ask.id` now, whatever its overlap policy says.

    Repeating makes another one: the Idempotency-Key is the caller's way to repeat. Refuses
    TRIGGER_NOT_FOUND, TRIGGER_INVALID for a state trigger (only changes fire it), and what a
    creation refuses, WORKLOAD_UNAUTHORIZED where the grant of the schedule has ended.
    """
    principals.confirm(tx, ask.caller, now)
    principals.require_scope(ask.caller, WRITE)
    tenant_id = ask.body.tenant_id
    principals.require_tenant(ask.caller, tenant_id, "TRIGGER_NOT_FOUND")
    row = schedules.known(tx, tenant_id, ask.id)
    name = {"tenant_id": tenant_id, "trigger_id": ask.id}
    if row is None:
        if tx.row(STATE_TRIGGER, name) is not None:
            raise Refused("TRIGGER_INVALID", "a state trigger is fired by changes alone")
        raise principals.not_found("TRIGGER_NOT_FOUND")
    at_ms = max(now.wall_ms, 0)
    while tx.row(RUN_AT, {**name, "at_ms": at_ms}) is not None:
        at_ms += 1
    workload_id = schedules.fire(tx, now, row, at_ms, f"run-{at_ms}")
    schedules.deal(tx, now, row, at_ms, workload_id, by_hand=True)
    firing.write_down(tx, now, "run_trigger", row, str(ask.caller.subject))
    return Ran(ask.id, tenant_id, at_ms, workload_id)

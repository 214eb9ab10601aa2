"""Records written by a program, under the claim it runs for: no claim any more, no write.

The fence and the write stand in one transaction, so that a program which lost its lease, was
cancelled by force, or whose grant has ended changes nothing more. What it may write is everything
of its tenant but programs. The changes are the whole account of it: there is no act.
"""

from feltd.clock import Now
from feltd.errors import Refused
from feltd.mesh import fence, refusal
from feltd.mesh.refusal import Verb
from feltd.mesh.states import LIVE_STATES
from feltd.model.base import Ask
from feltd.model.claim import Fence
from feltd.model.record import FLOW_CAPABILITIES
from feltd.state import records
from feltd.state.records import Stored
from feltd.state.transactions import Step
from feltd.state.writing import Appending, writing
from feltd.store.tx import Tx


class HeldWrite(Fence, frozen=True, kw_only=True):
    """One put or patch of a tenant's record by the holder of a claim; `ask.id` is its workload."""

    tenant_id: str
    step: Step


def write(tx: Tx, ask: Ask[HeldWrite], now: Now) -> Stored:
    """Write one record with the workload as its cause.

    Repeating with the same version expected leaves the record and says the same. Refuses as a
    fenced verb does once the claim is over, FORBIDDEN for a program, else as records.put and patch.
    """
    step = ask.body.step
    if step.collection == FLOW_CAPABILITIES:
        raise Refused("FORBIDDEN", f"a program does not write {FLOW_CAPABILITIES}")
    params = refusal.presented(ask, now)
    if fence.hold(tx, now, fence.HOLDS, params) is None:
        refusal.explain(tx, ask, now, params, Verb("log", LIVE_STATES))
    log = Appending(tx, now, writing(tx, ask.caller, ask.body.tenant_id, ask.id))
    do = records.put_in if step.op == "put" else records.patch_in
    stored = do(tx, now, log, step.collection, step.record_id, step.value, step.expect)
    log.end()
    return stored

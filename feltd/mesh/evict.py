"""Takes a claim from its worker by hand: an operator's word over a lease."""

from msgspec.json import encode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import audit, principals
from feltd.mesh import attempts, refusal, workloads
from feltd.model.base import Ask
from feltd.model.claim import Evict
from feltd.model.secret_text import covered
from feltd.model.workload import Workload
from feltd.store.tx import Tx

CLAIM = """
SELECT c.fencing_token, c.workload_id, c.tenant_id, c.end_kind
  FROM claims c
 WHERE c.fencing_token = :fencing_token
"""


def evict(tx: Tx, ask: Ask[Evict], now: Now) -> Workload:
    """End the live claim `ask.id` as `evicted`; its worker's next call is refused.

    The workload is READY again at once, or a dead letter; an attempt is spent only if asked for.
    Repeating an eviction changes nothing. Refuses CLAIM_NOT_FOUND, WORKLOAD_STALE_FENCE when it
    ended in another way.
    """
    principals.confirm(tx, ask.caller, now)
    row = tx.row(CLAIM, {"fencing_token": refusal.token_of(ask.id) or 0})
    if row is None or not ask.caller.may_see(row["tenant_id"]):
        raise principals.not_found("CLAIM_NOT_FOUND")
    if row["end_kind"] not in (None, "evicted"):
        raise Refused(
            "WORKLOAD_STALE_FENCE",
            f"the claim has ended: {row['end_kind']}",
            next="fix_request",
        )
    if row["end_kind"] is None:
        actor = str(ask.caller.subject)
        end = attempts.End(
            "evicted",
            message=covered(ask.body.reason),
            actor=actor,
            to=ask.body.to,
            spend=ask.body.spend_attempt,
            fencing_token=row["fencing_token"],
        )
        attempts.end_claim(tx, now, row["workload_id"], end)
        audit.act(tx, now, actor, "evict", ask.id, reason=ask.body.reason, body=encode(ask.body))
    return workloads.shown(tx, workloads.lookup(tx, ask.caller, row["workload_id"]))

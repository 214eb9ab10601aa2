"""Takes back claims whose answer nobody was there to hear, as if they had not been made."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from feltd.clock import Now
from feltd.errors import Refused
from feltd.mesh.attempts import End, end_claim
from feltd.model.claim import Claim
from feltd.store.tx import Tx

ISSUED = """
SELECT c.workload_id
  FROM claims c
 WHERE c.fencing_token = :fencing_token
   AND c.workload_id = :workload_id
   AND c.worker_id = :worker_id
   AND c.issued_at_ms = :issued_at_ms
   AND c.ended_at_ms IS NULL
"""

GONE = "the client was gone before it could be told of this claim"


def give_back(tx: Tx, claims: Sequence[Claim], now: Now) -> int:
    """End claims that were never told to anybody: READY at once, nothing spent; how many.

    A claim that has ended, or whose batch was taken back, is passed over: the row must be the one
    that was answered.
    """
    ended = 0
    for claim in claims:
        issued = {
            "fencing_token": claim.fencing_token,
            "workload_id": claim.workload_id,
            "worker_id": claim.worker_id,
            "issued_at_ms": claim.issued_at_ms,
        }
        if tx.row(ISSUED, issued) is None:
            continue
        end = End("evicted", message=GONE, fencing_token=claim.fencing_token)
        with suppress(Refused):
            tx.attempt(partial(end_claim, tx, now, claim.workload_id, end))
            ended += 1
    return ended

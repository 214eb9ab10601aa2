"""Claims that were given to a worker which did not ask: it is told of them until it names them.

A beat or frame that names the claim ends that; so does its start, or its end, without a write. A
claim that is never named runs out like any other.
"""

from collections.abc import Collection, Iterable

from feltd.clock import Now
from feltd.mesh import holding
from feltd.model.claim import Claim
from feltd.store.tx import Row, Tx

NAMED = """
UPDATE claims
   SET assigned = 0
 WHERE fencing_token = :fencing_token
   AND assigned = 1
"""

OF_WORKER = """
SELECT c.fencing_token, c.assigned
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE c.worker_id = :worker_id
   AND c.assigned = 1
   AND c.ended_at_ms IS NULL
   AND w.state = 'CLAIMED'
   AND w.expires_at_ms > :now_ms
   AND NOT EXISTS (SELECT 1
                     FROM deadlines d
                    WHERE d.workload_id = w.workload_id
                      AND d.at_ms <= :now_ms)
 ORDER BY c.fencing_token
"""


def named(tx: Tx, held: Iterable[Row], claim_ids: Collection[str]) -> None:
    """Their worker has named these claims: they are assigned no more. Repeating is harmless."""
    for row in held:
        if row["assigned"] and f"claim_{row['fencing_token']}" in claim_ids:
            tx.change(NAMED, {"fencing_token": row["fencing_token"]})


def waiting(tx: Tx, held: Iterable[Row], claim_ids: Collection[str]) -> list[Claim]:
    """The claims their worker has not named, in full, oldest first.

    `held` are rows with fencing_token and assigned, `claim_ids` what it has named just now. Ends
    early where an answer would grow too large: what is left comes with the next one.
    """
    found: list[Claim] = []
    answer_bytes = 0
    for row in held:
        unnamed = row["assigned"] and f"claim_{row['fencing_token']}" not in claim_ids
        if not unnamed or not holding.fits(answer_bytes):
            continue
        one = holding.live_claim(tx, row["fencing_token"])
        if one is not None:
            found.append(one)
            answer_bytes += holding.claim_bytes(one)
    return found


def of_worker(tx: Tx, worker_id: str, now: Now) -> list[Claim]:
    """The claims a worker has been given and has not named, as `waiting` tells them."""
    return waiting(tx, tx.rows(OF_WORKER, {"worker_id": worker_id, "now_ms": now.lease_ms}), ())

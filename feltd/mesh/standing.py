"""Every live claim of a worker as a reconciliation answers it: all of them, within one answer.

What a worker holds is never cut short, or the two sides would differ. Where the answer has no more
room, claims keep their fence and lose what may be large; it is never in memory all at once.
"""

from collections.abc import Callable

from msgspec.json import encode
from msgspec.structs import asdict

from feltd.mesh import holding
from feltd.model.claim import StandingClaim
from feltd.store.tx import Row, Tx

# None of the columns that may be large: a worker holds up to 1,024 claims.
BRIEF = """
SELECT c.fencing_token, c.number, c.issued_at_ms, w.workload_id, w.tenant_id, w.application_id,
       w.state, w.claim_worker_id, w.expires_at_ms, w.definition_id, w.definition_revision,
       w.environment
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE c.worker_id = :worker_id
   AND c.ended_at_ms IS NULL
 ORDER BY c.fencing_token
"""


def of_worker(
    tx: Tx, worker_id: str, named: Callable[[int], bool], beside_bytes: int
) -> list[StandingClaim]:
    """The live claims of a worker by ascending token, whole while an answer has room.

    `named` tells of a token whether the worker has spoken of it: the others come first when it
    comes to room, for it has nothing of them. `beside_bytes` is what else stands in the answer.
    1,024 claims in brief take at most 2 MiB, so that the whole is below 4 MiB.
    """
    brief = [_brief(row) for row in tx.rows(BRIEF, {"worker_id": worker_id})]
    answer_bytes = beside_bytes + len(encode(brief))
    standing = {claim.fencing_token: claim for claim in brief}
    for claim in sorted(brief, key=lambda one: (named(one.fencing_token), one.fencing_token)):
        if not holding.fits(answer_bytes):
            break
        whole = holding.live_claim(tx, claim.fencing_token)
        if whole is not None:
            answer_bytes += len(encode(whole))
            standing[claim.fencing_token] = StandingClaim(**asdict(whole))
    return list(standing.values())


def _brief(row: Row) -> StandingClaim:
    token = row["fencing_token"]
    return StandingClaim(
        claim_id=f"claim_{token}",
        lease_id=f"lease_{token}",
        workload_id=row["workload_id"],
        attempt_id=f"attempt_{token}",
        attempt_number=row["number"],
        worker_id=row["claim_worker_id"],
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        definition_id=row["definition_id"],
        definition_revision=row["definition_revision"],
        environment=row["environment"],
        fencing_token=token,
        execution_context_id=f"context_claim_{token}",
        issued_at_ms=row["issued_at_ms"],
        expires_at_ms=row["expires_at_ms"],
        state=row["state"],
        truncated=True,
    )

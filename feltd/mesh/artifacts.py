"""Artifact references of a result: only where the claim's runtime policy lets there be any.

Asked of the rows, and only for a result that has some, so that a plain one costs nothing.
"""

from collections.abc import Mapping, Sequence

from feltd.errors import Refused
from feltd.mesh import policies
from feltd.store.tx import Tx

HELD_POLICY = """
SELECT w.runtime_policy,
       (SELECT g.constraints
          FROM workers k
          JOIN grants g ON g.grant_id = k.authorization_grant_id
         WHERE k.worker_id = w.claim_worker_id) AS constraints
  FROM workloads w
 WHERE w.workload_id = :workload_id
   AND w.fencing_token = :fencing_token
   AND w.claim_worker_id = :worker_id
   AND w.expires_at_ms > :now_ms
"""


def require(tx: Tx, params: Mapping[str, object], artifacts: Sequence[str]) -> None:
    """Refuse WORKLOAD_INVALID where the holder of the claim may not hand these over.

    Of whoever does not hold it nothing is said here: that is the fence's.
    """
    if not artifacts:
        return
    row = tx.row(HELD_POLICY, params)
    if row is None:
        return
    if policies.combined(row["runtime_policy"], row["constraints"]).artifact_policy == "none":
        raise Refused(
            "WORKLOAD_INVALID",
            "the runtime policy of the claim allows no artifacts (artifact_policy none)",
            errors=[{"pointer": "/artifacts", "detail": "artifact_policy is none"}],
        )

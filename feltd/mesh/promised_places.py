"""What is promised of decisions and fences, as SQL: each statement returns the rows that break it.

They read the stored rows and no rule runs them.
"""

from msgspec import MsgspecError
from msgspec.json import decode

from feltd.mesh import decisions
from feltd.mesh.promised import Promise

# A decision that chose somebody led to the claim of that worker in the same transaction.
CLAIMS_AND_DECISIONS_AGREE = """
SELECT d.decision_id, d.workload_id, d.selected_worker_id, d.fencing_token
  FROM decisions d
  LEFT JOIN claims c ON c.fencing_token = d.fencing_token
 WHERE (d.selected_worker_id IS NULL) <> (d.fencing_token IS NULL)
    OR (c.fencing_token IS NOT NULL
        AND (c.decision_id IS NOT d.decision_id
             OR c.worker_id <> d.selected_worker_id
             OR c.workload_id <> d.workload_id
             OR c.tenant_id <> d.tenant_id
             OR c.application_id <> d.application_id
             OR c.how <> 'directed'))
UNION ALL
SELECT c.decision_id, c.workload_id, c.worker_id, c.fencing_token
  FROM claims c
 WHERE (c.how = 'directed') <> (c.decision_id IS NOT NULL)
    OR (c.assigned = 1 AND c.how <> 'directed')
"""

# The newest ones: each is decided again, which takes some 30 µs for every worker it read.
DECIDED_AGAIN = """
SELECT d.decision_id, d.workload_id, d.selected_worker_id,
       json_array(d.inputs, d.candidates, d.refused, d.selected_worker_id,
                  d.inputs_digest) AS text
  FROM decisions d
 ORDER BY d.decision_id DESC
 LIMIT 200
"""

FENCES_COUNTED = """
SELECT f.tenant_id, f.resource, f.highest, 'is above every token issued' AS wrong
  FROM fences f
 WHERE f.highest > (SELECT q.seq FROM sqlite_sequence q WHERE q.name = 'claims')
UNION ALL
SELECT t.tenant_id, NULL, t.fences, 'are not as many as are counted'
  FROM (SELECT f.tenant_id, count(*) AS fences FROM fences f GROUP BY f.tenant_id) t
  LEFT JOIN fence_counts n ON n.tenant_id = t.tenant_id
 WHERE t.fences IS NOT n.fences
UNION ALL
SELECT n.tenant_id, NULL, n.fences, 'are counted and not there'
  FROM fence_counts n
 WHERE n.fences <> 0
   AND NOT EXISTS (SELECT 1 FROM fences f WHERE f.tenant_id = n.tenant_id)
"""


def disagrees(text: str) -> bool:
    """Whether a decision, decided again from what it read, says something else."""
    inputs, candidates, refused, selected, digest = decode(text)
    told = {
        "inputs": inputs,
        "candidates": candidates,
        "refused": refused,
        "selected_worker_id": selected,
        "inputs_digest": digest,
    }
    try:
        return not decisions.agrees(told)
    except MsgspecError:
        return True


PLACES = (
    Promise("DIRECTED", "given work went to whom its decision chose", CLAIMS_AND_DECISIONS_AGREE),
    Promise("DECIDED", "a decision decided again is the same", DECIDED_AGAIN, disagrees),
    Promise("FENCES", "a fence's token was issued; fences are counted", FENCES_COUNTED),
)

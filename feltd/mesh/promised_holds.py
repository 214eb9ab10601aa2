"""What is promised of holds and quarantine, as SQL: each statement returns the rows that break it.

They read the stored rows and nothing else; no rule runs them. A hold that ended is asked about as
long as it is remembered.
"""

from feltd.mesh.promised import Promise

# Of the same millisecond nobody can say which came first.
NOTHING_HELD_IS_CLAIMED = """
SELECT 'claimed while held' AS what, c.fencing_token AS id, h.hold_id
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
  JOIN holds h ON h.tenant_id IN ('*', c.tenant_id)
 WHERE c.ended_at_ms IS NULL
   AND c.issued_at_ms > h.held_at_ms
   AND c.issued_at_ms < ifnull(h.ended_at_ms, c.issued_at_ms + 1)
   AND (h.scope IN ('all', 'tenant')
        OR (h.scope = 'application' AND h.value = c.application_id)
        OR (h.scope = 'pool' AND h.value = c.pool_id)
        OR (h.scope = 'definition'
            AND h.value IN (w.definition_id, w.definition_id || '#' || w.definition_revision)))
UNION ALL
SELECT 'claimed by a quarantined worker', c.fencing_token, k.worker_id
  FROM claims c
  JOIN workers k ON k.worker_id = c.worker_id
 WHERE c.ended_at_ms IS NULL
   AND c.issued_at_ms > k.quarantined_at_ms
   AND k.quarantined_until_at_ms IS NULL
"""

HOLDS = (Promise("HOLDS", "no claim passes a hold or a quarantine", NOTHING_HELD_IS_CLAIMED),)

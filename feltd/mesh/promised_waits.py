"""What is promised of dependencies and groups, as SQL: a statement returns the rows that break it.

They read the stored rows, and the JSON in them, and no rule runs them.
"""

from feltd.mesh.promised import Promise

# What is left for the keeper's next round stands in settlements, for so long as a lapsed lease may
# wait for the keeper.
WAITS_ARE_TRUE = """
SELECT w.workload_id, w.state, 'is PENDING and waits for nothing' AS wrong
  FROM workloads w
 WHERE w.state = 'PENDING'
   AND NOT EXISTS (SELECT 1 FROM dependency_waits d WHERE d.child_seq = w.seq)
UNION ALL
SELECT w.workload_id, w.state, 'waits and is not PENDING'
  FROM dependency_waits d
  JOIN workloads w ON w.seq = d.child_seq
 WHERE w.state <> 'PENDING'
UNION ALL
SELECT d.parent, p.state, 'has ended and its children wait'
  FROM dependency_waits d
  JOIN workloads p ON p.workload_id = d.parent
 WHERE p.state IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELLED')
   AND NOT EXISTS (SELECT 1 FROM settlements s WHERE s.parent = d.parent)
UNION ALL
SELECT d.parent, p.state, 'is waited for and does not know or is not its child''s'
  FROM dependency_waits d
  JOIN workloads c ON c.seq = d.child_seq
  LEFT JOIN workloads p ON p.workload_id = d.parent
 WHERE d.parent NOT GLOB 'group:*'
   AND (p.awaited IS NOT 1
        OR p.seq >= c.seq
        OR p.tenant_id <> c.tenant_id
        OR p.application_id <> c.application_id)
UNION ALL
SELECT d.parent, g.name, 'is waited for and is no sealed group with unfinished work'
  FROM dependency_waits d
  JOIN workloads c ON c.seq = d.child_seq
  LEFT JOIN workload_groups g ON d.parent = 'group:' || g.tenant_id || '/' || g.name
 WHERE d.parent GLOB 'group:*'
   AND (g.name IS NULL
        OR g.sealed_at_ms IS NULL
        OR g.tenant_id <> c.tenant_id
        OR g.application_id <> c.application_id
        OR (NOT EXISTS (SELECT 1
                          FROM workloads m
                         WHERE m.tenant_id = g.tenant_id
                           AND m.group_name = g.name
                           AND m.state NOT IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELLED'))
            AND NOT EXISTS (SELECT 1 FROM settlements s WHERE s.parent = d.parent)))
UNION ALL
SELECT s.parent, l.lease_ms - s.at_ms, 'ended long ago and children are still to be told'
  FROM ledger l
  JOIN settlements s ON s.at_ms <= l.lease_ms - l.recover_slack_ms
 WHERE l.id = 1
   AND l.served_at_ms IS NOT NULL
"""

# A requeue forgives what had ended; without one nothing ran before what it needs was there.
NONE_BEFORE_ITS_DEPENDENCIES = """
SELECT c.workload_id, c.state, p.workload_id AS parent, p.state AS parent_state
  FROM workloads c
  JOIN json_each(c.dependencies) j
  JOIN workloads p ON p.workload_id = j.value
 WHERE c.dependencies <> '[]'
   AND c.requeued_at_ms IS NULL
   AND (c.state IN ('READY', 'CLAIMED', 'RUNNING', 'CHECKPOINTED', 'COMPLETED')
        OR c.attempt_number > 0)
   AND ((c.dependency_policy = 'all_completed' AND p.state <> 'COMPLETED')
        OR (p.requeued_at_ms IS NULL
            AND p.state NOT IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELLED')))
UNION ALL
SELECT c.workload_id, c.state, j.value, m.state
  FROM workloads c
  JOIN json_each(c.dependencies) j
  JOIN workloads m ON m.tenant_id = c.tenant_id AND m.group_name = substr(j.value, 7)
 WHERE c.dependencies <> '[]'
   AND j.value GLOB 'group:*'
   AND c.requeued_at_ms IS NULL
   AND (c.state IN ('READY', 'CLAIMED', 'RUNNING', 'CHECKPOINTED', 'COMPLETED')
        OR c.attempt_number > 0)
   AND ((c.dependency_policy = 'all_completed' AND m.state <> 'COMPLETED')
        OR (m.requeued_at_ms IS NULL
            AND m.state NOT IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELLED')))
"""

GROUPS_ARE_WHOLE = """
SELECT w.workload_id, w.group_name, g.application_id, g.sealed_at_ms
  FROM workloads w
  LEFT JOIN workload_groups g ON g.tenant_id = w.tenant_id AND g.name = w.group_name
 WHERE w.group_name IS NOT NULL
   AND (g.name IS NULL
        OR g.application_id <> w.application_id
        OR w.created_at_ms > g.sealed_at_ms)
"""

# What has ended as it should needs its parents no more; a dead letter may be brought back.
PARENTS_ARE_KEPT = """
SELECT c.workload_id, c.state, e.parent, 'is gone and is still needed' AS wrong
  FROM dependency_edges e
  JOIN workloads c ON c.seq = e.child_seq
 WHERE c.state NOT IN ('COMPLETED', 'CANCELLED')
   AND CASE WHEN e.parent GLOB 'group:*'
            THEN NOT EXISTS (SELECT 1
                               FROM workload_groups g
                              WHERE g.tenant_id = c.tenant_id
                                AND e.parent = 'group:' || g.tenant_id || '/' || g.name)
            ELSE NOT EXISTS (SELECT 1
                               FROM workloads p
                              WHERE p.workload_id = e.parent)
       END
UNION ALL
SELECT c.workload_id, c.state, j.value, 'is named and not known to be needed'
  FROM workloads c
  JOIN json_each(c.dependencies) j
 WHERE c.dependencies <> '[]'
   AND c.state NOT IN ('COMPLETED', 'CANCELLED')
   AND NOT EXISTS (SELECT 1
                     FROM dependency_edges e
                    WHERE e.child_seq = c.seq
                      AND e.parent = CASE WHEN j.value GLOB 'group:*'
                                          THEN 'group:' || c.tenant_id || '/' || substr(j.value, 7)
                                          ELSE j.value
                                     END)
"""

WAITS = (
    Promise(
        "WAITS", "what waits has something to wait for, and is told when it ends", WAITS_ARE_TRUE
    ),
    Promise("NEEDED", "what unfinished work depends on is kept", PARENTS_ARE_KEPT),
    Promise("DEPENDENCIES", "nothing runs before what it depends on", NONE_BEFORE_ITS_DEPENDENCIES),
    Promise(
        "GROUPS", "a group is of one application and takes nothing once sealed", GROUPS_ARE_WHOLE
    ),
)

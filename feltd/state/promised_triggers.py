"""The promises about triggers as SQL: each statement returns the rows that break it.

They read the stored rows and nothing else; no rule runs them. A condition is no SQL: whether the
right changes met it is asked for triggers without one alone, the history checker asks the others.
"""

from feltd.mesh.promised import Promise

# Behind a new start, or a new condition, changes were judged by another word or not at all.
EACH_CHANGE_FIRES_ONCE = """
SELECT 'change fired nothing' AS what, t.tenant_id, t.trigger_id AS id, c.seq
  FROM triggers t
  JOIN change_logs l ON l.tenant_id = t.tenant_id
  JOIN changes c ON c.tenant_id = t.tenant_id
                AND c.collection = t.source_collection
                AND c.seq > t.judged_from_seq
                AND c.seq > l.floor_seq
                AND c.seq <= t.cursor_seq
 WHERE t.predicate IS NULL
   AND t.change_kind IN ('any', c.kind)
   AND NOT EXISTS (SELECT 1
                     FROM trigger_firings f
                    WHERE f.tenant_id = t.tenant_id
                      AND f.trigger_id = t.trigger_id
                      AND f.seq = c.seq)
UNION ALL
SELECT 'fired beyond its cursor', f.tenant_id, f.trigger_id, f.seq
  FROM trigger_firings f
  JOIN triggers t ON t.tenant_id = f.tenant_id AND t.trigger_id = f.trigger_id
 WHERE f.seq > t.cursor_seq
   AND t.starts = 1
   AND f.at_ms > t.created_at_ms
UNION ALL
SELECT 'cursor beyond the log', t.tenant_id, t.trigger_id, t.cursor_seq
  FROM triggers t
  LEFT JOIN change_logs l ON l.tenant_id = t.tenant_id
 WHERE t.cursor_seq > ifnull(l.head_seq, 0)
    OR t.judged_from_seq > t.cursor_seq
UNION ALL
SELECT 'log looks evaluated', l.tenant_id, t.trigger_id, t.cursor_seq
  FROM change_logs l
  JOIN triggers t ON t.tenant_id = l.tenant_id
                 AND t.kind = 'state'
                 AND t.enabled = 1
                 AND t.retry_at_ms IS NULL
                 AND t.cursor_seq < l.evaluated_seq
"""

# A workload that is gone leaves a tombstone for a while; of older ones nothing tells any more.
EACH_FIRING_HAS_ITS_WORKLOAD = """
SELECT 'workload is gone' AS what, f.tenant_id, f.trigger_id AS id, f.seq, f.workload_id
  FROM trigger_firings f
  JOIN floors g ON g.name = 'tombstones'
 WHERE f.workload_id IS NOT NULL
   AND f.at_ms > g.at_ms
   AND NOT EXISTS (SELECT 1 FROM workloads w WHERE w.workload_id = f.workload_id)
   AND f.workload_id NOT IN (SELECT m.workload_id FROM tombstones m)
UNION ALL
SELECT 'key is not of this change', f.tenant_id, f.trigger_id, f.seq, w.idempotency_key
  FROM trigger_firings f
  JOIN workloads w ON w.workload_id = f.workload_id
 WHERE w.idempotency_key <> 'trigger/' || f.trigger_id || '/' || f.instance_id || '/' || f.seq
    OR w.trigger <> f.trigger_id
UNION ALL
SELECT 'depth is not one more', f.tenant_id, f.trigger_id, f.seq, f.depth
  FROM trigger_firings f
  JOIN changes c ON c.tenant_id = f.tenant_id AND c.seq = f.seq
 WHERE f.depth <> c.depth + 1
"""

FIRINGS_CROSS_NOTHING = """
SELECT 'firing in another tenant' AS what, f.tenant_id, f.trigger_id AS id, f.seq, w.tenant_id AS of
  FROM trigger_firings f
  JOIN workloads w ON w.workload_id = f.workload_id
 WHERE w.tenant_id <> f.tenant_id
UNION ALL
SELECT 'firing in another application', f.tenant_id, f.trigger_id, f.seq, w.application_id
  FROM trigger_firings f
  JOIN workloads w ON w.workload_id = f.workload_id
  JOIN triggers t ON t.tenant_id = f.tenant_id AND t.trigger_id = f.trigger_id
 WHERE w.application_id <> t.application_id
   AND f.at_ms > t.created_at_ms
UNION ALL
SELECT 'trigger acts under a foreign grant', t.tenant_id, t.trigger_id, t.cursor_seq, g.grant_id
  FROM triggers t
  JOIN grants g ON g.grant_id = t.authorization_grant_id
 WHERE g.tenant_id <> t.tenant_id
    OR g.application_id <> t.application_id
    OR g.subject_kind || ':' || g.subject_id <> t.requested_by
"""

DEFINITIONS_READ = """
SELECT t.tenant_id, t.trigger_id
  FROM triggers t
 WHERE NOT json_valid(t.work)
    OR NOT json_valid(coalesce(t.predicate, 'null'))
"""

TRIGGERS = (
    Promise("I13", "each matching change fires each trigger exactly once", EACH_CHANGE_FIRES_ONCE),
    Promise("I13", "a firing has its workload, under its own key", EACH_FIRING_HAS_ITS_WORKLOAD),
    Promise("I11", "nothing crosses tenant or application", FIRINGS_CROSS_NOTHING),
    Promise("JSON", "what is stored as JSON can be read", DEFINITIONS_READ),
)

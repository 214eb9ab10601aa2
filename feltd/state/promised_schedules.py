"""The promises about schedules as SQL: each statement returns the rows that break it.

They read the stored rows and nothing else; no rule runs them. Which instants there were is a matter
of calendars: the tests ask that of another walk.
"""

from feltd.mesh.promised import Promise

# Firings of a schedule that was deleted stay; one defined anew under its id begins afresh.
EACH_INSTANT_IS_BEHIND = """
SELECT 'instant beyond the last one dealt with' AS what,
       f.tenant_id, f.trigger_id AS id, f.scheduled_at_ms, t.last_at_ms
  FROM schedule_firings f
  JOIN triggers t ON t.tenant_id = f.tenant_id AND t.trigger_id = f.trigger_id
 WHERE f.by_hand = 0
   AND f.at_ms > t.created_at_ms
   AND f.scheduled_at_ms > ifnull(t.last_at_ms, -1)
UNION ALL
SELECT 'the next instant is an old one', t.tenant_id, t.trigger_id, t.next_at_ms, t.last_at_ms
  FROM triggers t
 WHERE t.next_at_ms <= t.last_at_ms
UNION ALL
SELECT 'more firings than it counted', t.tenant_id, t.trigger_id, t.fired, count(*)
  FROM triggers t
  JOIN schedule_firings f ON f.tenant_id = t.tenant_id AND f.trigger_id = t.trigger_id
 WHERE f.outcome = 'fired'
   AND f.at_ms > t.created_at_ms
 GROUP BY t.tenant_id, t.trigger_id, t.fired
HAVING count(*) > t.fired
"""

# A workload that is gone leaves a tombstone for a while; of older ones nothing tells any more.
EACH_FIRING_HAS_ITS_WORKLOAD = """
SELECT 'workload is gone' AS what,
       f.tenant_id, f.trigger_id AS id, f.scheduled_at_ms, f.workload_id
  FROM schedule_firings f
  JOIN floors g ON g.name = 'tombstones'
 WHERE f.workload_id IS NOT NULL
   AND f.at_ms > g.at_ms
   AND NOT EXISTS (SELECT 1 FROM workloads w WHERE w.workload_id = f.workload_id)
   AND f.workload_id NOT IN (SELECT m.workload_id FROM tombstones m)
UNION ALL
SELECT 'key is not of this instant', f.tenant_id, f.trigger_id, f.scheduled_at_ms, w.workload_id
  FROM schedule_firings f
  JOIN workloads w ON w.workload_id = f.workload_id
 WHERE w.trigger <> f.trigger_id
    OR w.idempotency_key <> 'trigger/' || f.trigger_id || '/' || f.instance_id || '/'
                            || CASE f.by_hand WHEN 1 THEN 'run-' ELSE '' END || f.scheduled_at_ms
"""

FIRINGS_CROSS_NOTHING = """
SELECT 'run in another tenant' AS what,
       f.tenant_id, f.trigger_id AS id, f.scheduled_at_ms, w.tenant_id AS of
  FROM schedule_firings f
  JOIN workloads w ON w.workload_id = f.workload_id
 WHERE w.tenant_id <> f.tenant_id
UNION ALL
SELECT 'run in another application', f.tenant_id, f.trigger_id, f.scheduled_at_ms, w.application_id
  FROM schedule_firings f
  JOIN workloads w ON w.workload_id = f.workload_id
  JOIN triggers t ON t.tenant_id = f.tenant_id AND t.trigger_id = f.trigger_id
 WHERE w.application_id <> t.application_id
   AND f.at_ms > t.created_at_ms
"""

SCHEDULES = (
    Promise("SCHEDULE", "an instant is dealt with once, in order", EACH_INSTANT_IS_BEHIND),
    Promise("SCHEDULE", "a run has its workload, under its key", EACH_FIRING_HAS_ITS_WORKLOAD),
    Promise("I11", "nothing crosses tenant or application", FIRINGS_CROSS_NOTHING),
)

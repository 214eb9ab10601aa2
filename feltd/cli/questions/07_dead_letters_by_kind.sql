-- What was given up lately, by kind of failure?
-- Of the newest 100,000 dead letters at most.
-- :minutes = 60: in the last so many
SELECT w.tenant_id, w.application_id, w.definition_id, w.failure_kind, count(*) AS dead,
       strftime('%Y-%m-%dT%H:%M:%fZ', (min(w.finished_at_ms) + n.wall_offset_ms) / 1000.0, 'unixepoch') AS first_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', (max(w.finished_at_ms) + n.wall_offset_ms) / 1000.0, 'unixepoch') AS last_at,
       max(w.workload_id) AS newest,
       max(w.failure_message) AS message_of_one
  FROM v_now n
 CROSS JOIN (SELECT d.tenant_id, d.application_id, d.definition_id, d.failure_kind,
                    d.failure_message, d.workload_id, d.finished_at_ms
               FROM workloads d
              WHERE d.state = 'DEAD_LETTERED'
                AND d.finished_at_ms >= (SELECT m.lease_ms - 60000 * coalesce(:minutes, 60)
                                           FROM v_now m)
              ORDER BY d.finished_at_ms DESC
              LIMIT 100000) w
 GROUP BY w.tenant_id, w.application_id, w.definition_id, w.failure_kind
 ORDER BY dead DESC, w.tenant_id, w.application_id, w.definition_id, w.failure_kind
 LIMIT 100;

-- What did this worker do last?
-- :worker: its id or name
-- :rows = 50: so many
SELECT k.name AS worker, k.tenant_id, k.lifecycle,
       strftime('%Y-%m-%dT%H:%M:%fZ', (c.issued_at_ms + n.wall_offset_ms) / 1000.0, 'unixepoch') AS claimed_at,
       w.definition_id, c.workload_id, c.number AS attempt, c.fencing_token, c.how,
       coalesce(c.end_kind, 'held') AS ended, c.end_state,
       (c.ended_at_ms - c.issued_at_ms) / 1000.0 AS held_s,
       c.failure_message
  FROM v_now n
 CROSS JOIN workers k
 CROSS JOIN claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE (k.worker_id = :worker OR k.name = :worker)
   AND c.worker_id = k.worker_id
 ORDER BY c.fencing_token DESC
 LIMIT coalesce(:rows, 50);

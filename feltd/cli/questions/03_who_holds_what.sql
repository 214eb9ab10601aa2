-- Who holds what now, the longest first?
-- :worker: only this one, by id or name
-- :rows = 100: so many
SELECT c.tenant_id, k.name AS worker, c.worker_id, c.workload_id, w.definition_id, w.state,
       c.number AS attempt, c.fencing_token,
       (n.lease_ms - c.issued_at_ms) / 1000 AS held_s,
       (w.expires_at_ms - n.lease_ms) / 1000 AS lease_left_s,
       w.progress, w.cancel_requested
  FROM v_now n
 CROSS JOIN claims c
  JOIN workloads w ON w.workload_id = c.workload_id
  JOIN workers k ON k.worker_id = c.worker_id
 WHERE c.ended_at_ms IS NULL
   AND (:worker IS NULL OR :worker IN (k.worker_id, k.name))
 ORDER BY c.issued_at_ms, c.fencing_token
 LIMIT coalesce(:rows, 100);

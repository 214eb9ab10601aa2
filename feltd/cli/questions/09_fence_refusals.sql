-- Whose results came after their claim had ended, and were refused by the fence?
-- What a worker reports at its reconcile is kept; single calls count in feltd_fence_refusals_total.
-- :rows = 50: so many
SELECT strftime('%Y-%m-%dT%H:%M:%fZ', (l.at_ms + n.wall_offset_ms) / 1000.0, 'unixepoch') AS sent_at,
       w.tenant_id, l.workload_id, w.definition_id, k.name AS worker, l.worker_id,
       l.fencing_token, w.fencing_token AS newest_token, l.outcome AS says,
       c.end_kind AS its_claim_ended_by,
       (l.at_ms - c.ended_at_ms) / 1000.0 AS late_s,
       w.state
  FROM v_now n
 CROSS JOIN (SELECT *
               FROM late_results
              ORDER BY fencing_token DESC
              LIMIT coalesce(:rows, 50)) l
  JOIN workloads w ON w.workload_id = l.workload_id
  JOIN claims c ON c.fencing_token = l.fencing_token
  LEFT JOIN workers k ON k.worker_id = l.worker_id
 ORDER BY l.fencing_token DESC;

-- Which leases are about to lapse, or have?
-- :seconds = 30: within so many from now
SELECT w.tenant_id, w.workload_id, w.definition_id, w.state, k.name AS worker, k.worker_id,
       w.fencing_token,
       (w.expires_at_ms - n.lease_ms) / 1000.0 AS lease_left_s,
       (n.lease_ms - k.last_seen_at_ms) / 1000.0 AS worker_silent_s,
       k.lifecycle
  FROM v_now n
 CROSS JOIN workloads w
  JOIN workers k ON k.worker_id = w.claim_worker_id
 WHERE w.state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
   AND w.expires_at_ms <= n.lease_ms + 1000 * coalesce(:seconds, 30)
 ORDER BY w.expires_at_ms, w.seq
 LIMIT 200;

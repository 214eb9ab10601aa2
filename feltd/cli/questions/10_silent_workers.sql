-- Which workers are silent, and what do they still hold?
-- Not heard for two of their heartbeat intervals, or counted as lost since the last hour.
SELECT k.tenant_id, k.application_id, k.name AS worker, k.worker_id, k.lifecycle, k.offline_reason,
       (n.lease_ms - k.last_seen_at_ms) / 1000 AS silent_s,
       k.heartbeat_timeout_ms / 1000 AS timeout_s,
       (SELECT count(*)
          FROM claims c
         WHERE c.worker_id = k.worker_id
           AND c.ended_at_ms IS NULL) AS holds
  FROM v_now n
 CROSS JOIN workers k
 WHERE k.removed_at_ms IS NULL
   AND ((k.lifecycle <> 'OFFLINE' AND k.last_seen_at_ms + 2 * k.heartbeat_interval_ms < n.lease_ms)
        OR (k.lifecycle = 'OFFLINE'
            AND k.offline_reason = 'failed'
            AND k.last_seen_at_ms > n.lease_ms - 3600000))
 ORDER BY k.last_seen_at_ms, k.worker_id
 LIMIT 200;

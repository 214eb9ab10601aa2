-- Which claims are stuck: held far longer than work of their kind takes?
-- For over a minute, and ten times the median of the last hundred of the kind that completed.
-- :rows = 50: so many
WITH held AS (
  SELECT c.fencing_token, c.workload_id, c.worker_id, w.tenant_id, w.application_id,
         w.definition_id, w.progress, w.expires_at_ms, c.issued_at_ms,
         coalesce(w.started_at_ms, c.issued_at_ms) AS since_ms
    FROM claims c
    JOIN workloads w ON w.workload_id = c.workload_id
   WHERE c.ended_at_ms IS NULL
),
recent AS (
  SELECT w.tenant_id, w.application_id, w.definition_id,
         c.ended_at_ms - c.started_at_ms AS run_ms,
         row_number() OVER (PARTITION BY w.tenant_id, w.application_id, w.definition_id
                            ORDER BY c.fencing_token DESC) AS place
    FROM (SELECT fencing_token, workload_id, started_at_ms, ended_at_ms, end_kind
            FROM claims
           WHERE ended_at_ms IS NOT NULL
           ORDER BY fencing_token DESC
           LIMIT 5000) c
    JOIN workloads w ON w.workload_id = c.workload_id
   WHERE c.end_kind = 'completed'
),
ordered AS (
  SELECT r.tenant_id, r.application_id, r.definition_id, r.run_ms,
         row_number() OVER (PARTITION BY r.tenant_id, r.application_id, r.definition_id
                            ORDER BY r.run_ms) AS place,
         count(*) OVER (PARTITION BY r.tenant_id, r.application_id, r.definition_id) AS runs
    FROM recent r
   WHERE r.place <= 100
),
usual AS (
  SELECT o.tenant_id, o.application_id, o.definition_id, o.run_ms
    FROM ordered o
   WHERE o.place = (o.runs + 1) / 2
)
SELECT h.tenant_id, h.definition_id, h.workload_id, k.name AS worker, h.worker_id,
       h.fencing_token,
       (n.lease_ms - h.since_ms) / 1000 AS runs_s,
       u.run_ms / 1000.0 AS usual_s,
       h.progress,
       (n.lease_ms - k.last_seen_at_ms) / 1000 AS worker_silent_s,
       'feltd claim evict claim_' || h.fencing_token AS command
  FROM v_now n
 CROSS JOIN held h
  JOIN workers k ON k.worker_id = h.worker_id
  LEFT JOIN usual u ON u.tenant_id = h.tenant_id
                   AND u.application_id = h.application_id
                   AND u.definition_id = h.definition_id
 WHERE n.lease_ms - h.since_ms > max(60000, 10 * coalesce(u.run_ms, 0))
 ORDER BY h.since_ms, h.fencing_token
 LIMIT coalesce(:rows, 50);

-- Which kinds of work run longest, and how long did the slowest in twenty take?
-- Of the newest 20,000 completed attempts.
SELECT r.tenant_id, r.application_id, r.definition_id, max(r.runs) AS runs,
       min(CASE WHEN r.place * 2 >= r.runs THEN r.run_ms END) AS p50_ms,
       min(CASE WHEN r.place * 20 >= r.runs * 19 THEN r.run_ms END) AS p95_ms,
       max(r.run_ms) AS longest_ms
  FROM (SELECT w.tenant_id, w.application_id, w.definition_id,
               c.ended_at_ms - c.started_at_ms AS run_ms,
               row_number() OVER (PARTITION BY w.tenant_id, w.application_id, w.definition_id
                                  ORDER BY c.ended_at_ms - c.started_at_ms) AS place,
               count(*) OVER (PARTITION BY w.tenant_id, w.application_id, w.definition_id) AS runs
          FROM (SELECT workload_id, started_at_ms, ended_at_ms
                  FROM claims
                 WHERE end_kind = 'completed'
                 ORDER BY fencing_token DESC
                 LIMIT 20000) c
          JOIN workloads w ON w.workload_id = c.workload_id) r
 GROUP BY r.tenant_id, r.application_id, r.definition_id
 ORDER BY p95_ms DESC, r.tenant_id, r.application_id, r.definition_id
 LIMIT 50;

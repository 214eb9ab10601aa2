-- What fails again and again: attempts that ended in failure, by kind of work?
-- Of the newest 20,000 ends of attempts at most.
-- :minutes = 15: in the last so many
WITH ends AS (
  SELECT c.fencing_token, c.workload_id, c.end_kind, c.end_state, c.worker_id
    FROM v_now n
   CROSS JOIN (SELECT fencing_token, workload_id, worker_id, ended_at_ms, end_kind, end_state
                 FROM claims
                ORDER BY fencing_token DESC
                LIMIT 20000) c
   WHERE c.ended_at_ms >= n.lease_ms - 60000 * coalesce(:minutes, 15)
)
SELECT w.tenant_id, w.application_id, w.definition_id,
       count(*) AS attempts,
       sum(e.end_kind <> 'completed') AS failed,
       sum(e.end_kind <> 'completed' AND e.end_state = 'READY') AS to_be_repeated,
       count(DISTINCT CASE WHEN e.end_kind <> 'completed' THEN e.workload_id END) AS workloads,
       count(DISTINCT CASE WHEN e.end_kind <> 'completed' THEN e.worker_id END) AS workers,
       max(CASE WHEN e.end_kind <> 'completed' THEN e.end_kind END) AS one_kind,
       max(w.attempts_spent) AS most_attempts_spent
  FROM ends e
  JOIN workloads w ON w.workload_id = e.workload_id
 GROUP BY w.tenant_id, w.application_id, w.definition_id
HAVING failed > 0
 ORDER BY failed DESC, w.tenant_id, w.application_id, w.definition_id
 LIMIT 50;

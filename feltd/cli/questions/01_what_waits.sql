-- What waits, kind by kind, and what keeps each kind back?
-- Counts stop at 10,000. The kind whose next work has waited longest comes first.
-- :rows = 50: so many kinds
WITH kinds AS (
  SELECT d.demand_id, d.tenant_id, d.application_id, d.definition_id, d.pool_id,
         coalesce(d.head_seq,
                  (SELECT n.head_seq
                     FROM lanes n
                    WHERE n.demand_id = d.demand_id
                      AND n.head_seq IS NOT NULL
                    ORDER BY n.head_rank
                    LIMIT 1)) AS head_seq
    FROM demands d
)
SELECT k.tenant_id, k.application_id, k.definition_id, k.pool_id,
       (SELECT count(*)
          FROM (SELECT 1
                  FROM lanes n
                 CROSS JOIN workloads w
                 WHERE n.demand_id = k.demand_id
                   AND w.lane_id = n.lane_id
                   AND w.state = 'READY'
                   AND w.due = 1
                 LIMIT 10000)) AS ready,
       (SELECT count(*)
          FROM (SELECT 1
                  FROM workloads w
                 WHERE w.demand_id = k.demand_id
                   AND w.due = 0
                   AND w.state IN ('PENDING', 'READY')
                 LIMIT 10000)) AS later,
       (n.lease_ms - h.eligible_at_ms) / 1000 AS next_waits_s,
       h.workload_id AS next,
       (SELECT y.why
          FROM v_why y
         WHERE y.workload_id = coalesce(h.workload_id,
                                        (SELECT w.workload_id
                                           FROM workloads w
                                          WHERE w.demand_id = k.demand_id
                                            AND w.due = 0
                                            AND w.state IN ('PENDING', 'READY')
                                          LIMIT 1))) AS why
  FROM v_now n
  JOIN kinds k
  LEFT JOIN workloads h ON h.seq = k.head_seq
 WHERE h.seq IS NOT NULL
    OR EXISTS (SELECT 1
                 FROM workloads w
                WHERE w.demand_id = k.demand_id
                  AND w.due = 0
                  AND w.state IN ('PENDING', 'READY'))
 ORDER BY h.eligible_at_ms IS NULL, h.eligible_at_ms, k.demand_id
 LIMIT coalesce(:rows, 50);

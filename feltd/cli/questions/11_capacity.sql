-- Is there room: workers, slots, claims and due work of each application?
-- Due work is counted up to 10,000.
SELECT a.tenant_id, a.application_id,
       count(k.worker_id) AS workers,
       coalesce(sum(k.ready), 0) AS ready_workers,
       coalesce(sum(k.ready * k.concurrency), 0) AS slots,
       coalesce(sum(k.claims), 0) AS claims,
       coalesce(sum(k.ready * max(k.concurrency - k.claims, 0)), 0) AS free_slots,
       coalesce(sum(k.draining), 0) AS draining,
       coalesce(sum(k.quarantined), 0) AS quarantined,
       (SELECT count(*)
          FROM (SELECT 1
                  FROM demands d
                  JOIN lanes n ON n.demand_id = d.demand_id
                 CROSS JOIN workloads w
                 WHERE d.tenant_id = a.tenant_id
                   AND d.application_id = a.application_id
                   AND w.lane_id = n.lane_id
                   AND w.state = 'READY'
                   AND w.due = 1
                 LIMIT 10000)) AS due
  FROM applications a
  LEFT JOIN (SELECT r.tenant_id, r.application_id, r.worker_id, r.concurrency,
                    r.lifecycle = 'READY' AND r.quarantined_by IS NULL AS ready,
                    r.lifecycle = 'DRAINING' AS draining,
                    r.quarantined_by IS NOT NULL AS quarantined,
                    (SELECT count(*)
                       FROM claims c
                      WHERE c.worker_id = r.worker_id
                        AND c.ended_at_ms IS NULL) AS claims
               FROM workers r
              WHERE r.removed_at_ms IS NULL
                AND r.lifecycle <> 'OFFLINE') k
         ON k.tenant_id = a.tenant_id AND k.application_id = a.application_id
 GROUP BY a.tenant_id, a.application_id
 ORDER BY a.tenant_id, a.application_id
 LIMIT 500;

-- Which ready work has waited longest, and why is it not taken?
-- The first of each lane: what is of one kind, and behind the same keys, is taken in its order.
-- :rows = 20: so many
SELECT w.tenant_id, w.application_id, w.definition_id, w.workload_id, w.priority,
       w.attempts_spent,
       (n.lease_ms - w.eligible_at_ms) / 1000 AS waits_s,
       (SELECT y.why FROM v_why y WHERE y.workload_id = w.workload_id) AS why
  FROM v_now n
 CROSS JOIN lanes a
  JOIN workloads w ON w.seq = a.head_seq
 ORDER BY w.eligible_at_ms, w.seq
 LIMIT coalesce(:rows, 20);

-- What happened to this workload, or by hand to this worker, pool, key or grant, and who did it?
-- :id: its id
SELECT strftime('%Y-%m-%dT%H:%M:%fZ', (e.at_ms + n.wall_offset_ms) / 1000.0, 'unixepoch') AS at,
       'event' AS told_by, e.kind AS what,
       coalesce(e.actor, 'worker:' || e.worker_id, 'the daemon') AS who,
       coalesce(e.from_state || ' to ', '') || coalesce(e.to_state, '') AS states,
       e.end_kind AS why, e.fencing_token, e.seq
  FROM v_now n
 CROSS JOIN events e
 WHERE e.workload_id = :id
UNION ALL
SELECT strftime('%Y-%m-%dT%H:%M:%fZ', a.wall_at_ms / 1000.0, 'unixepoch'),
       'audit', a.action, a.actor, '', a.reason, NULL, a.seq
  FROM audit a
 WHERE a.kind = 'act'
   AND a.subject = :id
UNION ALL
SELECT strftime('%Y-%m-%dT%H:%M:%fZ', (c.issued_at_ms + n.wall_offset_ms) / 1000.0, 'unixepoch'),
       'claim', c.how, 'worker:' || c.worker_id, coalesce('to ' || c.end_state, 'live'),
       coalesce(c.end_kind || ': ' || c.failure_message, c.end_kind), c.fencing_token, c.number
  FROM v_now n
 CROSS JOIN claims c
 WHERE c.workload_id = :id
 ORDER BY 1, 2, 8
 LIMIT 500;

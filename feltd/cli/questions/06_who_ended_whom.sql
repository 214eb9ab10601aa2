-- Who ended whose claims: evicted, lost, lapsed, timed out, revoked; not by their workers?
-- :minutes = 60: in the last 1, 5, 15, 60 or 1440; of the newest 500,000 events at most
SELECT strftime('%Y-%m-%dT%H:%M:%fZ', (e.at_ms + n.wall_offset_ms) / 1000.0, 'unixepoch') AS at,
       e.kind, e.end_kind, e.tenant_id, e.workload_id, k.name AS worker, e.worker_id,
       e.fencing_token, e.to_state, coalesce(e.actor, 'the daemon') AS ended_by, e.seq
  FROM v_now n
 CROSS JOIN v_windows v
 CROSS JOIN events e
  LEFT JOIN workers k ON k.worker_id = e.worker_id
 WHERE v.minutes = coalesce(:minutes, 60)
   AND e.seq >= max(v.first_seq, v.head_seq - 500000)
   AND e.end_kind IN ('evicted', 'cancelled_by_force', 'worker_lost', 'lease_expired', 'timeout',
                      'total_timeout', 'authority_lost', 'restored')
 ORDER BY e.seq DESC
 LIMIT 200;

-- Which triggers and schedules are behind, failing, disabled or overtaken?
SELECT t.tenant_id, t.trigger_id, t.kind, t.standing, t.lag, t.target_capability, t.failures,
       t.reason, t.next_at, t.last_fired_at, t.passed_over
  FROM v_triggers t
  JOIN v_now n
 WHERE t.standing <> 'ENABLED'
    OR t.lag > 0
    OR t.next_at < strftime('%Y-%m-%dT%H:%M:%fZ', n.wall_ms / 1000.0 - 60, 'unixepoch')
 ORDER BY t.standing = 'ENABLED', t.lag DESC, t.tenant_id, t.trigger_id
 LIMIT 200;

-- How much is done, minute by minute?
-- :minutes = 15: in the last 1, 5, 15, 60 or 1440; of the newest 200,000 events at most
SELECT strftime('%Y-%m-%dT%H:%MZ', (e.at_ms + n.wall_offset_ms) / 1000, 'unixepoch') AS minute,
       sum(e.kind = 'create') AS created,
       sum(e.kind = 'claim') AS claimed,
       sum(e.end_kind IS 'completed') AS completed,
       sum(e.fencing_token IS NOT NULL AND ifnull(e.end_kind, 'completed') <> 'completed') AS failed,
       sum(e.to_state IS 'DEAD_LETTERED' AND e.from_state IS NOT 'DEAD_LETTERED') AS dead,
       round(sum(e.end_kind IS 'completed') / 60.0, 1) AS completed_per_s
  FROM v_now n
 CROSS JOIN v_windows v
 CROSS JOIN events e
 WHERE v.minutes = coalesce(:minutes, 15)
   AND e.seq >= max(v.first_seq, v.head_seq - 200000)
   AND e.workload_id IS NOT NULL
 GROUP BY (e.at_ms + n.wall_offset_ms) / 60000
 ORDER BY minute DESC;

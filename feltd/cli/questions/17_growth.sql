-- How large is the file, and how fast does its history grow?
-- Rows are told by their numbers, which may have gaps. Free pages are used before the file grows.
SELECT 'file' AS what, p.page_count * s.page_size AS bytes, NULL AS rows, NULL AS last_hour,
       NULL AS oldest
  FROM pragma_page_count p, pragma_page_size s
UNION ALL
SELECT 'free pages in it', f.freelist_count * s.page_size, NULL, NULL, NULL
  FROM pragma_freelist_count f, pragma_page_size s
UNION ALL
SELECT 'events', NULL, v.head_seq - (SELECT min(e.seq) FROM events e) + 1, v.head_seq - v.first_seq + 1,
       (SELECT strftime('%Y-%m-%dT%H:%M:%fZ', (e.at_ms + n.wall_offset_ms) / 1000.0, 'unixepoch')
          FROM events e
         ORDER BY e.seq
         LIMIT 1)
  FROM v_now n, v_windows v
 WHERE v.minutes = 60
UNION ALL
SELECT 'audit', NULL, l.audit_seq - f.seq, NULL,
       (SELECT strftime('%Y-%m-%dT%H:%M:%fZ', a.wall_at_ms / 1000.0, 'unixepoch')
          FROM audit a
         ORDER BY a.seq
         LIMIT 1)
  FROM ledger l, floors f
 WHERE f.name = 'audit'
UNION ALL
SELECT 'workloads', NULL, (SELECT max(w.seq) FROM workloads w) - (SELECT min(w.seq) FROM workloads w) + 1, NULL,
       (SELECT strftime('%Y-%m-%dT%H:%M:%fZ', (w.created_at_ms + n.wall_offset_ms) / 1000.0, 'unixepoch')
          FROM workloads w
         ORDER BY w.seq
         LIMIT 1)
  FROM v_now n
UNION ALL
SELECT 'changes of ' || g.tenant_id, NULL, g.head_seq - g.floor_seq, NULL, NULL
  FROM (SELECT *
          FROM change_logs
         ORDER BY head_seq - floor_seq DESC
         LIMIT 20) g
UNION ALL
SELECT 'records of ' || c.tenant_id || ' in ' || c.collection, c.bytes, c.records, NULL, NULL
  FROM (SELECT *
          FROM collections
         ORDER BY bytes DESC
         LIMIT 20) c;

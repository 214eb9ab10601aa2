"""What is promised of the floors under history, as SQL: a statement returns the rows that break it.

They read the stored rows and no rule runs them.
"""

from feltd.mesh.promised import Promise

NOBODY_IS_OVERTAKEN = """
SELECT 'enabled trigger below the log' AS what, t.tenant_id, t.trigger_id AS id, t.cursor_seq,
       l.floor_seq
  FROM triggers t
  JOIN change_logs l ON l.tenant_id = t.tenant_id
 WHERE t.kind = 'state'
   AND t.enabled = 1
   AND t.cursor_seq < l.floor_seq
UNION ALL
SELECT 'consumer that counts below the log', c.tenant_id, c.name, c.ack_seq, l.floor_seq
  FROM consumers c
  JOIN change_logs l ON l.tenant_id = c.tenant_id
 WHERE c.dropped_at_ms IS NULL
   AND c.ack_seq < l.floor_seq
UNION ALL
SELECT 'events floor above what is sealed', NULL, f.name, f.seq, l.sealed_seq
  FROM floors f
  JOIN ledger l ON l.id = 1
 WHERE f.name = 'events'
   AND f.seq > l.sealed_seq
UNION ALL
SELECT 'audit floor above its newest row', NULL, f.name, f.seq, l.audit_seq
  FROM floors f
  JOIN ledger l ON l.id = 1
 WHERE f.name = 'audit'
   AND f.seq > 0
   AND f.seq >= l.audit_seq
UNION ALL
SELECT 'audit floor above the events it sealed', NULL, f.name, f.event_seq, e.seq
  FROM floors f
  JOIN floors e ON e.name = 'events'
 WHERE f.name = 'audit'
   AND f.event_seq > e.seq
   AND EXISTS (SELECT 1
                 FROM events v
                WHERE v.seq > e.seq
                  AND v.seq <= f.event_seq)
UNION ALL
SELECT 'floor that is not there', NULL, n.column1, NULL, NULL
  FROM (VALUES ('events'), ('audit'), ('tombstones'), ('workloads'), ('decisions')) n
 WHERE NOT EXISTS (SELECT 1 FROM floors f WHERE f.name = n.column1)
"""

FLOORS = (
    Promise("FLOORS", "nothing is cleared away that somebody waits for", NOBODY_IS_OVERTAKEN),
)

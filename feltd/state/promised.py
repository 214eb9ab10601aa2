"""The promises about records and their log as SQL: each statement returns the rows that break it.

They read the stored rows and nothing else; no rule runs them. Of a log they ask what lies above its
floor: what is below may be gone already, or go any moment.
"""

from feltd.mesh.promised import Promise

LOG_IS_GAPLESS = """
SELECT l.tenant_id, l.floor_seq, l.head_seq, count(c.seq) AS kept, min(c.seq) AS first,
       max(c.seq) AS last
  FROM change_logs l
  LEFT JOIN changes c ON c.tenant_id = l.tenant_id AND c.seq > l.floor_seq
 GROUP BY l.tenant_id, l.floor_seq, l.head_seq
HAVING count(c.seq) <> l.head_seq - l.floor_seq
    OR min(c.seq) <> l.floor_seq + 1
    OR max(c.seq) <> l.head_seq
UNION ALL
SELECT c.tenant_id, NULL, NULL, count(*), min(c.seq), max(c.seq)
  FROM changes c
  LEFT JOIN change_logs l ON l.tenant_id = c.tenant_id
 WHERE l.tenant_id IS NULL
 GROUP BY c.tenant_id
UNION ALL
SELECT k.tenant_id, l.floor_seq, l.head_seq, NULL, k.ack_seq, NULL
  FROM consumers k
  LEFT JOIN change_logs l ON l.tenant_id = k.tenant_id
 WHERE k.ack_seq > ifnull(l.head_seq, 0)
"""

CHANGES_FOLLOW_EACH_OTHER = """
SELECT t.tenant_id, t.seq, t.collection, t.record_id, t.version, t.version_before
  FROM (SELECT c.tenant_id,
               c.seq,
               c.collection,
               c.record_id,
               c.version,
               c.before,
               lag(c.version) OVER of_record AS version_before,
               lag(c.after) OVER of_record AS after_before
          FROM changes c
          JOIN change_logs l ON l.tenant_id = c.tenant_id AND c.seq > l.floor_seq
        WINDOW of_record AS (PARTITION BY c.tenant_id, c.collection, c.record_id ORDER BY c.seq)) t
 WHERE t.version_before IS NOT NULL
   AND (t.before IS NOT t.after_before
        OR (t.version <> t.version_before + 1
            AND NOT (t.version = 1 AND t.before IS NULL)))
"""

RECORDS_ARE_THEIR_CHANGES = """
SELECT r.tenant_id, r.collection, r.record_id, r.version, r.change_seq
  FROM records r
  LEFT JOIN change_logs l ON l.tenant_id = r.tenant_id
  LEFT JOIN changes c ON c.tenant_id = r.tenant_id AND c.seq = r.change_seq
 WHERE l.tenant_id IS NULL
    OR r.change_seq > l.head_seq
    OR (r.change_seq > l.floor_seq
        AND (c.seq IS NULL
             OR c.collection <> r.collection
             OR c.record_id <> r.record_id
             OR c.version <> r.version
             OR c.after IS NOT r.value))
    OR EXISTS (SELECT 1
                 FROM changes n
                WHERE n.tenant_id = r.tenant_id
                  AND n.collection = r.collection
                  AND n.record_id = r.record_id
                  AND n.seq > r.change_seq)
UNION ALL
SELECT c.tenant_id, c.collection, c.record_id, c.version, c.seq
  FROM changes c
  JOIN change_logs l ON l.tenant_id = c.tenant_id AND c.seq > l.floor_seq
 WHERE c.kind <> 'deleted'
   AND NOT EXISTS (SELECT 1
                     FROM records r
                    WHERE r.tenant_id = c.tenant_id
                      AND r.collection = c.collection
                      AND r.record_id = c.record_id)
   AND NOT EXISTS (SELECT 1
                     FROM changes n
                    WHERE n.tenant_id = c.tenant_id
                      AND n.collection = c.collection
                      AND n.record_id = c.record_id
                      AND n.seq > c.seq)
"""

COLLECTIONS_ARE_COUNTED = """
SELECT k.tenant_id, k.collection, k.records, k.bytes, c.records AS counted, c.bytes AS counted_bytes
  FROM (SELECT r.tenant_id,
               r.collection,
               count(*) AS records,
               sum(length(CAST(r.value AS BLOB))) AS bytes
          FROM records r
         WHERE r.value IS NOT NULL
         GROUP BY r.tenant_id, r.collection) k
  LEFT JOIN collections c ON c.tenant_id = k.tenant_id AND c.collection = k.collection
 WHERE c.records IS NOT k.records
    OR c.bytes IS NOT k.bytes
UNION ALL
SELECT c.tenant_id, c.collection, 0, 0, c.records, c.bytes
  FROM collections c
 WHERE NOT EXISTS (SELECT 1
                     FROM records r
                    WHERE r.tenant_id = c.tenant_id
                      AND r.collection = c.collection
                      AND r.value IS NOT NULL)
"""

VALUES_READ = """
SELECT r.tenant_id, r.collection, r.record_id
  FROM records r
 WHERE r.value IS NOT NULL
   AND NOT json_valid(r.value)
"""

RECORDS = (
    Promise("LOG", "changes are numbered without gap, from the floor to the head", LOG_IS_GAPLESS),
    Promise(
        "LOG",
        "each change of a record begins with what the last one left",
        CHANGES_FOLLOW_EACH_OTHER,
    ),
    Promise("RECORDS", "a record is what its newest change says", RECORDS_ARE_THEIR_CHANGES),
    Promise("RECORDS", "collections are counted", COLLECTIONS_ARE_COUNTED),
    Promise("JSON", "what is stored as JSON can be read", VALUES_READ),
)

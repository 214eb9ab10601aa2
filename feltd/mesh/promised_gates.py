"""What is promised of pools and keys, as SQL: each statement returns the rows that break it.

They read the stored rows and nothing else; no rule runs them.
"""

from feltd.mesh.promised import Promise

# A limit that was lowered blocks new claims only: what came before may be more than it.
WITHIN_LIMITS = """
SELECT 'pool counts wrong ' || p.tenant_id AS what, p.pool_id AS id, p.active,
       count(c.fencing_token) AS claims
  FROM pools p
  LEFT JOIN claims c ON c.tenant_id = p.tenant_id
                    AND c.pool_id = p.pool_id
                    AND c.ended_at_ms IS NULL
 GROUP BY p.tenant_id, p.pool_id
HAVING p.active <> count(c.fencing_token)
UNION ALL
SELECT 'pool beyond its ceiling ' || p.tenant_id, p.pool_id, p.active, p.max_concurrency
  FROM pools p
 WHERE p.active > p.max_concurrency
   AND EXISTS (SELECT 1
                 FROM claims c
                WHERE c.tenant_id = p.tenant_id
                  AND c.pool_id = p.pool_id
                  AND c.ended_at_ms IS NULL
                  AND c.issued_at_ms > p.updated_at_ms)
UNION ALL
SELECT 'key counts wrong', k.key_seq, k.active, count(c.fencing_token)
  FROM concurrency_keys k
  LEFT JOIN claims c ON c.concurrency_key = k.key_seq AND c.ended_at_ms IS NULL
 GROUP BY k.key_seq
HAVING k.active <> count(c.fencing_token)
UNION ALL
SELECT 'key beyond its limit', k.key_seq, k.active, k.claims_max
  FROM concurrency_keys k
 WHERE k.active > k.claims_max
   AND EXISTS (SELECT 1
                 FROM claims c
                WHERE c.concurrency_key = k.key_seq
                  AND c.ended_at_ms IS NULL
                  AND c.fencing_token > k.changed_token)
UNION ALL
SELECT 'rate beyond its limit', r.key_seq, u.at_ms, b.at_ms
  FROM rate_keys r
  JOIN rate_uses u ON u.key_seq = r.key_seq AND u.number > r.changed_use
  JOIN rate_uses b ON b.key_seq = r.key_seq AND b.number = u.number - r.claims_max
 WHERE u.at_ms - b.at_ms < r.period_ms
UNION ALL
SELECT 'claim is not counted where its work asks', c.fencing_token, c.concurrency_key,
       l.concurrency_key
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
  JOIN lanes l ON l.lane_id = w.lane_id
 WHERE c.ended_at_ms IS NULL
   AND (ifnull(c.concurrency_key, 0) <> l.concurrency_key
        OR (c.pool_id IS NOT w.pool_id AND NOT (c.how = 'directed' AND w.pool_id IS NULL)))
"""

# What has room and stays closed would be left lying, unless the keeper is on its way.
OPEN_WITH_ROOM = """
SELECT 'lane of a concurrency key' AS what, l.lane_id AS id, k.active, k.claims_max
  FROM lanes l
  LEFT JOIN concurrency_keys k ON k.key_seq = l.concurrency_key
 WHERE l.concurrency_open = 0
   AND (k.key_seq IS NULL OR (k.active < k.claims_max AND k.opening = 0))
UNION ALL
SELECT 'lane of a rate key', l.lane_id, r.key_seq, r.opens_at_ms
  FROM lanes l
  LEFT JOIN rate_keys r ON r.key_seq = l.rate_key
 WHERE l.rate_open = 0
   AND r.opens_at_ms IS NULL
UNION ALL
SELECT 'demand of a pool', d.demand_id, p.active, p.max_concurrency
  FROM demands d
  LEFT JOIN pools p ON p.tenant_id = d.tenant_id AND p.pool_id = d.pool_id
 WHERE d.pool_open = 0
   AND p.opening IS NOT 1
   AND (p.pool_id IS NULL OR p.active < ifnull(p.max_concurrency, p.active + 1))
UNION ALL
SELECT 'rate key waits past its time', r.key_seq, r.opens_at_ms, g.lease_ms
  FROM ledger g
  JOIN rate_keys r ON r.opens_at_ms <= g.lease_ms - g.recover_slack_ms
 WHERE g.id = 1
   AND g.served_at_ms IS NOT NULL
"""

GATES = (
    Promise("I10", "ceilings, key and rate limits are kept and counted", WITHIN_LIMITS),
    Promise("GATES", "nothing stays closed that has room", OPEN_WITH_ROOM),
)

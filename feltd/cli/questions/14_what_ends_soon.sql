-- Which keys and grants end soon, and which workers stop then?
-- :days = 7: within so many
WITH soon AS (
  SELECT x.what, x.id, x.name, x.tenant, x.expires_at, x.days
    FROM v_expiring x
   WHERE x.days <= coalesce(:days, 7)
   LIMIT 200
),
stopping AS (
  SELECT s.what, s.id, k.name
    FROM soon s
    JOIN workers k ON k.authorization_grant_id = s.id
   WHERE s.what = 'grant'
     AND k.removed_at_ms IS NULL
     AND k.lifecycle <> 'OFFLINE'
   UNION
  SELECT s.what, s.id, k.name
    FROM soon s
    JOIN keys y ON y.obtained_by = s.id
    JOIN workers k ON k.worker_id = y.worker_id
   WHERE s.what = 'key'
     AND y.revoked_at_ms IS NULL
     AND k.removed_at_ms IS NULL
     AND k.lifecycle <> 'OFFLINE'
   UNION
  SELECT s.what, s.id, k.name
    FROM soon s
    JOIN keys y ON y.key_id = s.id
    JOIN workers k ON k.worker_id = y.worker_id
   WHERE s.what = 'key'
     AND k.removed_at_ms IS NULL
     AND k.lifecycle <> 'OFFLINE'
)
SELECT s.what, s.id, s.name, s.tenant, s.expires_at, s.days,
       count(g.name) AS workers_that_stop,
       group_concat(g.name, ', ') AS their_names
  FROM soon s
  LEFT JOIN stopping g ON g.what = s.what AND g.id = s.id
 GROUP BY s.what, s.id
 ORDER BY s.days, s.what, s.id;

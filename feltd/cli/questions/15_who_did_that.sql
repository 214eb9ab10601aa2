-- Who did what by hand, the newest first?
-- :actor: only this one, as kind:id
-- :rows = 50: so many
SELECT strftime('%Y-%m-%dT%H:%M:%fZ', a.wall_at_ms / 1000.0, 'unixepoch') AS at,
       a.actor, a.action, a.subject, a.reason, a.seq
  FROM (SELECT *
          FROM (SELECT *
                  FROM audit INDEXED BY audit_acts
                 WHERE kind = 'act'
                   AND :actor IS NULL
                 ORDER BY seq DESC
                 LIMIT coalesce(:rows, 50))
         UNION ALL
        SELECT *
          FROM (SELECT *
                  FROM audit
                 WHERE kind = 'act'
                   AND actor = :actor
                 ORDER BY seq DESC
                 LIMIT coalesce(:rows, 50))) a
 ORDER BY a.seq DESC;

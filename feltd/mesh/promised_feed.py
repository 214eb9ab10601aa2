"""What is promised of the feed, as SQL: each statement returns the rows that break it.

Whoever has read every event knows each workload's state (I7), its token and how many attempts it
had, without asking for them. Of work from before the floor of events only what is kept is compared.
"""

from feltd.mesh.promised import Promise

TELLS_TOKEN_AND_ATTEMPTS = """
SELECT w.workload_id, w.fencing_token, w.attempt_number, t.fencing_token AS told, t.attempts
  FROM floors f
  JOIN workloads w
  LEFT JOIN (SELECT e.workload_id, max(e.fencing_token) AS fencing_token, count(*) AS attempts
               FROM floors g
               JOIN events e ON e.seq > g.seq
              WHERE g.name = 'events'
                AND e.workload_id IS NOT NULL
                AND e.from_state = 'READY'
                AND e.to_state = 'CLAIMED'
              GROUP BY e.workload_id) t ON t.workload_id = w.workload_id
 WHERE f.name = 'events'
   AND CASE WHEN f.seq = 0 OR w.created_at_ms > f.at_ms
            THEN w.fencing_token <> ifnull(t.fencing_token, 0)
                 OR w.attempt_number <> ifnull(t.attempts, 0)
            ELSE w.fencing_token <> ifnull(t.fencing_token, w.fencing_token)
                 OR w.attempt_number < ifnull(t.attempts, 0)
       END
"""

FEED = (
    Promise("FEED", "the feed tells each workload's token and attempts", TELLS_TOKEN_AND_ATTEMPTS),
)

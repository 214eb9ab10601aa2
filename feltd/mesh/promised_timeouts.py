"""What is promised of timeouts, as SQL: each statement returns the rows that break it.

They read the stored rows, and the JSON in them, and no rule runs them.
"""

from feltd.mesh.promised import Promise

# As long as a lapsed lease may wait for the keeper; before a daemon first served the file nobody
# looks.
ENDED_IN_TIME = """
SELECT d.workload_id, w.state, d.at_ms, l.lease_ms
  FROM ledger l
  JOIN deadlines d ON d.at_ms <= l.lease_ms - l.recover_slack_ms
  JOIN workloads w ON w.workload_id = d.workload_id
 WHERE l.id = 1
   AND l.served_at_ms IS NOT NULL
"""

# 9007199254740991 stands for never. A credit moves the instant of a claim that was not started,
# up to total_ms and never back.
STANDS_WHERE_IT_MUST = """
SELECT t.workload_id, t.state, t.own_ms, t.total_ms, t.stored_ms
  FROM (SELECT w.workload_id,
               w.state,
               CASE WHEN w.state = 'READY'
                    THEN max(ifnull(w.ready_at_ms, 0), w.eligible_at_ms)
                         + json_extract(w.timeouts, '$.queue_ms')
                    WHEN w.state = 'CLAIMED'
                    THEN c.issued_at_ms + json_extract(w.timeouts, '$.start_ms')
                    WHEN w.state IN ('RUNNING', 'CHECKPOINTED')
                    THEN w.started_at_ms + json_extract(w.timeouts, '$.execution_ms')
               END AS own_ms,
               max(w.created_at_ms, ifnull(w.requeued_at_ms, 0))
               + json_extract(w.timeouts, '$.total_ms') AS total_ms,
               d.at_ms AS stored_ms
          FROM workloads w
          LEFT JOIN deadlines d ON d.workload_id = w.workload_id
          LEFT JOIN claims c ON c.fencing_token = w.fencing_token
         WHERE w.timeouts <> '{}'
           AND w.state IN ('PENDING', 'READY', 'CLAIMED', 'RUNNING', 'CHECKPOINTED')) t
 WHERE (t.stored_ms IS NULL) <> (t.own_ms IS NULL AND t.total_ms IS NULL)
    OR t.stored_ms > ifnull(t.total_ms, t.stored_ms)
    OR t.stored_ms < min(ifnull(t.own_ms, 9007199254740991),
                         ifnull(t.total_ms, 9007199254740991),
                         9007199254740991)
    OR (t.state <> 'CLAIMED'
        AND t.stored_ms > min(ifnull(t.own_ms, 9007199254740991),
                              ifnull(t.total_ms, 9007199254740991)))
UNION ALL
SELECT d.workload_id, w.state, NULL, NULL, d.at_ms
  FROM deadlines d
  LEFT JOIN workloads w ON w.workload_id = d.workload_id
 WHERE w.workload_id IS NULL
    OR w.timeouts = '{}'
    OR w.state IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELLED')
"""

# Nothing that counts comes from a claim at or past its deadline, however late its end was written.
NOTHING_AFTER = """
SELECT w.workload_id, w.state, c.fencing_token, c.started_at_ms, c.ended_at_ms
  FROM workloads w
  JOIN claims c ON c.workload_id = w.workload_id
 WHERE w.timeouts <> '{}'
   AND c.end_kind = 'completed'
   AND (c.ended_at_ms >= c.started_at_ms + json_extract(w.timeouts, '$.execution_ms')
        OR c.ended_at_ms >= max(w.created_at_ms, ifnull(w.requeued_at_ms, 0))
                            + json_extract(w.timeouts, '$.total_ms'))
"""

TIMEOUTS = (
    Promise("TIMEOUTS", "a timeout that passed is ended within a tick and slack", ENDED_IN_TIME),
    Promise("DEADLINES", "the next timeout of open work stands written", STANDS_WHERE_IT_MUST),
    Promise("IN_TIME", "no result from a claim past its timeout", NOTHING_AFTER),
)

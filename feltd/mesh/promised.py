"""The promises as SQL: each statement returns the rows that break it.

They read the stored rows and nothing else; no rule runs them. The ids are those of the list of
promises in the README. The one that looks into JSON stands in promises.py.
"""

from collections.abc import Callable
from typing import NamedTuple

from feltd.mesh import secrets


class Promise(NamedTuple):
    """One promise: its id, what it says, and the query whose rows break it.

    With `meant` the rows have a column `text`, and only those break it whose text is meant. That
    column is never shown.
    """

    id: str
    says: str
    sql: str
    meant: Callable[[str], bool] | None = None


#: Rows shown of one broken promise; more would hide the next one.
SHOWN_MAX = 20


class Broken(NamedTuple):
    """A promise that does not hold: its id, what it says, and the rows that break it."""

    id: str
    says: str
    rows: list[str]


#: Promises that are walked or compared rather than asked with one query.
SAYS = {
    "I20": "every event is sealed by one audit row, and the chain is whole",
    "I23": "the commit number is never below the sidecar's mark",
}

ONE_LIVE_CLAIM = """
SELECT c.workload_id, count(*) AS live_claims
  FROM claims c
 WHERE c.ended_at_ms IS NULL
 GROUP BY c.workload_id
HAVING count(*) > 1
"""

STATE_AGREES = """
SELECT w.workload_id, w.state, w.claim_worker_id, c.worker_id, c.fencing_token
  FROM workloads w
  LEFT JOIN claims c ON c.workload_id = w.workload_id AND c.ended_at_ms IS NULL
 WHERE (w.state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED')) <> (c.fencing_token IS NOT NULL)
    OR (c.fencing_token IS NOT NULL AND w.claim_worker_id IS NOT c.worker_id)
    OR (c.fencing_token IS NOT NULL AND w.claim_incarnation IS NOT c.incarnation)
"""

TOKENS_INCREASE = """
SELECT t.workload_id, t.fencing_token, t.before
  FROM (SELECT c.workload_id,
               c.fencing_token,
               lag(c.fencing_token) OVER (PARTITION BY c.workload_id ORDER BY c.number) AS before
          FROM claims c) t
 WHERE t.fencing_token <= t.before
"""

HIGH_WATER = """
SELECT w.workload_id, w.fencing_token, max(c.fencing_token) AS newest
  FROM workloads w
  JOIN claims c ON c.workload_id = w.workload_id
 GROUP BY w.workload_id
HAVING max(c.fencing_token) <> w.fencing_token
"""

# Of events none is asked for below the floor, where compaction has taken some: who had his claim
# from there is believed.
NO_OTHER_CLAIM_WROTE = """
SELECT e.seq, e.workload_id, e.kind, e.fencing_token
  FROM floors f
  JOIN events e ON e.seq > f.seq
 WHERE f.name = 'events'
   AND e.workload_id IS NOT NULL
   AND e.from_state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
   AND e.to_state IS NOT NULL
   AND e.fencing_token IS NOT coalesce((SELECT t.fencing_token
                                          FROM events t
                                         WHERE t.workload_id = e.workload_id
                                           AND t.to_state = 'CLAIMED'
                                           AND t.from_state = 'READY'
                                           AND t.seq < e.seq
                                           AND t.seq > f.seq
                                         ORDER BY t.seq DESC
                                         LIMIT 1),
                                       CASE WHEN f.seq > 0 THEN e.fencing_token END)
"""

NONE_PAST_THE_LEASE = """
SELECT c.workload_id, c.fencing_token, c.end_kind, c.ended_at_ms, c.expires_at_ms
  FROM claims c
 WHERE (c.end_kind = 'completed' AND c.ended_at_ms >= c.expires_at_ms)
    OR (c.ended_at_ms IS NOT NULL AND c.started_at_ms >= c.expires_at_ms)
UNION ALL
SELECT w.workload_id, w.fencing_token, w.state, w.started_at_ms, w.expires_at_ms
  FROM workloads w
 WHERE w.claim_worker_id IS NOT NULL
   AND w.started_at_ms >= w.expires_at_ms
"""

# Whose events lie below the floor is as its row says; whose tombstone is gone as well had its last
# event before that one was laid.
NEVER_LOST = """
SELECT w.workload_id, w.state, 'is not what its last event says' AS wrong
  FROM floors f
  JOIN workloads w
  LEFT JOIN events e ON e.seq = (SELECT t.seq
                                   FROM events t
                                  WHERE t.workload_id = w.workload_id
                                    AND t.to_state IS NOT NULL
                                    AND t.seq > f.seq
                                  ORDER BY t.seq DESC
                                  LIMIT 1)
 WHERE f.name = 'events'
   AND w.state IS NOT e.to_state
   AND (e.seq IS NOT NULL OR f.seq = 0 OR w.created_at_ms > f.at_ms)
UNION ALL
SELECT w.workload_id, w.state, 'was not created once' AS wrong
  FROM floors f
  JOIN workloads w ON f.seq = 0 OR w.created_at_ms > f.at_ms
 WHERE f.name = 'events'
   AND 1 <> (SELECT count(*)
               FROM events e
              WHERE e.workload_id = w.workload_id
                AND e.to_state IS NOT NULL
                AND ifnull(e.from_state, '') = '')
UNION ALL
SELECT e.workload_id, e.to_state, 'is gone' AS wrong
  FROM floors f
  JOIN floors g ON g.name = 'tombstones'
  JOIN events e ON e.seq > f.seq
 WHERE f.name = 'events'
   AND e.workload_id IS NOT NULL
   AND ifnull(e.from_state, '') = ''
   AND e.to_state IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM workloads w WHERE w.workload_id = e.workload_id)
   AND e.workload_id NOT IN (SELECT t.workload_id FROM tombstones t)
   AND (g.at_ms = 0
        OR g.at_ms < (SELECT t.at_ms
                        FROM events t
                       WHERE t.workload_id = e.workload_id
                       ORDER BY t.seq DESC
                       LIMIT 1))
"""

LEGAL_EDGES = """
SELECT e.seq, e.workload_id, e.from_state, e.to_state, e.before
  FROM (SELECT t.seq,
               t.workload_id,
               ifnull(t.from_state, '') AS from_state,
               t.to_state,
               coalesce(lag(t.to_state) OVER (PARTITION BY t.workload_id ORDER BY t.seq),
                        CASE WHEN f.seq > 0 THEN t.from_state END, '') AS before
          FROM floors f
          JOIN events t ON t.seq > f.seq
         WHERE f.name = 'events'
           AND t.workload_id IS NOT NULL
           AND t.to_state IS NOT NULL) e
  LEFT JOIN workload_edges d ON d.from_state = e.from_state AND d.to_state = e.to_state
 WHERE e.from_state <> e.before
    OR (d.from_state IS NULL AND e.from_state <> e.to_state)
UNION ALL
SELECT e.seq, e.worker_id, e.from_state, e.to_state, ''
  FROM events e
 WHERE e.workload_id IS NULL
   AND e.worker_id IS NOT NULL
   AND e.from_state <> e.to_state
   AND NOT EXISTS (SELECT 1
                     FROM worker_edges d
                    WHERE d.from_lifecycle = e.from_state
                      AND d.to_lifecycle = e.to_state)
"""

WITHIN_CONCURRENCY = """
SELECT k.worker_id, k.concurrency, count(*) AS live_claims
  FROM workers k
  JOIN claims c ON c.worker_id = k.worker_id AND c.ended_at_ms IS NULL
 GROUP BY k.worker_id
HAVING count(*) > k.concurrency
"""

CROSSES_NOTHING = """
SELECT 'claim' AS what, c.fencing_token AS id, c.tenant_id, w.tenant_id AS other
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
  JOIN workers k ON k.worker_id = c.worker_id
 WHERE (w.tenant_id, w.application_id) <> (k.tenant_id, k.application_id)
    OR (w.tenant_id, w.application_id) <> (c.tenant_id, c.application_id)
UNION ALL
SELECT 'worker', k.worker_id, k.tenant_id, g.tenant_id
  FROM workers k
  JOIN grants g ON g.grant_id = k.authorization_grant_id
 WHERE (k.tenant_id, k.application_id) <> (g.tenant_id, g.application_id)
UNION ALL
SELECT 'workload', w.workload_id, w.tenant_id, g.tenant_id
  FROM workloads w
  JOIN grants g ON g.grant_id = w.authorization_grant_id
 WHERE (w.tenant_id, w.application_id) <> (g.tenant_id, g.application_id)
UNION ALL
SELECT 'demand', d.demand_id, d.tenant_id, w.tenant_id
  FROM demands d
  JOIN workloads w ON w.demand_id = d.demand_id
 WHERE (w.tenant_id, w.application_id) <> (d.tenant_id, d.application_id)
UNION ALL
SELECT 'grant', g.grant_id, g.tenant_id, p.tenant_id
  FROM grants g
  JOIN grants p ON p.grant_id = g.parent_grant_id
 WHERE (g.tenant_id, g.application_id) <> (p.tenant_id, p.application_id)
"""

ONE_WORKLOAD_A_KEY = """
SELECT w.tenant_id, w.application_id, w.idempotency_key, count(*) AS workloads
  FROM workloads w
 GROUP BY w.tenant_id, w.application_id, w.idempotency_key
HAVING count(*) > 1
"""

ATTEMPTS_COUNTED = """
SELECT w.workload_id, w.attempts_spent, w.max_attempts, w.attempt_number, count(*) AS claims
  FROM workloads w
  JOIN claims c ON c.workload_id = w.workload_id
 GROUP BY w.workload_id
HAVING w.attempts_spent > w.max_attempts
    OR count(*) <> max(c.number)
    OR count(DISTINCT c.number) <> count(*)
    OR max(c.number) <> w.attempt_number
"""

# Who is brought back from the dead letters waits for no backoff; an event tells that he was.
BACKOFF_KEPT = """
SELECT b.workload_id, b.fencing_token, b.issued_at_ms, a.retry_at_ms, a.ended_at_ms
  FROM floors f
  JOIN claims a
  JOIN claims b ON b.fencing_token = (SELECT min(n.fencing_token)
                                        FROM claims n
                                       WHERE n.workload_id = a.workload_id
                                         AND n.fencing_token > a.fencing_token)
 WHERE f.name = 'events'
   AND (a.ended_at_ms IS NULL
        OR b.issued_at_ms < a.ended_at_ms
        OR (a.end_state = 'READY'
            AND b.issued_at_ms < a.retry_at_ms
            AND (f.seq = 0 OR a.ended_at_ms > f.at_ms)
            AND NOT EXISTS (SELECT 1
                              FROM events e
                             WHERE e.workload_id = a.workload_id
                               AND e.kind = 'requeue'
                               AND e.at_ms BETWEEN a.ended_at_ms AND b.issued_at_ms)))
"""

NOT_BEFORE_KEPT = """
SELECT c.workload_id, c.fencing_token, c.issued_at_ms, w.eligible_at_ms
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE c.ended_at_ms IS NULL
   AND c.issued_at_ms < w.eligible_at_ms
"""

ONE_RESULT = """
SELECT w.workload_id, w.state, w.result_id, w.result_token, w.fencing_token
  FROM workloads w
 WHERE (w.state = 'COMPLETED') <> (w.result_id IS NOT NULL)
    OR (w.state = 'COMPLETED' AND w.result_token IS NOT w.fencing_token)
    OR (w.state = 'COMPLETED'
        AND 1 <> (SELECT count(*)
                    FROM claims c
                   WHERE c.workload_id = w.workload_id
                     AND c.end_kind = 'completed'))
    OR (w.state <> 'COMPLETED'
        AND EXISTS (SELECT 1
                      FROM claims c
                     WHERE c.workload_id = w.workload_id
                       AND c.end_kind = 'completed'))
"""

# A process that registers again keeps its claims and is REGISTERED until it beats.
ONLY_READY_WORKERS = """
SELECT c.fencing_token, c.worker_id, c.worker_lifecycle
  FROM claims c
 WHERE c.worker_lifecycle <> 'READY'
UNION ALL
SELECT c.fencing_token, c.worker_id, k.lifecycle
  FROM claims c
  JOIN workers k ON k.worker_id = c.worker_id
 WHERE c.ended_at_ms IS NULL
   AND (k.incarnation <> c.incarnation OR k.removed_at_ms IS NOT NULL)
"""

# felt_<kind>_ + 12 characters + _ : what may be a bearer, wherever text is kept. Whether it is one
# only its checksum tells: a text that merely looks like one is nobody's secret.
# Answers that were kept also tell of records and inputs: what stands in those is their owners'.
NO_SECRET_AT_REST = """
SELECT 'keys' AS place, k.key_id AS id, NULL AS text
  FROM keys k
 WHERE NOT (k.secret_digest GLOB 'sha256:*' AND length(k.secret_digest) = 71)
UNION ALL
SELECT 'audit', a.seq, a.reason
  FROM audit a
 WHERE a.reason GLOB '*felt_[sahw]_????????????_*'
    OR a.reason GLOB '*PRIVATE KEY*'
UNION ALL
SELECT 'claim_logs', g.seq, g.text
  FROM claim_logs g
 WHERE g.text GLOB '*felt_[sahw]_????????????_*'
UNION ALL
SELECT 'workloads', w.workload_id, coalesce(w.failure_message, '') || ' ' || w.labels
  FROM workloads w
 WHERE w.failure_message GLOB '*felt_[sahw]_????????????_*'
    OR w.labels GLOB '*felt_[sahw]_????????????_*'
UNION ALL
SELECT 'answers', n.request_key, n.answer
  FROM answers n
 WHERE n.answer GLOB '*felt_[sahw]_????????????_*'
   AND (n.route GLOB 'create_key *' OR n.route GLOB 'rotate_key *' OR n.route GLOB 'issue_grant *')
"""

LAPSED_LEASES_RECOVERED = """
SELECT w.workload_id, w.fencing_token, w.expires_at_ms, l.lease_ms
  FROM ledger l
  JOIN workloads w ON w.expires_at_ms <= l.lease_ms - l.recover_slack_ms
 WHERE l.id = 1
   AND w.state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
"""

HEADS_ARE_TRUE = """
SELECT 'lane' AS what, n.lane_id AS id, n.head_rank, n.head_seq
  FROM lanes n
 WHERE (n.head_rank, n.head_seq)
       IS NOT (SELECT w.rank, w.seq
                 FROM workloads w
                WHERE w.lane_id = n.lane_id
                  AND w.state = 'READY'
                  AND w.due = 1
                ORDER BY w.rank, w.seq
                LIMIT 1)
UNION ALL
SELECT 'demand', d.demand_id, d.head_rank, d.head_seq
  FROM demands d
 WHERE (d.head_rank, d.head_seq)
       IS NOT (SELECT n.head_rank, n.head_seq
                 FROM lanes n
                WHERE n.demand_id = d.demand_id
                  AND d.pool_open = 1
                  AND n.head_rank IS NOT NULL
                  AND n.concurrency_open = 1
                  AND n.rate_open = 1
                ORDER BY n.head_rank, n.head_seq
                LIMIT 1)
UNION ALL
SELECT 'application ' || p.tenant_id, p.application_id, p.demands, count(d.demand_id)
  FROM applications p
  LEFT JOIN demands d ON d.tenant_id = p.tenant_id AND d.application_id = p.application_id
 GROUP BY p.tenant_id, p.application_id
HAVING p.demands <> count(d.demand_id)
UNION ALL
SELECT 'workload waits past its time ' || w.workload_id, w.seq, w.eligible_at_ms, l.lease_ms
  FROM ledger l
  JOIN workloads w ON w.eligible_at_ms <= l.lease_ms - l.recover_slack_ms
 WHERE l.id = 1
   AND l.served_at_ms IS NOT NULL
   AND w.state = 'READY'
   AND w.due = 0
"""

PLAIN = (
    Promise("I1", "a workload has at most one live claim", ONE_LIVE_CLAIM),
    Promise("I2", "a workload is held exactly when it has a live claim", STATE_AGREES),
    Promise("I3", "fencing tokens strictly increase for ever", TOKENS_INCREASE),
    Promise("I4", "a workload's token is that of its newest claim", HIGH_WATER),
    Promise("I5", "no write from any claim but the newest", NO_OTHER_CLAIM_WROTE),
    Promise("I6", "no write at or past the end of the lease", NONE_PAST_THE_LEASE),
    Promise("I7", "a workload is never lost; its state is its last event's", NEVER_LOST),
    Promise("I8", "every edge is legal and begins where the last one ended", LEGAL_EDGES),
    Promise("I9", "live claims of a worker stay within its concurrency", WITHIN_CONCURRENCY),
    Promise("I11", "nothing crosses tenant or application", CROSSES_NOTHING),
    Promise("I14", "an idempotency key names one workload", ONE_WORKLOAD_A_KEY),
    Promise("I15", "attempts are numbered without gap, spent ones bounded", ATTEMPTS_COUNTED),
    Promise("I16", "no attempt before the last one ended and its backoff passed", BACKOFF_KEPT),
    Promise("I17", "no attempt before the workload was eligible", NOT_BEFORE_KEPT),
    Promise("I18", "completed means one result, of the newest token", ONE_RESULT),
    Promise("I19", "only a READY worker is given work", ONLY_READY_WORKERS),
    Promise("I21", "no secret is stored", NO_SECRET_AT_REST, secrets.holds_key),
    Promise("I22", "a lapsed lease is recovered within a tick and slack", LAPSED_LEASES_RECOVERED),
    Promise("HEADS", "what may be claimed now stands at the head of its lane", HEADS_ARE_TRUE),
)

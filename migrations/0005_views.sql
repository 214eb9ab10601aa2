-- What an operator reads with `sqlite3 -readonly`: the same rows with readable UTC times.
-- Views decide nothing. Lease time is shown on the wall scale, by the offset last written down.

-- v_workers: every worker with its live claims; BUSY shows where they fill its concurrency.
CREATE VIEW v_workers AS
SELECT w.tenant_id,
       w.application_id,
       w.name,
       w.worker_id,
       CASE WHEN w.removed_at_ms IS NOT NULL THEN 'REMOVED'
            WHEN w.lifecycle = 'READY' AND count(c.fencing_token) >= w.concurrency THEN 'BUSY'
            ELSE w.lifecycle
       END AS lifecycle,
       w.health,
       w.offline_reason,
       w.drain_by,
       w.drain_reason,
       count(c.fencing_token) AS claims,
       w.concurrency,
       w.version,
       w.incarnation,
       strftime('%Y-%m-%dT%H:%M:%fZ', (w.last_seen_at_ms + l.wall_offset_ms) / 1000.0, 'unixepoch') AS last_seen_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', (w.registered_at_ms + l.wall_offset_ms) / 1000.0, 'unixepoch') AS registered_at
  FROM workers w
  JOIN ledger l ON l.id = 1
  LEFT JOIN claims c ON c.worker_id = w.worker_id AND c.ended_at_ms IS NULL
 GROUP BY w.worker_id
 ORDER BY w.tenant_id, w.application_id, w.name;

-- v_queue: what waits, in the order it will be taken; due = 1 may be taken now.
CREATE VIEW v_queue AS
SELECT w.tenant_id,
       w.application_id,
       w.definition_id,
       w.workload_id,
       w.state,
       w.due,
       w.priority,
       w.attempts_spent,
       w.max_attempts,
       w.failure_kind,
       w.capability_snapshot,
       strftime('%Y-%m-%dT%H:%M:%fZ', (w.eligible_at_ms + l.wall_offset_ms) / 1000.0, 'unixepoch') AS eligible_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', (w.created_at_ms + l.wall_offset_ms) / 1000.0, 'unixepoch') AS created_at
  FROM workloads w
  JOIN ledger l ON l.id = 1
 WHERE w.state IN ('PENDING', 'READY')
 ORDER BY w.tenant_id, w.application_id, w.rank, w.seq;

-- v_live_claims: who works on what under which fencing token, and until when.
CREATE VIEW v_live_claims AS
SELECT c.fencing_token,
       'claim_' || c.fencing_token AS claim_id,
       c.tenant_id,
       c.application_id,
       c.workload_id,
       w.definition_id,
       w.state,
       c.worker_id,
       k.name AS worker,
       c.number AS attempt_number,
       w.cancel_requested,
       strftime('%Y-%m-%dT%H:%M:%fZ', (c.issued_at_ms + l.wall_offset_ms) / 1000.0, 'unixepoch') AS issued_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', (w.started_at_ms + l.wall_offset_ms) / 1000.0, 'unixepoch') AS started_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', (w.expires_at_ms + l.wall_offset_ms) / 1000.0, 'unixepoch') AS expires_at
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
  JOIN workers k ON k.worker_id = c.worker_id
  JOIN ledger l ON l.id = 1
 WHERE c.ended_at_ms IS NULL
 ORDER BY c.fencing_token;

-- v_dead_letters: what was given up, newest first, with the failure that ended it.
CREATE VIEW v_dead_letters AS
SELECT w.tenant_id,
       w.application_id,
       w.definition_id,
       w.workload_id,
       w.failure_kind,
       w.failure_message,
       w.attempts_spent,
       w.max_attempts,
       strftime('%Y-%m-%dT%H:%M:%fZ', (w.finished_at_ms + l.wall_offset_ms) / 1000.0, 'unixepoch') AS finished_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', (w.created_at_ms + l.wall_offset_ms) / 1000.0, 'unixepoch') AS created_at
  FROM workloads w
  JOIN ledger l ON l.id = 1
 WHERE w.state = 'DEAD_LETTERED'
 ORDER BY w.finished_at_ms DESC, w.seq DESC;

-- v_timeline: everything that happened, oldest first; ask for one workload_id or worker_id.
CREATE VIEW v_timeline AS
SELECT e.seq,
       strftime('%Y-%m-%dT%H:%M:%fZ', (e.at_ms + l.wall_offset_ms) / 1000.0, 'unixepoch') AS at,
       e.kind,
       e.tenant_id,
       e.application_id,
       e.workload_id,
       e.worker_id,
       e.fencing_token,
       e.from_state,
       e.to_state,
       e.end_kind,
       strftime('%Y-%m-%dT%H:%M:%fZ', (e.eligible_at_ms + l.wall_offset_ms) / 1000.0, 'unixepoch') AS eligible_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', (e.expires_at_ms + l.wall_offset_ms) / 1000.0, 'unixepoch') AS expires_at,
       e.actor
  FROM events e
  JOIN ledger l ON l.id = 1
 ORDER BY e.seq;

-- More of what an operator reads with `sqlite3 -readonly` or `feltd sql`: who did what, how attempts
-- ended, what ends soon. Views decide nothing and show no digest of a secret. Their columns are
-- commented where their names do not say it all; "at" is UTC.

-- What people and services did, by whom and to whom; commits seal events and are far more.
CREATE INDEX audit_acts ON audit (seq) WHERE kind = 'act';
CREATE INDEX audit_acts_by_actor ON audit (actor, seq) WHERE kind = 'act';
CREATE INDEX audit_acts_of_subject ON audit (subject, seq) WHERE kind = 'act';
-- What was given up lately; work that completes never stands here.
CREATE INDEX workloads_dead_by_end ON workloads (finished_at_ms, seq) WHERE state = 'DEAD_LETTERED';

-- v_now: this moment, as this machine's clock has it, on both scales. Lease time never goes back.
CREATE VIEW v_now AS
SELECT max(l.lease_ms, n.wall_ms - l.wall_offset_ms) AS lease_ms,  -- lease time now, ms
       n.wall_ms,                                                  -- wall time now, ms
       l.wall_offset_ms                                            -- what lease time lacks of wall time, ms
  FROM ledger l
  JOIN (SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) AS wall_ms) n
 WHERE l.id = 1;

-- v_windows: the first event of the last 1, 5, 15, 60 and 1440 minutes. Events are numbered in the
-- order of time, so it is found by halving, whatever their number: join events on seq >= first_seq.
CREATE VIEW v_windows AS
WITH RECURSIVE halving (minutes, since_ms, low, high) AS (
  SELECT m.column1,
         n.lease_ms - m.column1 * 60000,
         coalesce((SELECT e.seq FROM events e ORDER BY e.seq LIMIT 1), 1),
         coalesce((SELECT e.seq + 1 FROM events e ORDER BY e.seq DESC LIMIT 1), 1)
    FROM (VALUES (1), (5), (15), (60), (1440)) m
    JOIN v_now n
   UNION ALL
  SELECT h.minutes,
         h.since_ms,
         CASE WHEN (SELECT e.at_ms FROM events e WHERE e.seq >= (h.low + h.high) / 2 ORDER BY e.seq LIMIT 1) < h.since_ms
              THEN (h.low + h.high) / 2 + 1 ELSE h.low END,
         CASE WHEN (SELECT e.at_ms FROM events e WHERE e.seq >= (h.low + h.high) / 2 ORDER BY e.seq LIMIT 1) < h.since_ms
              THEN h.high ELSE (h.low + h.high) / 2 END
    FROM halving h
   WHERE h.low < h.high
)
SELECT h.minutes,               -- how far back it reaches
       h.since_ms,              -- lease time it begins, ms
       h.low AS first_seq,      -- events.seq of its first event; the newest and one: none
       (SELECT coalesce(max(e.seq), 0) FROM events e) AS head_seq  -- events.seq of the newest
  FROM halving h
 WHERE h.low >= h.high;

-- v_audit: the chain with readable times; kind = 'act' are deeds, 'commit' seal events.
CREATE VIEW v_audit AS
SELECT a.seq,
       strftime('%Y-%m-%dT%H:%M:%fZ', a.wall_at_ms / 1000.0, 'unixepoch') AS at,
       a.kind,
       a.actor,                 -- kind:id of who did it
       a.action,                -- the verb
       a.subject,               -- id of what it was done to
       a.reason,                -- in the words of who did it
       a.first_event_seq,       -- commit: first event sealed
       a.last_event_seq,        -- commit: last event sealed
       a.hash
  FROM audit a
 ORDER BY a.seq;

-- v_attempts: every claim, live or ended, newest last; ask for a workload_id or worker_id.
CREATE VIEW v_attempts AS
SELECT c.fencing_token,
       c.tenant_id,
       c.application_id,
       c.workload_id,
       w.definition_id,
       c.number,                -- 1, 2, 3 ... of the workload
       c.worker_id,
       k.name AS worker,
       c.how,                   -- pull, id or directed
       strftime('%Y-%m-%dT%H:%M:%fZ', (c.issued_at_ms + l.wall_offset_ms) / 1000.0, 'unixepoch') AS issued_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', (coalesce(c.started_at_ms, w.started_at_ms) + l.wall_offset_ms) / 1000.0, 'unixepoch') AS started_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', (c.ended_at_ms + l.wall_offset_ms) / 1000.0, 'unixepoch') AS ended_at,
       c.ended_at_ms - c.started_at_ms AS run_ms,  -- start to end, ms; null while it lives
       c.end_kind,              -- completed, a failure kind, lease_expired, worker_lost ...; null while it lives
       c.end_state,             -- state the workload went to
       c.spent,                 -- 1: it spent an attempt
       c.failure_message
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
  JOIN workers k ON k.worker_id = c.worker_id
  JOIN ledger l ON l.id = 1
 ORDER BY c.fencing_token;

-- v_holds: what keeps work from being claimed, newest first; ended ones too.
CREATE VIEW v_holds AS
SELECT h.tenant_id,             -- '*': everybody's
       h.hold_id,
       h.scope,                 -- all, tenant, application, pool or definition
       h.value,                 -- which of them
       h.ended_at_ms IS NULL AND (h.until_at_ms IS NULL OR h.until_at_ms > n.wall_ms) AS holds,  -- 1: it holds now
       h.held_by,
       h.reason,
       strftime('%Y-%m-%dT%H:%M:%fZ', (h.held_at_ms + n.wall_offset_ms) / 1000.0, 'unixepoch') AS held_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', h.until_at_ms / 1000.0, 'unixepoch') AS until_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', (h.ended_at_ms + n.wall_offset_ms) / 1000.0, 'unixepoch') AS ended_at
  FROM holds h
  JOIN v_now n
 ORDER BY h.held_at_ms DESC, h.tenant_id, h.hold_id;

-- v_keys: every key but for its digest.
CREATE VIEW v_keys AS
SELECT k.key_id,
       k.name,
       k.subject_type,
       coalesce(k.identity_id, k.worker_id, k.key_id) AS subject,  -- id of who its bearer is
       k.tenants,
       k.scopes,
       k.grant_id,
       k.created_by,
       strftime('%Y-%m-%dT%H:%M:%fZ', k.created_at_ms / 1000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', k.expires_at_ms / 1000.0, 'unixepoch') AS expires_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', k.last_used_at_ms / 1000.0, 'unixepoch') AS last_used_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', k.revoked_at_ms / 1000.0, 'unixepoch') AS revoked_at,
       k.revoked_reason
  FROM keys k
 ORDER BY k.created_at_ms, k.key_id;

-- v_expiring: keys and grants in force that end by themselves, the first to end first.
CREATE VIEW v_expiring AS
SELECT 'key' AS what,
       k.key_id AS id,
       k.name,                  -- of the key; of a grant its subject
       k.tenants AS tenant,
       k.expires_at_ms,         -- wall time, ms
       strftime('%Y-%m-%dT%H:%M:%fZ', k.expires_at_ms / 1000.0, 'unixepoch') AS expires_at,
       round((k.expires_at_ms - n.wall_ms) / 86400000.0, 1) AS days  -- until then
  FROM keys k
  JOIN v_now n
 WHERE k.revoked_at_ms IS NULL
   AND k.expires_at_ms > n.wall_ms
UNION ALL
SELECT 'grant',
       g.grant_id,
       g.subject_kind || ':' || g.subject_id,
       g.tenant_id,
       g.chain_expires_at_ms,
       strftime('%Y-%m-%dT%H:%M:%fZ', g.chain_expires_at_ms / 1000.0, 'unixepoch'),
       round((g.chain_expires_at_ms - n.wall_ms) / 86400000.0, 1)
  FROM grants g
  JOIN v_now n
 WHERE g.status = 'ACTIVE'
   AND g.chain_live = 1
   AND g.chain_expires_at_ms > n.wall_ms
 ORDER BY 5, 1, 2;

-- v_users: who may log in, and where; without the password's hash.
CREATE VIEW v_users AS
SELECT u.name,
       u.roles,                 -- JSON {tenant: role}
       u.created_by,
       strftime('%Y-%m-%dT%H:%M:%fZ', u.created_at_ms / 1000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', u.password_changed_at_ms / 1000.0, 'unixepoch') AS password_changed_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', u.last_login_at_ms / 1000.0, 'unixepoch') AS last_login_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', u.disabled_at_ms / 1000.0, 'unixepoch') AS disabled_at,
       u.disabled_by
  FROM users u
 ORDER BY u.name;

-- v_sessions: who is or was logged in; without the digest.
CREATE VIEW v_sessions AS
SELECT s.session_id,
       s.user_name,
       s.ended_at_ms IS NULL
         AND s.expires_at_ms > n.wall_ms
         AND s.last_used_at_ms + 3600000 > n.wall_ms AS live,  -- 1: its bearer is let in
       strftime('%Y-%m-%dT%H:%M:%fZ', s.created_at_ms / 1000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', s.last_used_at_ms / 1000.0, 'unixepoch') AS last_used_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', s.expires_at_ms / 1000.0, 'unixepoch') AS expires_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', s.ended_at_ms / 1000.0, 'unixepoch') AS ended_at,
       s.ended_reason
  FROM sessions s
  JOIN v_now n
 ORDER BY s.created_at_ms, s.session_id;

-- The ledger: what the whole daemon counts, what happened, and the proof of it.
-- Instants end in _at_ms and durations in _ms: integer milliseconds. "lease" and "wall" name the scale.

CREATE TABLE ledger (
  id             INTEGER PRIMARY KEY CHECK (id = 1),              -- always 1: one row
  instance_id    TEXT    NOT NULL,                                -- id of this database, made at init
  commit_seq     INTEGER NOT NULL DEFAULT 0 CHECK (commit_seq >= 0),  -- commits that changed anything
  sealed_seq     INTEGER NOT NULL DEFAULT 0 CHECK (sealed_seq >= 0),  -- last event an audit row covers
  audit_seq      INTEGER NOT NULL DEFAULT 0 CHECK (audit_seq >= 0),   -- last audit row
  audit_hash     TEXT    NOT NULL DEFAULT '',                     -- hash of that row, 64 hex digits
  lease_ms       INTEGER NOT NULL DEFAULT 0 CHECK (lease_ms >= 0),    -- last lease time written down, ms
  wall_offset_ms INTEGER NOT NULL DEFAULT 0,                      -- wall minus lease time at that moment, ms
  token_floor    INTEGER NOT NULL DEFAULT 0 CHECK (token_floor >= 0), -- tokens of this run are greater
  served_at_ms   INTEGER,                                         -- lease time a daemon first served this file, null: never
  recover_slack_ms INTEGER NOT NULL DEFAULT 0                     -- a lapsed lease older than this breaks a promise, ms
) STRICT;

CREATE TABLE events (
  seq            INTEGER PRIMARY KEY AUTOINCREMENT,  -- one strictly increasing sequence of the daemon
  at_ms          INTEGER NOT NULL,                   -- lease time
  kind           TEXT    NOT NULL,                   -- the verb that was done
  tenant_id      TEXT,                               -- null: the daemon's own
  application_id TEXT,                               -- null: not of one application
  workload_id    TEXT,                               -- null: not about a workload
  worker_id      TEXT,                               -- who did it, or whom it was done to
  fencing_token  INTEGER,                            -- claim_<fencing_token> names the claim
  from_state     TEXT,                               -- null: it began here
  to_state       TEXT,                               -- state or lifecycle after it; null: none changed
  eligible_at_ms INTEGER,                            -- lease time, where the verb set it
  expires_at_ms  INTEGER,                            -- lease time, end of the lease where the verb had one
  end_kind       TEXT,                               -- how a claim ended
  actor          TEXT                                -- kind:id of who did it, null on the hot kinds by the worker itself
) STRICT;
CREATE INDEX events_of_workload ON events (workload_id, seq) WHERE workload_id IS NOT NULL;
CREATE INDEX events_of_tenant ON events (tenant_id, seq) WHERE tenant_id IS NOT NULL;

CREATE TABLE audit (
  seq             INTEGER PRIMARY KEY,     -- gapless from 1
  kind            TEXT    NOT NULL CHECK (kind IN ('commit', 'act')),  -- commit: seals events; act: what a person or service did
  at_ms           INTEGER NOT NULL,        -- lease time
  wall_at_ms      INTEGER NOT NULL,        -- wall time
  first_event_seq INTEGER,                 -- commit: first event sealed
  last_event_seq  INTEGER,                 -- commit: last event sealed
  actor           TEXT,                    -- act: kind:id of who
  action          TEXT,                    -- act: the verb
  subject         TEXT,                    -- act: id of what it was done to
  reason          TEXT,                    -- act: why, in the actor's words
  digest          TEXT    NOT NULL,        -- SHA-256, hex: of the sealed events, or of the act's body
  prev_hash       TEXT    NOT NULL,        -- hash of row seq - 1, '' for the first
  hash            TEXT    NOT NULL,        -- SHA-256, hex, over every other column and prev_hash
  CHECK ((kind = 'commit') = (first_event_seq IS NOT NULL AND last_event_seq IS NOT NULL)),
  CHECK ((kind = 'act') = (actor IS NOT NULL AND action IS NOT NULL))
) STRICT;

-- History is appended to, never rewritten.
CREATE TRIGGER events_stay BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'events are never changed'); END;
-- -1 is a number that SQLite is still to draw.
CREATE TRIGGER events_are_not_replaced BEFORE INSERT ON events
WHEN NEW.seq <> -1
 AND EXISTS (SELECT 1 FROM events WHERE seq = NEW.seq)
BEGIN SELECT RAISE(ABORT, 'this event exists'); END;
CREATE TRIGGER audit_stays BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'audit rows are never changed'); END;
CREATE TRIGGER audit_is_gapless BEFORE INSERT ON audit
WHEN NEW.seq IS NOT (SELECT ifnull(max(seq), 0) + 1 FROM audit)
 AND EXISTS (SELECT 1 FROM audit)
BEGIN SELECT RAISE(ABORT, 'audit rows are numbered without gap'); END;

CREATE TABLE answers (
  caller      TEXT    NOT NULL,          -- key id of who sent the Idempotency-Key
  request_key TEXT    NOT NULL,          -- the key it sent
  route       TEXT    NOT NULL,          -- operation it was sent to
  body_sha256 TEXT    NOT NULL,          -- hex digest of the body, so that another body is refused
  status      INTEGER NOT NULL,          -- HTTP status of the kept answer
  answer      TEXT    NOT NULL,          -- JSON of the kept answer, without secrets
  at_ms       INTEGER NOT NULL,          -- lease time; kept 24 h
  PRIMARY KEY (caller, request_key)
) STRICT;
CREATE INDEX answers_by_age ON answers (at_ms);

-- Workers: processes anywhere that take work. BUSY is never stored: it shows when live claims = concurrency.

CREATE TABLE worker_edges (
  from_lifecycle TEXT NOT NULL,  -- where it begins
  to_lifecycle   TEXT NOT NULL,  -- where it leads
  cause          TEXT NOT NULL CHECK (cause IN ('verb', 'lost', 'resume', 'register')),  -- who may walk it; verb: transition by hand, too
  PRIMARY KEY (from_lifecycle, to_lifecycle, cause)
) STRICT, WITHOUT ROWID;
INSERT INTO worker_edges (from_lifecycle, to_lifecycle, cause) VALUES
  ('REGISTERED', 'READY', 'verb'), ('READY', 'BUSY', 'verb'), ('BUSY', 'READY', 'verb'),
  ('READY', 'DRAINING', 'verb'), ('BUSY', 'DRAINING', 'verb'), ('DRAINING', 'OFFLINE', 'verb'),
  ('READY', 'OFFLINE', 'verb'), ('BUSY', 'OFFLINE', 'verb'), ('OFFLINE', 'RECOVERING', 'verb'),
  ('RECOVERING', 'READY', 'verb'), ('RECOVERING', 'OFFLINE', 'verb'),
  ('REGISTERED', 'OFFLINE', 'lost'), ('DRAINING', 'READY', 'resume'),
  ('READY', 'REGISTERED', 'register'), ('DRAINING', 'REGISTERED', 'register'),
  ('OFFLINE', 'REGISTERED', 'register'), ('RECOVERING', 'REGISTERED', 'register');

CREATE TABLE workers (
  worker_id             TEXT    PRIMARY KEY,   -- worker_ + 24 hex of SHA-256(tenant:application:name)
  tenant_id             TEXT    NOT NULL,      -- never changes
  application_id        TEXT    NOT NULL,      -- never changes
  name                  TEXT    NOT NULL,      -- unique in tenant and application; never changes
  runtime               TEXT    NOT NULL CHECK (runtime IN ('wasm', 'process', 'container', 'browser', 'remote', 'hosted', 'edge', 'customer')),  -- where its code runs, as it says
  version               TEXT    NOT NULL,      -- of its code, as it says; a beat names the same
  process_id            TEXT,                  -- random at each start of the process; null: it named none
  incarnation           INTEGER NOT NULL DEFAULT 1 CHECK (incarnation >= 1),  -- + 1 when another process takes the name
  content_version       INTEGER NOT NULL DEFAULT 1,  -- + 1 at every registration that changed anything
  capability_version    INTEGER NOT NULL,      -- + 1 whenever the granted set changes; never shrinks
  declared_capabilities TEXT    NOT NULL,      -- JSON array, sorted
  granted_capabilities  TEXT    NOT NULL,      -- JSON array, sorted: declared and granted
  workload_kinds        TEXT    NOT NULL,      -- JSON array, sorted, of definition or definition#revision; []: any
  resource_profile      TEXT    NOT NULL,      -- JSON object
  labels                TEXT    NOT NULL,      -- JSON object
  concurrency           INTEGER NOT NULL CHECK (concurrency BETWEEN 1 AND 1024),  -- claims it may hold at once
  health                TEXT    NOT NULL CHECK (health IN ('HEALTHY', 'DEGRADED', 'UNHEALTHY', 'UNKNOWN')),  -- as its last beat said; UNHEALTHY: it fell silent
  lifecycle             TEXT    NOT NULL CHECK (lifecycle IN ('REGISTERED', 'READY', 'DRAINING', 'OFFLINE', 'RECOVERING')),  -- moves along worker_edges only
  lifecycle_cause       TEXT    NOT NULL,      -- cause of the last edge: verb, lost, resume, register
  offline_reason        TEXT,                  -- why it is OFFLINE or RECOVERING: failed, drained, left, transition, restored, recover, removed
  heartbeat_interval_ms INTEGER NOT NULL CHECK (heartbeat_interval_ms BETWEEN 1000 AND 300000),  -- how often it promised to beat
  heartbeat_timeout_ms  INTEGER NOT NULL CHECK (heartbeat_timeout_ms BETWEEN 2 * heartbeat_interval_ms AND 3600000),  -- silent for so long it has failed
  registered_at_ms      INTEGER NOT NULL,      -- lease time of the first registration, or as the registrar said
  last_seen_at_ms       INTEGER NOT NULL,      -- lease time it was last heard
  clock_skew_ms         INTEGER NOT NULL DEFAULT 0,  -- its clock minus ours at the last beat
  authorization_grant_id TEXT,                 -- the grant it registered with, null only with --no-auth
  authority_live        INTEGER NOT NULL DEFAULT 1 CHECK (authority_live IN (0, 1)),  -- 0: that grant or an ancestor was revoked, or allows this worker no more
  authority_unsettled   INTEGER NOT NULL DEFAULT 0 CHECK (authority_unsettled IN (0, 1)),  -- 1: its live claims are still to be compared with a changed grant
  authority_expires_at_ms INTEGER,             -- wall time: earliest expiry in the grant chain; null: none
  drain_by              TEXT,                  -- kind:id of who drains it; null: no drain stands
  drain_reason          TEXT,                  -- in the words of who drains it
  drain_at_ms           INTEGER,               -- lease time
  drain_until           TEXT    CHECK (drain_until IN ('resumed', 'registered')),  -- what ends the drain: resume, or its next registration
  no_renew_after_at_ms  INTEGER,               -- lease time past which no lease of it is moved out
  reported              TEXT,                  -- JSON of what its last beat told of itself; decides nothing
  removed_at_ms         INTEGER,               -- lease time; the row is a tombstone
  UNIQUE (tenant_id, application_id, name),
  CHECK ((drain_by IS NULL) = (drain_at_ms IS NULL)),
  CHECK ((drain_by IS NULL) = (drain_until IS NULL)),
  CHECK (declared_capabilities GLOB '[[]*]'),
  CHECK (granted_capabilities GLOB '[[]*]'),
  CHECK (workload_kinds GLOB '[[]*]'),
  CHECK (resource_profile GLOB '{*}'),
  CHECK (labels GLOB '{*}')
) STRICT;
-- The instant each present worker fails at if nothing is heard of it.
CREATE INDEX workers_by_silence ON workers (last_seen_at_ms + heartbeat_timeout_ms, worker_id)
 WHERE lifecycle <> 'OFFLINE';
CREATE INDEX workers_by_age ON workers (registered_at_ms, worker_id);
CREATE INDEX workers_of_tenant ON workers (tenant_id, registered_at_ms, worker_id);
CREATE INDEX workers_of_grant ON workers (authorization_grant_id, worker_id) WHERE authorization_grant_id IS NOT NULL;
CREATE INDEX workers_unsettled ON workers (worker_id) WHERE authority_unsettled = 1;

CREATE TRIGGER workers_begin_registered BEFORE INSERT ON workers
WHEN NEW.lifecycle <> 'REGISTERED'
BEGIN SELECT RAISE(ABORT, 'a worker begins REGISTERED'); END;
-- A REPLACE in a shell deletes what stands in its way and fires no trigger for that: refused before.
CREATE TRIGGER workers_are_not_replaced BEFORE INSERT ON workers
WHEN EXISTS (SELECT 1 FROM workers WHERE worker_id = NEW.worker_id)
  OR EXISTS (SELECT 1
               FROM workers
              WHERE tenant_id = NEW.tenant_id
                AND application_id = NEW.application_id
                AND name = NEW.name)
BEGIN SELECT RAISE(ABORT, 'this worker exists'); END;
CREATE TRIGGER workers_keep_to_edges BEFORE UPDATE OF lifecycle ON workers
WHEN NEW.lifecycle <> OLD.lifecycle
 AND NOT EXISTS (SELECT 1
                   FROM worker_edges
                  WHERE from_lifecycle = OLD.lifecycle
                    AND to_lifecycle = NEW.lifecycle
                    AND cause = NEW.lifecycle_cause)
BEGIN SELECT RAISE(ABORT, 'no such edge of a worker'); END;
CREATE TRIGGER workers_keep_their_id BEFORE UPDATE OF worker_id, tenant_id, application_id, name ON workers
WHEN NEW.worker_id <> OLD.worker_id OR NEW.tenant_id <> OLD.tenant_id
  OR NEW.application_id <> OLD.application_id OR NEW.name <> OLD.name
BEGIN SELECT RAISE(ABORT, 'a worker keeps its id, tenant, application and name'); END;
CREATE TRIGGER workers_versions_grow BEFORE UPDATE OF capability_version, incarnation ON workers
WHEN NEW.capability_version < OLD.capability_version OR NEW.incarnation < OLD.incarnation
BEGIN SELECT RAISE(ABORT, 'versions of a worker never shrink'); END;

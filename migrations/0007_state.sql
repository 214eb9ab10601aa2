-- State that starts work: records and the log of their changes, who reads it, the triggers that make
-- workloads of it, schedules, and how far each kind of history has been cleared away.

-- One log of changes a tenant. Its three marks: 0 <= floor_seq <= head_seq, evaluated_seq <= head_seq.
CREATE TABLE change_logs (
  tenant_id     TEXT    PRIMARY KEY,           -- whose
  head_seq      INTEGER NOT NULL DEFAULT 0,    -- seq of its newest change, 0: none was ever made
  floor_seq     INTEGER NOT NULL DEFAULT 0 CHECK (floor_seq >= 0),  -- changes up to this one are gone
  floor_at_ms   INTEGER NOT NULL DEFAULT 0,    -- lease time of the change at floor_seq, 0: none is gone
  evaluated_seq INTEGER NOT NULL DEFAULT 0 CHECK (evaluated_seq >= 0),  -- every trigger that is not backing off has seen the changes up to this one
  CHECK (floor_seq <= head_seq),
  CHECK (evaluated_seq <= head_seq)
) STRICT, WITHOUT ROWID;
-- Only logs with something to evaluate, so that an idle round reads nothing.
CREATE INDEX change_logs_unevaluated ON change_logs (tenant_id) WHERE evaluated_seq < head_seq;

-- Large values: a row table, or the tree of a million of them grows deep.
CREATE TABLE records (
  record_seq    INTEGER PRIMARY KEY AUTOINCREMENT,  -- order of first creation
  tenant_id     TEXT    NOT NULL,              -- whose
  collection    TEXT    NOT NULL,              -- a name of the tenant's
  record_id     TEXT    NOT NULL,              -- unique in tenant and collection
  version       INTEGER NOT NULL CHECK (version >= 1),  -- 1, 2, 3 ... ; goes on when it is made again
  value         TEXT,                          -- JSON, members in order; null: deleted
  change_seq    INTEGER NOT NULL CHECK (change_seq >= 1),  -- changes.seq of its last change
  created_at_ms INTEGER NOT NULL,              -- lease time it was (last) created
  created_by    TEXT    NOT NULL,              -- kind:id
  updated_at_ms INTEGER NOT NULL,              -- lease time of its last change
  updated_by    TEXT    NOT NULL,              -- kind:id
  updated_key   TEXT    NOT NULL,              -- key_id that sent the last change, '': no key; tells a repeat from a stranger
  UNIQUE (tenant_id, collection, record_id)
) STRICT;
CREATE INDEX records_by_age ON records (tenant_id, collection, record_seq) WHERE value IS NOT NULL;
-- Deleted ones keep their version for a while, so that an old If-Match never fits a new record.
CREATE INDEX records_deleted ON records (updated_at_ms, record_seq) WHERE value IS NULL;

CREATE TABLE collections (
  tenant_id  TEXT    NOT NULL,                 -- whose
  collection TEXT    NOT NULL,                 -- its name; it is made by its first record
  records    INTEGER NOT NULL DEFAULT 0 CHECK (records >= 0),  -- records of it that are not deleted
  bytes      INTEGER NOT NULL DEFAULT 0 CHECK (bytes >= 0),    -- their values together, bytes
  PRIMARY KEY (tenant_id, collection)
) STRICT, WITHOUT ROWID;

CREATE TABLE changes (
  change_id         INTEGER PRIMARY KEY,       -- order of arrival over all tenants; shown to nobody
  tenant_id         TEXT    NOT NULL,          -- whose
  seq               INTEGER NOT NULL CHECK (seq >= 1),  -- gapless in the tenant
  at_ms             INTEGER NOT NULL,          -- lease time
  kind              TEXT    NOT NULL CHECK (kind IN ('created', 'updated', 'deleted')),  -- what became of the record
  collection        TEXT    NOT NULL,          -- of the record
  record_id         TEXT    NOT NULL,          -- which record
  version           INTEGER NOT NULL CHECK (version >= 1),  -- of the record after it
  before            TEXT,                      -- JSON, null: created
  after             TEXT,                      -- JSON, null: deleted
  actor             TEXT    NOT NULL,          -- kind:id
  cause_workload_id TEXT,                      -- workload that was named as its cause, null: none
  depth             INTEGER NOT NULL DEFAULT 0 CHECK (depth BETWEEN 0 AND 8),  -- firings of triggers that led to it
  UNIQUE (tenant_id, seq),
  CHECK ((before IS NULL) = (kind = 'created')),
  CHECK ((after IS NULL) = (kind = 'deleted'))
) STRICT;
CREATE INDEX changes_of_collection ON changes (tenant_id, collection, seq);
CREATE INDEX changes_of_record ON changes (tenant_id, collection, record_id, seq);

-- Who reads the log outside, and how far each has got for good.
CREATE TABLE consumers (
  tenant_id     TEXT    NOT NULL,              -- with name: which consumer
  name          TEXT    NOT NULL,              -- unique in the tenant
  ack_seq       INTEGER NOT NULL CHECK (ack_seq >= 0),  -- changes up to this one are done with
  acked_at_ms   INTEGER NOT NULL,              -- lease time it last said so
  created_at_ms INTEGER NOT NULL,              -- lease time
  created_by    TEXT    NOT NULL,              -- kind:id
  dropped_at_ms INTEGER,                       -- lease time compaction gave up waiting for it, null: it counts
  PRIMARY KEY (tenant_id, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX consumers_waited_for ON consumers (tenant_id, ack_seq, name) WHERE dropped_at_ms IS NULL;

CREATE TABLE triggers (
  tenant_id         TEXT    NOT NULL,          -- with trigger_id: which trigger
  trigger_id        TEXT    NOT NULL,          -- unique in the tenant
  application_id    TEXT    NOT NULL,          -- of every workload it makes
  kind              TEXT    NOT NULL CHECK (kind IN ('state', 'schedule')),  -- what it waits for; never changes
  enabled           INTEGER NOT NULL CHECK (enabled IN (0, 1)),  -- 0: it makes nothing
  target_capability TEXT    NOT NULL,          -- definition_id of every workload it makes
  work              TEXT    NOT NULL,          -- JSON object: the other members of such a workload, as they were asked for
  requested_by      TEXT    NOT NULL,          -- kind:id in whose name it acts: the subject of the grant
  authorization_grant_id TEXT REFERENCES grants (grant_id),  -- grant under which it acts, null: defined by the local operator
  source_collection TEXT,                      -- state: whose changes
  change_kind       TEXT    CHECK (change_kind IN ('created', 'updated', 'deleted', 'any')),  -- state: which of them
  predicate         TEXT,                      -- state: JSON tree, null: every one of them
  starts            INTEGER NOT NULL DEFAULT 1 CHECK (starts >= 1),  -- state: + 1 whenever it is put at a place
  cursor_seq        INTEGER CHECK (cursor_seq >= 0),  -- state: changes up to this one are judged
  judged_from_seq   INTEGER CHECK (judged_from_seq >= 0),  -- state: changes above it were judged by what it says now
  cron              TEXT,                      -- schedule: five fields
  every_ms          INTEGER CHECK (every_ms BETWEEN 1000 AND 31536000000),  -- schedule: interval
  timezone          TEXT,                      -- schedule: IANA name that cron is read in
  missed            TEXT    CHECK (missed IN ('skip', 'once', 'all')),  -- schedule: what becomes of instants that passed unserved
  overlap           TEXT    CHECK (overlap IN ('allow', 'skip')),  -- schedule: skip: none while its last workload is unfinished
  anchor_at_ms      INTEGER,                   -- schedule with every_ms: wall time the interval is counted from
  next_at_ms        INTEGER,                   -- schedule: wall time of the first instant not dealt with; null: it is disabled
  last_at_ms        INTEGER,                   -- schedule: greatest instant dealt with, wall time; instants up to it never come again
  last_workload_id  TEXT,                      -- workload it made last, null: none
  last_fired_at_ms  INTEGER,                   -- lease time of that
  fired             INTEGER NOT NULL DEFAULT 0 CHECK (fired >= 0),  -- workloads it ever made
  passed_over       INTEGER NOT NULL DEFAULT 0 CHECK (passed_over >= 0),  -- state: changes too deep; schedule: instants missed or overlapping
  failures          INTEGER NOT NULL DEFAULT 0 CHECK (failures BETWEEN 0 AND 5),  -- failed firings in a row; the 5th disables it
  failure           TEXT,                      -- the last of them, code and detail; null: the last went well
  retry_at_ms       INTEGER,                   -- lease time it is tried again after a failure, null: it waits for nothing
  disabled_at_ms    INTEGER,                   -- lease time; a disabled state trigger holds the log 7 days from here
  disabled_by       TEXT,                      -- kind:id; service:feltd: it failed too often
  disabled_reason   TEXT,                      -- in the words of who disabled it, or of the last failure
  defined_by        TEXT    NOT NULL,          -- kind:id of who defined it last
  created_at_ms     INTEGER NOT NULL,          -- lease time
  updated_at_ms     INTEGER NOT NULL,          -- lease time it was last defined
  PRIMARY KEY (tenant_id, trigger_id),
  CHECK ((kind = 'state') = (source_collection IS NOT NULL)),
  CHECK ((kind = 'state') = (change_kind IS NOT NULL)),
  CHECK ((kind = 'state') = (cursor_seq IS NOT NULL)),
  CHECK ((kind = 'state') = (judged_from_seq IS NOT NULL)),
  CHECK (predicate IS NULL OR kind = 'state'),
  CHECK ((kind = 'schedule') = ((cron IS NOT NULL) + (every_ms IS NOT NULL) = 1)),
  CHECK ((kind = 'schedule') = (timezone IS NOT NULL AND missed IS NOT NULL AND overlap IS NOT NULL)),
  CHECK ((every_ms IS NULL) = (anchor_at_ms IS NULL)),
  CHECK ((next_at_ms IS NOT NULL) = (kind = 'schedule' AND enabled = 1)),
  CHECK (last_at_ms IS NULL OR kind = 'schedule'),
  CHECK (next_at_ms IS NULL OR last_at_ms IS NULL OR next_at_ms > last_at_ms),
  CHECK ((enabled = 1) = (disabled_at_ms IS NULL)),
  CHECK ((disabled_at_ms IS NULL) = (disabled_by IS NULL AND disabled_reason IS NULL)),
  CHECK (retry_at_ms IS NULL OR (enabled = 1 AND failures > 0)),
  CHECK (work GLOB '{*}'),
  CHECK (predicate IS NULL OR predicate GLOB '{*}')
) STRICT, WITHOUT ROWID;
-- Who waits for changes, the one furthest behind first.
CREATE INDEX triggers_by_cursor ON triggers (tenant_id, cursor_seq, trigger_id) WHERE kind = 'state' AND enabled = 1;
CREATE INDEX triggers_disabled ON triggers (tenant_id, disabled_at_ms, cursor_seq) WHERE kind = 'state' AND enabled = 0;
CREATE INDEX triggers_retrying ON triggers (retry_at_ms, tenant_id, trigger_id) WHERE retry_at_ms IS NOT NULL;
CREATE INDEX triggers_by_instant ON triggers (next_at_ms, tenant_id, trigger_id) WHERE next_at_ms IS NOT NULL;
CREATE INDEX triggers_of_grant ON triggers (authorization_grant_id) WHERE authorization_grant_id IS NOT NULL;

-- Triggers that were deleted, the newest of each tenant, so that a repeat is told from a made-up id.
CREATE TABLE deleted_triggers (
  tenant_id     TEXT    NOT NULL,              -- with trigger_id: which trigger
  trigger_id    TEXT    NOT NULL,              -- may be defined again; then it is none of these
  deleted_at_ms INTEGER NOT NULL,              -- lease time
  PRIMARY KEY (tenant_id, trigger_id)
) STRICT, WITHOUT ROWID;

-- A row: this change was handed to this trigger. It is written with the workload and the cursor.
CREATE TABLE trigger_firings (
  tenant_id      TEXT    NOT NULL,             -- of trigger and change
  trigger_id     TEXT    NOT NULL,             -- which trigger; its row may be gone
  seq            INTEGER NOT NULL,             -- changes.seq
  instance_id    TEXT    NOT NULL,             -- ledger.instance_id then: part of the workload's idempotency key
  outcome        TEXT    NOT NULL CHECK (outcome IN ('fired', 'too_deep')),  -- too_deep: eight firings led to the change already, so there is no workload
  workload_id    TEXT,                         -- what came of it
  depth          INTEGER NOT NULL CHECK (depth BETWEEN 1 AND 9),  -- the change's and one: what is written in that workload's name has it
  at_ms          INTEGER NOT NULL,             -- lease time
  PRIMARY KEY (tenant_id, trigger_id, seq),
  CHECK ((outcome = 'fired') = (workload_id IS NOT NULL)),
  CHECK ((outcome = 'too_deep') = (depth = 9))
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX trigger_firings_of_workload ON trigger_firings (workload_id) WHERE workload_id IS NOT NULL;

-- A row: this schedule has dealt with this instant. What `missed` drops is counted, not written.
CREATE TABLE schedule_firings (
  tenant_id    TEXT    NOT NULL,               -- of the trigger
  trigger_id   TEXT    NOT NULL,               -- which schedule; its row may be gone
  scheduled_at_ms INTEGER NOT NULL,            -- the instant, wall time; run by hand: when
  by_hand      INTEGER NOT NULL DEFAULT 0 CHECK (by_hand IN (0, 1)),  -- 1: somebody asked for it out of turn
  instance_id  TEXT    NOT NULL,               -- ledger.instance_id then: part of the workload's idempotency key
  outcome      TEXT    NOT NULL CHECK (outcome IN ('fired', 'overlap')),  -- overlap: the workload before was unfinished, so there is none
  workload_id  TEXT,                           -- what came of it
  at_ms        INTEGER NOT NULL,               -- lease time
  PRIMARY KEY (tenant_id, trigger_id, scheduled_at_ms, by_hand),
  CHECK ((outcome = 'fired') = (workload_id IS NOT NULL)),
  CHECK (by_hand = 0 OR outcome = 'fired')
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX schedule_firings_of_workload ON schedule_firings (workload_id) WHERE workload_id IS NOT NULL;

-- What a workload named as its dependencies, kept while it may still run: it reads their results.
CREATE TABLE dependency_edges (
  parent    TEXT    NOT NULL,                  -- as in dependency_waits
  child_seq INTEGER NOT NULL REFERENCES workloads (seq) ON DELETE CASCADE,  -- who named it
  PRIMARY KEY (parent, child_seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX dependency_edges_of_child ON dependency_edges (child_seq, parent);
INSERT INTO dependency_edges (parent, child_seq)
SELECT DISTINCT CASE WHEN j.value LIKE 'group:%'
                     THEN 'group:' || w.tenant_id || '/' || substr(j.value, 7)
                     ELSE j.value END,
       w.seq
  FROM workloads w
  JOIN json_each(w.dependencies) j
 WHERE w.dependencies <> '[]'
   AND w.state NOT IN ('COMPLETED', 'CANCELLED');

-- How far each kind of history is cleared away. Promises are asked of what lies above alone.
CREATE TABLE floors (
  name      TEXT    PRIMARY KEY CHECK (name IN ('events', 'audit', 'tombstones', 'workloads', 'decisions')),  -- which table
  seq       INTEGER NOT NULL DEFAULT 0,        -- greatest number that is gone, 0: none
  at_ms     INTEGER NOT NULL DEFAULT 0,        -- lease time of the newest row that is gone (workloads: of its end)
  event_seq INTEGER NOT NULL DEFAULT 0,        -- audit: last event that the rows gone had sealed
  hash      TEXT    NOT NULL DEFAULT ''        -- audit: hash of row seq, on which the chain goes on
) STRICT, WITHOUT ROWID;
INSERT INTO floors (name) VALUES ('events'), ('audit'), ('tombstones'), ('workloads'), ('decisions');

-- Where a walk that takes many rounds goes on; no row: at the beginning.
CREATE TABLE compaction_places (
  name      TEXT    PRIMARY KEY,               -- which walk
  tenant_id TEXT    NOT NULL,                  -- how far it has come: tenant, part of it, number
  part      TEXT    NOT NULL DEFAULT '',       -- workloads: state; firings: trigger_id
  seq       INTEGER NOT NULL DEFAULT 0         -- last number it has looked at there
) STRICT, WITHOUT ROWID;
CREATE INDEX tombstones_by_age ON tombstones (at_ms, tenant_id, application_id, idempotency_key);

-- The log is gapless: a change follows the one before it, is never rewritten, and leaves below the
-- floor alone; head and floor name changes and only rise.
CREATE TRIGGER changes_are_gapless BEFORE INSERT ON changes
WHEN NEW.seq IS NOT (SELECT 1 + max(l.head_seq, ifnull((SELECT max(c.seq) FROM changes c WHERE c.tenant_id = NEW.tenant_id), 0))
                       FROM change_logs l
                      WHERE l.tenant_id = NEW.tenant_id)
BEGIN SELECT RAISE(ABORT, 'changes are numbered without gap'); END;
CREATE TRIGGER changes_are_not_replaced BEFORE INSERT ON changes
WHEN NEW.change_id <> -1
 AND EXISTS (SELECT 1 FROM changes WHERE change_id = NEW.change_id)
BEGIN SELECT RAISE(ABORT, 'this change exists'); END;
CREATE TRIGGER changes_stay BEFORE UPDATE ON changes
BEGIN SELECT RAISE(ABORT, 'changes are never changed'); END;
CREATE TRIGGER changes_leave_below_the_floor BEFORE DELETE ON changes
WHEN OLD.seq > (SELECT ifnull(max(l.floor_seq), 0) FROM change_logs l WHERE l.tenant_id = OLD.tenant_id)
BEGIN SELECT RAISE(ABORT, 'a change above the floor is not deleted'); END;
CREATE TRIGGER change_logs_begin_empty BEFORE INSERT ON change_logs
WHEN NEW.head_seq <> 0
  OR EXISTS (SELECT 1 FROM change_logs WHERE tenant_id = NEW.tenant_id)
BEGIN SELECT RAISE(ABORT, 'a log of changes begins at 0, once'); END;
CREATE TRIGGER change_logs_stay BEFORE DELETE ON change_logs
BEGIN SELECT RAISE(ABORT, 'a log of changes keeps its head'); END;
CREATE TRIGGER change_logs_name_their_head BEFORE UPDATE OF head_seq ON change_logs
WHEN NEW.head_seq <> OLD.head_seq
 AND (NEW.head_seq < OLD.head_seq
      OR NEW.head_seq IS NOT (SELECT max(c.seq) FROM changes c WHERE c.tenant_id = NEW.tenant_id))
BEGIN SELECT RAISE(ABORT, 'the head of a log is its newest change'); END;
CREATE TRIGGER floors_of_logs_rise BEFORE UPDATE OF floor_seq ON change_logs
WHEN NEW.floor_seq < OLD.floor_seq
BEGIN SELECT RAISE(ABORT, 'the floor of a log never goes down'); END;
-- Who is waited for is dropped or disabled first, in the open; an enabled trigger never is.
CREATE TRIGGER floors_of_logs_wait_for_triggers BEFORE UPDATE OF floor_seq ON change_logs
WHEN NEW.floor_seq > OLD.floor_seq
 AND EXISTS (SELECT 1
               FROM triggers t
              WHERE t.tenant_id = NEW.tenant_id
                AND t.kind = 'state'
                AND t.enabled = 1
                AND t.cursor_seq < NEW.floor_seq)
BEGIN SELECT RAISE(ABORT, 'an enabled trigger has not judged these changes'); END;
CREATE TRIGGER floors_of_logs_wait_for_consumers BEFORE UPDATE OF floor_seq ON change_logs
WHEN NEW.floor_seq > OLD.floor_seq
 AND EXISTS (SELECT 1
               FROM consumers c
              WHERE c.tenant_id = NEW.tenant_id
                AND c.dropped_at_ms IS NULL
                AND c.ack_seq < NEW.floor_seq)
BEGIN SELECT RAISE(ABORT, 'a consumer has not acknowledged these changes'); END;
CREATE TRIGGER floors_rise BEFORE UPDATE OF seq, at_ms, event_seq ON floors
WHEN NEW.seq < OLD.seq OR NEW.at_ms < OLD.at_ms OR NEW.event_seq < OLD.event_seq
BEGIN SELECT RAISE(ABORT, 'a floor never goes down'); END;

CREATE TRIGGER records_are_not_replaced BEFORE INSERT ON records
WHEN EXISTS (SELECT 1 FROM records WHERE record_seq = NEW.record_seq)
  OR EXISTS (SELECT 1
               FROM records
              WHERE tenant_id = NEW.tenant_id
                AND collection = NEW.collection
                AND record_id = NEW.record_id)
BEGIN SELECT RAISE(ABORT, 'this record exists'); END;
-- No value without a change: each version has its own.
CREATE TRIGGER records_change_in_steps BEFORE UPDATE OF version, value, change_seq ON records
WHEN NEW.version <> OLD.version + 1 OR NEW.change_seq <= OLD.change_seq
BEGIN SELECT RAISE(ABORT, 'a record changes by one version, with a change'); END;
CREATE TRIGGER records_keep_their_name BEFORE UPDATE OF tenant_id, collection, record_id ON records
WHEN NEW.tenant_id <> OLD.tenant_id OR NEW.collection <> OLD.collection OR NEW.record_id <> OLD.record_id
BEGIN SELECT RAISE(ABORT, 'a record keeps its tenant, collection and id'); END;
CREATE TRIGGER records_are_deleted_first BEFORE DELETE ON records
WHEN OLD.value IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a record that is not deleted keeps its row'); END;

CREATE TRIGGER triggers_are_not_replaced BEFORE INSERT ON triggers
WHEN EXISTS (SELECT 1 FROM triggers WHERE tenant_id = NEW.tenant_id AND trigger_id = NEW.trigger_id)
BEGIN SELECT RAISE(ABORT, 'this trigger exists'); END;
CREATE TRIGGER triggers_stay_what_they_are BEFORE UPDATE OF tenant_id, trigger_id, kind ON triggers
WHEN NEW.tenant_id <> OLD.tenant_id OR NEW.trigger_id <> OLD.trigger_id OR NEW.kind <> OLD.kind
BEGIN SELECT RAISE(ABORT, 'a trigger keeps its tenant, id and kind'); END;
CREATE TRIGGER triggers_go_forward BEFORE UPDATE OF cursor_seq ON triggers
WHEN NEW.cursor_seq < OLD.cursor_seq AND NEW.starts = OLD.starts
BEGIN SELECT RAISE(ABORT, 'a cursor goes back by a new start alone'); END;
CREATE TRIGGER triggers_read_what_is BEFORE UPDATE OF cursor_seq ON triggers
WHEN NEW.cursor_seq > (SELECT ifnull(max(l.head_seq), 0) FROM change_logs l WHERE l.tenant_id = NEW.tenant_id)
BEGIN SELECT RAISE(ABORT, 'no cursor is ahead of its log'); END;
CREATE TRIGGER triggers_overtaken_stay_disabled BEFORE UPDATE OF enabled, cursor_seq ON triggers
WHEN NEW.kind = 'state'
 AND NEW.enabled = 1
 AND NEW.cursor_seq < (SELECT ifnull(max(l.floor_seq), 0) FROM change_logs l WHERE l.tenant_id = NEW.tenant_id)
BEGIN SELECT RAISE(ABORT, 'changes this trigger has not judged are gone: give it a new start'); END;
CREATE TRIGGER triggers_begin_in_the_log BEFORE INSERT ON triggers
WHEN NEW.kind = 'state'
 AND (NEW.cursor_seq < (SELECT ifnull(max(l.floor_seq), 0) FROM change_logs l WHERE l.tenant_id = NEW.tenant_id)
      OR NEW.cursor_seq > (SELECT ifnull(max(l.head_seq), 0) FROM change_logs l WHERE l.tenant_id = NEW.tenant_id))
BEGIN SELECT RAISE(ABORT, 'a trigger begins at a change that is kept'); END;
CREATE TRIGGER schedules_never_repeat BEFORE UPDATE OF last_at_ms ON triggers
WHEN NEW.last_at_ms < OLD.last_at_ms OR (OLD.last_at_ms IS NOT NULL AND NEW.last_at_ms IS NULL)
BEGIN SELECT RAISE(ABORT, 'an instant that was dealt with never comes again'); END;

CREATE TRIGGER trigger_firings_happen_once BEFORE INSERT ON trigger_firings
WHEN EXISTS (SELECT 1
               FROM trigger_firings
              WHERE tenant_id = NEW.tenant_id
                AND trigger_id = NEW.trigger_id
                AND seq = NEW.seq)
  OR EXISTS (SELECT 1 FROM trigger_firings WHERE workload_id = NEW.workload_id)
BEGIN SELECT RAISE(ABORT, 'a change fires a trigger once'); END;
CREATE TRIGGER trigger_firings_cross_nothing BEFORE INSERT ON trigger_firings
WHEN NOT EXISTS (SELECT 1
                   FROM triggers t
                   JOIN changes c ON c.tenant_id = t.tenant_id
                                 AND c.seq = NEW.seq
                                 AND c.collection = t.source_collection
                                 AND t.change_kind IN ('any', c.kind)
                                 AND c.depth + 1 = NEW.depth
                  WHERE t.tenant_id = NEW.tenant_id
                    AND t.trigger_id = NEW.trigger_id
                    AND (NEW.workload_id IS NULL
                         OR EXISTS (SELECT 1
                                      FROM workloads w
                                     WHERE w.workload_id = NEW.workload_id
                                       AND w.tenant_id = t.tenant_id
                                       AND w.application_id = t.application_id
                                       AND w.trigger = t.trigger_id)))
BEGIN SELECT RAISE(ABORT, 'a trigger fires for a change of its own, in its own application'); END;
CREATE TRIGGER trigger_firings_stay BEFORE UPDATE ON trigger_firings
BEGIN SELECT RAISE(ABORT, 'firings are never changed'); END;
CREATE TRIGGER schedule_firings_happen_once BEFORE INSERT ON schedule_firings
WHEN EXISTS (SELECT 1
               FROM schedule_firings
              WHERE tenant_id = NEW.tenant_id
                AND trigger_id = NEW.trigger_id
                AND scheduled_at_ms = NEW.scheduled_at_ms
                AND by_hand = NEW.by_hand)
  OR EXISTS (SELECT 1 FROM schedule_firings WHERE workload_id = NEW.workload_id)
BEGIN SELECT RAISE(ABORT, 'an instant fires a schedule once'); END;
CREATE TRIGGER schedule_firings_cross_nothing BEFORE INSERT ON schedule_firings
WHEN NOT EXISTS (SELECT 1
                   FROM triggers t
                  WHERE t.tenant_id = NEW.tenant_id
                    AND t.trigger_id = NEW.trigger_id
                    AND t.kind = 'schedule'
                    AND (NEW.workload_id IS NULL
                         OR EXISTS (SELECT 1
                                      FROM workloads w
                                     WHERE w.workload_id = NEW.workload_id
                                       AND w.tenant_id = t.tenant_id
                                       AND w.application_id = t.application_id
                                       AND w.trigger = t.trigger_id)))
BEGIN SELECT RAISE(ABORT, 'a schedule fires in its own application'); END;
CREATE TRIGGER schedule_firings_stay BEFORE UPDATE ON schedule_firings
BEGIN SELECT RAISE(ABORT, 'firings are never changed'); END;

-- What unfinished work named is not cleared away under it, by whatever mistake.
CREATE TRIGGER workloads_that_are_needed_stay BEFORE DELETE ON workloads
WHEN EXISTS (SELECT 1
               FROM dependency_edges e
               JOIN workloads c ON c.seq = e.child_seq
              WHERE e.parent = OLD.workload_id
                AND c.state NOT IN ('COMPLETED', 'CANCELLED'))
  OR (OLD.group_name IS NOT NULL
      AND EXISTS (SELECT 1
                    FROM dependency_edges e
                    JOIN workloads c ON c.seq = e.child_seq
                   WHERE e.parent = 'group:' || OLD.tenant_id || '/' || OLD.group_name
                     AND c.state NOT IN ('COMPLETED', 'CANCELLED')))
BEGIN SELECT RAISE(ABORT, 'unfinished work depends on this workload'); END;

-- v_triggers: every trigger, how far behind it is, and why it stands still.
CREATE VIEW v_triggers AS
SELECT t.tenant_id,
       t.application_id,
       t.trigger_id,
       t.kind,
       CASE WHEN t.kind = 'state' AND t.cursor_seq < g.floor_seq THEN 'OVERTAKEN'
            WHEN t.enabled = 0 THEN 'DISABLED'
            WHEN t.failures > 0 THEN 'FAILING'
            ELSE 'ENABLED'
       END AS standing,
       t.target_capability,
       coalesce(t.source_collection, t.cron, 'every ' || t.every_ms || ' ms') AS waits_for,
       t.cursor_seq,
       CASE WHEN t.kind = 'state' THEN ifnull(g.head_seq, 0) - t.cursor_seq END AS lag,
       t.fired,
       t.passed_over,
       t.failures,
       coalesce(t.disabled_reason, t.failure) AS reason,
       strftime('%Y-%m-%dT%H:%M:%fZ', t.next_at_ms / 1000.0, 'unixepoch') AS next_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', (t.last_fired_at_ms + l.wall_offset_ms) / 1000.0, 'unixepoch') AS last_fired_at
  FROM triggers t
  JOIN ledger l ON l.id = 1
  LEFT JOIN change_logs g ON g.tenant_id = t.tenant_id
 ORDER BY t.tenant_id, t.trigger_id;

-- v_changes: the log, newest first, without the values.
CREATE VIEW v_changes AS
SELECT c.tenant_id,
       c.seq,
       strftime('%Y-%m-%dT%H:%M:%fZ', (c.at_ms + l.wall_offset_ms) / 1000.0, 'unixepoch') AS at,
       c.kind,
       c.collection,
       c.record_id,
       c.version,
       c.actor,
       c.cause_workload_id,
       c.depth
  FROM changes c
  JOIN ledger l ON l.id = 1
 ORDER BY c.tenant_id, c.seq DESC;

-- All claims of a worker, ended ones too, so that a row of workers can be deleted without reading
-- every claim: SQLite looks for claims of it and uses no partial index for that. The partial ones
-- are made anew behind it, for of equals SQLite takes the newest.
DROP INDEX claims_ended_of_worker;
CREATE INDEX claims_of_worker ON claims (worker_id, fencing_token);
DROP INDEX claims_live_of_worker;
CREATE INDEX claims_live_of_worker ON claims (worker_id, fencing_token) WHERE ended_at_ms IS NULL;
DROP INDEX claims_assigned;
CREATE INDEX claims_assigned ON claims (worker_id, fencing_token) WHERE assigned = 1 AND ended_at_ms IS NULL;

-- Workloads, what they ask for (demands, lanes), and their claims. A claim is the attempt: one row.

CREATE TABLE workload_edges (
  from_state TEXT NOT NULL,   -- '' : creation
  to_state   TEXT NOT NULL,   -- where it leads
  PRIMARY KEY (from_state, to_state)
) STRICT, WITHOUT ROWID;
INSERT INTO workload_edges (from_state, to_state) VALUES
  ('', 'PENDING'), ('', 'READY'), ('', 'DEAD_LETTERED'),
  ('PENDING', 'READY'), ('PENDING', 'DEAD_LETTERED'), ('PENDING', 'CANCELLED'),
  ('READY', 'CLAIMED'), ('READY', 'DEAD_LETTERED'), ('READY', 'CANCELLED'),
  ('CLAIMED', 'RUNNING'), ('CLAIMED', 'READY'), ('CLAIMED', 'DEAD_LETTERED'), ('CLAIMED', 'CANCELLED'),
  ('RUNNING', 'CHECKPOINTED'), ('RUNNING', 'COMPLETED'), ('RUNNING', 'READY'),
  ('RUNNING', 'DEAD_LETTERED'), ('RUNNING', 'CANCELLED'),
  ('CHECKPOINTED', 'COMPLETED'), ('CHECKPOINTED', 'READY'),
  ('CHECKPOINTED', 'DEAD_LETTERED'), ('CHECKPOINTED', 'CANCELLED'),
  ('DEAD_LETTERED', 'READY'), ('DEAD_LETTERED', 'PENDING'), ('DEAD_LETTERED', 'CANCELLED');

CREATE TABLE applications (
  tenant_id         TEXT    NOT NULL,            -- with application_id: whose work it is
  application_id    TEXT    NOT NULL,            -- unique in the tenant
  demand_generation INTEGER NOT NULL DEFAULT 0,  -- + 1 whenever a demand is made or deleted
  demands           INTEGER NOT NULL DEFAULT 0 CHECK (demands BETWEEN 0 AND 2000),  -- demands that exist
  PRIMARY KEY (tenant_id, application_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE demands (
  demand_id           INTEGER PRIMARY KEY AUTOINCREMENT,  -- older ones are smaller
  tenant_id           TEXT    NOT NULL,   -- of all its work
  application_id      TEXT    NOT NULL,   -- of all its work
  definition_id       TEXT    NOT NULL,   -- what is to be run
  definition_revision TEXT    NOT NULL,   -- which revision of it
  capabilities        TEXT    NOT NULL,   -- JSON array, sorted
  resources           TEXT    NOT NULL,   -- JSON object
  placement           TEXT    NOT NULL,   -- JSON object
  digest              TEXT    NOT NULL,   -- SHA-256, hex, of the five above
  head_rank           INTEGER,            -- rank of the best head of its lanes, null: nothing due
  head_seq            INTEGER,            -- workloads.seq of that head
  UNIQUE (tenant_id, application_id, digest),
  CHECK ((head_rank IS NULL) = (head_seq IS NULL)),
  CHECK (capabilities GLOB '[[]*]'),
  CHECK (resources GLOB '{*}'),
  CHECK (placement GLOB '{*}')
) STRICT;
CREATE INDEX demands_by_head ON demands (tenant_id, application_id, head_rank, head_seq)
 WHERE head_rank IS NOT NULL;

CREATE TABLE lanes (
  lane_id   INTEGER PRIMARY KEY AUTOINCREMENT,  -- workloads of one lane are taken in order of (rank, seq)
  demand_id INTEGER NOT NULL UNIQUE REFERENCES demands (demand_id),  -- what its workloads ask for
  head_rank INTEGER,                      -- rank of its first due workload, null: none
  head_seq  INTEGER,                      -- workloads.seq of it
  CHECK ((head_rank IS NULL) = (head_seq IS NULL))
) STRICT;
CREATE INDEX lanes_by_head ON lanes (demand_id, head_rank, head_seq) WHERE head_rank IS NOT NULL;

CREATE TABLE workloads (
  seq                    INTEGER PRIMARY KEY AUTOINCREMENT,  -- order of creation
  workload_id            TEXT    NOT NULL UNIQUE,  -- time-ordered
  tenant_id              TEXT    NOT NULL,         -- never changes
  application_id         TEXT    NOT NULL,         -- never changes
  idempotency_key        TEXT    NOT NULL,         -- names this workload in tenant and application
  state                  TEXT    NOT NULL CHECK (state IN ('PENDING', 'READY', 'CLAIMED', 'RUNNING', 'CHECKPOINTED', 'COMPLETED', 'DEAD_LETTERED', 'CANCELLED')),  -- moves along workload_edges only
  lane_id                INTEGER,                  -- null once final: its demand may be gone
  demand_id              INTEGER,                  -- null once final
  rank                   INTEGER NOT NULL,         -- eligible_at_ms - priority * 60,000
  due                    INTEGER NOT NULL DEFAULT 0 CHECK (due IN (0, 1)),  -- 1: READY and eligible, in the claim index
  eligible_at_ms         INTEGER NOT NULL,         -- lease time: not_before and backoff passed
  fencing_token          INTEGER NOT NULL DEFAULT 0,  -- newest token ever issued for it, 0: none
  claim_worker_id        TEXT,                     -- live claim: its worker
  claim_incarnation      INTEGER,                  -- live claim: its worker's incarnation
  expires_at_ms          INTEGER,                  -- live claim: lease time its lease ends
  started_at_ms          INTEGER,                  -- live claim: lease time it was started, null: not yet
  attempt_number         INTEGER NOT NULL DEFAULT 0,  -- claims ever made for it
  attempts_spent         INTEGER NOT NULL DEFAULT 0,  -- attempts spent since creation or the last requeue
  releases               INTEGER NOT NULL DEFAULT 0,  -- releases in a row
  max_attempts           INTEGER NOT NULL CHECK (max_attempts BETWEEN 1 AND 1000),  -- spent attempts after which it is a dead letter
  cancel_requested       INTEGER NOT NULL DEFAULT 0 CHECK (cancel_requested IN (0, 1)),  -- 1: its holder is asked to stop
  priority               INTEGER NOT NULL CHECK (priority BETWEEN -1000 AND 1000),  -- one point is worth a minute of waiting
  not_before_at_ms       INTEGER,                  -- wall time, null: none
  ready_at_ms            INTEGER,                  -- lease time it last became READY
  created_at_ms          INTEGER NOT NULL,         -- lease time
  finished_at_ms         INTEGER,                  -- lease time it became final or a dead letter
  environment            TEXT    NOT NULL,         -- a word of the submitter's; travels in the claim
  definition_id          TEXT    NOT NULL,         -- what is to be run
  definition_revision    TEXT    NOT NULL,         -- which revision of it
  trigger                TEXT    NOT NULL,         -- what made it: manual, or a trigger's id
  requested_by           TEXT    NOT NULL,         -- kind:id
  authorization_grant_id TEXT,                     -- grant it was created under, null only with --no-auth
  capability_snapshot    TEXT    NOT NULL,         -- JSON array, sorted
  connection_scopes      TEXT    NOT NULL,         -- JSON array, sorted
  retry_policy           TEXT    NOT NULL,         -- JSON object, all members
  placement              TEXT    NOT NULL,         -- JSON object
  resources              TEXT    NOT NULL,         -- JSON object
  on_worker_lost         TEXT    CHECK (on_worker_lost IN ('end', 'lease')),  -- null: the daemon's setting
  labels                 TEXT    NOT NULL,         -- JSON object
  traceparent            TEXT,                     -- of the call that created it; travels in the claim
  body_sha256            TEXT    NOT NULL,         -- hex digest of what was asked, for the idempotency key
  progress               TEXT,                     -- JSON {done, total, note} last told by the holder
  failure_kind           TEXT,                     -- last failure
  failure_message        TEXT,                     -- what was said of the last failure
  result_id              TEXT,                     -- id of its one result, null until COMPLETED
  result_token           INTEGER,                  -- fencing token of the claim that completed it
  result_started_at_ms   INTEGER,                  -- lease time the claim that completed it was started
  result_expires_at_ms   INTEGER,                  -- lease time the lease of that claim would have ended
  resource_usage         TEXT,                     -- JSON object
  artifacts              TEXT,                     -- JSON array
  result_logs            TEXT,                     -- JSON array
  input                  TEXT    NOT NULL,         -- JSON
  output                 TEXT,                     -- JSON
  UNIQUE (tenant_id, application_id, idempotency_key),
  CHECK ((claim_worker_id IS NOT NULL) = (state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED'))),
  CHECK ((expires_at_ms IS NOT NULL) = (state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED'))),
  CHECK ((claim_incarnation IS NOT NULL) = (state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED'))),
  CHECK (started_at_ms IS NULL OR state IN ('RUNNING', 'CHECKPOINTED')),
  CHECK (state NOT IN ('RUNNING', 'CHECKPOINTED') OR started_at_ms IS NOT NULL),
  CHECK (due = 0 OR state = 'READY'),
  CHECK (lane_id IS NOT NULL OR state IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELLED')),
  CHECK ((state = 'COMPLETED') = (result_id IS NOT NULL)),
  CHECK ((state = 'COMPLETED') = (output IS NOT NULL)),
  CHECK (result_token IS NULL OR result_token = fencing_token),
  CHECK ((finished_at_ms IS NOT NULL) = (state IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELLED'))),
  CHECK (capability_snapshot GLOB '[[]*]'),
  CHECK (connection_scopes GLOB '[[]*]'),
  CHECK (retry_policy GLOB '{*}'),
  CHECK (placement GLOB '{*}'),
  CHECK (resources GLOB '{*}'),
  CHECK (labels GLOB '{*}')
) STRICT;
-- Only what may be claimed now stands in the claim index, so that depth costs nothing.
CREATE INDEX workloads_ready ON workloads (lane_id, rank, seq) WHERE state = 'READY' AND due = 1;
CREATE INDEX workloads_waiting ON workloads (eligible_at_ms, seq) WHERE state = 'READY' AND due = 0;
-- Few name a wall instant: those are moved when the wall clock is.
CREATE INDEX workloads_instants ON workloads (not_before_at_ms, seq)
 WHERE state = 'READY' AND due = 0 AND not_before_at_ms IS NOT NULL;
CREATE INDEX workloads_leased ON workloads (expires_at_ms, seq) WHERE state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED');
CREATE INDEX workloads_of_demand ON workloads (demand_id) WHERE demand_id IS NOT NULL;
CREATE INDEX workloads_by_state ON workloads (tenant_id, state, seq);
CREATE INDEX workloads_of_application ON workloads (tenant_id, application_id, seq);
CREATE INDEX workloads_dead ON workloads (tenant_id, failure_kind, seq) WHERE state = 'DEAD_LETTERED';

CREATE TABLE claims (
  fencing_token     INTEGER PRIMARY KEY AUTOINCREMENT CHECK (fencing_token >= 1),  -- strictly increasing over all claims for ever
  workload_id       TEXT    NOT NULL REFERENCES workloads (workload_id),  -- what is held
  tenant_id         TEXT    NOT NULL,      -- of workload and worker
  application_id    TEXT    NOT NULL,      -- of workload and worker
  worker_id         TEXT    NOT NULL REFERENCES workers (worker_id),  -- who holds or held it
  incarnation       INTEGER NOT NULL,      -- of the worker when it was issued
  number            INTEGER NOT NULL CHECK (number >= 1),  -- 1, 2, 3 ... of the workload, without gap
  lease_ms          INTEGER NOT NULL,      -- duration that was asked for
  issued_at_ms      INTEGER NOT NULL,      -- lease time
  expires_at_ms     INTEGER NOT NULL,      -- lease time: end of the first lease; once ended, of the last
  started_at_ms     INTEGER,               -- lease time; filled in at the end (live: on the workload)
  ended_at_ms       INTEGER,               -- lease time, null: live
  end_kind          TEXT,                  -- how it ended
  end_state         TEXT,                  -- state the workload went to
  end_sha256        TEXT,                  -- hex digest of the body that ended it, so that a repeat is told from another body
  spent             INTEGER CHECK (spent IN (0, 1)),  -- whether it spent an attempt
  retry_at_ms       INTEGER,               -- lease time the workload became eligible again
  failure_message   TEXT,                  -- what was said of its end
  how               TEXT    NOT NULL CHECK (how IN ('pull', 'id', 'directed')),  -- pull: by rank; id: asked for by its id; directed: given by a person
  rank              INTEGER NOT NULL,      -- the workload's rank when it was taken
  worker_lifecycle  TEXT    NOT NULL CHECK (worker_lifecycle = 'READY'),  -- at claim time
  key_id            TEXT,                  -- key that took it, null only with --no-auth
  request_id        TEXT,                  -- pull it came from, for its repeat
  CHECK ((ended_at_ms IS NULL) = (end_kind IS NULL)),
  CHECK ((ended_at_ms IS NULL) = (spent IS NULL)),
  CHECK ((ended_at_ms IS NULL) = (end_state IS NULL))
) STRICT;
CREATE UNIQUE INDEX claims_one_live ON claims (workload_id) WHERE ended_at_ms IS NULL;
CREATE INDEX claims_live_of_worker ON claims (worker_id, fencing_token) WHERE ended_at_ms IS NULL;
CREATE INDEX claims_of_workload ON claims (workload_id, fencing_token);
CREATE INDEX claims_ended_of_worker ON claims (worker_id, fencing_token) WHERE ended_at_ms IS NOT NULL;
CREATE INDEX claims_of_request ON claims (worker_id, request_id) WHERE request_id IS NOT NULL;

CREATE TABLE checkpoints (
  workload_id   TEXT    PRIMARY KEY REFERENCES workloads (workload_id) ON DELETE CASCADE,  -- one checkpoint a workload, the newest
  fencing_token INTEGER NOT NULL,   -- claim that stored it
  at_ms         INTEGER NOT NULL,   -- lease time
  state         TEXT    NOT NULL    -- JSON, for the next attempt
) STRICT;

CREATE TABLE claim_logs (
  seq           INTEGER PRIMARY KEY AUTOINCREMENT,  -- order of arrival
  workload_id   TEXT    NOT NULL REFERENCES workloads (workload_id) ON DELETE CASCADE,  -- what was worked on
  fencing_token INTEGER NOT NULL,   -- claim that wrote it
  at_ms         INTEGER NOT NULL,   -- wall time, the worker's if it named one
  level         TEXT    NOT NULL,   -- a word of the worker's
  text          TEXT    NOT NULL    -- at most 1 KiB
) STRICT;
CREATE INDEX claim_logs_of_workload ON claim_logs (workload_id, seq);
CREATE INDEX claim_logs_of_claim ON claim_logs (fencing_token, seq);

CREATE TABLE late_results (
  fencing_token INTEGER PRIMARY KEY,    -- claim whose outcome came after its end; the first is kept
  workload_id   TEXT    NOT NULL REFERENCES workloads (workload_id) ON DELETE CASCADE,  -- what was worked on
  worker_id     TEXT    NOT NULL,       -- who sent it
  at_ms         INTEGER NOT NULL,       -- lease time
  outcome       TEXT    NOT NULL CHECK (outcome IN ('completed', 'failed')),  -- what the worker says became of it
  report        TEXT    NOT NULL        -- JSON as it was sent, what looks like a secret covered
) STRICT;
CREATE INDEX late_results_of_workload ON late_results (workload_id);

CREATE TABLE tombstones (
  tenant_id       TEXT    NOT NULL,     -- of the pruned workload
  application_id  TEXT    NOT NULL,     -- of the pruned workload
  idempotency_key TEXT    NOT NULL,     -- names the pruned workload still
  workload_id     TEXT    NOT NULL,     -- of the pruned workload
  state           TEXT    NOT NULL,     -- its last
  result_id       TEXT,                 -- null: it had none
  body_sha256     TEXT    NOT NULL,     -- hex digest of what was asked
  at_ms           INTEGER NOT NULL,     -- lease time it was pruned; kept 7 days
  PRIMARY KEY (tenant_id, application_id, idempotency_key)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER workloads_begin_where_they_may BEFORE INSERT ON workloads
WHEN NOT EXISTS (SELECT 1 FROM workload_edges WHERE from_state = '' AND to_state = NEW.state)
BEGIN SELECT RAISE(ABORT, 'a workload does not begin in this state'); END;
CREATE TRIGGER workloads_are_not_replaced BEFORE INSERT ON workloads
WHEN EXISTS (SELECT 1 FROM workloads WHERE workload_id = NEW.workload_id)
  OR EXISTS (SELECT 1 FROM workloads WHERE seq = NEW.seq)
  OR EXISTS (SELECT 1
               FROM workloads
              WHERE tenant_id = NEW.tenant_id
                AND application_id = NEW.application_id
                AND idempotency_key = NEW.idempotency_key)
BEGIN SELECT RAISE(ABORT, 'this workload exists'); END;
CREATE TRIGGER workloads_keep_to_edges BEFORE UPDATE OF state ON workloads
WHEN NEW.state <> OLD.state
 AND NOT EXISTS (SELECT 1 FROM workload_edges WHERE from_state = OLD.state AND to_state = NEW.state)
BEGIN SELECT RAISE(ABORT, 'no such edge of a workload'); END;
CREATE TRIGGER workloads_tokens_grow BEFORE UPDATE OF fencing_token ON workloads
WHEN NEW.fencing_token < OLD.fencing_token
BEGIN SELECT RAISE(ABORT, 'a fencing token never goes down'); END;
CREATE TRIGGER workloads_keep_their_id BEFORE UPDATE OF seq, workload_id, tenant_id, application_id, idempotency_key ON workloads
WHEN NEW.seq <> OLD.seq OR NEW.workload_id <> OLD.workload_id OR NEW.tenant_id <> OLD.tenant_id
  OR NEW.application_id <> OLD.application_id OR NEW.idempotency_key <> OLD.idempotency_key
BEGIN SELECT RAISE(ABORT, 'a workload keeps its id, tenant, application and key'); END;
CREATE TRIGGER workloads_with_a_claim_stay BEFORE DELETE ON workloads
WHEN OLD.claim_worker_id IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a workload with a live claim is not deleted'); END;

-- -1 is a number that SQLite is still to draw. Its counter remembers tokens whose rows are gone, and
-- the floor that a start sets.
CREATE TRIGGER claims_are_new BEFORE INSERT ON claims
WHEN NEW.fencing_token <> -1
 AND (NEW.fencing_token <= (SELECT ifnull(max(fencing_token), 0) FROM claims)
      OR NEW.fencing_token <= (SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'claims'))
BEGIN SELECT RAISE(ABORT, 'a fencing token is greater than every one before it'); END;
CREATE TRIGGER claims_are_not_replaced BEFORE INSERT ON claims
WHEN EXISTS (SELECT 1 FROM claims WHERE workload_id = NEW.workload_id AND ended_at_ms IS NULL)
BEGIN SELECT RAISE(ABORT, 'this workload has a live claim'); END;
CREATE TRIGGER claims_cross_nothing BEFORE INSERT ON claims
WHEN NOT EXISTS (SELECT 1
                   FROM workloads w
                   JOIN workers k ON k.worker_id = NEW.worker_id
                  WHERE w.workload_id = NEW.workload_id
                    AND w.tenant_id = k.tenant_id
                    AND w.application_id = k.application_id
                    AND NEW.tenant_id = w.tenant_id
                    AND NEW.application_id = w.application_id)
BEGIN SELECT RAISE(ABORT, 'a claim crosses neither tenant nor application'); END;
CREATE TRIGGER claims_stay_as_they_are BEFORE UPDATE OF fencing_token, workload_id, tenant_id, application_id, worker_id, incarnation, number, issued_at_ms ON claims
BEGIN SELECT RAISE(ABORT, 'who holds what under which token is never rewritten'); END;
CREATE TRIGGER claims_end_once BEFORE UPDATE OF ended_at_ms, end_kind ON claims
WHEN OLD.ended_at_ms IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a claim ends once'); END;
CREATE TRIGGER claims_live_stay BEFORE DELETE ON claims
WHEN OLD.ended_at_ms IS NULL
BEGIN SELECT RAISE(ABORT, 'a live claim is not deleted'); END;

CREATE TRIGGER workers_with_claims_stay BEFORE DELETE ON workers
WHEN EXISTS (SELECT 1 FROM claims WHERE worker_id = OLD.worker_id AND ended_at_ms IS NULL)
BEGIN SELECT RAISE(ABORT, 'a worker with live claims is not deleted'); END;

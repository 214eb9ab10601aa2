-- The whole mesh: pools, holds, keys and rates that let work wait, dependencies, groups, deadlines,
-- placement decisions, and the fences kept for sinks.

ALTER TABLE applications ADD COLUMN gate_generation INTEGER NOT NULL DEFAULT 0;  -- + 1 whenever a pool or hold that touches it changes

CREATE TABLE pools (
  tenant_id       TEXT    NOT NULL,            -- with pool_id: which pool
  pool_id         TEXT    NOT NULL,            -- unique in the tenant
  application_id  TEXT,                        -- null: for every application of the tenant
  name            TEXT    NOT NULL,            -- for people
  capabilities    TEXT    NOT NULL,            -- JSON array, sorted: each member was granted all of them
  required_labels TEXT    NOT NULL,            -- JSON object: each member has these labels
  worker_ids      TEXT    NOT NULL,            -- JSON array, sorted; with listed = 1 nobody else is a member
  listed          INTEGER NOT NULL CHECK (listed IN (0, 1)),  -- 0: any worker that meets the rest is a member
  max_concurrency INTEGER CHECK (max_concurrency BETWEEN 1 AND 1000000),  -- live claims of it at once; null: no ceiling
  active          INTEGER NOT NULL DEFAULT 0 CHECK (active >= 0),  -- live claims that remember it
  created_at_ms   INTEGER NOT NULL,            -- lease time
  updated_at_ms   INTEGER NOT NULL,            -- lease time
  deleted_at_ms   INTEGER,                     -- lease time; its row stays while it counts claims. null: it stands
  PRIMARY KEY (tenant_id, pool_id),
  CHECK (listed = 1 OR worker_ids = '[]'),
  CHECK (capabilities GLOB '[[]*]'),
  CHECK (required_labels GLOB '{*}'),
  CHECK (worker_ids GLOB '[[]*]')
) STRICT, WITHOUT ROWID;

-- Work of one concurrency key: at most claims_max live claims at once.
CREATE TABLE concurrency_keys (
  key_seq        INTEGER PRIMARY KEY AUTOINCREMENT,  -- 0 in a lane: no key
  tenant_id      TEXT    NOT NULL,             -- whose key it is
  application_id TEXT    NOT NULL,             -- whose key it is
  name           TEXT    NOT NULL,             -- the key as the submitter writes it
  claims_max     INTEGER NOT NULL CHECK (claims_max >= 1),  -- the newest limit given holds for all of it
  active         INTEGER NOT NULL DEFAULT 0 CHECK (active >= 0),  -- live claims of it
  changed_token  INTEGER NOT NULL DEFAULT 0,   -- newest fencing token when its limit was last changed
  opening        INTEGER NOT NULL DEFAULT 0 CHECK (opening IN (0, 1)),  -- 1: it has room and the keeper still opens lanes of it
  UNIQUE (tenant_id, application_id, name)
) STRICT;
CREATE INDEX concurrency_keys_opening ON concurrency_keys (key_seq) WHERE opening = 1;

-- Work of one rate key: at most claims_max claims in any period_ms.
CREATE TABLE rate_keys (
  key_seq        INTEGER PRIMARY KEY AUTOINCREMENT,  -- 0 in a lane: no key
  tenant_id      TEXT    NOT NULL,             -- whose key it is
  application_id TEXT    NOT NULL,             -- whose key it is
  name           TEXT    NOT NULL,             -- the key as the submitter writes it
  claims_max     INTEGER NOT NULL CHECK (claims_max >= 1),  -- the newest limit given holds for all of it
  period_ms      INTEGER NOT NULL CHECK (period_ms >= 1),   -- the newest period likewise
  uses           INTEGER NOT NULL DEFAULT 0 CHECK (uses >= 0),  -- claims ever counted
  changed_use    INTEGER NOT NULL DEFAULT 0,   -- uses when its limit or period was last changed
  opens_at_ms    INTEGER,                      -- lease time at which it has room again; null: it has
  UNIQUE (tenant_id, application_id, name)
) STRICT;
CREATE INDEX rate_keys_by_opening ON rate_keys (opens_at_ms, key_seq) WHERE opens_at_ms IS NOT NULL;

-- Use n may come when use n - claims_max is period_ms old or gone. That one stays until the next.
CREATE TABLE rate_uses (
  key_seq INTEGER NOT NULL REFERENCES rate_keys (key_seq) ON DELETE CASCADE,  -- the rate key
  number  INTEGER NOT NULL,                    -- 1, 2, 3 ... of the key
  at_ms   INTEGER NOT NULL,                    -- lease time of the claim
  PRIMARY KEY (key_seq, number)
) STRICT, WITHOUT ROWID;

ALTER TABLE demands ADD COLUMN pool_id TEXT;  -- the pool its placement names, null: none
ALTER TABLE demands ADD COLUMN pool_open INTEGER NOT NULL DEFAULT 1 CHECK (pool_open IN (0, 1));  -- 0: its pool is at its ceiling, so it has no head
CREATE INDEX demands_of_pool ON demands (tenant_id, pool_id, pool_open, head_rank, head_seq) WHERE pool_id IS NOT NULL;

-- A lane is now of one demand and one pair of keys, and closes while a key has no room.
CREATE TABLE lanes_of_keys (
  lane_id         INTEGER PRIMARY KEY AUTOINCREMENT,  -- workloads of one lane are taken in order of (rank, seq)
  demand_id       INTEGER NOT NULL REFERENCES demands (demand_id),  -- what its workloads ask for
  concurrency_key INTEGER NOT NULL DEFAULT 0,  -- concurrency_keys.key_seq, 0: none
  rate_key        INTEGER NOT NULL DEFAULT 0,  -- rate_keys.key_seq, 0: none
  concurrency_open INTEGER NOT NULL DEFAULT 1 CHECK (concurrency_open IN (0, 1)),  -- 0: its concurrency key is at its limit
  rate_open       INTEGER NOT NULL DEFAULT 1 CHECK (rate_open IN (0, 1)),  -- 0: its rate key is at its limit
  head_rank       INTEGER,                     -- rank of its first due workload, null: none
  head_seq        INTEGER,                     -- workloads.seq of it
  UNIQUE (demand_id, concurrency_key, rate_key),
  CHECK ((head_rank IS NULL) = (head_seq IS NULL))
) STRICT;
INSERT INTO lanes_of_keys (lane_id, demand_id, head_rank, head_seq)
SELECT lane_id, demand_id, head_rank, head_seq
  FROM lanes;
DROP TABLE lanes;
ALTER TABLE lanes_of_keys RENAME TO lanes;
CREATE INDEX lanes_by_head ON lanes (demand_id, head_rank, head_seq)
 WHERE head_rank IS NOT NULL AND concurrency_open = 1 AND rate_open = 1;
CREATE INDEX lanes_of_concurrency ON lanes (concurrency_key, concurrency_open, head_rank, head_seq) WHERE concurrency_key > 0;
CREATE INDEX lanes_of_rate ON lanes (rate_key, rate_open, head_rank, head_seq) WHERE rate_key > 0;
-- Due work behind a key without room: what an empty pull is told of.
CREATE INDEX lanes_blocked ON lanes (demand_id)
 WHERE head_rank IS NOT NULL AND (concurrency_open = 0 OR rate_open = 0);
-- The workloads of a demand by lane, so that a lane without live work is found as well.
DROP INDEX workloads_of_demand;
CREATE INDEX workloads_of_demand ON workloads (demand_id, lane_id) WHERE demand_id IS NOT NULL;

ALTER TABLE workloads ADD COLUMN timeouts TEXT NOT NULL DEFAULT '{}' CHECK (timeouts GLOB '{*}');  -- JSON object of queue_ms, start_ms, execution_ms, total_ms
ALTER TABLE workloads ADD COLUMN runtime_policy TEXT NOT NULL DEFAULT '{}' CHECK (runtime_policy GLOB '{*}');  -- JSON object; travels in the claim
ALTER TABLE workloads ADD COLUMN dependencies TEXT NOT NULL DEFAULT '[]' CHECK (dependencies GLOB '[[]*]');  -- JSON array of workload ids and group:<name>
ALTER TABLE workloads ADD COLUMN dependency_policy TEXT NOT NULL DEFAULT 'all_completed' CHECK (dependency_policy IN ('all_completed', 'all_finished'));  -- what of them it waits for
ALTER TABLE workloads ADD COLUMN awaited INTEGER NOT NULL DEFAULT 0 CHECK (awaited IN (0, 1));  -- 1: others may wait for its end
ALTER TABLE workloads ADD COLUMN group_name TEXT;  -- the group it belongs to, null: none
ALTER TABLE workloads ADD COLUMN concurrency TEXT;  -- JSON {key, limit} as asked, null: none
ALTER TABLE workloads ADD COLUMN rate TEXT;  -- JSON {key, limit, period_ms} as asked, null: none
ALTER TABLE workloads ADD COLUMN pool_id TEXT;  -- the pool its placement names, null: none
ALTER TABLE workloads ADD COLUMN requeued_at_ms INTEGER;  -- lease time of the last requeue, null: none; total_ms runs from it
ALTER TABLE workloads ADD COLUMN gated INTEGER NOT NULL DEFAULT 0 CHECK (gated IN (0, 1));  -- 1: a pool, concurrency key or rate key counts its claims
CREATE INDEX workloads_of_group ON workloads (tenant_id, group_name, state, seq) WHERE group_name IS NOT NULL;

ALTER TABLE claims ADD COLUMN pool_id TEXT;  -- the pool that counts it, null: none
ALTER TABLE claims ADD COLUMN concurrency_key INTEGER;  -- concurrency_keys.key_seq that counts it, null: none
ALTER TABLE claims ADD COLUMN affinity INTEGER NOT NULL DEFAULT 0;  -- affinity labels of the workload that the worker had
ALTER TABLE claims ADD COLUMN assigned INTEGER NOT NULL DEFAULT 0 CHECK (assigned IN (0, 1));  -- 1: given by a person and not yet named by its worker
ALTER TABLE claims ADD COLUMN decision_id INTEGER;  -- decisions.decision_id of a directed claim
CREATE INDEX claims_live_of_pool ON claims (tenant_id, pool_id) WHERE ended_at_ms IS NULL AND pool_id IS NOT NULL;
CREATE INDEX claims_live_of_key ON claims (concurrency_key) WHERE ended_at_ms IS NULL AND concurrency_key IS NOT NULL;
CREATE INDEX claims_assigned ON claims (worker_id, fencing_token) WHERE assigned = 1 AND ended_at_ms IS NULL;

-- A row: this child still waits for this parent.
CREATE TABLE dependency_waits (
  parent    TEXT    NOT NULL,                  -- a workload_id, or group:<tenant>/<name>
  child_seq INTEGER NOT NULL REFERENCES workloads (seq) ON DELETE CASCADE,  -- who waits, PENDING
  PRIMARY KEY (parent, child_seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX dependency_waits_of_child ON dependency_waits (child_seq, parent);

-- Parents that have ended while children of theirs are still to be told: the keeper goes on.
CREATE TABLE settlements (
  parent TEXT    PRIMARY KEY,                  -- as in dependency_waits
  at_ms  INTEGER NOT NULL                      -- lease time it ended
) STRICT, WITHOUT ROWID;

CREATE TABLE workload_groups (
  tenant_id      TEXT    NOT NULL,             -- with name: which group
  name           TEXT    NOT NULL,             -- unique in the tenant
  application_id TEXT    NOT NULL,             -- of all its workloads
  created_at_ms  INTEGER NOT NULL,             -- lease time
  sealed_at_ms   INTEGER,                      -- lease time it was closed to new workloads, null: open
  PRIMARY KEY (tenant_id, name)
) STRICT, WITHOUT ROWID;

-- One row for each workload with timeouts that is not settled: when to look at it next.
CREATE TABLE deadlines (
  workload_id TEXT    PRIMARY KEY REFERENCES workloads (workload_id) ON DELETE CASCADE,  -- whose
  at_ms       INTEGER NOT NULL                 -- lease time of the first of its timeouts
) STRICT, WITHOUT ROWID;
CREATE INDEX deadlines_by_instant ON deadlines (at_ms, workload_id);

CREATE TABLE holds (
  tenant_id   TEXT    NOT NULL,                -- whose work is held; '*': everybody's
  hold_id     TEXT    NOT NULL,                -- unique in the tenant
  scope       TEXT    NOT NULL CHECK (scope IN ('all', 'tenant', 'application', 'pool', 'definition')),  -- what is held
  value       TEXT,                            -- the application, pool or definition; null for all and tenant
  reason      TEXT    NOT NULL,                -- in the words of who holds it
  held_by     TEXT    NOT NULL,                -- kind:id
  held_at_ms  INTEGER NOT NULL,                -- lease time
  until_at_ms INTEGER,                         -- wall time it ends by itself, null: when it is deleted
  ended_at_ms INTEGER,                         -- lease time it ended, null: it holds
  PRIMARY KEY (tenant_id, hold_id),
  CHECK ((scope = 'all') = (tenant_id = '*')),
  CHECK ((value IS NULL) = (scope IN ('all', 'tenant')))
) STRICT, WITHOUT ROWID;
CREATE INDEX holds_by_end ON holds (until_at_ms, tenant_id, hold_id) WHERE until_at_ms IS NOT NULL AND ended_at_ms IS NULL;

ALTER TABLE workers ADD COLUMN quarantined_by TEXT;  -- kind:id of who keeps it from new claims; null: nobody
ALTER TABLE workers ADD COLUMN quarantine_reason TEXT;  -- in the words of who did
ALTER TABLE workers ADD COLUMN quarantined_at_ms INTEGER;  -- lease time
ALTER TABLE workers ADD COLUMN quarantined_until_at_ms INTEGER;  -- wall time it ends by itself, null: when it is lifted
CREATE INDEX workers_by_quarantine_end ON workers (quarantined_until_at_ms, worker_id) WHERE quarantined_until_at_ms IS NOT NULL;

CREATE TABLE decisions (
  decision_id        INTEGER PRIMARY KEY AUTOINCREMENT,  -- placement_<decision_id>
  tenant_id          TEXT    NOT NULL,         -- of the workload
  application_id     TEXT    NOT NULL,         -- of the workload
  workload_id        TEXT    NOT NULL,         -- what was to be placed
  selected_worker_id TEXT,                     -- who got it, null: nobody could
  fencing_token      INTEGER,                  -- claim_<fencing_token> that followed, null: none
  reason             TEXT    NOT NULL,         -- why, in one sentence
  candidates         TEXT    NOT NULL,         -- JSON array of the eligible, with the key each was ordered by
  refused            TEXT    NOT NULL,         -- JSON array of the others, each with its first rule and all of them
  inputs             TEXT    NOT NULL,         -- JSON object: everything that was read to decide
  inputs_digest      TEXT    NOT NULL,         -- SHA-256, hex, of inputs but for the instants in them, which move on by themselves
  decided_by         TEXT    NOT NULL,         -- kind:id
  at_ms              INTEGER NOT NULL,         -- lease time
  CHECK (candidates GLOB '[[]*]'),
  CHECK (refused GLOB '[[]*]'),
  CHECK (inputs GLOB '{*}')
) STRICT;
CREATE INDEX decisions_of_workload ON decisions (workload_id, decision_id);
CREATE INDEX decisions_of_worker ON decisions (selected_worker_id, decision_id) WHERE selected_worker_id IS NOT NULL;
CREATE INDEX decisions_of_tenant ON decisions (tenant_id, decision_id);
CREATE UNIQUE INDEX decisions_refused_once ON decisions (workload_id, inputs_digest) WHERE selected_worker_id IS NULL;

-- The highest token a sink has shown for one of its resources.
CREATE TABLE fences (
  tenant_id TEXT    NOT NULL,                  -- whose resource
  resource  TEXT    NOT NULL,                  -- a name of the sink's
  highest   INTEGER NOT NULL CHECK (highest >= 1),  -- tokens below it are refused
  at_ms     INTEGER NOT NULL,                  -- lease time it was raised
  PRIMARY KEY (tenant_id, resource)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER fences_grow BEFORE UPDATE OF highest ON fences
WHEN NEW.highest < OLD.highest
BEGIN SELECT RAISE(ABORT, 'a fence never goes down'); END;
CREATE INDEX fences_by_height ON fences (highest, tenant_id, resource);

-- How many fences a tenant has, so that a bound on them costs no count.
CREATE TABLE fence_counts (
  tenant_id TEXT    PRIMARY KEY,               -- whose
  fences    INTEGER NOT NULL DEFAULT 0 CHECK (fences >= 0)  -- rows of it in fences
) STRICT, WITHOUT ROWID;

-- v_workers again, now with who is kept from new work and why.
DROP VIEW v_workers;
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
       w.quarantined_by,
       w.quarantine_reason,
       strftime('%Y-%m-%dT%H:%M:%fZ', w.quarantined_until_at_ms / 1000.0, 'unixepoch') AS quarantined_until,
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

-- A pool that has room again while demands of it are still closed: the keeper goes on.
ALTER TABLE pools ADD COLUMN opening INTEGER NOT NULL DEFAULT 0 CHECK (opening IN (0, 1));  -- 1: it has room and the keeper still opens demands of it
CREATE INDEX pools_opening ON pools (tenant_id, pool_id) WHERE opening = 1;

-- Who could take work now: a better match for work with affinity is looked for among them.
CREATE INDEX workers_ready ON workers (tenant_id, application_id, worker_id) WHERE lifecycle = 'READY';

-- What is for later or waits for other work, by kind: the backlog counts along it. Work that is due
-- when it is made never stands here, so that claiming and completing does not write it.
CREATE INDEX workloads_delayed ON workloads (demand_id, state, eligible_at_ms, not_before_at_ms)
 WHERE due = 0 AND state IN ('PENDING', 'READY');

-- v_why: each waiting workload with its plain cause, as far as SQL can tell; what is READY and due
-- may also fit no worker, which `feltd why` tells.
CREATE VIEW v_why AS
SELECT w.tenant_id,
       w.application_id,
       w.definition_id,
       w.workload_id,
       w.state,
       CASE WHEN w.state = 'PENDING'
            THEN coalesce((SELECT 'waits for ' || min(CASE WHEN d.parent LIKE 'group:%'
                                                           THEN 'group:' || substr(d.parent, instr(d.parent, '/') + 1)
                                                           ELSE d.parent END)
                                  || CASE WHEN count(*) > 1 THEN ' and ' || (count(*) - 1) || ' more' ELSE '' END
                             FROM dependency_waits d
                            WHERE d.child_seq = w.seq
                           HAVING count(*) > 0),
                          'all it waited for has ended')
            WHEN w.due = 0 AND w.not_before_at_ms > l.lease_ms + l.wall_offset_ms
            THEN 'not before ' || strftime('%Y-%m-%dT%H:%M:%fZ', w.not_before_at_ms / 1000.0, 'unixepoch')
            WHEN w.due = 0
            THEN 'backoff until ' || strftime('%Y-%m-%dT%H:%M:%fZ', (w.eligible_at_ms + l.wall_offset_ms) / 1000.0, 'unixepoch')
            WHEN EXISTS (SELECT 1 FROM holds h
                          WHERE h.tenant_id IN ('*', w.tenant_id)
                            AND h.ended_at_ms IS NULL
                            AND (h.scope IN ('all', 'tenant')
                                 OR (h.scope = 'application' AND h.value = w.application_id)
                                 OR (h.scope = 'pool' AND h.value = w.pool_id)
                                 OR (h.scope = 'definition'
                                     AND h.value IN (w.definition_id, w.definition_id || '#' || w.definition_revision))))
            THEN 'held: feltd hold list'
            WHEN w.pool_id IS NOT NULL
                 AND NOT EXISTS (SELECT 1 FROM pools p
                                  WHERE p.tenant_id = w.tenant_id
                                    AND p.pool_id = w.pool_id
                                    AND p.deleted_at_ms IS NULL
                                    AND (p.application_id IS NULL OR p.application_id = w.application_id))
            THEN 'no pool ' || w.pool_id
            WHEN EXISTS (SELECT 1 FROM pools p
                          WHERE p.tenant_id = w.tenant_id
                            AND p.pool_id = w.pool_id
                            AND p.active >= p.max_concurrency)
            THEN 'pool full: ' || w.pool_id
            WHEN c.active >= c.claims_max THEN 'key full: ' || c.name
            WHEN r.opens_at_ms > l.lease_ms THEN 'rate full: ' || r.name
            WHEN NOT EXISTS (SELECT 1 FROM workers k
                              WHERE k.tenant_id = w.tenant_id
                                AND k.application_id = w.application_id
                                AND k.lifecycle = 'READY'
                                AND k.last_seen_at_ms + k.heartbeat_timeout_ms > l.lease_ms)
            THEN 'no READY worker is heard in ' || w.application_id
            ELSE 'waits its turn, or no worker fits: feltd why ' || w.workload_id
       END AS why,
       strftime('%Y-%m-%dT%H:%M:%fZ', (w.created_at_ms + l.wall_offset_ms) / 1000.0, 'unixepoch') AS created_at
  FROM workloads w
  JOIN ledger l ON l.id = 1
  LEFT JOIN lanes n ON n.lane_id = w.lane_id
  LEFT JOIN concurrency_keys c ON c.key_seq = n.concurrency_key
  LEFT JOIN rate_keys r ON r.key_seq = n.rate_key
 WHERE w.state IN ('PENDING', 'READY')
 ORDER BY w.tenant_id, w.application_id, w.rank, w.seq;

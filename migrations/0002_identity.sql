-- Who may do what: keys (bearers) and grants (signed permissions). No usable secret is stored.

CREATE TABLE grants (
  grant_id            TEXT    PRIMARY KEY,   -- grant_<id>
  issuer              TEXT    NOT NULL,      -- kind:id of who issued it
  subject_kind        TEXT    NOT NULL CHECK (subject_kind IN ('human', 'service', 'workload', 'agent', 'connection', 'worker')),  -- what kind of somebody may use it
  subject_id          TEXT    NOT NULL,      -- with the kind: who may use it
  tenant_id           TEXT    NOT NULL,      -- the one tenant it holds in
  application_id      TEXT    NOT NULL,      -- the one application it holds in
  capabilities        TEXT    NOT NULL,      -- JSON array, sorted
  resources           TEXT    NOT NULL,      -- JSON array of {kind, uri}
  constraints         TEXT    NOT NULL,      -- JSON object
  issued_at_ms        INTEGER NOT NULL,      -- wall time
  expires_at_ms       INTEGER NOT NULL,      -- wall time
  chain_expires_at_ms INTEGER NOT NULL,      -- wall time: earliest end of it and its ancestors
  chain_live          INTEGER NOT NULL DEFAULT 1 CHECK (chain_live IN (0, 1)),  -- 0: it or an ancestor was revoked
  parent_grant_id     TEXT    REFERENCES grants (grant_id),  -- the grant it is a subset of; null: none
  depth               INTEGER NOT NULL DEFAULT 0 CHECK (depth BETWEEN 0 AND 8), -- ancestors
  revision            INTEGER NOT NULL DEFAULT 1 CHECK (revision >= 1),         -- + 1 at every change
  status              TEXT    NOT NULL DEFAULT 'ACTIVE' CHECK (status IN ('ACTIVE', 'REVOKED')),  -- REVOKED: for ever
  CHECK (chain_expires_at_ms <= expires_at_ms),
  CHECK (capabilities GLOB '[[]*]'),
  CHECK (resources GLOB '[[]*]'),
  CHECK (constraints GLOB '{*}')
) STRICT;
CREATE INDEX grants_by_age ON grants (issued_at_ms, grant_id);
CREATE INDEX grants_of_tenant ON grants (tenant_id, issued_at_ms, grant_id);
CREATE INDEX grants_of_subject ON grants (subject_kind, subject_id, tenant_id);
CREATE INDEX grants_of_parent ON grants (parent_grant_id) WHERE parent_grant_id IS NOT NULL;

CREATE TABLE keys (
  key_id          TEXT    PRIMARY KEY,       -- public 12 characters in the bearer
  name            TEXT    NOT NULL,          -- a title for people
  secret_digest   TEXT    NOT NULL CHECK (secret_digest GLOB 'sha256:*' AND length(secret_digest) = 71),  -- SHA-256 over the whole bearer: sha256:<64 hex digits>
  scopes          TEXT    NOT NULL,          -- JSON array, sorted; [] for a worker key
  namespaces      TEXT    NOT NULL,          -- JSON array, sorted
  tenants         TEXT    NOT NULL,          -- JSON array, sorted; ["*"]: every tenant
  subject_type    TEXT    NOT NULL CHECK (subject_type IN ('human', 'user', 'service', 'api_key', 'agent', 'worker')),  -- what kind of somebody its bearer is
  identity_id     TEXT,                      -- id of the subject; null: the key's own id
  worker_id       TEXT,                      -- worker key: the one worker it is
  incarnation     INTEGER,                   -- worker key: the one incarnation it is, null: whichever is current
  grant_id        TEXT    REFERENCES grants (grant_id),  -- bound grant, used where a body names none
  obtained_by     TEXT    REFERENCES keys (key_id),      -- the key that obtained it; it dies with that one
  created_by      TEXT    NOT NULL,          -- kind:id
  created_at_ms   INTEGER NOT NULL,          -- wall time
  expires_at_ms   INTEGER,                   -- wall time, null: never
  revoked_at_ms   INTEGER,                   -- wall time, null: not revoked
  revoked_reason  TEXT    CHECK (revoked_reason IN ('taken_over', 'revoked', 'grant_ended', 'rotated')),  -- what its bearer is told
  last_used_at_ms INTEGER,                   -- wall time, to the minute
  CHECK ((subject_type = 'worker') = (worker_id IS NOT NULL)),
  CHECK ((revoked_at_ms IS NULL) = (revoked_reason IS NULL)),
  CHECK (scopes GLOB '[[]*]'),
  CHECK (namespaces GLOB '[[]*]'),
  CHECK (tenants GLOB '[[]*]')
) STRICT;
CREATE INDEX keys_by_age ON keys (created_at_ms, key_id);
CREATE INDEX keys_of_worker ON keys (worker_id) WHERE worker_id IS NOT NULL;
CREATE INDEX keys_obtained_by ON keys (obtained_by) WHERE obtained_by IS NOT NULL;
CREATE INDEX keys_of_grant ON keys (grant_id) WHERE grant_id IS NOT NULL;

-- A revoked key stays revoked, a revoked grant stays revoked.
CREATE TRIGGER keys_stay_revoked BEFORE UPDATE OF revoked_at_ms ON keys
WHEN OLD.revoked_at_ms IS NOT NULL AND NEW.revoked_at_ms IS NULL
BEGIN SELECT RAISE(ABORT, 'a revoked key stays revoked'); END;
CREATE TRIGGER grants_stay_revoked BEFORE UPDATE OF status ON grants
WHEN OLD.status = 'REVOKED' AND NEW.status <> 'REVOKED'
BEGIN SELECT RAISE(ABORT, 'a revoked grant stays revoked'); END;

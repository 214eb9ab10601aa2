-- People: who may log in, what each may do in which tenant, and the sessions they hold. No password
-- and no usable secret is stored. Instants are wall time, as those of keys.

CREATE TABLE users (
  name                   TEXT    PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 128),  -- what he logs in as; human:<name> in audit rows, so it is never given to another
  password_hash          TEXT    NOT NULL CHECK (password_hash GLOB '$argon2id$*'),   -- Argon2id, PHC text with its salt and costs
  roles                  TEXT    NOT NULL DEFAULT '{}' CHECK (roles GLOB '{*}'),      -- JSON object {tenant: viewer|operator|admin}, keys sorted; tenant "*": every one; {}: may log in and nothing else
  created_by             TEXT    NOT NULL,          -- kind:id of who made him; his own for a sign-up
  created_at_ms          INTEGER NOT NULL,          -- wall time
  password_changed_at_ms INTEGER NOT NULL,          -- wall time of the password in use
  last_login_at_ms       INTEGER,                   -- wall time, null: never
  disabled_at_ms         INTEGER,                   -- wall time, null: may log in
  disabled_by            TEXT,                      -- kind:id of who disabled him
  CHECK ((disabled_at_ms IS NULL) = (disabled_by IS NULL)),
  CHECK (password_changed_at_ms >= created_at_ms)
) STRICT;
CREATE INDEX users_by_age ON users (created_at_ms, name);
-- Alice and alice would pass for each other.
CREATE UNIQUE INDEX users_by_lower_name ON users (lower(name));
-- Whom nobody has given a role: sign-ups that wait, bounded in number.
CREATE INDEX users_without_role ON users (name) WHERE roles = '{}' AND disabled_at_ms IS NULL;

CREATE TABLE sessions (
  session_id       TEXT    PRIMARY KEY CHECK (length(session_id) = 12),  -- public 12 characters in the bearer
  user_name        TEXT    NOT NULL REFERENCES users (name),             -- whose it is
  secret_digest    TEXT    NOT NULL CHECK (secret_digest GLOB 'sha256:*' AND length(secret_digest) = 71),  -- SHA-256 over the whole bearer: sha256:<64 hex digits>
  created_at_ms    INTEGER NOT NULL,                -- wall time
  expires_at_ms    INTEGER NOT NULL,                -- wall time, 12 h later whatever is done with it
  last_used_at_ms  INTEGER NOT NULL,                -- wall time, to the minute; an hour without use ends it
  ended_at_ms      INTEGER,                         -- wall time, null: goes on until it expires
  ended_reason     TEXT    CHECK (ended_reason IN ('logout', 'password_changed', 'user_disabled', 'replaced')),  -- what its bearer is told
  CHECK ((ended_at_ms IS NULL) = (ended_reason IS NULL)),
  CHECK (expires_at_ms > created_at_ms)
) STRICT;
CREATE INDEX sessions_by_age ON sessions (created_at_ms, session_id);
CREATE INDEX sessions_of_user ON sessions (user_name, created_at_ms, session_id);
CREATE INDEX sessions_live_of_user ON sessions (user_name, created_at_ms, session_id) WHERE ended_at_ms IS NULL;

-- What ended stays ended, and whose it was stays so.
CREATE TRIGGER sessions_stay_ended BEFORE UPDATE OF ended_at_ms ON sessions
WHEN OLD.ended_at_ms IS NOT NULL AND NEW.ended_at_ms IS NOT OLD.ended_at_ms
BEGIN SELECT RAISE(ABORT, 'an ended session stays ended'); END;
CREATE TRIGGER sessions_keep_their_end BEFORE UPDATE OF session_id, user_name, secret_digest, created_at_ms, expires_at_ms ON sessions
BEGIN SELECT RAISE(ABORT, 'a session is never another''s, nor longer'); END;
CREATE TRIGGER users_stay_disabled BEFORE UPDATE OF disabled_at_ms ON users
WHEN OLD.disabled_at_ms IS NOT NULL AND NEW.disabled_at_ms IS NOT OLD.disabled_at_ms
BEGIN SELECT RAISE(ABORT, 'a disabled user stays disabled'); END;
CREATE TRIGGER users_keep_their_names BEFORE UPDATE OF name ON users
BEGIN SELECT RAISE(ABORT, 'a user keeps his name'); END;
CREATE TRIGGER users_stay BEFORE DELETE ON users
BEGIN SELECT RAISE(ABORT, 'a name that acted is never given to another'); END;

-- The disabled hold no session, from the statement on that disables them.
CREATE TRIGGER sessions_are_of_enabled_users BEFORE INSERT ON sessions
WHEN EXISTS (SELECT 1 FROM users WHERE name = NEW.user_name AND disabled_at_ms IS NOT NULL)
BEGIN SELECT RAISE(ABORT, 'a disabled user begins no session'); END;

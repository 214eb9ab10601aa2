-- Whoever acts as a person, by a key or by a password, is one and the same: keys are found by whom
-- they act as when a user is made, signs up or is disabled.

CREATE INDEX keys_of_identity ON keys (identity_id, key_id) WHERE identity_id IS NOT NULL;

-- Which signing key proved a worker's authority, so that retiring the key takes what it proved.

ALTER TABLE workers ADD COLUMN authority_kid TEXT;  -- kid of the token it registered with; null: the grant its key is bound to; '': that signing key was retired
CREATE INDEX workers_of_kid ON workers (authority_kid) WHERE authority_kid IS NOT NULL;

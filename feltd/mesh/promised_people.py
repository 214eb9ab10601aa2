"""Promises about people, and about what proves a worker's authority.

Who is disabled holds no session, roles are words that mean something, and a signing key that was
retired proves nothing any more.

Only reads.
"""

from feltd.mesh.promised import Promise

ONLY_ENABLED = """
SELECT 'session of nobody' AS what, s.session_id AS id, s.user_name
  FROM sessions s
  LEFT JOIN users u ON u.name = s.user_name
 WHERE s.ended_at_ms IS NULL
   AND (u.name IS NULL OR u.disabled_at_ms IS NOT NULL)
UNION ALL
SELECT 'session longer than a day''s half', s.session_id, s.user_name
  FROM sessions s
 WHERE s.expires_at_ms <> s.created_at_ms + 43200000
UNION ALL
SELECT 'roles cannot be read', u.name, u.roles
  FROM users u
 WHERE NOT json_valid(u.roles)
UNION ALL
SELECT 'a role that is none', u.name, j.value
  FROM users u
  JOIN json_each(CASE WHEN json_valid(u.roles) THEN u.roles ELSE '{}' END) j
 WHERE j.type <> 'text'
    OR j.value NOT IN ('viewer', 'operator', 'admin')
"""

NO_PASSWORD_AT_REST = """
SELECT 'users' AS place, u.name AS id
  FROM users u
 WHERE u.password_hash NOT GLOB '$argon2id$v=19$m=19456,t=2,p=1$*$*'
UNION ALL
SELECT 'sessions', s.session_id
  FROM sessions s
 WHERE NOT (s.secret_digest GLOB 'sha256:*' AND length(s.secret_digest) = 71)
"""

PROVED_BY_NOTHING = """
SELECT 'authority by a retired key' AS what, k.worker_id AS id, k.name
  FROM workers k
 WHERE k.authority_kid = ''
   AND k.authority_live = 1
   AND k.authority_unsettled = 0
"""

PEOPLE = (
    Promise("I21", "no secret is stored", NO_PASSWORD_AT_REST),
    Promise("SIGNING", "what a retired signing key proved has ended", PROVED_BY_NOTHING),
    Promise("PEOPLE", "sessions are of enabled users, with roles that exist", ONLY_ENABLED),
)

"""Rows of `keys`: how one is made and read. Whoever makes one decides its columns elsewhere.

The secret passes through here on its way to its digest and is never written.
"""

from typing import NamedTuple

from feltd.clock import Now
from feltd.identity import bearer
from feltd.identity.principals import stored, texts
from feltd.model.key import Key
from feltd.store.tx import Row, Tx

READ = """
SELECT key_id, name, scopes, namespaces, tenants, subject_type, identity_id, worker_id,
       incarnation, grant_id, obtained_by, created_by, created_at_ms, expires_at_ms,
       revoked_at_ms, revoked_reason, last_used_at_ms
  FROM keys
 WHERE key_id = :key_id
"""

INSERT = """
INSERT INTO keys (key_id, name, secret_digest, scopes, namespaces, tenants, subject_type,
                  identity_id, worker_id, incarnation, grant_id, obtained_by, created_by,
                  created_at_ms, expires_at_ms)
VALUES (:key_id, :name, :secret_digest, :scopes, :namespaces, :tenants, :subject_type,
        :identity_id, :worker_id, :incarnation, :grant_id, :obtained_by, :created_by,
        :created_at_ms, :expires_at_ms)
"""


class Draft(NamedTuple):
    """A key as it shall be; what a maker decides."""

    name: str
    scopes: tuple[str, ...]
    namespaces: tuple[str, ...]
    tenants: tuple[str, ...]
    subject_type: str
    identity_id: str | None = None
    worker_id: str | None = None
    incarnation: int | None = None
    grant_id: str | None = None
    obtained_by: str | None = None
    expires_at_ms: int | None = None


def insert(tx: Tx, now: Now, draft: Draft, *, fresh: str, created_by: str) -> tuple[str, str]:
    """Make the row of a new key from `fresh` (55 random characters); its id and whole bearer.

    Tells ("key", id).
    """
    secret = bearer.bearer(bearer.KINDS[draft.subject_type], fresh)
    key_id = fresh[: bearer.ID_CHARS]
    tx.change(
        INSERT,
        {
            **draft._asdict(),
            "key_id": key_id,
            "secret_digest": bearer.digest(secret),
            "scopes": stored(draft.scopes),
            "namespaces": stored(draft.namespaces),
            "tenants": stored(draft.tenants),
            "created_by": created_by,
            "created_at_ms": now.wall_ms,
        },
    )
    tx.tell("key", key_id)
    return key_id, secret


def read(tx: Tx, key_id: str) -> Row | None:
    """The row of a key, ended or not, whoever asks."""
    return tx.row(READ, {"key_id": key_id})


def key_of(row: Row) -> Key:
    """A row as the noun."""
    return Key(
        key_id=row["key_id"],
        name=row["name"],
        scopes=texts(row["scopes"]),
        namespaces=texts(row["namespaces"]),
        tenants=texts(row["tenants"]),
        subject_type=row["subject_type"],
        created_by=row["created_by"],
        created_at_ms=row["created_at_ms"],
        identity_id=row["identity_id"],
        worker_id=row["worker_id"],
        incarnation=row["incarnation"],
        grant_id=row["grant_id"],
        expires_at_ms=row["expires_at_ms"],
        revoked_at_ms=row["revoked_at_ms"],
        revoked_reason=row["revoked_reason"],
        last_used_at_ms=row["last_used_at_ms"],
    )

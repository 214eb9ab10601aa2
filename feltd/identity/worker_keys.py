"""Keys that are a worker: issued at registration, ended by takeover.

Such a key has no scopes. It is bound to one worker and one incarnation, lives no longer than the
key and the grant that obtained it, and is good for nothing but what that worker does itself.
"""

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import endings, keyrows
from feltd.model.base import Caller
from feltd.store.tx import Tx

# Keys an administrator made for a worker have no incarnation and are not replaced.
ISSUED = """
SELECT key_id
  FROM keys
 WHERE worker_id = :worker_id
   AND incarnation IS NOT NULL
   AND revoked_at_ms IS NULL
 ORDER BY key_id
"""

ISSUED_BELOW = """
SELECT key_id
  FROM keys
 WHERE worker_id = :worker_id
   AND incarnation < :below_incarnation
   AND revoked_at_ms IS NULL
 ORDER BY key_id
"""


def issue_worker_key(
    tx: Tx,
    now: Now,
    *,
    caller: Caller,
    worker_id: str,
    incarnation: int,
    tenant_id: str,
    grant_id: str | None,
    namespace: str,
    fresh: str,
) -> str:
    """Make the key of this worker and incarnation; its whole bearer, this once.

    Keys issued so before end: revoked, or taken_over those of earlier incarnations. `fresh` is
    55 random characters; `namespace` the daemon's. The key expires with the caller's and dies
    with it, or with the grant. The caller's key was confirmed in this transaction. Refuses
    FORBIDDEN for a person's session: what it obtained would outlive it.
    """
    if caller.session_id is not None:
        raise Refused("FORBIDDEN", "a worker gets its key by a key, not by a person's session")
    revoke_keys_of_worker(tx, now, worker_id, incarnation)
    end_issued(tx, now, worker_id, "revoked")
    own = keyrows.read(tx, caller.own_key) if caller.own_key else None
    draft = keyrows.Draft(
        name=worker_id,
        scopes=(),
        namespaces=(namespace,),
        tenants=(tenant_id,),
        subject_type="worker",
        identity_id=worker_id,
        worker_id=worker_id,
        incarnation=incarnation,
        grant_id=grant_id,
        obtained_by=caller.own_key or None,
        expires_at_ms=own["expires_at_ms"] if own is not None else None,
    )
    _, secret = keyrows.insert(tx, now, draft, fresh=fresh, created_by=str(caller.subject))
    return secret


def end_issued(tx: Tx, now: Now, worker_id: str, reason: endings.Reason) -> None:
    """End the keys issued to a worker at its registrations; those an administrator made go on."""
    issued = [row["key_id"] for row in tx.rows(ISSUED, {"worker_id": worker_id})]
    endings.end(tx, now, issued, reason)


def revoke_keys_of_worker(tx: Tx, now: Now, worker_id: str, below_incarnation: int) -> list[str]:
    """End the keys issued to incarnations before this one, reason taken_over; their ids."""
    sought = {"worker_id": worker_id, "below_incarnation": below_incarnation}
    return endings.end(
        tx, now, [row["key_id"] for row in tx.rows(ISSUED_BELOW, sought)], "taken_over"
    )

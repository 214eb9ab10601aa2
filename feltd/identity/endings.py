"""How keys end: by hand, by rotation, by takeover, by the end of a grant. One function, `end`.

A key takes with it every key that was obtained through it, and theirs, in the same transaction.
Nothing here deletes a row: a bearer whose secret is right is told why it ended.
"""

from collections.abc import Iterable
from typing import Literal

from feltd.clock import Now
from feltd.store.tx import Tx

Reason = Literal["taken_over", "revoked", "grant_ended", "rotated"]

END = """
UPDATE keys
   SET revoked_at_ms = :wall_ms,
       revoked_reason = :reason
 WHERE key_id = :key_id
   AND revoked_at_ms IS NULL
RETURNING key_id
"""

OBTAINED = """
SELECT key_id
  FROM keys
 WHERE obtained_by = :key_id
   AND revoked_at_ms IS NULL
 ORDER BY key_id
"""

OF_GRANT = """
SELECT key_id
  FROM keys
 WHERE grant_id = :grant_id
   AND revoked_at_ms IS NULL
 ORDER BY key_id
"""


def end(tx: Tx, now: Now, key_ids: Iterable[str], reason: Reason) -> list[str]:
    """End these keys and all obtained through them, for one reason; the ids ended now.

    Repeating ends nothing more: the first reason stays. Tells ("key", id) for each.
    """
    waiting = list(key_ids)
    gone: list[str] = []
    while waiting:
        key_id = waiting.pop()
        ending = {"key_id": key_id, "wall_ms": now.wall_ms, "reason": reason}
        if tx.row(END, ending) is not None:
            gone.append(key_id)
            tx.tell("key", key_id)
            waiting += [row["key_id"] for row in tx.rows(OBTAINED, {"key_id": key_id})]
    return gone


def keys_of_grants(tx: Tx, grant_ids: Iterable[str]) -> list[str]:
    """The keys bound to these grants that have not ended."""
    return [
        row["key_id"] for grant_id in grant_ids for row in tx.rows(OF_GRANT, {"grant_id": grant_id})
    ]

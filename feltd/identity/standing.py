"""What the door knows of each key: its digest, its caller, its end. Read from rows, used in memory.

Ended keys stay in the map, so that their bearers are told why instead of being strangers.
"""

from collections.abc import Sequence
from contextlib import suppress

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity.principals import Ending, caller_of, ending, texts
from feltd.model.base import INTEGER_MAX, Caller
from feltd.store.tx import Row, Tx

ALL = """
SELECT k.key_id, k.secret_digest, k.scopes, k.namespaces, k.tenants, k.subject_type,
       k.identity_id, k.worker_id, k.incarnation, k.grant_id, k.expires_at_ms, k.revoked_reason,
       k.last_used_at_ms, g.chain_expires_at_ms
  FROM keys k
  LEFT JOIN grants g ON g.grant_id = k.grant_id
"""

ONE = """
SELECT k.key_id, k.secret_digest, k.scopes, k.namespaces, k.tenants, k.subject_type,
       k.identity_id, k.worker_id, k.incarnation, k.grant_id, k.expires_at_ms, k.revoked_reason,
       k.last_used_at_ms, g.chain_expires_at_ms
  FROM keys k
  LEFT JOIN grants g ON g.grant_id = k.grant_id
 WHERE k.key_id = :key_id
"""

MINUTE_MS = 60_000


class Standing:
    """One key. `until_ms` is the wall time from which it is not good (0: revoked already)."""

    __slots__ = (
        "caller",
        "digest",
        "expires_at_ms",
        "grant_expires_at_ms",
        "namespaces",
        "revoked_reason",
        "until_ms",
        "used_minute",
    )

    def __init__(self, row: Row) -> None:
        self.digest = bytes.fromhex(row["secret_digest"].removeprefix("sha256:"))
        self.caller: Caller = caller_of(row)
        self.namespaces = texts(row["namespaces"])
        self.revoked_reason: str | None = row["revoked_reason"]
        self.expires_at_ms: int | None = row["expires_at_ms"]
        # Only a worker's key lives no longer than its grant.
        of_worker = row["worker_id"] is not None
        self.grant_expires_at_ms: int | None = row["chain_expires_at_ms"] if of_worker else None
        ends = (self.expires_at_ms, self.grant_expires_at_ms)
        self.until_ms = min((end for end in ends if end is not None), default=INTEGER_MAX)
        if self.revoked_reason is not None:
            self.until_ms = 0
        self.used_minute = (row["last_used_at_ms"] or 0) // MINUTE_MS

    def ending(self, wall_ms: int) -> Ending | None:
        """Why the key is not good at this wall time, None while it is."""
        return ending(self.revoked_reason, self.expires_at_ms, self.grant_expires_at_ms, wall_ms)


def standings(tx: Tx, key_ids: Sequence[str] | None, now: Now) -> dict[str, Standing]:
    """These keys by id, or every key; an id without a row is left out.

    So is one whose row cannot be read (edited by hand): it lets nobody in, and keeps nobody out.
    """
    if key_ids is None:
        rows = tx.rows(ALL)
    else:
        rows = [row for key_id in key_ids for row in tx.rows(ONE, {"key_id": key_id})]
    found: dict[str, Standing] = {}
    for row in rows:
        with suppress(ValueError, Refused):
            found[row["key_id"]] = Standing(row)
    return found

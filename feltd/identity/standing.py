"""What the door knows of each key and session: digest, caller, end. Read from rows, kept here.

Ended keys stay in the map, so that their bearers are told why instead of being strangers.
"""

from collections.abc import Sequence
from contextlib import suppress

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import roles
from feltd.identity.principals import IDLE_MS, Ending, caller_of, ending, session_ending, texts
from feltd.model.base import INTEGER_MAX, Caller, Subject
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

SESSIONS = """
SELECT s.session_id, s.user_name, s.secret_digest, s.expires_at_ms, s.last_used_at_ms,
       CASE WHEN u.disabled_at_ms IS NULL THEN s.ended_reason
            ELSE coalesce(s.ended_reason, 'user_disabled')
       END AS ended_reason, u.roles
  FROM sessions s
  JOIN users u ON u.name = s.user_name
"""

SESSION = """
SELECT s.session_id, s.user_name, s.secret_digest, s.expires_at_ms, s.last_used_at_ms,
       CASE WHEN u.disabled_at_ms IS NULL THEN s.ended_reason
            ELSE coalesce(s.ended_reason, 'user_disabled')
       END AS ended_reason, u.roles
  FROM sessions s
  JOIN users u ON u.name = s.user_name
 WHERE s.session_id = :key_id
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
        #: The daemons it works on; None: every one.
        self.namespaces: tuple[str, ...] | None = texts(row["namespaces"])
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

    def used(self, minute: int) -> None:
        """It was used in this minute of wall time; never goes back."""
        self.used_minute = minute


class SessionStanding(Standing):
    """One session of a user. It is good on every namespace; use puts its end off, up to a limit.

    Its caller holds nothing yet: identity/roles.narrow gives it what its roles are for one call.
    """

    __slots__ = ()

    def __init__(self, row: Row) -> None:
        self.digest = bytes.fromhex(row["secret_digest"].removeprefix("sha256:"))
        self.caller = Caller(
            subject=Subject(kind="human", id=row["user_name"]),
            key_id=row["session_id"],
            session_id=row["session_id"],
            roles=dict(roles.read(row["roles"])),
            expires_at_ms=row["expires_at_ms"],
        )
        self.namespaces = None
        self.revoked_reason = row["ended_reason"]
        self.expires_at_ms = row["expires_at_ms"]
        self.grant_expires_at_ms = None
        self.used(row["last_used_at_ms"] // MINUTE_MS)

    def ending(self, wall_ms: int) -> Ending | None:
        """Why the session is not good at this wall time, None while it is."""
        used_ms = self.used_minute * MINUTE_MS
        return session_ending(self.revoked_reason, self.expires_at_ms or 0, used_ms, wall_ms)

    def used(self, minute: int) -> None:
        """It was used in this minute of wall time, which puts its end off."""
        self.used_minute = minute
        self.until_ms = min(self.expires_at_ms or 0, minute * MINUTE_MS + IDLE_MS)
        if self.revoked_reason is not None:
            self.until_ms = 0


def standings(tx: Tx, key_ids: Sequence[str] | None, now: Now) -> dict[str, Standing]:
    """These keys by id, or every key, and sessions where no key has the id; others are left out.

    So is one whose row cannot be read (edited by hand): it lets nobody in, and keeps nobody out.
    """
    if key_ids is None:
        rows, of_people = tx.rows(ALL), tx.rows(SESSIONS)
    else:
        rows = [row for key_id in key_ids for row in tx.rows(ONE, {"key_id": key_id})]
        known = {row["key_id"] for row in rows}
        others = [key_id for key_id in key_ids if key_id not in known]
        of_people = [row for key_id in others for row in tx.rows(SESSION, {"key_id": key_id})]
    found: dict[str, Standing] = {}
    for row in of_people:
        with suppress(ValueError):
            found[row["session_id"]] = SessionStanding(row)
    for row in rows:
        with suppress(ValueError, Refused):
            found[row["key_id"]] = Standing(row)
    return found

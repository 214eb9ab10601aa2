"""Sessions of people: begun at a login, used, ended. One function ends them, `end_all`.

A session is told apart from a key by its `h` and stored like one, as a digest. It is good for
twelve hours and an hour without use, by wall time; whatever ends it is told as a key's end is, so
that open polls and streams end with it.
"""

from collections.abc import Iterable
from typing import Literal

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import bearer
from feltd.identity.audit import act
from feltd.identity.principals import confirm
from feltd.model.base import Ask
from feltd.model.user import Proven, SessionMade
from feltd.store.tx import Tx

Reason = Literal["logout", "password_changed", "user_disabled", "replaced"]

LIFE_MS = 12 * 3_600_000
#: More than a person has browsers; beyond it the oldest ends.
LIVE_MAX = 32

#: What a login is told that fails, whoever it was and whyever.
WRONG = "the name or the password is wrong"

PROVEN = """
SELECT u.name
  FROM users u
 WHERE u.name = :username
   AND u.password_hash = :password_hash
   AND u.disabled_at_ms IS NULL
"""

BEGIN = """
INSERT INTO sessions (session_id, user_name, secret_digest, created_at_ms, expires_at_ms,
                      last_used_at_ms)
VALUES (:session_id, :user_name, :secret_digest, :at_ms, :expires_at_ms, :at_ms)
"""

LOGGED_IN = """
UPDATE users
   SET last_login_at_ms = :at_ms
 WHERE name = :user_name
"""

LIVE = """
SELECT s.session_id
  FROM sessions s
 WHERE s.user_name = :user_name
   AND s.ended_at_ms IS NULL
 ORDER BY s.created_at_ms DESC, s.session_id DESC
"""

END = """
UPDATE sessions
   SET ended_at_ms = :at_ms,
       ended_reason = :reason
 WHERE session_id = :session_id
   AND ended_at_ms IS NULL
RETURNING session_id
"""

USED = """
UPDATE sessions
   SET last_used_at_ms = :at_ms
 WHERE session_id = :session_id
   AND last_used_at_ms < :at_ms
"""

FORGET = """
DELETE FROM sessions
 WHERE ended_at_ms IS NULL
"""

DENIED = """
SELECT u.name
  FROM users u
 WHERE u.name = :username
"""


def begin(tx: Tx, ask: Ask[Proven], now: Now) -> SessionMade:
    """Begin a session of the user whose password was shown; `ask.fresh` is 55 random characters.

    Of more than 32 live sessions the oldest end. Repeating begins another. Refuses UNAUTHENTICATED
    when the user was disabled, or the password changed, since it was looked at.
    """
    proven = {"username": ask.body.username, "password_hash": ask.body.password_hash}
    if tx.row(PROVEN, proven) is None:
        raise Refused("UNAUTHENTICATED", WRONG)
    name = ask.body.username
    # One place is the new one's, which is not there yet.
    end_some(tx, now, _live(tx, name)[LIVE_MAX - 1 :], "replaced")
    session = bearer.bearer("h", ask.fresh)
    session_id = ask.fresh[: bearer.ID_CHARS]
    expires_at_ms = now.wall_ms + LIFE_MS
    tx.change(
        BEGIN,
        {
            "session_id": session_id,
            "user_name": name,
            "secret_digest": bearer.digest(session),
            "at_ms": now.wall_ms,
            "expires_at_ms": expires_at_ms,
        },
    )
    tx.change(LOGGED_IN, {"user_name": name, "at_ms": now.wall_ms})
    tx.tell("key", session_id)
    act(tx, now, f"human:{name}", "login", session_id)
    return SessionMade(session=session, expires_at_ms=expires_at_ms)


def deny(tx: Tx, ask: Ask[str], now: Now) -> None:
    """Write down that somebody was put off who tried passwords of a user; `ask.body` says whence.

    Once for each time of being put off, and nothing for a name nobody has: a stranger cannot fill
    the chain.
    """
    if tx.row(DENIED, {"username": ask.id}) is not None:
        act(tx, now, "service:feltd", "throttle_login", ask.id, reason=ask.body)


def logout(tx: Tx, ask: Ask[None], now: Now) -> None:
    """End the caller's own session. Refuses FORBIDDEN where the caller is none.

    A repeat is refused at the door, UNAUTHENTICATED with the reason logout.
    """
    confirm(tx, ask.caller, now)
    session_id = ask.caller.session_id
    if session_id is None:
        raise Refused("FORBIDDEN", "only a session can be ended like this; a key is revoked")
    if end_some(tx, now, [session_id], "logout"):
        act(tx, now, str(ask.caller.subject), "logout", session_id)


def end_all(
    tx: Tx, now: Now, username: str, reason: Reason, *, but: str | None = None
) -> list[str]:
    """End the live sessions of a user, all or all but one; their ids. Repeating ends no more."""
    return end_some(tx, now, [one for one in _live(tx, username) if one != but], reason)


def end_some(tx: Tx, now: Now, session_ids: Iterable[str], reason: Reason) -> list[str]:
    """End these sessions where they are live; the ids ended now. Tells ("key", id) for each."""
    gone = []
    for session_id in session_ids:
        ending = {"session_id": session_id, "at_ms": now.wall_ms, "reason": reason}
        if tx.row(END, ending) is not None:
            gone.append(session_id)
            tx.tell("key", session_id)
    return gone


def forget(tx: Tx) -> int:
    """Take away all sessions that have not ended, of a file that was put back; how many.

    Which of them were ended since, by whom and why, it does not know: everybody logs in again.
    """
    return tx.change(FORGET, {})


def note_used(tx: Tx, used: Iterable[tuple[str, int]], now: Now) -> None:
    """Write down when sessions were last used: (id, wall time to the minute). Never goes back."""
    for session_id, at_ms in used:
        tx.change(USED, {"session_id": session_id, "at_ms": at_ms})


def _live(tx: Tx, username: str) -> list[str]:
    # Newest first; those that ran out are among them until they are pruned.
    return [row["session_id"] for row in tx.rows(LIVE, {"user_name": username})]

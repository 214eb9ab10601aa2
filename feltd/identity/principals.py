"""Who is behind a call, and whether he still is where the change is committed.

The door finds a caller from its map; a rule that changes anything asks again here, in its own
transaction, because a key may end between the two. Scopes never change what kind of subject
somebody is: '*' makes nobody a worker.
"""

from typing import NamedTuple

import msgspec

from feltd.clock import Now
from feltd.errors import TABLE, Refused
from feltd.identity import roles
from feltd.model.base import Caller, Subject, SubjectKind
from feltd.model.key import Principal
from feltd.store.tx import Row, Tx

STANDING = """
SELECT k.revoked_at_ms, k.revoked_reason, k.expires_at_ms, k.subject_type, k.incarnation,
       w.incarnation AS worker_incarnation, g.chain_live, g.chain_expires_at_ms
  FROM keys k
  LEFT JOIN workers w ON w.worker_id = k.worker_id
  LEFT JOIN grants g ON g.grant_id = k.grant_id
 WHERE k.key_id = :key_id
"""

SESSION = """
SELECT s.expires_at_ms, s.last_used_at_ms, u.roles,
       CASE WHEN u.disabled_at_ms IS NULL THEN s.ended_reason
            ELSE coalesce(s.ended_reason, 'user_disabled')
       END AS ended_reason
  FROM sessions s
  JOIN users u ON u.name = s.user_name
 WHERE s.session_id = :session_id
"""

KIND_OF: dict[str, SubjectKind] = {
    "worker": "worker",
    "human": "human",
    "user": "human",
    "service": "service",
    "api_key": "service",
    "agent": "agent",
}

_EVERYTHING = frozenset({"*"})

#: The operator on the daemon's own socket, and commands that hold the lock of the file.
LOCAL = Caller(
    subject=Subject(kind="service", id="local"), scopes=_EVERYTHING, tenants=("*",), local=True
)
#: Anybody, under --no-auth.
OPEN = Caller(
    subject=Subject(kind="service", id="local"),
    scopes=_EVERYTHING,
    tenants=("*",),
    local=True,
    open=True,
)
#: Tenant and application of calls under --no-auth that name none.
OPEN_TENANT = "default"

NO_KEY = "no valid key came with the request"

#: Why a key ended, as its bearer is told: code and sentence by keys.revoked_reason.
ENDINGS = {
    "taken_over": ("taken_over", "another process took the worker's name"),
    "revoked": ("revoked", "the key was revoked"),
    "rotated": ("revoked", "the key was replaced by another"),
    "grant_ended": ("grant_ended", "the grant behind the key was revoked"),
    # Of a session, by sessions.ended_reason.
    "logout": ("revoked", "the session was logged out"),
    "password_changed": ("revoked", "the password of the session's user was changed"),
    "user_disabled": ("revoked", "the session's user was disabled"),
    "replaced": ("revoked", "newer sessions of the user took the session's place"),
}

#: A session that nobody uses for so long ends; when it was used is known to the minute.
IDLE_MS = 3_600_000 + 60_000
#: The row of a session learns this much later that it was used; the door knows at once.
NOTED_LATER_MS = 300_000


class Ending(NamedTuple):
    """Why a key is no longer good: `code` is taken_over, revoked, grant_ended or expired."""

    code: str
    detail: str


def grant_subject(principal: Principal) -> Subject:
    """The subject a principal acts as; its key id stands in where it has no identity.

    Refuses UNAUTHENTICATED for a subject type that is not one of KIND_OF.
    """
    kind = KIND_OF.get(principal.subject_type)
    if kind is None:
        raise Refused("UNAUTHENTICATED", "the key is of no known subject type")
    return Subject(kind=kind, id=principal.identity_id or principal.key_id)


def caller_of(row: Row) -> Caller:
    """The caller a row of `keys` stands for."""
    subject = grant_subject(principal_of(row))
    worker_id = row["worker_id"]
    return Caller(
        subject=subject,
        key_id=row["key_id"],
        scopes=frozenset() if worker_id else frozenset(texts(row["scopes"])),
        tenants=texts(row["tenants"]),
        worker_id=worker_id,
        incarnation=row["incarnation"],
        grant_id=row["grant_id"],
        expires_at_ms=row["expires_at_ms"],
    )


def principal_of(row: Row) -> Principal:
    """The principal a row of `keys` describes."""
    return Principal(
        key_id=row["key_id"],
        scopes=texts(row["scopes"]),
        subject_type=row["subject_type"],
        tenants=texts(row["tenants"]),
        identity_id=row["identity_id"],
    )


def ending(
    revoked_reason: str | None,
    expires_at_ms: int | None,
    grant_expires_at_ms: int | None,
    wall_ms: int,
) -> Ending | None:
    """Why a key has ended by `wall_ms`, None while it is good.

    `grant_expires_at_ms` is only given for a worker's key, which lives no longer than its grant.
    """
    if revoked_reason is not None:
        return Ending(*ENDINGS[revoked_reason])
    if expires_at_ms is not None and expires_at_ms <= wall_ms:
        return Ending("expired", "the key has expired")
    if grant_expires_at_ms is not None and grant_expires_at_ms <= wall_ms:
        return Ending("grant_ended", "the grant behind the key has expired")
    return None


def session_ending(
    ended_reason: str | None, expires_at_ms: int, last_used_at_ms: int, wall_ms: int
) -> Ending | None:
    """Why a session has ended by `wall_ms`, None while it is good."""
    if ended_reason is not None:
        return Ending(*ENDINGS[ended_reason])
    if expires_at_ms <= wall_ms:
        return Ending("expired", "the session has expired")
    if last_used_at_ms + IDLE_MS <= wall_ms:
        return Ending("expired", "nobody used the session for an hour")
    return None


def ended(why: Ending) -> Refused:
    """The refusal of a bearer whose secret is right but whose key has ended."""
    return Refused(
        "UNAUTHENTICATED", why.detail, reasons=[{"code": why.code, "detail": why.detail}]
    )


def confirm(tx: Tx, caller: Caller, now: Now) -> None:
    """Refuse UNAUTHENTICATED, with reasons, unless the caller's key is good in this transaction.

    Good: neither revoked nor expired by wall time; a worker's key also needs its incarnation to
    be the current one and its grant chain to live. A session: not ended, its user enabled and
    still with the roles that were read at the door; FORBIDDEN where those have shrunk since.
    Local callers have no key and pass.
    """
    if caller.local:
        return
    if caller.session_id is not None:
        _confirm_session(tx, caller, now)
        return
    row = tx.row(STANDING, {"key_id": caller.key_id})
    if row is None:
        raise Refused("UNAUTHENTICATED", NO_KEY)
    of_worker = row["subject_type"] == "worker"
    why = ending(
        row["revoked_reason"],
        row["expires_at_ms"],
        row["chain_expires_at_ms"] if of_worker else None,
        now.wall_ms,
    )
    if why is None and of_worker:
        current = row["worker_incarnation"]
        if row["incarnation"] is not None and current not in (None, row["incarnation"]):
            why = Ending(*ENDINGS["taken_over"])
        elif row["chain_live"] == 0:
            why = Ending(*ENDINGS["grant_ended"])
    if why is not None:
        raise ended(why)


def _confirm_session(tx: Tx, caller: Caller, now: Now) -> None:
    row = tx.row(SESSION, {"session_id": caller.session_id})
    if row is None:
        raise Refused("UNAUTHENTICATED", NO_KEY)
    used_ms = row["last_used_at_ms"] + NOTED_LATER_MS
    why = session_ending(row["ended_reason"], row["expires_at_ms"], used_ms, now.wall_ms)
    if why is not None:
        raise ended(why)
    if not roles.covers(roles.read(row["roles"]), caller):
        raise Refused("FORBIDDEN", roles.CHANGED)


def require_scope(caller: Caller, scope: str) -> None:
    """Refuse FORBIDDEN unless the caller holds the scope; a worker's key holds none."""
    if not caller.holds(scope):
        raise Refused("FORBIDDEN", f"this needs a key with the scope {scope}")


def not_found(code: str) -> Refused:
    """The one answer for what is not there and for what belongs to another tenant."""
    title = TABLE[code].title
    return Refused(code, title[0].lower() + title[1:])


def require_tenant(caller: Caller, tenant_id: str, code: str) -> None:
    """Refuse `code` exactly as for a made-up id unless the tenant is one of the caller's."""
    if not caller.may_see(tenant_id):
        raise not_found(code)


def acting_worker(caller: Caller, named: str, code: str = "FORBIDDEN") -> str:
    """The worker a call acts as: the one of the caller's key, under --no-auth the one it names.

    Refuses `code` for a key that is no worker's, or another worker's.
    """
    if caller.open:
        return named
    if caller.worker_id is None or caller.worker_id != named:
        raise Refused(code, "this needs the key of the worker it names")
    return named


def texts(stored: str) -> tuple[str, ...]:
    """A JSON array of text as it is stored."""
    return msgspec.json.decode(stored, type=tuple[str, ...])


def stored(values: tuple[str, ...] | frozenset[str]) -> str:
    """A set of text as it is stored: a JSON array, sorted, each once."""
    return msgspec.json.encode(sorted(set(values))).decode()

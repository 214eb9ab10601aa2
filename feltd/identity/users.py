"""Users: made, listed, given roles, disabled. What they log in with is hashed before it comes here.

Nobody hands out more than he has: a role only where all its scopes are the caller's, in a tenant
of his. A user is never taken away, only disabled, and for ever: his name stands in audit rows and
may hold grants. Somebody sees a user who has a role in one of his tenants, or none anywhere.
"""

from collections.abc import Mapping

import msgspec

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import grants, namesakes, roles, sessions
from feltd.identity.audit import act
from feltd.identity.pages import fill
from feltd.identity.principals import confirm, not_found, require_scope
from feltd.identity.unfit import unfit
from feltd.model.base import Ask, Caller
from feltd.model.page import Page, PageAsk
from feltd.model.user import ChangeRoles, Hashed, NewPassword, User
from feltd.store.tx import Row, Tx

SCOPE = "users:admin"

DISABLED = "the user is disabled, for ever: make another"

#: Sign-ups that wait for a role; more than a person looks through.
WAITING_MAX = 1_000

READ = """
SELECT u.name, u.password_hash, u.roles, u.created_by, u.created_at_ms, u.password_changed_at_ms,
       u.last_login_at_ms, u.disabled_at_ms, u.disabled_by,
       (SELECT count(*)
          FROM sessions s
         WHERE s.user_name = u.name
           AND s.ended_at_ms IS NULL
           AND s.expires_at_ms > :wall_ms) AS sessions
  FROM users u
 WHERE u.name = :username
"""

PAGE = """
SELECT u.name, u.roles, u.created_by, u.created_at_ms, u.password_changed_at_ms,
       u.last_login_at_ms, u.disabled_at_ms, u.disabled_by,
       (SELECT count(*)
          FROM sessions s
         WHERE s.user_name = u.name
           AND s.ended_at_ms IS NULL
           AND s.expires_at_ms > :wall_ms) AS sessions
  FROM users u
 WHERE (u.created_at_ms, u.name) < (:at_ms, :id)
 ORDER BY u.created_at_ms DESC, u.name DESC
 LIMIT :rows
"""

TAKEN = """
SELECT u.name
  FROM users u
 WHERE lower(u.name) = lower(:username)
"""

WAITING = """
SELECT count(*) AS users
  FROM (SELECT 1
          FROM users u
         WHERE u.roles = '{}'
           AND u.disabled_at_ms IS NULL
         LIMIT :most) AS w
"""

# A person whom grants were given to: not to be signed up as by a stranger.
NAMED = """
SELECT g.tenant_id
  FROM grants g
 WHERE g.subject_kind = 'human'
   AND g.subject_id = :username
   AND g.chain_live = 1
 ORDER BY g.tenant_id
"""

INSERT = """
INSERT INTO users (name, password_hash, roles, created_by, created_at_ms, password_changed_at_ms)
VALUES (:name, :password_hash, :roles, :created_by, :at_ms, :at_ms)
"""

DISABLE = """
UPDATE users
   SET disabled_at_ms = :at_ms,
       disabled_by = :by
 WHERE name = :username
   AND disabled_at_ms IS NULL
"""

GIVE_ROLES = """
UPDATE users
   SET roles = :roles
 WHERE name = :username
   AND disabled_at_ms IS NULL
"""

GIVE_PASSWORD = """
UPDATE users
   SET password_hash = :password_hash,
       password_changed_at_ms = max(created_at_ms, :at_ms)
 WHERE name = :username
   AND disabled_at_ms IS NULL
   AND password_hash = coalesce(:proven_hash, password_hash)
"""

LIVE = """
SELECT s.session_id
  FROM sessions s
 WHERE s.user_name = :username
   AND s.ended_at_ms IS NULL
 ORDER BY s.session_id
"""


def create(tx: Tx, ask: Ask[Hashed], now: Now) -> User:
    """Make a user, with roles the caller may hand out.

    Refuses USER_EXISTS also for a name that differs by case alone: a repeat, too, since nobody
    could tell whether its password is the same. FORBIDDEN with `errors` for roles beyond the
    caller's, or a name whose grants are not the caller's to give.
    """
    caller, body = ask.caller, ask.body
    confirm(tx, caller, now)
    require_scope(caller, SCOPE)
    _refuse_more(caller, body.roles)
    _refuse_another(tx, caller, body.username, body.roles)
    if namesakes.has_key(tx, body.username, caller):
        raise _exists(body.username)
    made = _insert(tx, body, str(caller.subject), now)
    _act(tx, caller, now, "create_user", body.username, {"roles": body.roles})
    return made


def sign_up(tx: Tx, ask: Ask[Hashed], now: Now) -> User:
    """Make a user without roles at his own wish; `ask.limits` says whether that is open.

    Refuses FORBIDDEN unless it is; USER_EXISTS for a name that a user, a grant or a key has;
    QUOTA_EXCEEDED while 1,000 users without a role wait for somebody to look at them.
    """
    refuse_closed(ask.limits.open_signup)
    name = ask.body.username
    waiting = tx.row(WAITING, {"most": WAITING_MAX})
    if waiting is not None and waiting["users"] >= WAITING_MAX:
        raise Refused(
            "QUOTA_EXCEEDED",
            f"{WAITING_MAX} users wait for a role",
            limit=WAITING_MAX,
            used=waiting["users"],
        )
    if tx.row(NAMED, {"username": name}) is not None or namesakes.has_key(tx, name):
        raise _exists(name)
    made = _insert(tx, Hashed(username=name, password_hash=ask.body.password_hash),
                   f"human:{name}", now)  # fmt: skip
    act(tx, now, f"human:{name}", "signup", name)
    return made


def refuse_closed(open_signup: bool) -> None:
    """Refuse FORBIDDEN unless people may sign up by themselves."""
    if not open_signup:
        raise Refused("FORBIDDEN", "sign-up is closed: an administrator makes users here")


def page(tx: Tx, ask: Ask[PageAsk], now: Now) -> Page[User]:
    """Users with a role in the caller's tenants, or with none at all, newest first.

    `tenant_id` leaves those with a role there. Reads at most 20,000 rows to fill a page.
    """
    require_scope(ask.caller, SCOPE)
    wanted = ask.body

    def keep(row: Row) -> User | None:
        held = _roles(row)
        mine = wanted.tenant_id is None or wanted.tenant_id in held
        return _shown(ask.caller, row) if mine and _sees(ask.caller, held) else None

    def read(place: dict[str, object]) -> list[Row]:
        return tx.rows(PAGE, {**place, "wall_ms": now.wall_ms})

    return fill(read, keep, wanted, "created_at_ms", "name")


def disable(tx: Tx, ask: Ask[None], now: Now) -> User:
    """Let a user log in no more, for ever; his sessions end, and keys that act as him.

    `ask.id` is his name. Of keys those end whose tenants are all the caller's. Repeating changes
    nothing. Refuses USER_NOT_FOUND; FORBIDDEN for one who has a role in a tenant that is not the
    caller's too.
    """
    caller = ask.caller
    row = _found(tx, ask, now)
    if not all(caller.may_see(tenant_id) for tenant_id in _roles(row)):
        raise Refused("FORBIDDEN", "the user has roles in other tenants: take away yours instead")
    at = {"username": ask.id, "at_ms": now.wall_ms, "by": str(caller.subject)}
    if tx.change(DISABLE, at):
        sessions.end_all(tx, now, ask.id, "user_disabled")
        namesakes.end_keys(tx, caller, ask.id, now)
        act(tx, now, str(caller.subject), "disable_user", ask.id)
    return _shown(caller, _read(tx, ask.id, now))


def change_role(tx: Tx, ask: Ask[ChangeRoles], now: Now) -> User:
    """Give and take roles in the tenants that are named; `ask.id` is the user's name.

    His sessions go on with the new ones at their next call. Repeating changes nothing. Refuses
    USER_NOT_FOUND; FORBIDDEN with `errors` for a tenant or a role beyond the caller's;
    REQUEST_INVALID for a disabled user.
    """
    caller, changes = ask.caller, ask.body.roles
    row = _found(tx, ask, now)
    given = {tenant_id: role for tenant_id, role in changes.items() if role is not None}
    foreign = [tenant_id for tenant_id in changes if not caller.may_see(tenant_id)]
    if foreign:
        raise unfit("FORBIDDEN", [(_at(one), "the tenant is not the caller's") for one in foreign])
    _refuse_more(caller, given)
    _refuse_another(tx, caller, ask.id, given)
    if row["disabled_at_ms"] is not None:
        raise Refused("REQUEST_INVALID", DISABLED)
    held = _roles(row)
    after = {tenant_id: role for tenant_id, role in held.items() if tenant_id not in changes}
    after |= given
    if after != held:
        tx.change(GIVE_ROLES, {"username": ask.id, "roles": roles.stored(after)})
        for live in tx.rows(LIVE, {"username": ask.id}):
            tx.tell("key", live["session_id"])
        _act(tx, caller, now, "change_role", ask.id, {"roles": changes})
    return _shown(caller, _read(tx, ask.id, now))


def change_password(tx: Tx, ask: Ask[NewPassword], now: Now) -> None:
    """Give a user another password and end his other sessions.

    By a session of his own, who has shown the one before; the local operator may without. Refuses
    FORBIDDEN for anybody else, UNAUTHENTICATED when another changed it meanwhile, USER_NOT_FOUND.
    """
    caller, body = ask.caller, ask.body
    confirm(tx, caller, now)
    own = caller.session_id is not None and caller.subject.id == body.username
    if not caller.local and (not own or body.proven_hash is None):
        raise Refused("FORBIDDEN", "a password is changed by a session of its user")
    row = _read(tx, body.username, now)
    if row["disabled_at_ms"] is not None:
        raise Refused("REQUEST_INVALID", DISABLED)
    given = {**msgspec.structs.asdict(body), "at_ms": now.wall_ms}
    if not tx.change(GIVE_PASSWORD, given):
        raise Refused("UNAUTHENTICATED", sessions.WRONG)
    sessions.end_all(tx, now, body.username, "password_changed", but=caller.session_id)
    act(tx, now, str(caller.subject), "change_password", body.username)


def kept_hash(tx: Tx, username: str, now: Now) -> str | None:
    """The hash a password is compared with; None for a stranger and for one who is disabled."""
    row = tx.row(READ, {"username": username, "wall_ms": now.wall_ms})
    if row is None or row["disabled_at_ms"] is not None:
        return None
    return str(row["password_hash"])


def _read(tx: Tx, username: str, now: Now) -> Row:
    """The row of a user, whoever asks. Refuses USER_NOT_FOUND."""
    row = tx.row(READ, {"username": username, "wall_ms": now.wall_ms})
    if row is None:
        raise not_found("USER_NOT_FOUND")
    return row


def _found(tx: Tx, ask: Ask[ChangeRoles] | Ask[None], now: Now) -> Row:
    """The user an authorized caller names, where he sees him. Refuses USER_NOT_FOUND."""
    confirm(tx, ask.caller, now)
    require_scope(ask.caller, SCOPE)
    row = _read(tx, ask.id, now)
    if not _sees(ask.caller, _roles(row)):
        raise not_found("USER_NOT_FOUND")
    return row


def _sees(caller: Caller, held: Mapping[str, str]) -> bool:
    return not held or any(caller.may_see(tenant_id) for tenant_id in held)


def _roles(row: Row) -> dict[str, str]:
    try:
        return dict(roles.read(row["roles"]))
    except ValueError:
        # Written by a hand: he has none until somebody gives him some.
        return {}


def _shown(caller: Caller, row: Row) -> User:
    mine = {t: role for t, role in sorted(_roles(row).items()) if caller.may_see(t)}
    return User(
        username=row["name"],
        roles=mine,
        created_by=row["created_by"],
        created_at_ms=row["created_at_ms"],
        password_changed_at_ms=row["password_changed_at_ms"],
        sessions=row["sessions"],
        last_login_at_ms=row["last_login_at_ms"],
        disabled_at_ms=row["disabled_at_ms"],
        disabled_by=row["disabled_by"],
    )


def _insert(tx: Tx, body: Hashed, created_by: str, now: Now) -> User:
    if tx.row(TAKEN, {"username": body.username}) is not None:
        raise _exists(body.username)
    tx.change(
        INSERT,
        {
            "name": body.username,
            "password_hash": body.password_hash,
            "roles": roles.stored(body.roles),
            "created_by": created_by,
            "at_ms": now.wall_ms,
        },
    )
    return User(
        username=body.username,
        roles=dict(sorted(body.roles.items())),
        created_by=created_by,
        created_at_ms=now.wall_ms,
        password_changed_at_ms=now.wall_ms,
        sessions=0,
    )


def _exists(username: str) -> Refused:
    return Refused("USER_EXISTS", f"the name {username} is taken")


def _refuse_more(caller: Caller, given: Mapping[str, str]) -> None:
    """Refuse FORBIDDEN where a role would let somebody do what the caller may not."""
    beyond = []
    for tenant_id, role in given.items():
        lacking = sorted(
            one for one in roles.scopes_in({tenant_id: role}, tenant_id) if not caller.holds(one)
        )
        if not caller.may_see(tenant_id):
            beyond.append((_at(tenant_id), "the tenant is not the caller's"))
        elif lacking:
            beyond.append((_at(tenant_id), f"the caller does not hold {', '.join(lacking)}"))
    if beyond:
        raise unfit("FORBIDDEN", beyond)


def _refuse_another(tx: Tx, caller: Caller, username: str, given: Mapping[str, str]) -> None:
    """Refuse FORBIDDEN to make somebody whom a grant was given to: it would be handed out."""
    if caller.holds(grants.SCOPE) or not given:
        return
    granted = {row["tenant_id"] for row in tx.rows(NAMED, {"username": username})}
    if granted if roles.EVERY in given else granted & set(given):
        raise unfit(
            "FORBIDDEN", [("/username", f"grants of human:{username} are not the caller's")]
        )


def _at(tenant_id: str) -> str:
    return "/roles/" + tenant_id.replace("~", "~0").replace("/", "~1")


def _act(
    tx: Tx, caller: Caller, now: Now, action: str, username: str, body: dict[str, object]
) -> None:
    # Of the body only what is no secret: even a digest of a password can be guessed at.
    act(tx, now, str(caller.subject), action, username, body=msgspec.json.encode(body))

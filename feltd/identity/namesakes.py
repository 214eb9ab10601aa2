"""People and the keys that act as them: whoever is human:<name> is one and the same.

A key may act in a user's name, in audit rows as in grants, so nobody makes such a key who could
not as well make the user; nobody becomes a user whose name a key has; and a user who is disabled
acts by no key either. It only looks and refuses; who is told what is decided by those who ask.
"""

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import endings, roles
from feltd.identity.principals import KIND_OF, texts
from feltd.identity.unfit import unfit
from feltd.model.base import Caller, Subject
from feltd.store.tx import Tx

#: Types of keys that act as a human.
HUMAN = sorted(name for name, kind in KIND_OF.items() if kind == "human")
MAKES_USERS = "users:admin"

USER = """
SELECT u.roles, u.disabled_at_ms
  FROM users u
 WHERE u.name = :name
"""

KEYS = """
SELECT k.key_id, k.tenants, k.revoked_at_ms
  FROM keys k
 WHERE k.identity_id = :name
   AND k.subject_type IN (:human, :user)
 ORDER BY k.key_id
"""


def refuse_key(tx: Tx, caller: Caller, subject: Subject) -> None:
    """Refuse FORBIDDEN a key that acts as a user, unless he is the caller or one he could make.

    Of a disabled user nobody makes one.
    """
    if subject.kind != "human":
        return
    row = tx.row(USER, {"name": subject.id})
    if row is None:
        return
    if row["disabled_at_ms"] is not None:
        raise unfit("FORBIDDEN", [("/identity_id", f"{subject} is disabled")])
    if subject == caller.subject or _could_make(caller, row["roles"]):
        return
    raise unfit("FORBIDDEN", [("/identity_id", f"{subject} is a user whom the caller is not")])


def has_key(tx: Tx, name: str, caller: Caller | None = None) -> bool:
    """Whether a key acts, or ever acted, as human:<name>; only keys that `caller` may not end."""
    found = tx.rows(KEYS, _named(name))
    return any(caller is None or not _may_end(caller, row["tenants"]) for row in found)


def end_keys(tx: Tx, caller: Caller, name: str, now: Now) -> list[str]:
    """End the keys that act as human:<name>, as far as the caller may end keys there; their ids."""
    live = [
        row["key_id"]
        for row in tx.rows(KEYS, _named(name))
        if row["revoked_at_ms"] is None and _may_end(caller, row["tenants"])
    ]
    return endings.end(tx, now, live, "revoked")


def _could_make(caller: Caller, stored: str) -> bool:
    if not caller.holds(MAKES_USERS):
        return False
    try:
        held = roles.read(stored)
    except ValueError:
        raise Refused("FORBIDDEN", "the user's roles cannot be read") from None
    return all(
        caller.may_see(tenant_id)
        and all(caller.holds(scope) for scope in roles.scopes_in(held, tenant_id))
        for tenant_id in held
    )


def _may_end(caller: Caller, tenants: str) -> bool:
    return all(caller.may_see(tenant_id) for tenant_id in texts(tenants))


def _named(name: str) -> dict[str, str]:
    return {"name": name, "human": HUMAN[0], "user": HUMAN[1]}

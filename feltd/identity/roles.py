"""Roles: what a person may do in which tenant, and a session narrowed to the call at hand.

A role of tenant "*" is one of every tenant, and the only kind that is good for what is the whole
daemon's. Somebody with different roles in several tenants is, for each call, of just those tenants
where his role holds what the call needs, with what he may do in all of them: never more.
"""

from collections.abc import Mapping

import msgspec

from feltd.identity.presets import PRESETS
from feltd.model.base import Caller
from feltd.model.user import Role

EVERY = "*"
CHANGED = "the roles of the session's user have been changed"

_VIEWER = frozenset(PRESETS["viewer"])
#: A key for an operator leaves asking about fences to a sink's; a person may try it.
_OPERATOR = frozenset(PRESETS["operator"]) | {"claims:validate"}
_ADMIN = _OPERATOR | {
    "backup:admin",
    "capabilities:write",
    "grants:issue",
    "keys:admin",
    "users:admin",
    # So that he can hand it to those who enroll workers; he registers none himself.
    "workers:register",
}

#: Each holds what the one before holds.
SCOPES: dict[Role, frozenset[str]] = {"viewer": _VIEWER, "operator": _OPERATOR, "admin": _ADMIN}
_RANK = {role: rank for rank, role in enumerate(SCOPES)}
_NOTHING: frozenset[str] = frozenset()


def read(stored: str) -> dict[str, Role]:
    """The roles of a user as they are stored. ValueError when a hand has spoilt them."""
    return msgspec.json.decode(stored, type=dict[str, Role])


def stored(roles: Mapping[str, str]) -> str:
    """Roles as they are stored: a JSON object, sorted."""
    return msgspec.json.encode(dict(roles), order="sorted").decode()


def scopes_in(roles: Mapping[str, str], tenant_id: str) -> frozenset[str]:
    """What roles allow in one tenant, by the role of that tenant or of every tenant."""
    held = [role for named in {tenant_id, EVERY} if (role := _known(roles.get(named))) is not None]
    return SCOPES[max(held, key=_RANK.__getitem__)] if held else _NOTHING


def narrow(caller: Caller, scope: str | None, tenant_id: str | None = None) -> Caller:
    """A session's caller for one call, which needs `scope` (None: any) and may name a tenant.

    Its tenants are those where his role holds the scope, or all of his where none does: then he is
    refused for the scope. Its scopes are what he holds in each of them.
    """
    roles = caller.roles or {}
    held = sorted(t for t in roles if scope is None or scope in scopes_in(roles, t)) or sorted(
        roles
    )
    if EVERY in held:
        held = [EVERY]
    scopes = _common(roles, held)
    if tenant_id is not None and tenant_id != EVERY:
        there = scopes_in(roles, tenant_id)
        # Where the call names its tenant he may do all he may do there, not just what everywhere.
        if there > scopes or (there and EVERY not in held and tenant_id not in held):
            held, scopes = [tenant_id], there
    return msgspec.structs.replace(caller, tenants=tuple(held), scopes=scopes)


def covers(roles: Mapping[str, str], caller: Caller) -> bool:
    """Whether these roles still allow all that a narrowed caller holds, in each of his tenants."""
    return all(caller.scopes <= scopes_in(roles, tenant_id) for tenant_id in caller.tenants)


def _common(roles: Mapping[str, str], tenants: list[str]) -> frozenset[str]:
    if not tenants:
        return _NOTHING
    return frozenset.intersection(*(scopes_in(roles, tenant_id) for tenant_id in tenants))


def _known(role: str | None) -> Role | None:
    return next((known for known in SCOPES if known == role), None)

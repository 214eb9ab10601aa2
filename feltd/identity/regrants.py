"""How a grant changes and ends, and what that does to the grants and keys below it.

All of it happens in the one transaction of the change: descendants get the new end of their chain,
lose what their parent lost, and keys bound to what ended end with it. Called by mesh/authority.py,
which then ends the claims that exceed what is left.
"""

from typing import Any

import msgspec

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import endings
from feltd.identity.audit import act
from feltd.identity.grants import (
    columns,
    extent_of,
    fit,
    found,
    grant_of,
    present,
    read,
    require_command,
)
from feltd.identity.principals import confirm
from feltd.identity.subsets import Extent, narrowed
from feltd.identity.unfit import unfit
from feltd.model.base import Ask
from feltd.model.grant import Affected, Grant, ReplaceGrant, RevokeGrant
from feltd.store.tx import Tx

# Parents before children. What hangs below a revoked grant is not live and stays as it is.
BELOW = """
WITH RECURSIVE below (grant_id) AS (
  SELECT grant_id
    FROM grants
   WHERE parent_grant_id = :grant_id
     AND chain_live = 1
   UNION ALL
  SELECT g.grant_id
    FROM grants g
    JOIN below b ON g.parent_grant_id = b.grant_id
   WHERE g.chain_live = 1
)
SELECT g.grant_id, g.issuer, g.subject_kind, g.subject_id, g.tenant_id, g.application_id,
       g.capabilities, g.resources, g.constraints, g.issued_at_ms, g.expires_at_ms,
       g.chain_expires_at_ms, g.chain_live, g.parent_grant_id, g.depth, g.revision, g.status
  FROM grants g
  JOIN below b ON b.grant_id = g.grant_id
 ORDER BY g.depth, g.grant_id
"""

REWRITE = """
UPDATE grants
   SET capabilities = :capabilities,
       resources = :resources,
       constraints = :constraints,
       expires_at_ms = :expires_at_ms,
       chain_expires_at_ms = :chain_expires_at_ms,
       revision = revision + :revised
 WHERE grant_id = :grant_id
   AND chain_live = 1
"""

REVOKE = """
UPDATE grants
   SET status = 'REVOKED',
       chain_live = 0,
       revision = revision + 1
 WHERE grant_id = :grant_id
   AND status = 'ACTIVE'
"""

CUT_OFF = """
UPDATE grants
   SET chain_live = 0
 WHERE grant_id = :grant_id
   AND chain_live = 1
"""

FIXED = ("subject", "tenant_id", "application_id", "parent_grant")


def replace(tx: Tx, ask: Ask[ReplaceGrant], now: Now) -> Affected:
    """Replace what a grant allows and when it ends; `ask.id` is its id.

    Descendants keep only what still lies within it, and do not grow again when it does. Repeating
    changes nothing and answers no ids. Needs grants:issue, or for a child to be its parent's
    subject. Refuses GRANT_NOT_FOUND, FORBIDDEN, GRANT_DENIED when it or an ancestor was revoked,
    GRANT_INVALID with pointers.
    """
    confirm(tx, ask.caller, now)
    grant, body = found(tx, ask.caller, ask.id), ask.body
    require_command(tx, ask.caller, grant)
    moved = [
        (f"/{name}", "never changes")
        for name in FIXED
        if getattr(body, name) is not None and getattr(body, name) != getattr(grant, name)
    ]
    if moved:
        raise unfit("GRANT_INVALID", moved)
    if not grant.chain_live:
        raise Refused("GRANT_DENIED", "the grant or one above it was revoked, and stays so")
    parent = read(tx, grant.parent_grant) if grant.parent_grant is not None else None
    wanted = Extent(body.capabilities, body.resources, body.constraints)
    extent = fit(now, wanted, body.expires_at_ms, parent)
    changed = []
    if _rewrite(tx, grant, extent, body.expires_at_ms, parent):
        changed.append(grant.id)
    if changed:
        changed += _narrow_below(tx, present(tx, grant.id))
        for key_id in endings.keys_of_grants(tx, changed):
            tx.tell("key", key_id)
        _act(tx, ask, now, "replace_grant", None)
    return Affected(grant_id=grant.id, grant_ids=tuple(changed))


def revoke(tx: Tx, ask: Ask[RevokeGrant], now: Now) -> Affected:
    """Revoke a grant for ever; `ask.id` is its id.

    Every grant below it is dead from here on, and every key bound to one of them ends, reason
    grant_ended. Repeating changes nothing and answers no ids. Refuses GRANT_NOT_FOUND, FORBIDDEN.
    """
    confirm(tx, ask.caller, now)
    grant = found(tx, ask.caller, ask.id)
    require_command(tx, ask.caller, grant)
    below = [row["grant_id"] for row in tx.rows(BELOW, {"grant_id": grant.id})]
    if not tx.change(REVOKE, {"grant_id": grant.id}):
        return Affected(grant_id=grant.id, grant_ids=())
    for grant_id in below:
        tx.change(CUT_OFF, {"grant_id": grant_id})
    dead = (grant.id, *below)
    endings.end(tx, now, endings.keys_of_grants(tx, dead), "grant_ended")
    _act(tx, ask, now, "revoke_grant", ask.body.reason)
    return Affected(grant_id=grant.id, grant_ids=dead)


def _narrow_below(tx: Tx, grant: Grant) -> list[str]:
    known = {grant.id: grant}
    changed = []
    for row in tx.rows(BELOW, {"grant_id": grant.id}):
        child = grant_of(row)
        parent = known[str(child.parent_grant)]
        extent = narrowed(extent_of(child), extent_of(parent))
        if _rewrite(tx, child, extent, child.expires_at_ms, parent):
            changed.append(child.id)
            child = present(tx, child.id)
        known[child.id] = child
    return changed


def _rewrite(
    tx: Tx, grant: Grant, extent: Extent, expires_at_ms: int, parent: Grant | None
) -> bool:
    """Write what differs; whether anything did. The end of a chain alone is no new revision."""
    ends = min(expires_at_ms, parent.chain_expires_at_ms) if parent else expires_at_ms
    old, new = columns(extent_of(grant)), columns(extent)
    revised = new != old or expires_at_ms != grant.expires_at_ms
    if not revised and ends == grant.chain_expires_at_ms:
        return False
    tx.change(
        REWRITE,
        {
            **new,
            "grant_id": grant.id,
            "expires_at_ms": expires_at_ms,
            "chain_expires_at_ms": ends,
            "revised": int(revised),
        },
    )
    return True


def _act(tx: Tx, ask: Ask[Any], now: Now, action: str, reason: str | None) -> None:
    tx.tell("grant", "")
    body = msgspec.json.encode(ask.body, order="deterministic")
    act(tx, now, str(ask.caller.subject), action, ask.id, reason=reason, body=body)

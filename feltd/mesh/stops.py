"""Which workers stop when a grant or a key ends: asked before it is ended, or before it runs out.

A worker stops with the grant it registered under or one above that, and with the key it was issued
or the one that was obtained by. Only reads, and counts a bounded number of workers.
"""

from msgspec import Struct

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import grants, keyrows, principals
from feltd.model.base import Ask
from feltd.store.tx import Row, Tx

#: Workers that one answer names; there may be thousands under one grant.
WORKERS_NAMED = 20
#: Workers that are counted of each: a list asks for 50 grants at once.
WORKERS_COUNTED = 500

#: Those that run come first: of them somebody notices the end.
UNDER_GRANT = """
WITH RECURSIVE below (grant_id) AS (
  SELECT g.grant_id
    FROM grants g
   WHERE g.grant_id = :grant_id
   UNION
  SELECT g.grant_id
    FROM grants g
    JOIN below b ON g.parent_grant_id = b.grant_id
   WHERE g.chain_live = 1
),
-- Found first, else every worker would be looked at in the order of ids.
found AS MATERIALIZED (
  SELECT k.worker_id, k.tenant_id, k.name, k.lifecycle
    FROM below b
    JOIN workers k ON k.authorization_grant_id = b.grant_id
   WHERE k.removed_at_ms IS NULL
     AND k.lifecycle <> 'OFFLINE'
),
first AS MATERIALIZED (
  SELECT worker_id, tenant_id, name, lifecycle
    FROM found
   ORDER BY worker_id
   LIMIT :rows
)
SELECT first.worker_id, first.tenant_id, first.name, first.lifecycle,
       (SELECT count(*)
          FROM claims c
         WHERE c.worker_id = first.worker_id
           AND c.ended_at_ms IS NULL) AS claims
  FROM first
 ORDER BY first.worker_id
"""

UNDER_KEY = """
WITH RECURSIVE below (key_id, worker_id, incarnation) AS (
  SELECT y.key_id, y.worker_id, y.incarnation
    FROM keys y
   WHERE y.key_id = :key_id
   UNION
  SELECT y.key_id, y.worker_id, y.incarnation
    FROM keys y
    JOIN below b ON y.obtained_by = b.key_id
   WHERE y.revoked_at_ms IS NULL
)
SELECT DISTINCT k.worker_id, k.tenant_id, k.name, k.lifecycle,
       (SELECT count(*)
          FROM claims c
         WHERE c.worker_id = k.worker_id
           AND c.ended_at_ms IS NULL) AS claims
  FROM below b
  JOIN workers k ON k.worker_id = b.worker_id
 WHERE k.removed_at_ms IS NULL
   AND k.lifecycle <> 'OFFLINE'
   AND coalesce(b.incarnation, k.incarnation) = k.incarnation
 ORDER BY k.worker_id
 LIMIT :rows
"""

OF_KID = """
SELECT count(*) AS workers
  FROM workers k
 WHERE k.authority_kid = :kid
   AND k.removed_at_ms IS NULL
"""


class Stopping(Struct, frozen=True):
    """One worker that would stop, and how many claims it holds now."""

    worker_id: str
    name: str
    lifecycle: str
    claims: int


class Stops(Struct, frozen=True):
    """The workers that are not OFFLINE and would stop, the first of them by name.

    `capped`: there are more than were counted.
    """

    count: int
    workers: list[Stopping]
    capped: bool


def with_grants(tx: Tx, ask: Ask[tuple[str, ...]], now: Now) -> dict[str, Stops]:
    """For each of these grants, the workers that stop when it ends; see `Stops`.

    Needs grants:issue (FORBIDDEN); grants that are not the caller's to see are left out.
    """
    principals.require_scope(ask.caller, grants.SCOPE)
    found = {}
    for grant_id in ask.body:
        grant = grants.read(tx, grant_id)
        if grant is not None and ask.caller.may_see(grant.tenant_id):
            rows = tx.rows(UNDER_GRANT, {"grant_id": grant_id, "rows": WORKERS_COUNTED + 1})
            found[grant_id] = _stops(rows)
    return found


def with_keys(tx: Tx, ask: Ask[tuple[str, ...]], now: Now) -> dict[str, Stops]:
    """For each of these keys, the workers that stop when it ends; see `Stops`.

    Needs keys:admin (FORBIDDEN); keys that are not the caller's to see are left out.
    """
    principals.require_scope(ask.caller, "keys:admin")
    found = {}
    for key_id in ask.body:
        row = keyrows.read(tx, key_id)
        tenants = () if row is None else principals.texts(row["tenants"])
        if row is not None and all(ask.caller.may_see(tenant) for tenant in tenants):
            rows = tx.rows(UNDER_KEY, {"key_id": key_id, "rows": WORKERS_COUNTED + 1})
            found[key_id] = _stops(rows)
    return found


def with_kids(tx: Tx, ask: Ask[tuple[str, ...]], now: Now) -> dict[str, int]:
    """For each of these signing keys, how many workers' authority a token of it proves.

    Needs keys:admin and tenants * (both FORBIDDEN): signing keys are the whole daemon's.
    """
    principals.require_scope(ask.caller, "keys:admin")
    if "*" not in ask.caller.tenants:
        raise Refused("FORBIDDEN", "signing keys are the whole daemon's: it needs tenants *")
    return {kid: tx.rows(OF_KID, {"kid": kid})[0]["workers"] for kid in ask.body}


def _stops(rows: list[Row]) -> Stops:
    named = [
        Stopping(row["worker_id"], row["name"], row["lifecycle"], row["claims"])
        for row in rows[:WORKERS_NAMED]
    ]
    return Stops(min(len(rows), WORKERS_COUNTED), named, len(rows) > WORKERS_COUNTED)

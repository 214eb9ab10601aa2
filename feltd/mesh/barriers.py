"""What keeps work back whoever asks for it, in words: a hold, its pool, its keys.

Each is named with who or what stands behind it, a few claims at most, and the command that opens
it. Reads the same counts that the statement tests which issues claims; never looks through work.
"""

from feltd.clock import Now
from feltd.mesh import causes, placement
from feltd.mesh.generation import EVERYBODY
from feltd.model.base import Caller
from feltd.model.why import Cause
from feltd.store.tx import Row, Tx

HOLD = """
SELECT h.tenant_id, h.hold_id, h.scope, h.value, h.reason, h.held_by, h.until_at_ms
  FROM holds h
 WHERE h.tenant_id IN ('*', :tenant_id)
   AND h.hold_id = :hold_id
   AND h.ended_at_ms IS NULL
 ORDER BY h.tenant_id
 LIMIT 1
"""

POOL = """
SELECT p.pool_id, p.active, p.max_concurrency, p.opening
  FROM pools p
 WHERE p.tenant_id = :tenant_id
   AND p.pool_id = :pool_id
   AND (p.application_id IS NULL OR p.application_id = :application_id)
   AND p.deleted_at_ms IS NULL
"""

HELD_OF_POOL = """
SELECT c.workload_id, c.worker_id
  FROM claims c
 WHERE c.tenant_id = :tenant_id
   AND c.pool_id = :pool_id
   AND c.ended_at_ms IS NULL
 LIMIT :rows
"""

KEY = """
SELECT c.name, c.active, c.claims_max
  FROM concurrency_keys c
 WHERE c.key_seq = :key_seq
"""

HELD_OF_KEY = """
SELECT c.workload_id, c.worker_id
  FROM claims c
 WHERE c.concurrency_key = :key_seq
   AND c.ended_at_ms IS NULL
 LIMIT :rows
"""

RATE = """
SELECT r.name, r.claims_max, r.period_ms,
       (SELECT u.at_ms + r.period_ms
          FROM rate_uses u
         WHERE u.key_seq = r.key_seq
           AND u.number = r.uses + 1 - r.claims_max) AS opens_at_ms
  FROM rate_keys r
 WHERE r.key_seq = :key_seq
"""


def hold(tx: Tx, now: Now, caller: Caller, tenant_id: str, held: placement.Hold) -> Cause:
    """The hold that touches some work: by whom, why, until when, and how it is lifted.

    Everybody's is shown in full to who may see everybody's.
    """
    row = tx.row(HOLD, {"tenant_id": tenant_id, "hold_id": held.hold_id})
    until_at_ms = None if row is None else row["until_at_ms"]
    until = "" if until_at_ms is None else f", until {causes.of_wall(now, until_at_ms)}"
    what = held.scope if held.value is None else f"{held.scope} {held.value}"
    if row is not None and row["tenant_id"] == EVERYBODY and not caller.may_see(EVERYBODY):
        return Cause(
            code="HELD",
            detail=f"everybody's work is held{until}",
            remedy="ask the operator of the daemon to lift the hold",
        )
    by = "" if row is None else f" by {row['held_by']}"
    return Cause(
        code="HELD",
        detail=f"{held.hold_id} holds {what}{by}: {causes.quoted(held.reason)}{until}",
        remedy=f"feltd hold delete {held.hold_id}",
    )


def pool(
    tx: Tx, tenant_id: str, application_id: str, pool_id: str | None, open_: bool
) -> Cause | None:
    """What a pool does to its work: it is missing, full, or about to be opened; None: nothing.

    `open_`: whether the work's demand stands open.
    """
    if pool_id is None:
        return None
    asked = {"tenant_id": tenant_id, "application_id": application_id, "pool_id": pool_id}
    row = tx.row(POOL, asked)
    if row is None:
        return Cause(
            code="WORKER_POOL_NOT_FOUND",
            detail=f"there is no pool {pool_id} for {tenant_id}/{application_id}",
            remedy=f"feltd pool create {pool_id} --tenant {tenant_id}",
        )
    ceiling = row["max_concurrency"]
    if ceiling is not None and row["active"] >= ceiling:
        holders = tx.rows(HELD_OF_POOL, {**asked, "rows": causes.NAMED_MAX})
        return Cause(
            code="POOL_FULL",
            detail=f"the pool {pool_id} holds {row['active']} of {ceiling:,} claims: "
            + _holders(holders, row["active"]),
            remedy=f"wait, or feltd pool update {pool_id} --tenant {tenant_id} "
            f"--max-concurrency {max(ceiling, row['active']) + 1}",
        )
    return None if open_ else _opening(f"the pool {pool_id}")


def key(tx: Tx, key_seq: int, open_: bool, workload_id: str | None) -> Cause | None:
    """What a concurrency key does to its work; `open_`: whether its lane stands open."""
    row = tx.row(KEY, {"key_seq": key_seq})
    if row is None:
        return None
    if row["active"] < row["claims_max"]:
        return None if open_ else _opening(f"the key {row['name']}")
    holders = tx.rows(HELD_OF_KEY, {"key_seq": key_seq, "rows": causes.NAMED_MAX})
    limit = max(row["claims_max"], row["active"]) + 1
    return Cause(
        code="KEY_FULL",
        detail=f"the key {row['name']} has {row['active']} of "
        f"{row['claims_max']:,} claims: {_holders(holders, row['active'])}",
        remedy=f"wait, or feltd workload edit {workload_id or 'ID'} "
        f"--set concurrency.limit={limit} (for all of the key)",
    )


def rate(tx: Tx, now: Now, key_seq: int, open_: bool) -> Cause | None:
    """What a rate key does to its work; `open_`: whether its lane stands open."""
    row = tx.row(RATE, {"key_seq": key_seq})
    if row is None:
        return None
    opens_at_ms = row["opens_at_ms"]
    if opens_at_ms is None or opens_at_ms <= now.lease_ms:
        return None if open_ else _opening(f"the rate key {row['name']}")
    most = f"{causes.many(row['claims_max'], 'claim')} in {causes.span(row['period_ms'])}"
    return Cause(
        code="RATE_FULL",
        detail=f"the rate key {row['name']} allows {most}: the next "
        f"{causes.moment(now, opens_at_ms)}",
        remedy="wait until then, or create work of this key with a higher limit: it holds for all",
    )


def _opening(what: str) -> Cause:
    return Cause(
        code="OPENING",
        detail=f"{what} has room again, and its work is about to be offered",
        remedy="wait a moment; if it stays so: feltd health",
    )


def _holders(rows: list[Row], total: int) -> str:
    held = [f"{row['workload_id']} on {row['worker_id']}" for row in rows]
    return causes.listed(held, total) if held else "none of them is live"

"""What lets work through or not beside its worker: pool ceilings, concurrency keys, rate keys.

A claim of gated work is counted in each of its gates when it is issued, and leaves them when it
ends, whatever ends it. The statement that issues claims tests the same counts, so that none is ever
exceeded; here they only move, and with them what stands open.
"""

from feltd.clock import Now
from feltd.mesh import demands, keys, lanes, rates
from feltd.store.tx import Row, Tx

KEYS_OF_LANE = """
SELECT l.concurrency_key, l.rate_key
  FROM lanes l
 WHERE l.lane_id = :lane_id
"""

ENTER_POOL = """
UPDATE pools
   SET active = active + 1
 WHERE tenant_id = :tenant_id
   AND pool_id = :pool_id
RETURNING active, max_concurrency
"""

LEAVE_POOL = """
UPDATE pools
   SET active = active - 1
 WHERE tenant_id = :tenant_id
   AND pool_id = :pool_id
   AND active > 0
RETURNING active, max_concurrency
"""

POOL = """
SELECT p.active, p.max_concurrency, p.deleted_at_ms
  FROM pools p
 WHERE p.tenant_id = :tenant_id
   AND p.pool_id = :pool_id
"""

GO_ON = """
UPDATE pools
   SET opening = :opening
 WHERE tenant_id = :tenant_id
   AND pool_id = :pool_id
   AND opening <> :opening
"""

OPENING = """
SELECT p.tenant_id, p.pool_id, p.active, p.max_concurrency
  FROM pools p
 WHERE p.opening = 1
 ORDER BY p.tenant_id, p.pool_id
 LIMIT :limit
"""

FULL = """
SELECT w.tenant_id, w.pool_id, w.lane_id, w.demand_id, l.concurrency_key, l.rate_key,
       EXISTS (SELECT 1
                 FROM pools p
                WHERE p.tenant_id = w.tenant_id
                  AND p.pool_id = w.pool_id
                  AND p.active >= p.max_concurrency) AS pool_full,
       EXISTS (SELECT 1
                 FROM concurrency_keys c
                WHERE c.key_seq = l.concurrency_key
                  AND c.active >= c.claims_max) AS key_full,
       EXISTS (SELECT 1
                 FROM rate_keys r
                 JOIN rate_uses u ON u.key_seq = r.key_seq AND u.number = r.uses + 1 - r.claims_max
                WHERE r.key_seq = l.rate_key
                  AND u.at_ms > :now_ms - r.period_ms) AS rate_full
  FROM workloads w
  JOIN lanes l ON l.lane_id = w.lane_id
 WHERE w.workload_id = :workload_id
   AND w.gated = 1
"""

#: The rules of placement.RULES that are found here, in their order.
RULES = ("pool_full", "key_full", "rate_full")


def enter(tx: Tx, now: Now, held: Row, pool_id: str | None) -> None:
    """A claim was issued: count it in its pool and the keys of its lane.

    `held` has tenant_id and lane_id; the pool is the work's own or that of who gave it.
    """
    if pool_id is not None:
        pool = {"tenant_id": held["tenant_id"], "pool_id": pool_id}
        count = tx.rows(ENTER_POOL, pool)[0]
        if count["max_concurrency"] is not None and count["active"] >= count["max_concurrency"]:
            lanes.close_pool(tx, held["tenant_id"], pool_id)
    key = tx.rows(KEYS_OF_LANE, {"lane_id": held["lane_id"]})[0]
    if key["concurrency_key"]:
        keys.enter(tx, key["concurrency_key"])
    if key["rate_key"]:
        rates.enter(tx, now, key["rate_key"])


def leave(tx: Tx, row: Row) -> None:
    """A claim has ended: what counted it has room for another. Once for each end.

    `row` has the tenant_id, pool_id and concurrency_key of the claim. A pool that was forgotten
    meanwhile counts nothing.
    """
    if row["pool_id"] is not None:
        pool = {"tenant_id": row["tenant_id"], "pool_id": row["pool_id"]}
        count = tx.row(LEAVE_POOL, pool)
        if count is not None and count["active"] + 1 == count["max_concurrency"]:
            _open_pool(tx, row["tenant_id"], row["pool_id"], lanes.at_once(tx))
    if row["concurrency_key"] is not None:
        keys.leave(tx, row["concurrency_key"])


def full(tx: Tx, now: Now, workload_id: str) -> list[str]:
    """Which of RULES keep this workload from everybody at this instant."""
    row = _gates(tx, now, workload_id)
    return [] if row is None else [rule for rule in RULES if row[rule]]


def shut(tx: Tx, now: Now, workload_id: str) -> bool:
    """Close the lane or demand of a head that a gate without room keeps back; whether one does.

    For who met such a head: it was left open when its gate became full. A slice of the others that
    were left open with it is closed too.
    """
    row = _gates(tx, now, workload_id)
    if row is None or not any(row[rule] for rule in RULES):
        return False
    lane = {"lane_id": row["lane_id"]}
    if row["pool_full"]:
        tx.change(lanes.SHUT_POOL, {"demand_id": row["demand_id"]})
        lanes.close_pool(tx, row["tenant_id"], row["pool_id"])
    if row["key_full"]:
        tx.change(lanes.CONCURRENCY.shut, lane)
        lanes.close(tx, lanes.CONCURRENCY, row["concurrency_key"])
    if row["rate_full"]:
        rates.wait(tx, now, row["rate_key"])
        tx.change(lanes.RATE.shut, lane)
        lanes.close(tx, lanes.RATE, row["rate_key"])
    demands.withdraw(tx, row["lane_id"], row["demand_id"])
    return True


def pool_changed(tx: Tx, tenant_id: str, pool_id: str) -> None:
    """A pool was made, deleted, or got another ceiling: its demands close or open by it.

    Repeating is harmless. Work of a deleted pool stands open, yet nobody is a member.
    """
    pool = tx.row(POOL, {"tenant_id": tenant_id, "pool_id": pool_id})
    ceiling = None if pool is None or pool["deleted_at_ms"] is not None else pool["max_concurrency"]
    if pool is not None and ceiling is not None and pool["active"] >= ceiling:
        lanes.close_pool(tx, tenant_id, pool_id)
    else:
        _open_pool(tx, tenant_id, pool_id, lanes.at_once(tx))


def open_rest(tx: Tx, limit: int, now: Now) -> int:
    """Open what keys and pools that have room could not open at once, `limit` at most; how many."""
    opened = keys.open_rest(tx, limit)
    for pool in tx.rows(OPENING, {"limit": limit}):
        named = {"tenant_id": pool["tenant_id"], "pool_id": pool["pool_id"]}
        if pool["max_concurrency"] is not None and pool["active"] >= pool["max_concurrency"]:
            # Full again: the next end of a claim begins anew.
            tx.change(GO_ON, {**named, "opening": 0})
        elif opened < limit:
            opened += _open_pool(tx, pool["tenant_id"], pool["pool_id"], limit - opened)
    return opened


def _gates(tx: Tx, now: Now, workload_id: str) -> Row | None:
    return tx.row(FULL, {"workload_id": workload_id, "now_ms": now.lease_ms})


def _open_pool(tx: Tx, tenant_id: str, pool_id: str, limit: int) -> int:
    """Open up to `limit` demands; with more to open the keeper goes on."""
    opened = lanes.open_pool(tx, tenant_id, pool_id, limit)
    more = opened == limit
    tx.change(GO_ON, {"tenant_id": tenant_id, "pool_id": pool_id, "opening": int(more)})
    return opened

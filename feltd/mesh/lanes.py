"""Which lanes and demands stand open: a key or pool without room closes them, its next room opens.

A closed lane's work is no head of its demand, so that a pull never meets what it may not take. Who
closes or opens does a slice (see at_once) in his own transaction, work that is due first. What
is left open costs a pull one vain look, which closes a slice more; what is left closed the keeper
opens within a tick, where there still is room (see gates.py). The limits themselves are kept by
the statement that issues claims.
"""

from typing import NamedTuple

from feltd.clock import Now
from feltd.store.tx import Row, Tx

#: Lanes one claim or its end closes or opens, some 0.5 ms: a key may stand in thousands, and where
#: it is full again at once there is no use in opening all of them.
LANES_AT_ONCE = 64
#: And one in a batch that has run so many statements: 256 keys with 64 lanes each took 200 ms.
LANES_FEW = 4
STATEMENTS_MANY = 2_000
#: Where in tx.memo stands which lane was looked at last.
PRUNED = "lanes.pruned"

REHEAD = """
UPDATE demands
   SET (head_rank, head_seq) = (SELECT l.head_rank, l.head_seq
                                  FROM lanes l
                                 WHERE l.demand_id = :demand_id
                                   AND demands.pool_open = 1
                                   AND l.head_rank IS NOT NULL
                                   AND l.concurrency_open = 1
                                   AND l.rate_open = 1
                                 ORDER BY l.head_rank, l.head_seq
                                 LIMIT 1)
 WHERE demand_id = :demand_id
"""

# A new lane of a key without room begins closed, or nobody would ever close it.
MAKE = """
INSERT INTO lanes (demand_id, concurrency_key, rate_key, concurrency_open, rate_open)
VALUES (:demand_id, :concurrency_key, :rate_key,
        CASE WHEN EXISTS (SELECT 1
                            FROM concurrency_keys c
                           WHERE c.key_seq = :concurrency_key
                             AND c.active >= c.claims_max) THEN 0 ELSE 1 END,
        CASE WHEN EXISTS (SELECT 1
                            FROM rate_keys r
                           WHERE r.key_seq = :rate_key
                             AND r.opens_at_ms IS NOT NULL) THEN 0 ELSE 1 END)
RETURNING lane_id
"""

CLOSE_OF_CONCURRENCY = """
UPDATE lanes
   SET concurrency_open = 0
 WHERE lane_id IN (SELECT l.lane_id
                     FROM lanes l
                    WHERE l.concurrency_key = :key_seq
                      AND l.concurrency_key > 0
                      AND l.concurrency_open = 1
                      AND l.head_rank IS NOT NULL
                    ORDER BY l.head_rank, l.head_seq
                    LIMIT :limit)
RETURNING demand_id
"""

CLOSE_OF_RATE = """
UPDATE lanes
   SET rate_open = 0
 WHERE lane_id IN (SELECT l.lane_id
                     FROM lanes l
                    WHERE l.rate_key = :key_seq
                      AND l.rate_key > 0
                      AND l.rate_open = 1
                      AND l.head_rank IS NOT NULL
                    ORDER BY l.head_rank, l.head_seq
                    LIMIT :limit)
RETURNING demand_id
"""

CLOSE_OF_POOL = """
UPDATE demands
   SET pool_open = 0,
       head_rank = NULL,
       head_seq = NULL
 WHERE demand_id IN (SELECT d.demand_id
                       FROM demands d
                      WHERE d.tenant_id = :tenant_id
                        AND d.pool_id = :pool_id
                        AND d.pool_open = 1
                        AND d.head_rank IS NOT NULL
                      ORDER BY d.head_rank, d.head_seq
                      LIMIT :limit)
"""

# Due work comes before lanes that are idle, which nobody waits for.
OPEN_DUE_OF_CONCURRENCY = """
UPDATE lanes
   SET concurrency_open = 1
 WHERE lane_id IN (SELECT l.lane_id
                     FROM lanes l
                    WHERE l.concurrency_key = :key_seq
                      AND l.concurrency_key > 0
                      AND l.concurrency_open = 0
                      AND l.head_rank IS NOT NULL
                    ORDER BY l.head_rank, l.head_seq
                    LIMIT :limit)
RETURNING demand_id
"""

OPEN_IDLE_OF_CONCURRENCY = """
UPDATE lanes
   SET concurrency_open = 1
 WHERE lane_id IN (SELECT l.lane_id
                     FROM lanes l
                    WHERE l.concurrency_key = :key_seq
                      AND l.concurrency_key > 0
                      AND l.concurrency_open = 0
                      AND l.head_rank IS NULL
                    LIMIT :limit)
RETURNING demand_id
"""

OPEN_DUE_OF_RATE = """
UPDATE lanes
   SET rate_open = 1
 WHERE lane_id IN (SELECT l.lane_id
                     FROM lanes l
                    WHERE l.rate_key = :key_seq
                      AND l.rate_key > 0
                      AND l.rate_open = 0
                      AND l.head_rank IS NOT NULL
                    ORDER BY l.head_rank, l.head_seq
                    LIMIT :limit)
RETURNING demand_id
"""

OPEN_IDLE_OF_RATE = """
UPDATE lanes
   SET rate_open = 1
 WHERE lane_id IN (SELECT l.lane_id
                     FROM lanes l
                    WHERE l.rate_key = :key_seq
                      AND l.rate_key > 0
                      AND l.rate_open = 0
                      AND l.head_rank IS NULL
                    LIMIT :limit)
RETURNING demand_id
"""

OPEN_OF_POOL = """
UPDATE demands
   SET pool_open = 1
 WHERE demand_id IN (SELECT d.demand_id
                       FROM demands d
                      WHERE d.tenant_id = :tenant_id
                        AND d.pool_id = :pool_id
                        AND d.pool_open = 0
                      LIMIT :limit)
RETURNING demand_id, tenant_id, application_id
"""

SHUT_CONCURRENCY = """
UPDATE lanes
   SET concurrency_open = 0
 WHERE lane_id = :lane_id
"""

SHUT_RATE = """
UPDATE lanes
   SET rate_open = 0
 WHERE lane_id = :lane_id
"""

SHUT_POOL = """
UPDATE demands
   SET pool_open = 0
 WHERE demand_id = :demand_id
"""

LOOKED_AT = """
SELECT l.lane_id,
       l.concurrency_key + l.rate_key > 0
       AND NOT EXISTS (SELECT 1
                         FROM workloads w
                        WHERE w.demand_id = l.demand_id
                          AND w.lane_id = l.lane_id) AS dead
  FROM lanes l
 WHERE l.lane_id > :after
 ORDER BY l.lane_id
 LIMIT :limit
"""

DROP = """
DELETE FROM lanes
 WHERE lane_id = :lane_id
"""


class Kind(NamedTuple):
    """One of the two kinds of keys: how its lanes are closed, opened, and one of them shut."""

    close: str
    open: tuple[str, str]
    shut: str


CONCURRENCY = Kind(
    CLOSE_OF_CONCURRENCY, (OPEN_DUE_OF_CONCURRENCY, OPEN_IDLE_OF_CONCURRENCY), SHUT_CONCURRENCY
)
RATE = Kind(CLOSE_OF_RATE, (OPEN_DUE_OF_RATE, OPEN_IDLE_OF_RATE), SHUT_RATE)


def make(tx: Tx, demand_id: int, *, concurrency_key: int, rate_key: int) -> int:
    """A new lane of a demand for a pair of keys (0: none); its id."""
    lane = {"demand_id": demand_id, "concurrency_key": concurrency_key, "rate_key": rate_key}
    return int(tx.rows(MAKE, lane)[0]["lane_id"])


def at_once(tx: Tx) -> int:
    """How many lanes or demands one claim or its end may close or open in this batch."""
    return LANES_AT_ONCE if tx.statements < STATEMENTS_MANY else LANES_FEW


def rehead(tx: Tx, demand_id: int) -> None:
    """Find the head of a demand again: the best of its open lanes, none while its pool is full."""
    tx.change(REHEAD, {"demand_id": demand_id})


def close(tx: Tx, kind: Kind, key_seq: int) -> None:
    """A key has no room: close the slice of its lanes whose due work is best."""
    closed = tx.rows(kind.close, {"key_seq": key_seq, "limit": at_once(tx)})
    for demand_id in dict.fromkeys(row["demand_id"] for row in closed):
        rehead(tx, demand_id)


def open_up(tx: Tx, kind: Kind, key_seq: int, limit: int) -> int:
    """A key has room: open up to `limit` of its closed lanes, due work first; how many."""
    opened: list[Row] = []
    for some in kind.open:
        if len(opened) < limit:
            opened += tx.rows(some, {"key_seq": key_seq, "limit": limit - len(opened)})
    for demand_id in dict.fromkeys(row["demand_id"] for row in opened):
        rehead(tx, demand_id)
    return len(opened)


def close_pool(tx: Tx, tenant_id: str, pool_id: str) -> None:
    """A pool is at its ceiling: close the slice of its demands whose due work is best."""
    pool = {"tenant_id": tenant_id, "pool_id": pool_id}
    tx.change(CLOSE_OF_POOL, {**pool, "limit": at_once(tx)})


def open_pool(tx: Tx, tenant_id: str, pool_id: str, limit: int) -> int:
    """A pool has room: open up to `limit` of its closed demands and wake who waits; how many."""
    pool = {"tenant_id": tenant_id, "pool_id": pool_id}
    opened = tx.rows(OPEN_OF_POOL, {**pool, "limit": limit})
    for row in opened:
        rehead(tx, row["demand_id"])
        tx.tell("ready", f"{row['tenant_id']}/{row['application_id']}")
    return len(opened)


def prune(tx: Tx, limit: int, now: Now) -> int:
    """Delete lanes of keys that no live workload stands in; looks at `limit`, goes on next time.

    Gives how many were deleted. Where it stopped is kept in tx.memo: lost, it begins anew.
    """
    looked = tx.rows(LOOKED_AT, {"after": tx.memo.get(PRUNED, 0), "limit": limit})
    tx.memo[PRUNED] = looked[-1]["lane_id"] if len(looked) == limit else 0
    return sum(tx.change(DROP, {"lane_id": row["lane_id"]}) for row in looked if row["dead"])

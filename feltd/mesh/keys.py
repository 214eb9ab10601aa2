"""Concurrency keys: work of one key has at most `claims_max` live claims, in whatever demands.

The count stands beside the claims: the statement that issues a claim tests it, `enter` and `leave`
keep it, nothing else may. The newest limit that any work names holds for all of the key; a lower
one blocks new claims only. Never decides who is given work.
"""

from collections.abc import Mapping

from feltd.clock import Now
from feltd.mesh import lanes
from feltd.model.policy import Concurrency
from feltd.store.tx import Tx

#: Where in tx.memo stands which key was looked at last.
PRUNED = "keys.pruned"

FIND = """
SELECT c.key_seq, c.claims_max, c.active
  FROM concurrency_keys c
 WHERE c.tenant_id = :tenant_id
   AND c.application_id = :application_id
   AND c.name = :name
"""

MAKE = """
INSERT INTO concurrency_keys (tenant_id, application_id, name, claims_max)
VALUES (:tenant_id, :application_id, :name, :claims_max)
RETURNING key_seq
"""

LIMIT = """
UPDATE concurrency_keys
   SET claims_max = :claims_max,
       changed_token = (SELECT coalesce(max(c.fencing_token), 0) FROM claims c)
 WHERE key_seq = :key_seq
"""

ENTER = """
UPDATE concurrency_keys
   SET active = active + 1
 WHERE key_seq = :key_seq
RETURNING active, claims_max
"""

LEAVE = """
UPDATE concurrency_keys
   SET active = active - 1
 WHERE key_seq = :key_seq
RETURNING active, claims_max, tenant_id, application_id
"""

GO_ON = """
UPDATE concurrency_keys
   SET opening = :opening
 WHERE key_seq = :key_seq
   AND opening <> :opening
"""

OPENING = """
SELECT c.key_seq, c.tenant_id, c.application_id, c.active, c.claims_max
  FROM concurrency_keys c
 WHERE c.opening = 1
 ORDER BY c.key_seq
 LIMIT :limit
"""

LOOKED_AT = """
SELECT c.key_seq,
       c.active = 0
       AND NOT EXISTS (SELECT 1
                         FROM lanes l
                        WHERE l.concurrency_key = c.key_seq
                          AND l.concurrency_key > 0) AS dead
  FROM concurrency_keys c
 WHERE c.key_seq > :after
 ORDER BY c.key_seq
 LIMIT :limit
"""

DROP = """
DELETE FROM concurrency_keys
 WHERE key_seq = :key_seq
"""


def find(tx: Tx, owner: Mapping[str, str], asked: Concurrency | None) -> int:
    """The key that work of an application names, made when it is new; 0 for none.

    Another limit than it has becomes its limit from now on, and its lanes close or open by it.
    """
    if asked is None:
        return 0
    key = {**owner, "name": asked.key, "claims_max": asked.limit}
    found = tx.row(FIND, key)
    if found is None:
        return int(tx.rows(MAKE, key)[0]["key_seq"])
    key_seq = int(found["key_seq"])
    if found["claims_max"] != asked.limit:
        tx.change(LIMIT, {"key_seq": key_seq, "claims_max": asked.limit})
        if found["active"] >= asked.limit:
            lanes.close(tx, lanes.CONCURRENCY, key_seq)
        elif found["active"] >= found["claims_max"]:
            _open(tx, key_seq, owner, lanes.at_once(tx))
    return key_seq


def enter(tx: Tx, key_seq: int) -> None:
    """A claim of the key was issued: count it, and close its lanes when it was the last one."""
    count = tx.rows(ENTER, {"key_seq": key_seq})[0]
    if count["active"] >= count["claims_max"]:
        lanes.close(tx, lanes.CONCURRENCY, key_seq)


def leave(tx: Tx, key_seq: int) -> None:
    """A claim of the key has ended: count it, and open its lanes when that makes room."""
    count = tx.rows(LEAVE, {"key_seq": key_seq})[0]
    if count["active"] == count["claims_max"] - 1:
        owner = {name: count[name] for name in ("tenant_id", "application_id")}
        _open(tx, key_seq, owner, lanes.at_once(tx))


def open_rest(tx: Tx, limit: int) -> int:
    """Open up to `limit` lanes of keys that have room and more closed lanes; how many."""
    opened = 0
    for key in tx.rows(OPENING, {"limit": limit}):
        if key["active"] >= key["claims_max"]:
            # Full again: the next end of a claim begins anew.
            tx.change(GO_ON, {"key_seq": key["key_seq"], "opening": 0})
        elif opened < limit:
            owner = {name: key[name] for name in ("tenant_id", "application_id")}
            opened += _open(tx, key["key_seq"], owner, limit - opened)
    return opened


def prune(tx: Tx, limit: int, now: Now) -> int:
    """Delete keys without live claims and lanes; looks at `limit` of them, goes on next time.

    Gives how many were deleted. Where it stopped is kept in tx.memo: lost, it begins anew.
    """
    looked = tx.rows(LOOKED_AT, {"after": tx.memo.get(PRUNED, 0), "limit": limit})
    tx.memo[PRUNED] = looked[-1]["key_seq"] if len(looked) == limit else 0
    return sum(tx.change(DROP, {"key_seq": row["key_seq"]}) for row in looked if row["dead"])


def _open(tx: Tx, key_seq: int, owner: Mapping[str, str], limit: int) -> int:
    """Open up to `limit` lanes and wake who waits; with more to open the keeper goes on."""
    opened = lanes.open_up(tx, lanes.CONCURRENCY, key_seq, limit)
    more = opened == limit
    tx.change(GO_ON, {"key_seq": key_seq, "opening": int(more)})
    if opened:
        tx.tell("ready", f"{owner['tenant_id']}/{owner['application_id']}")
    return opened

"""Rate keys: work of one key is claimed at most `claims_max` times in any period_ms, exactly.

Each claim is a use with its instant. Use n may come when use n - claims_max is period_ms old or
gone, so a look at one row decides. The newest limit and period that any work names hold for all of
the key from then on. Nothing but the keeper opens its lanes, at the instant the next use may come.
"""

from collections.abc import Mapping

from feltd.clock import Now
from feltd.mesh import lanes
from feltd.model.policy import Rate
from feltd.store.tx import Row, Tx

#: Uses too old to matter that one claim deletes: after a limit was lowered they go bit by bit.
FORGOTTEN_AT_ONCE = 64
#: Where in tx.memo stands which key was looked at last.
PRUNED = "rates.pruned"

FIND = """
SELECT r.key_seq, r.claims_max, r.period_ms
  FROM rate_keys r
 WHERE r.tenant_id = :tenant_id
   AND r.application_id = :application_id
   AND r.name = :name
"""

MAKE = """
INSERT INTO rate_keys (tenant_id, application_id, name, claims_max, period_ms)
VALUES (:tenant_id, :application_id, :name, :claims_max, :period_ms)
RETURNING key_seq
"""

# What the new limit means for its lanes the keeper finds out at once, by the clock.
LIMIT = """
UPDATE rate_keys
   SET claims_max = :claims_max,
       period_ms = :period_ms,
       changed_use = uses,
       opens_at_ms = (SELECT g.lease_ms FROM ledger g WHERE g.id = 1)
 WHERE key_seq = :key_seq
"""

ENTER = """
UPDATE rate_keys
   SET uses = uses + 1
 WHERE key_seq = :key_seq
RETURNING uses, claims_max
"""

NOTE = """
INSERT INTO rate_uses (key_seq, number, at_ms)
VALUES (:key_seq, :number, :at_ms)
"""

FORGET = """
DELETE FROM rate_uses
 WHERE key_seq = :key_seq
   AND number IN (SELECT u.number
                    FROM rate_uses u
                   WHERE u.key_seq = :key_seq
                     AND u.number < :number - :claims_max
                   ORDER BY u.number
                   LIMIT :limit)
"""

OPENS_AT = """
SELECT u.at_ms + r.period_ms AS opens_at_ms
  FROM rate_keys r
  JOIN rate_uses u ON u.key_seq = r.key_seq AND u.number = r.uses + 1 - r.claims_max
 WHERE r.key_seq = :key_seq
   AND u.at_ms > :now_ms - r.period_ms
"""

OPENS = """
UPDATE rate_keys
   SET opens_at_ms = :opens_at_ms
 WHERE key_seq = :key_seq
"""

DUE = """
SELECT r.key_seq, r.tenant_id, r.application_id
  FROM rate_keys r
 WHERE r.opens_at_ms <= :now_ms
 ORDER BY r.opens_at_ms, r.key_seq
 LIMIT :limit
"""

NEXT_DUE = """
SELECT r.opens_at_ms
  FROM rate_keys r
 WHERE r.opens_at_ms IS NOT NULL
 ORDER BY r.opens_at_ms, r.key_seq
 LIMIT 1
"""

# A key that is forgotten within its period would be made anew with all its room.
LOOKED_AT = """
SELECT r.key_seq,
       NOT EXISTS (SELECT 1
                     FROM lanes l
                    WHERE l.rate_key = r.key_seq
                      AND l.rate_key > 0)
       AND NOT EXISTS (SELECT 1
                         FROM rate_uses u
                        WHERE u.key_seq = r.key_seq
                          AND u.number = r.uses
                          AND u.at_ms > :now_ms - r.period_ms) AS dead
  FROM rate_keys r
 WHERE r.key_seq > :after
 ORDER BY r.key_seq
 LIMIT :limit
"""

DROP_USES = """
DELETE FROM rate_uses
 WHERE key_seq = :key_seq
   AND number IN (SELECT u.number
                    FROM rate_uses u
                   WHERE u.key_seq = :key_seq
                   ORDER BY u.number
                   LIMIT :limit)
"""

DROP = """
DELETE FROM rate_keys
 WHERE key_seq = :key_seq
"""


def find(tx: Tx, owner: Mapping[str, str], asked: Rate | None) -> int:
    """The key that work of an application names, made when it is new; 0 for none.

    Another limit or period than it has becomes its own from now on; claims that came before are
    counted as far as the former one remembered them.
    """
    if asked is None:
        return 0
    limit = {"claims_max": asked.limit, "period_ms": asked.period_ms}
    key = {**owner, "name": asked.key, **limit}
    found = tx.row(FIND, key)
    if found is None:
        return int(tx.rows(MAKE, key)[0]["key_seq"])
    key_seq = int(found["key_seq"])
    if any(found[name] != value for name, value in limit.items()):
        tx.change(LIMIT, {"key_seq": key_seq, **limit})
        tx.tell("rate", "0")
    return key_seq


def enter(tx: Tx, now: Now, key_seq: int) -> None:
    """A claim of the key was issued: note the use, and close its lanes when the next must wait."""
    count = tx.rows(ENTER, {"key_seq": key_seq})[0]
    number, claims_max = count["uses"], count["claims_max"]
    tx.change(NOTE, {"key_seq": key_seq, "number": number, "at_ms": now.lease_ms})
    if number > claims_max:
        tx.change(
            FORGET,
            {
                "key_seq": key_seq,
                "number": number,
                "claims_max": claims_max,
                "limit": FORGOTTEN_AT_ONCE,
            },
        )
    if wait(tx, now, key_seq):
        lanes.close(tx, lanes.RATE, key_seq)


def open_rates(tx: Tx, limit: int, now: Now) -> tuple[int, int | None]:
    """Open the lanes of keys whose instant has come, `limit` at most, and wake who waits.

    Gives how many, and the lease time of the next key (in the past when the limit cut).
    """
    opened = looked = 0
    for key in tx.rows(DUE, {"now_ms": now.lease_ms, "limit": limit}):
        if opened + looked >= limit:
            break
        looked += 1
        opened += _open(tx, now, key, limit - opened)
    coming = tx.row(NEXT_DUE)
    return opened + looked, None if coming is None else int(coming["opens_at_ms"])


def prune(tx: Tx, limit: int, now: Now) -> int:
    """Delete keys without lanes whose last use is a period old; looks at `limit` and goes on.

    Gives how many were deleted. Where it stopped is kept in tx.memo: lost, it begins anew.
    """
    looked = tx.rows(
        LOOKED_AT,
        {"after": tx.memo.get(PRUNED, 0), "limit": limit, "now_ms": now.lease_ms},
    )
    tx.memo[PRUNED] = looked[-1]["key_seq"] if len(looked) == limit else 0
    dropped, left = 0, limit
    for row in looked:
        if row["dead"] and left > 0:
            uses = tx.change(DROP_USES, {"key_seq": row["key_seq"], "limit": left})
            left -= uses
            # Where the limit cut, the next tour finds the rest.
            dropped += tx.change(DROP, {"key_seq": row["key_seq"]}) if left > 0 else 0
    return dropped


def wait(tx: Tx, now: Now, key_seq: int) -> bool:
    """Whether the next use must wait; the instant it may come is noted, and the keeper told."""
    coming = tx.row(OPENS_AT, {"key_seq": key_seq, "now_ms": now.lease_ms})
    if coming is None:
        return False
    tx.change(OPENS, {"key_seq": key_seq, "opens_at_ms": coming["opens_at_ms"]})
    tx.tell("rate", str(coming["opens_at_ms"]))
    return True


def _open(tx: Tx, now: Now, key: Row, limit: int) -> int:
    if wait(tx, now, key["key_seq"]):
        return 0
    opened = lanes.open_up(tx, lanes.RATE, key["key_seq"], limit)
    if opened < limit:
        tx.change(OPENS, {"key_seq": key["key_seq"], "opens_at_ms": None})
    if opened:
        tx.tell("ready", f"{key['tenant_id']}/{key['application_id']}")
    return opened

"""Workers, worker keys and sessions that ended long ago.

A worker goes when it was removed, or is OFFLINE and silent past its time, and no claim of it is
kept any more. What an operator said of it outlives its silence: one that is quarantined, drained
until it is resumed, or listed by a pool stays until it is removed.
"""

from feltd.clock import Now
from feltd.identity.sessions import LIFE_MS
from feltd.model.compaction import Policy, Pruned
from feltd.state import places
from feltd.state.places import Place
from feltd.store.tx import Tx

NEXT_WORKERS = """
SELECT k.worker_id, k.registered_at_ms,
       k.lifecycle = 'OFFLINE'
       AND (k.removed_at_ms <= :before_ms
            OR (k.removed_at_ms IS NULL
                AND k.last_seen_at_ms <= :before_ms
                AND k.quarantined_by IS NULL
                AND k.drain_until IS NOT 'resumed'
                AND NOT EXISTS (SELECT 1
                                  FROM pools p
                                 WHERE p.tenant_id = k.tenant_id
                                   AND p.listed = 1
                                   AND p.deleted_at_ms IS NULL
                                   AND p.worker_ids LIKE '%"' || k.worker_id || '"%')))
       AND NOT EXISTS (SELECT 1
                         FROM claims c
                        WHERE c.worker_id = k.worker_id) AS ended
  FROM workers k
 WHERE (k.registered_at_ms, k.worker_id) > (:registered_at_ms, :worker_id)
   AND k.registered_at_ms <= :before_ms
 ORDER BY k.registered_at_ms, k.worker_id
 LIMIT :rows
"""

DROP_WORKER = """
DELETE FROM workers
 WHERE worker_id = :worker_id
"""

NEXT_KEYS = """
SELECT y.key_id, y.created_at_ms,
       y.worker_id IS NOT NULL
       AND (y.revoked_at_ms <= :before_ms OR y.expires_at_ms <= :before_ms)
       AND NOT EXISTS (SELECT 1
                         FROM keys o
                        WHERE o.obtained_by = y.key_id) AS ended
  FROM keys y
 WHERE (y.created_at_ms, y.key_id) > (:created_at_ms, :key_id)
   AND y.created_at_ms <= :before_ms
 ORDER BY y.created_at_ms, y.key_id
 LIMIT :rows
"""

DROP_KEY = """
DELETE FROM keys
 WHERE key_id = :key_id
"""


OLD_SESSIONS = """
SELECT s.session_id
  FROM sessions s
 WHERE s.created_at_ms <= :before_ms
 ORDER BY s.created_at_ms, s.session_id
 LIMIT :rows
"""

DROP_SESSION = """
DELETE FROM sessions
 WHERE session_id = :session_id
"""


def prune_workers(tx: Tx, limit: int, policy: Policy, now: Now) -> Pruned:
    """Look at up to `limit` workers, the oldest first, and take those that ended past their time.

    One that comes again under the name is new: it begins REGISTERED, its first incarnation.
    """
    if not policy.workers_ms:
        return Pruned({}, more=False)
    begun = places.read(tx, "workers")
    params = {"registered_at_ms": begun.seq, "worker_id": begun.part, "rows": limit}
    rows = tx.rows(NEXT_WORKERS, {**params, "before_ms": now.lease_ms - policy.workers_ms})
    gone = sum(
        tx.change(DROP_WORKER, {"worker_id": row["worker_id"]}) for row in rows if row["ended"]
    )
    more = len(rows) >= limit
    last = Place(part=rows[-1]["worker_id"], seq=rows[-1]["registered_at_ms"]) if more else None
    places.keep(tx, "workers", begun, last)
    return Pruned({"workers": gone} if gone else {}, more=more)


def prune_keys(tx: Tx, limit: int, policy: Policy, now: Now) -> Pruned:
    """Look at up to `limit` keys, the oldest first, and take worker keys that ended long ago.

    Their instants are wall time. A key that others were obtained with goes after them.
    """
    if not policy.keys_ms:
        return Pruned({}, more=False)
    begun = places.read(tx, "keys")
    params = {"created_at_ms": begun.seq, "key_id": begun.part, "rows": limit}
    rows = tx.rows(NEXT_KEYS, {**params, "before_ms": now.wall_ms - policy.keys_ms})
    ended = [row["key_id"] for row in rows if row["ended"]]
    for key_id in ended:
        tx.change(DROP_KEY, {"key_id": key_id})
        tx.tell("key", key_id)
    more = len(rows) >= limit
    last = Place(part=rows[-1]["key_id"], seq=rows[-1]["created_at_ms"]) if more else None
    places.keep(tx, "keys", begun, last)
    return Pruned({"keys": len(ended)} if ended else {}, more=more)


def prune_sessions(tx: Tx, limit: int, policy: Policy, now: Now) -> Pruned:
    """Take up to `limit` sessions, the oldest first, that ran out as long ago as keys are kept.

    Their instants are wall time. One that was ended early stays until it would have run out.
    """
    if not policy.keys_ms:
        return Pruned({}, more=False)
    before_ms = now.wall_ms - policy.keys_ms - LIFE_MS
    rows = tx.rows(OLD_SESSIONS, {"before_ms": before_ms, "rows": limit})
    for row in rows:
        tx.change(DROP_SESSION, {"session_id": row["session_id"]})
        tx.tell("key", row["session_id"])
    return Pruned({"sessions": len(rows)} if rows else {}, more=len(rows) >= limit)

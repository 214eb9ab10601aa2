"""What is left behind by what is gone: deleted records, tombstones, firings of triggers.

Each is kept for as long as somebody may still come with an old version, a key or a cursor. A
tombstone stays while a firing names its workload, and goes with it.
"""

from feltd.clock import Now
from feltd.model.compaction import Policy, Pruned
from feltd.state import places
from feltd.state.places import Place
from feltd.store.tx import Tx

# While changes of it are kept, the row tells how they go on.
OLD_RECORDS = """
SELECT r.record_seq, r.updated_at_ms,
       r.change_seq <= (SELECT l.floor_seq
                          FROM change_logs l
                         WHERE l.tenant_id = r.tenant_id) AS below
  FROM records r
 WHERE r.value IS NULL
   AND r.updated_at_ms >= :from_ms
   AND r.updated_at_ms <= :before_ms
 ORDER BY r.updated_at_ms, r.record_seq
 LIMIT :rows
"""

DROP_RECORD = """
DELETE FROM records
 WHERE record_seq = :record_seq
   AND value IS NULL
"""

# A change that is kept may not fire twice, so its firing stays, and then the tombstone too.
OLD_TOMBSTONES = """
SELECT t.tenant_id, t.application_id, t.idempotency_key, t.workload_id, t.at_ms,
       f.seq AS fired_seq,
       f.seq <= (SELECT l.floor_seq
                   FROM change_logs l
                  WHERE l.tenant_id = f.tenant_id) AS below,
       s.scheduled_at_ms
  FROM tombstones t
  LEFT JOIN trigger_firings f ON f.workload_id = t.workload_id
  LEFT JOIN schedule_firings s ON s.workload_id = t.workload_id
 WHERE t.at_ms >= :from_ms
   AND t.at_ms <= :before_ms
 ORDER BY t.at_ms, t.tenant_id, t.application_id, t.idempotency_key
 LIMIT :rows
"""

DROP_TOMBSTONE = """
DELETE FROM tombstones
 WHERE tenant_id = :tenant_id
   AND application_id = :application_id
   AND idempotency_key = :idempotency_key
"""

DROP_FIRING = """
DELETE FROM trigger_firings
 WHERE workload_id = :workload_id
"""

DROP_INSTANT = """
DELETE FROM schedule_firings
 WHERE workload_id = :workload_id
"""

RAISE_TOMBSTONES = """
UPDATE floors
   SET at_ms = max(at_ms, :at_ms)
 WHERE name = 'tombstones'
"""

FIRINGS = """
SELECT f.tenant_id, f.trigger_id, f.seq, f.workload_id,
       f.seq <= (SELECT l.floor_seq
                   FROM change_logs l
                  WHERE l.tenant_id = f.tenant_id) AS below
  FROM trigger_firings f
 WHERE (f.tenant_id, f.trigger_id, f.seq) > (:tenant_id, :trigger_id, :seq)
 ORDER BY f.tenant_id, f.trigger_id, f.seq
 LIMIT :rows
"""

DROP_TOO_DEEP = """
DELETE FROM trigger_firings
 WHERE tenant_id = :tenant_id
   AND trigger_id = :trigger_id
   AND seq = :seq
   AND workload_id IS NULL
"""

INSTANTS = """
SELECT f.tenant_id, f.trigger_id, f.scheduled_at_ms, f.by_hand, f.workload_id, f.at_ms
  FROM schedule_firings f
 WHERE (f.tenant_id, f.trigger_id, f.scheduled_at_ms) > (:tenant_id, :trigger_id, :seq)
 ORDER BY f.tenant_id, f.trigger_id, f.scheduled_at_ms
 LIMIT :rows
"""

DROP_OVERLAP = """
DELETE FROM schedule_firings
 WHERE tenant_id = :tenant_id
   AND trigger_id = :trigger_id
   AND scheduled_at_ms = :scheduled_at_ms
   AND by_hand = :by_hand
   AND workload_id IS NULL
"""

#: Of the firings that made nothing there are two walks, one behind the other.
OF_CHANGES = "firings"
OF_INSTANTS = "instants"


def prune_records(tx: Tx, limit: int, policy: Policy, now: Now) -> Pruned:
    """Take up to `limit` rows of records deleted long ago, once their last change is gone too."""
    if not policy.deleted_ms:
        return Pruned({}, more=False)
    begun = places.read(tx, "records")
    span = {"from_ms": begun.seq, "before_ms": now.lease_ms - policy.deleted_ms, "rows": limit}
    rows, gone = tx.rows(OLD_RECORDS, span), 0
    for row in rows:
        if row["below"]:
            gone += tx.change(DROP_RECORD, {"record_seq": row["record_seq"]})
    more = len(rows) >= limit
    last_ms = rows[-1]["updated_at_ms"] if rows else 0
    places.keep(tx, "records", begun, _behind(begun, last_ms, gone) if more else None)
    return Pruned({"records": gone} if gone else {}, more=more)


def prune_tombstones(tx: Tx, limit: int, policy: Policy, now: Now) -> Pruned:
    """Take up to `limit` tombstones past their time, with the firings that made their workloads."""
    if not policy.deleted_ms:
        return Pruned({}, more=False)
    begun = places.read(tx, "tombstones")
    span = {"from_ms": begun.seq, "before_ms": now.lease_ms - policy.deleted_ms, "rows": limit}
    rows, gone, firings = tx.rows(OLD_TOMBSTONES, span), 0, 0
    for row in rows:
        if row["fired_seq"] is not None:
            if not row["below"]:
                continue
            firings += tx.change(DROP_FIRING, {"workload_id": row["workload_id"]})
        if row["scheduled_at_ms"] is not None:
            firings += tx.change(DROP_INSTANT, {"workload_id": row["workload_id"]})
        gone += tx.change(DROP_TOMBSTONE, dict(row))
        gone_ms = row["at_ms"]
    if gone:
        tx.change(RAISE_TOMBSTONES, {"at_ms": gone_ms})
    last_ms = rows[-1]["at_ms"] if rows else 0
    more = len(rows) >= limit
    places.keep(tx, "tombstones", begun, _behind(begun, last_ms, gone) if more else None)
    counts = {"tombstones": gone, "firings": firings}
    return Pruned({table: n for table, n in counts.items() if n}, more=more)


def prune_firings(tx: Tx, limit: int, policy: Policy, now: Now) -> Pruned:
    """Take firings that made no workload: of changes that are gone, of instants past their time.

    A slice looks at up to `limit` firings.
    """
    begun = places.read(tx, OF_INSTANTS)
    if begun == places.BEGINNING:
        counts, more = _too_deep(tx, limit)
        if more:
            return Pruned(counts, more=True)
    else:
        counts = {}
    gone, more = _overlapping(tx, limit, begun, policy, now)
    if gone:
        counts["firings"] = counts.get("firings", 0) + gone
    return Pruned(counts, more=more)


def _too_deep(tx: Tx, limit: int) -> tuple[dict[str, int], bool]:
    begun = places.read(tx, OF_CHANGES)
    after = {"tenant_id": begun.tenant_id, "trigger_id": begun.part, "seq": begun.seq}
    rows, gone = tx.rows(FIRINGS, {**after, "rows": limit}), 0
    for row in rows:
        if row["workload_id"] is None and row["below"]:
            gone += tx.change(DROP_TOO_DEEP, dict(row))
    more = len(rows) >= limit
    last = rows[-1] if more else None
    place = None if last is None else Place(last["tenant_id"], last["trigger_id"], last["seq"])
    places.keep(tx, OF_CHANGES, begun, place)
    return ({"firings": gone} if gone else {}), more


def _overlapping(tx: Tx, limit: int, begun: Place, policy: Policy, now: Now) -> tuple[int, bool]:
    if not policy.workloads_ms:
        return 0, False
    after = {"tenant_id": begun.tenant_id, "trigger_id": begun.part, "seq": begun.seq}
    rows, gone = tx.rows(INSTANTS, {**after, "rows": limit}), 0
    before_ms = now.lease_ms - policy.workloads_ms
    for row in rows:
        if row["workload_id"] is None and row["at_ms"] <= before_ms:
            gone += tx.change(DROP_OVERLAP, dict(row))
    more = len(rows) >= limit
    last = rows[-1] if more else None
    place = (
        None
        if last is None
        else Place(last["tenant_id"], last["trigger_id"], last["scheduled_at_ms"])
    )
    places.keep(tx, OF_INSTANTS, begun, place)
    return gone, more


def _behind(begun: Place, last_ms: int, gone: int) -> Place:
    """Where a walk by instants goes on: at the last, or behind it when nothing moved there."""
    return Place(seq=last_ms if gone or last_ms > begun.seq else last_ms + 1)

"""How far each tenant's log of changes may be cut, and the cutting.

A change goes when it is past its time and nobody needs it: no enabled trigger that has still to
judge it, none that was disabled less than seven days ago, no consumer that may still ask for it. A
consumer is given up, in the open, when the row it keeps is past its limit as well. Floor and rows
move in one transaction, so the log above the floor is whole at every instant.
"""

from collections.abc import Iterator

from feltd.clock import Now
from feltd.identity import audit
from feltd.model.compaction import Floor, Held, Policy, Pruned
from feltd.state import places
from feltd.store.tx import Row, Tx

#: A disabled trigger holds its log so long, from the instant it was disabled.
DISABLED_HOLD_MS = 7 * 86_400_000
#: Changes taken at a time: each may have a value of a megabyte twice.
ROWS_AT_ONCE = 20
#: A slice ends once the values it took are so many characters: each page of them is freed alone.
VALUES_MAX = 1024 * 1024
#: Logs looked at in one slice: each costs a handful of seeks.
LOGS_MAX = 50
#: The walk's place, and the name a floor of retention goes by.
WALK = "changes"
RETENTION = "retention"

NEXT_LOG = """
SELECT l.tenant_id, l.head_seq, l.floor_seq
  FROM change_logs l
 WHERE l.tenant_id > :after
 ORDER BY l.tenant_id
 LIMIT 1
"""

LOG = """
SELECT l.tenant_id, l.head_seq, l.floor_seq
  FROM change_logs l
 WHERE l.tenant_id = :tenant_id
"""

CHANGED_AT = """
SELECT c.at_ms
  FROM changes c
 WHERE c.tenant_id = :tenant_id
   AND c.seq = :seq
"""

SLOWEST_ENABLED = """
SELECT t.trigger_id, t.cursor_seq
  FROM triggers t
 WHERE t.tenant_id = :tenant_id
   AND t.kind = 'state'
   AND t.enabled = 1
 ORDER BY t.cursor_seq, t.trigger_id
 LIMIT 1
"""

SLOWEST_DISABLED = """
SELECT t.trigger_id, t.cursor_seq
  FROM triggers t
 WHERE t.tenant_id = :tenant_id
   AND t.kind = 'state'
   AND t.enabled = 0
   AND t.disabled_at_ms > :held_since_ms
   AND t.cursor_seq >= :floor_seq
 ORDER BY t.cursor_seq, t.trigger_id
 LIMIT 1
"""

CONSUMERS_BEHIND = """
SELECT c.name, c.ack_seq
  FROM consumers c
 WHERE c.tenant_id = :tenant_id
   AND c.dropped_at_ms IS NULL
   AND c.ack_seq < :seq
 ORDER BY c.ack_seq, c.name
"""

DROP = """
UPDATE consumers
   SET dropped_at_ms = :now_ms
 WHERE tenant_id = :tenant_id
   AND name = :name
   AND dropped_at_ms IS NULL
"""

RAISE = """
UPDATE change_logs
   SET floor_seq = :seq,
       floor_at_ms = :at_ms
 WHERE tenant_id = :tenant_id
"""

TAKE = """
DELETE FROM changes
 WHERE tenant_id = :tenant_id
   AND seq <= :seq
RETURNING ifnull(length(before), 0) + ifnull(length(after), 0) AS chars
"""


def plan(tx: Tx, tenant_id: str, now: Now, policy: Policy) -> Floor:
    """How far the log of a tenant may be cut now, and who holds it there. Only reads.

    Triggers are never overtaken while enabled, nor for DISABLED_HOLD_MS after they were disabled.
    `drops` are the consumers whose oldest row is past both the retention and their limit and that
    alone keep the log from being cut further.
    """
    log = tx.row(LOG, {"tenant_id": tenant_id})
    if log is None:
        return Floor(tenant_id, 0, 0, 0, 0, (), ())
    return _planned(tx, log, now, policy)


def prune(tx: Tx, limit: int, policy: Policy, now: Now) -> Pruned:
    """Cut the logs by up to `limit` changes, one tenant after the other; drop who is given up.

    Goes on where the last slice ended. Repeating with nothing past its time writes nothing.
    """
    if not policy.changes_ms:
        return Pruned({}, more=False)
    begun = places.read(tx, WALK)
    after, taken = begun.tenant_id, 0
    for _ in range(LOGS_MAX):
        log = tx.row(NEXT_LOG, {"after": after})
        if log is None:
            places.keep(tx, WALK, begun, None)
            return Pruned({"changes": taken} if taken else {}, more=False)
        floor = _planned(tx, log, now, policy)
        for name in floor.drops:
            _drop(tx, now, floor, name)
        cut, ended = _cut(tx, floor, limit - taken)
        taken += cut
        if not ended or taken >= limit:
            break
        after = log["tenant_id"]
    places.keep(tx, WALK, begun, places.Place(after))
    return Pruned({"changes": taken} if taken else {}, more=True)


def floors(tx: Tx, now: Now, policy: Policy, logs_max: int) -> Iterator[Floor]:
    """The plan of each log in turn, of `logs_max` at most: for a dry run."""
    after = ""
    for _ in range(logs_max):
        log = tx.row(NEXT_LOG, {"after": after})
        if log is None:
            return
        yield _planned(tx, log, now, policy)
        after = log["tenant_id"]


def _planned(tx: Tx, log: Row, now: Now, policy: Policy) -> Floor:
    tenant_id, floor_seq, head_seq = log["tenant_id"], log["floor_seq"], log["head_seq"]
    past_seq = floor_seq
    if policy.changes_ms:
        past_seq = _last_before(tx, log, floor_seq, now.lease_ms - policy.changes_ms)
    held = [Held(RETENTION, past_seq)]
    if past_seq > floor_seq:
        held += _triggers(tx, tenant_id, floor_seq, now)
    seq = min(one.seq for one in held)
    drops: list[str] = []
    if seq > floor_seq:
        limit_ms = max(policy.changes_ms, policy.consumer_limit_ms)
        # Without a limit nobody is given up.
        dropped_seq = (
            _last_before(tx, log, floor_seq, now.lease_ms - limit_ms)
            if policy.consumer_limit_ms
            else floor_seq
        )
        for row in tx.rows(CONSUMERS_BEHIND, {"tenant_id": tenant_id, "seq": seq}):
            if row["ack_seq"] < dropped_seq:
                drops.append(row["name"])
            else:
                held.append(Held(f"consumer:{row['name']}", row["ack_seq"]))
        seq = min(one.seq for one in held)
    held.sort(key=lambda one: (one.seq, one.by))
    return Floor(
        tenant_id, head_seq, floor_seq, past_seq, max(seq, floor_seq), tuple(held), tuple(drops)
    )


def _triggers(tx: Tx, tenant_id: str, floor_seq: int, now: Now) -> list[Held]:
    params = {
        "tenant_id": tenant_id,
        "floor_seq": floor_seq,
        "held_since_ms": now.lease_ms - DISABLED_HOLD_MS,
    }
    slowest = (tx.row(SLOWEST_ENABLED, params), tx.row(SLOWEST_DISABLED, params))
    return [
        Held(f"trigger:{row['trigger_id']}", row["cursor_seq"])
        for row in slowest
        if row is not None
    ]


def _last_before(tx: Tx, log: Row, low: int, before_ms: int) -> int:
    """The last change at or before an instant; `low` where that is gone or there is none.

    Numbers have no gap and lease time never steps back, so it is found by doubling, then halving:
    most logs have nothing to cut, which the first step tells.
    """

    def is_past(seq: int) -> bool:
        row = tx.row(CHANGED_AT, {"tenant_id": log["tenant_id"], "seq": seq})
        return row is not None and bool(row["at_ms"] <= before_ms)

    high, step = int(log["head_seq"]), 1
    while low + step <= high and is_past(low + step):
        low, step = low + step, step * 2
    high = min(high, low + step - 1)
    while low < high:
        middle = (low + high + 1) // 2
        if is_past(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _drop(tx: Tx, now: Now, floor: Floor, name: str) -> None:
    """Give a consumer up: it is told CHANGES_COMPACTED from here on."""
    params = {"tenant_id": floor.tenant_id, "name": name, "now_ms": now.lease_ms}
    if tx.change(DROP, params):
        audit.act(
            tx,
            now,
            "service:feltd",
            "drop_consumer",
            f"{floor.tenant_id}/{name}",
            reason=f"it kept changes after {floor.floor_seq} past its limit",
        )


def _cut(tx: Tx, floor: Floor, limit: int) -> tuple[int, bool]:
    """Raise the floor step by step and take what lies below it.

    How many changes went, and whether that was all of the plan.
    """
    at, taken, chars = floor.floor_seq, 0, 0
    while at < floor.seq and taken < limit and chars < VALUES_MAX:
        at = min(floor.seq, at + min(ROWS_AT_ONCE, limit - taken))
        params = {"tenant_id": floor.tenant_id, "seq": at}
        row = tx.row(CHANGED_AT, params)
        tx.change(RAISE, {**params, "at_ms": 0 if row is None else row["at_ms"]})
        gone = tx.rows(TAKE, params)
        taken += len(gone)
        chars += sum(one["chars"] for one in gone)
    return taken, at >= floor.seq

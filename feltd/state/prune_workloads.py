"""Whole workloads that have ended long ago: each goes at once, with its claims, and leaves a
tombstone of its key.

None goes while unfinished work names it or its group, or while work of its group is unfinished; a
dead letter counts as unfinished, for it may be brought back. A group that failed is remembered as
failed as long as it has a row.
"""

from sqlite3 import IntegrityError

from feltd.clock import Now
from feltd.mesh import parents
from feltd.model.compaction import Policy, Pruned
from feltd.state import places
from feltd.state.places import Place
from feltd.store.tx import Row, Tx

WALK = "workloads"
WALK_OF_GROUPS = "groups"
#: Workloads read at a time.
ROWS_AT_ONCE = 25
#: Stretches (one state of one tenant) begun in one slice: each costs a seek.
STRETCHES_MAX = 100
#: A slice ends once inputs and outputs it took are so many characters.
VALUES_MAX = 1024 * 1024
#: Edges looked at together.
EDGES_AT_ONCE = 64

NEXT_TENANT = """
SELECT w.tenant_id
  FROM workloads w
 WHERE w.tenant_id > :after
 ORDER BY w.tenant_id
 LIMIT 1
"""

CANDIDATES = """
SELECT w.seq, w.workload_id, w.tenant_id, w.application_id, w.idempotency_key, w.state,
       w.group_name, w.result_id, w.body_sha256, w.created_at_ms, w.finished_at_ms,
       w.attempt_number
  FROM workloads w
 WHERE w.tenant_id = :tenant_id
   AND w.state = :state
   AND w.seq > :after
 ORDER BY w.seq
 LIMIT :rows
"""

CHILDREN = """
SELECT e.child_seq, c.state
  FROM dependency_edges e
  JOIN workloads c ON c.seq = e.child_seq
 WHERE e.parent = :parent
 ORDER BY e.child_seq
 LIMIT :rows
"""

FORGET_CHILDREN = """
DELETE FROM dependency_edges
 WHERE parent = :parent
   AND child_seq <= :last_seq
"""

GROUP = """
SELECT g.sealed_at_ms,
       EXISTS (SELECT 1
                 FROM workloads w
                WHERE w.tenant_id = :tenant_id
                  AND w.group_name = :name
                  AND w.state IN ('PENDING', 'READY', 'CLAIMED', 'RUNNING', 'CHECKPOINTED')
              ) AS unfinished,
       EXISTS (SELECT 1
                 FROM workloads w
                WHERE w.tenant_id = :tenant_id
                  AND w.group_name = :name
                  AND w.state = 'DEAD_LETTERED') AS dead,
       EXISTS (SELECT 1
                 FROM workloads w
                WHERE w.tenant_id = :tenant_id
                  AND w.group_name = :name
                  AND w.state = 'COMPLETED') AS completed,
       (SELECT count(*)
          FROM (SELECT 1
                  FROM workloads w
                 WHERE w.tenant_id = :tenant_id
                   AND w.group_name = :name
                   AND w.state IN ('DEAD_LETTERED', 'CANCELLED')
                 LIMIT 2)) AS failed
  FROM workload_groups g
 WHERE g.tenant_id = :tenant_id
   AND g.name = :name
"""

DROP_LOGS = """
DELETE FROM claim_logs
 WHERE seq IN (SELECT l.seq
                 FROM claim_logs l
                WHERE l.workload_id = :workload_id
                ORDER BY l.seq
                LIMIT :rows)
"""

DROP_CLAIMS = """
DELETE FROM claims
 WHERE workload_id = :workload_id
"""

LAY_TOMBSTONE = """
INSERT INTO tombstones (tenant_id, application_id, idempotency_key, workload_id, state, result_id,
                        body_sha256, at_ms)
VALUES (:tenant_id, :application_id, :idempotency_key, :workload_id, :state, :result_id,
        :body_sha256, :now_ms)
"""

DROP = """
DELETE FROM workloads
 WHERE seq = :seq
RETURNING length(input) + ifnull(length(output), 0) AS chars
"""

DROP_GROUP = """
DELETE FROM workload_groups
 WHERE tenant_id = :tenant_id
   AND name = :name
"""

RAISE_FLOOR = """
UPDATE floors
   SET seq = max(seq, :seq),
       at_ms = max(at_ms, :at_ms)
 WHERE name = 'workloads'
"""

# One of the tenant and name behind the last, with whether anything still is of it or names it.
NEXT_GROUPS = """
SELECT g.tenant_id, g.name, g.created_at_ms, g.sealed_at_ms,
       EXISTS (SELECT 1
                 FROM workloads w
                WHERE w.tenant_id = g.tenant_id
                  AND w.group_name = g.name) AS members
  FROM workload_groups g
 WHERE (g.tenant_id, g.name) > (:tenant_id, :name)
 ORDER BY g.tenant_id, g.name
 LIMIT :rows
"""


def prune(tx: Tx, limit: int, policy: Policy, now: Now) -> Pruned:
    """Clear ended workloads past their time, oldest first, up to about `limit` rows of all tables.

    A workload and its claims go in one savepoint. One that the schema will not let go is skipped
    and named. Goes on where the last slice ended; nothing past its time: nothing is written.
    """
    keeping = {
        "COMPLETED": policy.workloads_ms,
        "CANCELLED": policy.workloads_ms,
        "DEAD_LETTERED": policy.dead_letters_ms,
    }
    states = [state for state, kept_ms in keeping.items() if kept_ms]
    begun = places.read(tx, WALK)
    walk = _Walk(tx, now, limit)
    place: Place | None = begun
    for _ in range(STRETCHES_MAX):
        place = _stretch(tx, place, states)
        if place is None:
            break
        place = walk.along(place, now.lease_ms - keeping[place.part])
        if walk.full:
            break
    places.keep(tx, WALK, begun, place)
    if walk.last_seq:
        tx.change(RAISE_FLOOR, {"seq": walk.last_seq, "at_ms": walk.last_at_ms})
    counts = {"workloads": walk.gone, "claims": walk.claims, "claim_logs": walk.logs}
    return Pruned(
        {table: rows for table, rows in counts.items() if rows},
        more=place is not None,
        skipped=tuple(walk.skipped),
    )


def prune_groups(tx: Tx, limit: int, policy: Policy, now: Now) -> Pruned:
    """Clear groups past the time of workloads of which nothing is left and that nobody names."""
    if not policy.workloads_ms:
        return Pruned({}, more=False)
    begun = places.read(tx, WALK_OF_GROUPS)
    rows = tx.rows(NEXT_GROUPS, {"tenant_id": begun.tenant_id, "name": begun.part, "rows": limit})
    gone, before_ms = 0, now.lease_ms - policy.workloads_ms
    for row in rows:
        old = max(row["created_at_ms"], row["sealed_at_ms"] or 0) <= before_ms
        if old and not row["members"] and not _needed(tx, _key(row["tenant_id"], row["name"])):
            gone += tx.change(DROP_GROUP, {"tenant_id": row["tenant_id"], "name": row["name"]})
    more = len(rows) >= limit
    last = Place(rows[-1]["tenant_id"], rows[-1]["name"]) if more else None
    places.keep(tx, WALK_OF_GROUPS, begun, last)
    return Pruned({"groups": gone} if gone else {}, more=more)


def _stretch(tx: Tx, place: Place | None, states: list[str]) -> Place | None:
    """The stretch to go on with: the same, the next state of the tenant, or the next tenant."""
    if place is None or not states:
        return None
    if place.part in states and place.seq >= 0:
        return place
    later = states[states.index(place.part) + 1 :] if place.part in states else []
    if place.tenant_id and later:
        return Place(place.tenant_id, later[0])
    row = tx.row(NEXT_TENANT, {"after": place.tenant_id})
    return None if row is None else Place(row["tenant_id"], states[0])


class _Walk:
    """One slice: what it has cleared so far."""

    def __init__(self, tx: Tx, now: Now, limit: int) -> None:
        self._tx = tx
        self._now = now
        self._left = limit
        self._chars = VALUES_MAX
        self.gone = self.claims = self.logs = 0
        self.last_seq = self.last_at_ms = 0
        self.skipped: list[str] = []

    @property
    def full(self) -> bool:
        """Whether the slice has had its fill."""
        return self._left <= 0 or self._chars <= 0

    def along(self, place: Place, before_ms: int) -> Place:
        """Go along one stretch until it ends (seq -1) or the slice is full."""
        at = place.seq
        while True:
            params = {"tenant_id": place.tenant_id, "state": place.part, "after": at}
            rows = self._tx.rows(CANDIDATES, {**params, "rows": ROWS_AT_ONCE})
            for row in rows:
                if row["created_at_ms"] > before_ms:
                    return place._replace(seq=-1)
                # Looking costs a fraction of clearing.
                self._left -= 0 if row["finished_at_ms"] <= before_ms else 1
                if row["finished_at_ms"] <= before_ms and not self._clear(row):
                    return place._replace(seq=at)
                at = row["seq"]
                if self.full:
                    return place._replace(seq=at)
            if len(rows) < ROWS_AT_ONCE:
                return place._replace(seq=-1)

    def _clear(self, row: Row) -> bool:
        """Clear one workload if nobody needs it; False: the slice is full before it is done."""
        free = self._let_go(row["workload_id"])
        last_of_failed = False
        if free and row["group_name"] is not None:
            of = {"tenant_id": row["tenant_id"], "name": row["group_name"]}
            free = self._let_go(_key(**of))
            group = self._tx.row(GROUP, of) if free else None
            if group is not None:
                free = not _unfinished(group, row["state"])
                last_of_failed = group["sealed_at_ms"] is not None and group["failed"] == 1
        if not free:
            self._left -= 1
            return free is not None
        logs = self._tx.change(
            DROP_LOGS, {"workload_id": row["workload_id"], "rows": max(1, self._left)}
        )
        self.logs += logs
        self._left -= logs
        if logs and self.full:
            return False
        self._left -= 1
        try:
            self._tx.attempt(lambda: self._take(row, last_of_failed))
        except IntegrityError as error:
            self.skipped.append(f"{row['workload_id']}: {error}")
        return True

    def _take(self, row: Row, last_of_failed: bool) -> None:
        tx = self._tx
        params = dict(row)
        claims = tx.change(DROP_CLAIMS, params)
        tx.change(LAY_TOMBSTONE, {**params, "now_ms": self._now.lease_ms})
        [gone] = tx.rows(DROP, params)
        if last_of_failed and row["state"] != "COMPLETED":
            tx.change(DROP_GROUP, {"tenant_id": row["tenant_id"], "name": row["group_name"]})
        self.gone += 1
        self.claims += claims
        self._left -= claims
        self._chars -= gone["chars"]
        self.last_seq = max(self.last_seq, row["seq"])
        self.last_at_ms = max(self.last_at_ms, row["finished_at_ms"])

    def _let_go(self, parent: str) -> bool | None:
        """Forget the ended children of a parent: True when no unfinished one is left.

        None: the slice is full before that can be said.
        """
        while True:
            rows = self._tx.rows(CHILDREN, {"parent": parent, "rows": EDGES_AT_ONCE})
            if not rows:
                return True
            if any(row["state"] not in ("COMPLETED", "CANCELLED") for row in rows):
                return False
            last_seq = rows[-1]["child_seq"]
            self._tx.change(FORGET_CHILDREN, {"parent": parent, "last_seq": last_seq})
            self._left -= len(rows)
            if self.full and len(rows) == EDGES_AT_ONCE:
                return None


def _unfinished(group: Row, state: str) -> bool:
    """Whether work of a group waits for others of it to end, or to be cleared before it.

    A sealed group that failed keeps one of those that failed until all that went well is gone: it
    must never look as if it were COMPLETED.
    """
    if group["unfinished"] or (group["dead"] and state != "DEAD_LETTERED"):
        return True
    return bool(group["sealed_at_ms"] is not None and state != "COMPLETED" and group["completed"])


def _needed(tx: Tx, parent: str) -> bool:
    rows = tx.rows(CHILDREN, {"parent": parent, "rows": EDGES_AT_ONCE})
    if rows and all(row["state"] in ("COMPLETED", "CANCELLED") for row in rows):
        tx.change(FORGET_CHILDREN, {"parent": parent, "last_seq": rows[-1]["child_seq"]})
        return len(rows) >= EDGES_AT_ONCE
    return bool(rows)


def _key(tenant_id: str, name: str) -> str:
    return parents.group_key(tenant_id, name)

"""Judging changes: each state trigger walks the log behind its cursor and fires for what it meets.

Workload, firing row and cursor stand in one savepoint of one transaction, so a change fires a
trigger once whatever dies in between. Every trigger is guarded alone: one that cannot be read, may
not act or always fails waits for its retry while the others go on. A round is bounded in changes
and bytes; where nothing is to be judged it reads one index and writes nothing.
"""

from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from feltd.clock import Now
from feltd.identity import principals
from feltd.model.base import INTEGER_MAX, Ask
from feltd.model.trigger import DEPTH_MAX, Firing, Predicate, Produced
from feltd.state import firing, mapping, predicates
from feltd.store.tx import Row, Tx

WRITE = "triggers:write"

#: Of the log, what one operation reads: some 10 ms of decoding.
BYTES_MAX = 4 * 1024 * 1024
#: A node of a condition takes as long as reading so much.
NODE_BYTES = 256
#: Workloads made in one operation: 0.25 ms each. Whoever calls meanwhile waits for one of these.
FIRINGS_MAX = 32
#: Triggers that walk in one operation, and that pass over what is not for them: some 10 ms each.
WALKING_MAX = 64
PASSED_MAX = 256
#: Changes read at once: two values of 256 KiB each at most, as a rule far less.
READ_AT_ONCE = 16
#: Changes judged in one operation when somebody asks for it.
CHANGES_MAX = 200
#: Logs found at once; who comes first among them changes from operation to operation.
TENANTS_MAX = 1_000
#: Under this the memo keeps whose log was judged last.
LAST = ("evaluate", "tenant_id")

# Logs that somebody has to judge now: with changes nobody looked at, or a retry that is due.
TENANTS = """
SELECT l.tenant_id
  FROM change_logs l
 WHERE l.evaluated_seq < l.head_seq
 UNION
SELECT t.tenant_id
  FROM triggers t
 WHERE t.retry_at_ms IS NOT NULL
   AND t.retry_at_ms <= :now_ms
   AND t.kind = 'state'
 ORDER BY 1
 LIMIT :rows
"""

LOG = """
SELECT l.tenant_id, l.head_seq, l.evaluated_seq, g.instance_id
  FROM change_logs l
  JOIN ledger g ON g.id = 1
 WHERE l.tenant_id = :tenant_id
"""

# Whoever waits for other collections has judged all of it by that.
PASS_OVER = """
UPDATE triggers
   SET cursor_seq = :head_seq
 WHERE tenant_id = :tenant_id
   AND trigger_id IN (SELECT t.trigger_id
                        FROM triggers t
                       WHERE t.tenant_id = :tenant_id
                         AND t.kind = 'state'
                         AND t.enabled = 1
                         AND t.cursor_seq < :head_seq
                         AND NOT EXISTS (SELECT 1
                                           FROM changes c
                                          WHERE c.tenant_id = t.tenant_id
                                            AND c.collection = t.source_collection
                                            AND c.seq > t.cursor_seq)
                       ORDER BY t.cursor_seq, t.trigger_id
                       LIMIT :rows)
"""

LAGGING = """
SELECT t.tenant_id, t.trigger_id, t.application_id, t.target_capability, t.work, t.requested_by,
       t.authorization_grant_id, t.source_collection, t.change_kind, t.predicate, t.cursor_seq
  FROM triggers t
 WHERE t.tenant_id = :tenant_id
   AND t.kind = 'state'
   AND t.enabled = 1
   AND t.cursor_seq < :head_seq
   AND (:eager = 1 OR t.retry_at_ms IS NULL OR t.retry_at_ms <= :now_ms)
 ORDER BY t.cursor_seq, t.trigger_id
 LIMIT :rows
"""

# Values of a kind that is not waited for are not even read.
CHANGES = """
SELECT c.seq, c.kind, c.collection, c.record_id, c.version, c.at_ms, c.actor, c.depth,
       CASE WHEN :change_kind IN ('any', c.kind) THEN 1 ELSE 0 END AS wanted,
       CASE WHEN :change_kind IN ('any', c.kind) THEN c.before END AS before,
       CASE WHEN :change_kind IN ('any', c.kind) THEN c.after END AS after
  FROM changes c
 WHERE c.tenant_id = :tenant_id
   AND c.collection = :collection
   AND c.seq > :after_seq
   AND c.seq <= :head_seq
 ORDER BY c.seq
 LIMIT :rows
"""

FIRED = """
SELECT f.seq
  FROM trigger_firings f
 WHERE f.tenant_id = :tenant_id
   AND f.trigger_id = :trigger_id
   AND f.seq = :seq
"""

WRITE_FIRING = """
INSERT INTO trigger_firings (tenant_id, trigger_id, seq, instance_id, outcome, workload_id, depth,
                             at_ms)
VALUES (:tenant_id, :trigger_id, :seq, :instance_id, :outcome, :workload_id, :depth, :now_ms)
"""

MOVE = """
UPDATE triggers
   SET cursor_seq = :cursor_seq
 WHERE tenant_id = :tenant_id
   AND trigger_id = :trigger_id
   AND cursor_seq < :cursor_seq
"""

PASS_TOO_DEEP = """
UPDATE triggers
   SET cursor_seq = :cursor_seq,
       passed_over = passed_over + 1,
       failures = 0,
       failure = NULL,
       retry_at_ms = NULL
 WHERE tenant_id = :tenant_id
   AND trigger_id = :trigger_id
"""

BEHIND = """
SELECT t.cursor_seq
  FROM triggers t
 WHERE t.tenant_id = :tenant_id
   AND t.kind = 'state'
   AND t.enabled = 1
   AND t.cursor_seq < :head_seq
   AND (t.retry_at_ms IS NULL OR t.retry_at_ms <= :now_ms)
 ORDER BY t.cursor_seq, t.trigger_id
 LIMIT 1
"""

NOTE = """
UPDATE change_logs
   SET evaluated_seq = :evaluated_seq
 WHERE tenant_id = :tenant_id
   AND evaluated_seq <> :evaluated_seq
"""

UNNOTE = """
UPDATE change_logs
   SET evaluated_seq = :cursor_seq
 WHERE tenant_id = :tenant_id
   AND evaluated_seq > :cursor_seq
"""


class Evaluate(Struct, frozen=True):
    """What to judge: the logs of these tenants ('*': all).

    `eager`: also what waits for a retry; for the first operation of an evaluation alone, since
    each try of a trigger that fails counts.
    """

    tenants: tuple[str, ...]
    eager: bool = True


class Room:
    """What one operation may still read, of one tenant and in all; what it has judged and made."""

    def __init__(self) -> None:
        self.bytes_left = BYTES_MAX
        self.part_left = BYTES_MAX
        self.judged = 0
        self.produced: list[Firing] = []

    @property
    def spent(self) -> bool:
        """Whether the operation is to end."""
        return self.bytes_left <= 0 or len(self.produced) >= FIRINGS_MAX

    @property
    def full(self) -> bool:
        """Whether no more of this tenant is to be judged."""
        return self.spent or self.part_left <= 0

    def take(self, change: Row, nodes: int, thorough: int) -> None:
        """Count one change that was read, and what it takes to judge it: see predicates.effort."""
        size_bytes = len(change["before"] or "") + len(change["after"] or "")
        size_bytes += thorough * size_bytes + nodes * NODE_BYTES
        self.judged += 1
        self.bytes_left -= size_bytes
        self.part_left -= size_bytes


def evaluate(tx: Tx, limit: int, now: Now) -> int:
    """Judge some `limit` changes of every tenant's log together; how many, `limit` for go on."""
    found = _waiting(tx, now.lease_ms)
    if not found:
        return 0
    room = Room()
    if _evaluate(tx, now, found, limit, room, eager=False):
        # The keeper's round has an end; what is left is not left until its next tick.
        tx.tell("evaluate", "0")
        return limit
    return min(room.judged, limit - 1)


def evaluate_now(tx: Tx, ask: Ask[Evaluate], now: Now) -> Produced:
    """Judge up to CHANGES_MAX changes of the tenants named; what was made, and whether to go on.

    Beside the keeper's own round: a change fires a trigger once, whoever judges it.
    """
    principals.confirm(tx, ask.caller, now)
    principals.require_scope(ask.caller, WRITE)
    tenants, eager = ask.body.tenants, ask.body.eager
    for tenant_id in tenants:
        principals.require_tenant(ask.caller, tenant_id, "TRIGGER_NOT_FOUND")
    if "*" in tenants:
        tenants = tuple(_waiting(tx, INTEGER_MAX if eager else now.lease_ms))
    room = Room()
    more = _evaluate(tx, now, tenants, CHANGES_MAX, room, eager=eager)
    return Produced(produced=room.produced, more=more)


def judge_again(tx: Tx, tenant_id: str, cursor_seq: int) -> None:
    """Have a trigger that begins or goes on at `cursor_seq` looked at, in the keeper's next round.

    What lies above its cursor may have been judged by everybody else.
    """
    tx.change(UNNOTE, {"tenant_id": tenant_id, "cursor_seq": cursor_seq})
    tx.tell("evaluate", "0")


def _waiting(tx: Tx, before_ms: int) -> list[str]:
    """Whose log is to be judged, retries until `before_ms` among them."""
    rows = tx.rows(TENANTS, {"now_ms": before_ms, "rows": TENANTS_MAX})
    return [row["tenant_id"] for row in rows]


def _evaluate(
    tx: Tx, now: Now, tenants: Sequence[str], limit: int, room: Room, *, eager: bool
) -> bool:
    """Each tenant its part, each trigger of it a part of that; whether something is left."""
    last = tx.memo.get(LAST, "")
    turn = sorted(tenants, key=lambda name: (name <= last, name))
    share = max(1, limit // max(1, len(turn)))
    more = len(turn) >= TENANTS_MAX
    for place, tenant_id in enumerate(turn):
        if room.spent or place >= limit:
            return True
        log = tx.row(LOG, {"tenant_id": tenant_id})
        if log is not None:
            room.part_left = BYTES_MAX // len(turn)
            more = _evaluate_log(tx, now, log, share, room, eager) or more
            tx.memo[LAST] = tenant_id
    return more


def _evaluate_log(tx: Tx, now: Now, log: Row, share: int, room: Room, eager: bool) -> bool:
    place = {"tenant_id": log["tenant_id"], "head_seq": log["head_seq"]}
    tx.change(PASS_OVER, {**place, "rows": PASSED_MAX})
    rows = min(share, WALKING_MAX)
    found = tx.rows(LAGGING, {**place, "eager": int(eager), "now_ms": now.lease_ms, "rows": rows})
    each = max(1, share // max(1, len(found)))
    for row in found:
        if not room.full:
            _walk(tx, now, log, row, each, room)
    behind = tx.row(BEHIND, {**place, "now_ms": now.lease_ms})
    evaluated_seq = log["head_seq"] if behind is None else behind["cursor_seq"]
    if evaluated_seq != log["evaluated_seq"]:
        tx.change(NOTE, {"tenant_id": log["tenant_id"], "evaluated_seq": evaluated_seq})
    return behind is not None


def _walk(tx: Tx, now: Now, log: Row, row: Row, most: int, room: Room) -> None:
    """Judge up to `most` changes of one trigger; its failure is its own."""
    reached, why = _judge(tx, now, log, row, most, room)
    if reached > row["cursor_seq"]:
        tx.change(MOVE, {**_name(row), "cursor_seq": reached})
    if why is not None:
        firing.failed(tx, now, row, why)


def _judge(
    tx: Tx, now: Now, log: Row, row: Row, most: int, room: Room
) -> tuple[int, Exception | None]:
    """How far one trigger has come, and what stopped it there."""
    reached, judged = row["cursor_seq"], 0
    try:
        predicate = mapping.predicate_of(row)
        nodes, thorough = predicates.effort(predicate)
        while judged < most and not room.full:
            rows = min(READ_AT_ONCE, most - judged)
            changes = _changes(tx, log, row, reached, rows)
            for change in changes:
                room.take(change, nodes, thorough)
                judged += 1
                if change["wanted"] and _meets(predicate, change):
                    room.produced += tx.attempt(partial(_fire, tx, now, log, row, change))
                reached = change["seq"]
                if room.full:
                    return reached, None
            if len(changes) < rows:
                return log["head_seq"], None
    except Exception as error:
        if firing.is_storage(tx, error):
            raise
        return reached, error
    return reached, None


def _meets(predicate: Predicate | None, change: Row) -> bool:
    if predicate is None:
        return True
    before, after = mapping.value_of(change["before"]), mapping.value_of(change["after"])
    return predicates.matches(predicate, before, after)


def _changes(tx: Tx, log: Row, row: Row, after_seq: int, rows: int) -> list[Row]:
    return tx.rows(
        CHANGES,
        {
            "tenant_id": row["tenant_id"],
            "collection": row["source_collection"],
            "change_kind": row["change_kind"],
            "after_seq": after_seq,
            "head_seq": log["head_seq"],
            "rows": rows,
        },
    )


def _fire(tx: Tx, now: Now, log: Row, row: Row, change: Row) -> list[Firing]:
    """Hand one change to a trigger, once: workload, firing and cursor together."""
    seq, depth = change["seq"], change["depth"] + 1
    at = {**_name(row), "cursor_seq": seq}
    if tx.row(FIRED, {**_name(row), "seq": seq}) is not None:
        # Fired before it was put back to here.
        tx.change(MOVE, at)
        return []
    written = {
        **_name(row),
        "seq": seq,
        "instance_id": log["instance_id"],
        "depth": depth,
        "now_ms": now.lease_ms,
    }
    if depth > DEPTH_MAX:
        tx.change(WRITE_FIRING, {**written, "outcome": "too_deep", "workload_id": None})
        tx.change(PASS_TOO_DEEP, at)
        firing.warn(tx, row, f"passed over change {seq}: {DEPTH_MAX} firings had led to it")
        return []
    key = mapping.key_of(row, log["instance_id"], seq)
    workload_id = firing.fire(tx, now, row, key, mapping.input_of(row["trigger_id"], change))
    tx.change(WRITE_FIRING, {**written, "outcome": "fired", "workload_id": workload_id})
    firing.went_well(tx, now, row, workload_id, seq)
    return [
        Firing(
            trigger_id=row["trigger_id"],
            seq=seq,
            workload_id=workload_id,
            tenant_id=row["tenant_id"],
        )
    ]


def _name(row: Row) -> dict[str, object]:
    return {"tenant_id": row["tenant_id"], "trigger_id": row["trigger_id"]}

"""What is done with a trigger that is there: enabled, disabled, deleted, looked at ahead.

A disabled state trigger keeps its cursor, and the log for seven days with it: enabled in time it
judges what came meanwhile, later its changes are gone and it says so instead of skipping them.
"""

from msgspec import MsgspecError
from msgspec.json import encode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import principals
from feltd.model.base import Ask
from feltd.model.schedule import Instant, Preview
from feltd.model.secret_text import covered
from feltd.model.trigger import (
    DEPTH_MAX,
    TRIGGERS_MAX,
    Disable,
    Judged,
    Predicate,
    Previewed,
    Trigger,
)
from feltd.state import evaluation, firing, instants, mapping, predicates, schedules
from feltd.state.standing import OnTrigger, known, overtaken, shown
from feltd.store.tx import Row, Tx

#: Of a collection's newest changes, what a preview judges, and how much of them it reads.
LOOKED_AT_MAX = 200
LOOKED_BYTES_MAX = 4 * 1024 * 1024
READ_AT_ONCE = 16
BY_HAND = "disabled by hand"

ENABLE = """
UPDATE triggers
   SET enabled = 1,
       failures = 0,
       failure = NULL,
       retry_at_ms = NULL,
       next_at_ms = :next_at_ms,
       disabled_at_ms = NULL,
       disabled_by = NULL,
       disabled_reason = NULL
 WHERE tenant_id = :tenant_id
   AND trigger_id = :trigger_id
   AND enabled = 0
"""

DISABLE = """
UPDATE triggers
   SET enabled = 0,
       retry_at_ms = NULL,
       next_at_ms = NULL,
       disabled_at_ms = :now_ms,
       disabled_by = :disabled_by,
       disabled_reason = :disabled_reason
 WHERE tenant_id = :tenant_id
   AND trigger_id = :trigger_id
   AND enabled = 1
"""

DELETE = """
DELETE FROM triggers
 WHERE tenant_id = :tenant_id
   AND trigger_id = :trigger_id
"""

REMEMBER = """
INSERT INTO deleted_triggers (tenant_id, trigger_id, deleted_at_ms)
VALUES (:tenant_id, :trigger_id, :now_ms)
ON CONFLICT (tenant_id, trigger_id) DO UPDATE
   SET deleted_at_ms = excluded.deleted_at_ms
"""

FORGET = """
DELETE FROM deleted_triggers
 WHERE tenant_id = :tenant_id
   AND trigger_id NOT IN (SELECT d.trigger_id
                            FROM deleted_triggers d
                           WHERE d.tenant_id = :tenant_id
                           ORDER BY d.deleted_at_ms DESC, d.trigger_id
                           LIMIT :kept)
"""

DELETED = """
SELECT d.trigger_id
  FROM deleted_triggers d
 WHERE d.tenant_id = :tenant_id
   AND d.trigger_id = :trigger_id
"""

NEWEST = """
SELECT c.seq, c.kind, c.record_id, c.version, c.before, c.after, c.depth, f.outcome, f.workload_id
  FROM changes c
  LEFT JOIN trigger_firings f
    ON f.tenant_id = c.tenant_id
   AND f.trigger_id = :trigger_id
   AND f.seq = c.seq
 WHERE c.tenant_id = :tenant_id
   AND c.collection = :collection
   AND c.seq < :before_seq
 ORDER BY c.seq DESC
 LIMIT :rows
"""


def enable(tx: Tx, ask: Ask[OnTrigger], now: Now) -> Trigger:
    """Have a trigger go on where it stood: failures forgotten, changes since then judged.

    A schedule goes on with the next instant; those of the time it was disabled are not missed.
    Repeating changes nothing. Refuses TRIGGER_NOT_FOUND, and TRIGGER_STATE_REPLAY_FAILED where
    changes it has not judged are gone: it needs a new start then.
    """
    row = _mine(tx, ask, now)
    if row["enabled"]:
        return shown(row)
    if overtaken(row):
        raise gone(row["cursor_seq"], row["floor_seq"], row["head_seq"])
    next_at_ms = None
    if row["kind"] == "schedule":
        next_at_ms = schedules.begin(row, now)
    tx.change(ENABLE, {**_name(row), "next_at_ms": next_at_ms})
    wake(tx, now, row["tenant_id"], row["cursor_seq"], next_at_ms)
    firing.write_down(tx, now, "enable_trigger", row, str(ask.caller.subject))
    return shown(known(tx, row["tenant_id"], row["trigger_id"]))


def disable(tx: Tx, ask: Ask[OnTrigger], now: Now) -> Trigger:
    """Stop a trigger. A state trigger holds the log seven days from now, then is overtaken.

    Repeating changes nothing, the seven days neither. Refuses TRIGGER_NOT_FOUND.
    """
    row = _mine(tx, ask, now)
    if not row["enabled"]:
        return shown(row)
    body, actor = ask.body.body, str(ask.caller.subject)
    reason = covered((body.reason if isinstance(body, Disable) else None) or BY_HAND)
    facts = {"now_ms": now.lease_ms, "disabled_by": actor, "disabled_reason": reason}
    tx.change(DISABLE, {**_name(row), **facts})
    firing.write_down(tx, now, "disable_trigger", row, actor, reason=reason, body=encode(body))
    return shown(known(tx, row["tenant_id"], row["trigger_id"]))


def delete(tx: Tx, ask: Ask[OnTrigger], now: Now) -> None:
    """Take a trigger away; what it made stays, and no change fires its id twice.

    Repeating changes nothing. Refuses TRIGGER_NOT_FOUND for one that never was.
    """
    confirm(tx, ask, now)
    name = {"tenant_id": ask.body.tenant_id, "trigger_id": ask.id}
    if tx.row(DELETED, name) is not None:
        return
    row = known(tx, ask.body.tenant_id, ask.id)
    tx.change(DELETE, name)
    tx.change(REMEMBER, {**name, "now_ms": now.lease_ms})
    tx.change(FORGET, {"tenant_id": ask.body.tenant_id, "kept": TRIGGERS_MAX})
    firing.write_down(tx, now, "delete_trigger", row, str(ask.caller.subject))


def preview(tx: Tx, ask: Ask[OnTrigger], now: Now) -> Previewed:
    """Which of the collection's newest changes meet a trigger, or a schedule's next instants.

    `ask.body.body` says how many to show. Judges LOOKED_AT_MAX changes at most, and as many as one
    operation of an evaluation, whether it is enabled or not; makes nothing. Refuses
    TRIGGER_NOT_FOUND.
    """
    row = known(tx, ask.body.tenant_id, ask.id)
    count = ask.body.body.count if isinstance(ask.body.body, Preview) else Preview().count
    if row["kind"] == "schedule":
        return Previewed(
            trigger_id=row["trigger_id"],
            enabled=bool(row["enabled"]),
            instants=_coming(row, now, count),
        )
    room, found = evaluation.Room(), list[Judged]()
    try:
        predicate = mapping.predicate_of(row)
        effort = predicates.effort(predicate)
        for change in _newest(tx, row):
            if room.full:
                break
            room.take(change, *effort)
            if len(found) < count and _would_fire(row, predicate, change):
                found.append(_judged(change))
    except (MsgspecError, RecursionError) as error:
        # Only a row that somebody broke by hand.
        raise Refused("TRIGGER_INVALID", f"what is stored cannot be read: {error}") from None
    return Previewed(
        trigger_id=row["trigger_id"],
        enabled=bool(row["enabled"]),
        looked_at=room.judged,
        changes=found,
    )


def confirm(tx: Tx, ask: Ask[OnTrigger], now: Now) -> None:
    """Refuse unless the caller may change triggers of the tenant, in this transaction."""
    principals.confirm(tx, ask.caller, now)
    principals.require_scope(ask.caller, evaluation.WRITE)
    principals.require_tenant(ask.caller, ask.body.tenant_id, "TRIGGER_NOT_FOUND")


def wake(tx: Tx, now: Now, tenant_id: str, cursor_seq: int | None, next_at_ms: int | None) -> None:
    """Have the keeper look at a trigger that goes on from this change, or with this instant."""
    if cursor_seq is not None:
        evaluation.judge_again(tx, tenant_id, cursor_seq)
    if next_at_ms is not None:
        schedules.expect(tx, now, next_at_ms)


def gone(wanted_seq: int, floor_seq: int, head_seq: int) -> Refused:
    """The refusal of a place in the log whose next changes are not kept."""
    return Refused(
        "TRIGGER_STATE_REPLAY_FAILED",
        f"changes up to {floor_seq} are gone, it would go on behind {wanted_seq}: define it with a"
        f" start of {floor_seq} or later, or head",
        oldest=floor_seq + 1,
        head=head_seq,
    )


def _mine(tx: Tx, ask: Ask[OnTrigger], now: Now) -> Row:
    confirm(tx, ask, now)
    return known(tx, ask.body.tenant_id, ask.id)


def _newest(tx: Tx, row: Row) -> list[Row]:
    """The newest changes of the collection, newest first, as many as a preview looks at."""
    found, before_seq, size_bytes = list[Row](), row["head_seq"] + 1, 0
    while len(found) < LOOKED_AT_MAX and size_bytes < LOOKED_BYTES_MAX:
        rows = min(READ_AT_ONCE, LOOKED_AT_MAX - len(found))
        changes = tx.rows(
            NEWEST,
            {
                **_name(row),
                "collection": row["source_collection"],
                "before_seq": before_seq,
                "rows": rows,
            },
        )
        found += changes
        size_bytes += sum(len(c["before"] or "") + len(c["after"] or "") for c in changes)
        if len(changes) < rows:
            break
        before_seq = changes[-1]["seq"]
    return found


def _coming(row: Row, now: Now, count: int) -> list[Instant]:
    spec = schedules.spec_of(row)
    ahead = instants.preview(spec, now.wall_ms, count)
    return [Instant(at_ms, instants.local(spec, at_ms)) for at_ms in ahead]


def _would_fire(row: Row, predicate: Predicate | None, change: Row) -> bool:
    if row["change_kind"] not in ("any", change["kind"]) or change["depth"] >= DEPTH_MAX:
        return False
    before, after = mapping.value_of(change["before"]), mapping.value_of(change["after"])
    return predicates.matches(predicate, before, after)


def _judged(change: Row) -> Judged:
    return Judged(
        seq=change["seq"],
        kind=change["kind"],
        id=change["record_id"],
        version=change["version"],
        workload_id=change["workload_id"],
    )


def _name(row: Row) -> dict[str, object]:
    return {"tenant_id": row["tenant_id"], "trigger_id": row["trigger_id"]}

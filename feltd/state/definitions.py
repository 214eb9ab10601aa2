"""Defining a trigger: what it may make, under whose grant, from which change on.

A definition replaces the one before and keeps its cursor, so that no change is judged twice or
left out because somebody corrected a word. Only a named `start` moves the cursor; changes that
fired the trigger before fire it no more, wherever it is put.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from msgspec import UNSET
from msgspec.json import encode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import grants, principals
from feltd.mesh import ownership, pools
from feltd.model.base import Ask, Caller
from feltd.model.grant import Grant
from feltd.model.trigger import RESERVED, TRIGGERS_MAX, Define, Trigger
from feltd.state import evaluation, firing, mapping, predicates, schedules, triggers
from feltd.state.standing import BY_ID, known, shown
from feltd.store.tx import Row, Tx

#: What is refused here: codes begin with it.
NOUN = "TRIGGER"
_invalid = partial(ownership.invalid, NOUN)
#: A state trigger hands records on as input of work, so who defines one must be able to read them.
READ_RECORDS = "state:read"
NEW_DISABLED = "defined disabled"

#: Members of a definition that only one kind has.
OF_STATE = ("source_collection", "change_kind", "predicate")
OF_SCHEDULE = ("cron", "every_ms", "timezone", "missed", "overlap")
#: What it says; whether it runs and where it stands is beside that.
SAID = (
    "target_capability",
    "work",
    "requested_by",
    "authorization_grant_id",
    *OF_STATE,
    *OF_SCHEDULE,
)
#: Changes above the cursor are judged anew when one of these changes.
JUDGING = OF_STATE

LOG = """
SELECT l.head_seq, l.floor_seq
  FROM change_logs l
 WHERE l.tenant_id = :tenant_id
"""

COUNT = """
SELECT count(*) AS triggers
  FROM triggers t
 WHERE t.tenant_id = :tenant_id
"""

MAKE = """
INSERT INTO triggers (tenant_id, trigger_id, application_id, kind, enabled, target_capability,
                      work, requested_by, authorization_grant_id, source_collection, change_kind,
                      predicate, cursor_seq, judged_from_seq, cron, every_ms, timezone, missed,
                      overlap, anchor_at_ms, next_at_ms, last_at_ms, disabled_at_ms, disabled_by,
                      disabled_reason, defined_by, created_at_ms, updated_at_ms)
VALUES (:tenant_id, :trigger_id, :application_id, :kind, :enabled, :target_capability,
        :work, :requested_by, :authorization_grant_id, :source_collection, :change_kind,
        :predicate, :cursor_seq, :judged_from_seq, :cron, :every_ms, :timezone, :missed,
        :overlap, :anchor_at_ms, :next_at_ms, :last_at_ms, :disabled_at_ms, :disabled_by,
        :disabled_reason, :defined_by, :now_ms, :now_ms)
"""

REPLACE = """
UPDATE triggers
   SET enabled = :enabled,
       target_capability = :target_capability,
       work = :work,
       requested_by = :requested_by,
       authorization_grant_id = :authorization_grant_id,
       source_collection = :source_collection,
       change_kind = :change_kind,
       predicate = :predicate,
       starts = :starts,
       cursor_seq = :cursor_seq,
       judged_from_seq = :judged_from_seq,
       cron = :cron,
       every_ms = :every_ms,
       timezone = :timezone,
       missed = :missed,
       overlap = :overlap,
       anchor_at_ms = :anchor_at_ms,
       next_at_ms = :next_at_ms,
       last_at_ms = :last_at_ms,
       failures = 0,
       failure = NULL,
       retry_at_ms = NULL,
       disabled_at_ms = :disabled_at_ms,
       disabled_by = :disabled_by,
       disabled_reason = :disabled_reason,
       defined_by = :defined_by,
       updated_at_ms = :now_ms
 WHERE tenant_id = :tenant_id
   AND trigger_id = :trigger_id
"""

RECALL = """
DELETE FROM deleted_triggers
 WHERE tenant_id = :tenant_id
   AND trigger_id = :trigger_id
"""


class Defining(NamedTuple):
    """A definition as the handler read it; `grant_id` is what its token proved (None: none)."""

    define: Define
    grant_id: str | None = None


def define(tx: Tx, ask: Ask[Defining], now: Now) -> tuple[Trigger, bool]:
    """Make or replace a trigger; the trigger, and whether it is new.

    A new one begins behind the head of the log, or behind `start`. Repeating changes nothing, but
    that a named start puts it there again. A definition that changes anything forgets failures and
    enables what was disabled, unless it says enabled: false. Refuses TRIGGER_INVALID,
    TRIGGER_UNAUTHORIZED without a live grant of the caller that covers what it makes, FORBIDDEN
    without state:read for a state trigger, TRIGGER_STATE_REPLAY_FAILED for a start whose changes
    are gone, QUOTA_EXCEEDED beyond TRIGGERS_MAX.
    """
    body, caller = ask.body.define, ask.caller
    principals.confirm(tx, caller, now)
    principals.require_scope(caller, evaluation.WRITE)
    if body.kind == "state":
        principals.require_scope(caller, READ_RECORDS)
    _fit(body)
    grant = _grant(tx, caller, now, ask.body.grant_id)
    owner = ownership.owner_of(caller, body, grant, NOUN)
    ownership.require(caller, body, grant, body.target_capability, NOUN)
    _require_pool(tx, body, owner)
    name = {"tenant_id": owner["tenant_id"], "trigger_id": body.trigger_id}
    row = tx.row(BY_ID, name)
    said = _said(body, caller, grant, row, now)
    if row is None:
        _make(tx, now, body, caller, {**name, **owner, **said})
    elif not _replace(tx, now, body, caller, row, owner, said):
        return shown(row), False
    actor, told = str(caller.subject), encode(body, order="deterministic")
    firing.write_down(tx, now, "define_trigger", {**name, **owner}, actor, body=told)
    fresh = known(tx, owner["tenant_id"], body.trigger_id)
    if fresh["enabled"]:
        triggers.wake(tx, now, fresh["tenant_id"], fresh["cursor_seq"], fresh["next_at_ms"])
    return shown(fresh), row is None


def _make(tx: Tx, now: Now, body: Define, caller: Caller, row: Mapping[str, Any]) -> None:
    used = tx.rows(COUNT, {"tenant_id": row["tenant_id"]})[0]["triggers"]
    if used >= TRIGGERS_MAX:
        raise Refused(
            "QUOTA_EXCEEDED",
            f"the tenant has {used} triggers, {TRIGGERS_MAX} are allowed: delete one first",
            quota="triggers",
            limit=TRIGGERS_MAX,
            used=used,
        )
    cursor_seq = _start(tx, body, row["tenant_id"]) if body.kind == "state" else None
    place = {"cursor_seq": cursor_seq, "judged_from_seq": cursor_seq, "kind": body.kind}
    tx.change(MAKE, {**row, **place, **_standing(body, caller, now, None)})
    tx.change(RECALL, {"tenant_id": row["tenant_id"], "trigger_id": body.trigger_id})


def _replace(
    tx: Tx,
    now: Now,
    body: Define,
    caller: Caller,
    row: Row,
    owner: Mapping[str, str],
    said: Mapping[str, Any],
) -> bool:
    """Put a definition in place of the one that is there; False where it says nothing new."""
    if row["kind"] != body.kind:
        raise ownership.invalid(
            NOUN, "/kind", f"of this trigger is {row['kind']} for good: delete it first"
        )
    if row["application_id"] != owner["application_id"]:
        raise ownership.invalid(
            NOUN, "/application_id", "of a trigger never changes: delete it first"
        )
    alike = all(row[member] == said[member] for member in SAID)
    if alike and row["enabled"] == body.enabled and body.start is UNSET:
        return False
    cursor_seq, starts = row["cursor_seq"], row["starts"]
    if body.kind == "state" and body.start is not UNSET:
        cursor_seq, starts = _start(tx, body, row["tenant_id"]), starts + 1
    elif body.enabled and cursor_seq is not None and cursor_seq < row["floor_seq"]:
        raise triggers.gone(cursor_seq, row["floor_seq"], row["head_seq"])
    judges_on = starts == row["starts"] and all(row[one] == said[one] for one in JUDGING)
    place = {
        "tenant_id": row["tenant_id"],
        "trigger_id": row["trigger_id"],
        "starts": starts,
        "cursor_seq": cursor_seq,
        "judged_from_seq": row["judged_from_seq"] if judges_on else cursor_seq,
    }
    tx.change(REPLACE, {**said, **place, **_standing(body, caller, now, row)})
    return True


def _start(tx: Tx, body: Define, tenant_id: str) -> int:
    """The change behind which it begins: the head of the log unless it names an earlier one."""
    log = tx.row(LOG, {"tenant_id": tenant_id})
    head_seq, floor_seq = (0, 0) if log is None else (log["head_seq"], log["floor_seq"])
    if not isinstance(body.start, int):
        return int(head_seq)
    if body.start > head_seq:
        raise _invalid("/start", f"is beyond the newest change, {head_seq}")
    if body.start < floor_seq:
        raise triggers.gone(body.start, floor_seq, head_seq)
    return body.start


def _standing(body: Define, caller: Caller, now: Now, row: Row | None) -> dict[str, Any]:
    """Whether it runs; one that is disabled still keeps the instant from which the log is held."""
    actor = str(caller.subject)
    told: dict[str, Any] = {
        "enabled": int(body.enabled),
        "disabled_at_ms": None,
        "disabled_by": None,
        "disabled_reason": None,
        "defined_by": actor,
        "now_ms": now.lease_ms,
    }
    if body.enabled:
        return told
    if row is not None and not row["enabled"]:
        kept = ("disabled_at_ms", "disabled_by", "disabled_reason")
        return told | {member: row[member] for member in kept}
    told |= {"disabled_at_ms": now.lease_ms, "disabled_by": actor}
    return told | {"disabled_reason": NEW_DISABLED}


def _said(
    body: Define, caller: Caller, grant: Grant | None, row: Row | None, now: Now
) -> dict[str, Any]:
    """The columns that a definition decides, as its row holds them."""
    said: dict[str, Any] = {
        "target_capability": body.target_capability,
        "work": mapping.work_text(body),
        "requested_by": str(caller.subject),
        "authorization_grant_id": None if grant is None else grant.id,
        "source_collection": body.source_collection,
        "change_kind": body.change_kind,
        "predicate": None,
        "anchor_at_ms": None,
        "next_at_ms": None,
        "last_at_ms": None,
        **dict.fromkeys(OF_SCHEDULE),
    }
    if body.predicate is not None:
        said["predicate"] = encode(body.predicate, order="deterministic").decode()
    if body.kind == "schedule":
        before = row if row is not None and row["kind"] == "schedule" else None
        said |= schedules.columns(body, before, now)
    return said


def _fit(body: Define) -> None:
    """Refuse TRIGGER_INVALID for members that are missing, or of the other kind."""
    if body.trigger_id in RESERVED:
        raise _invalid("/trigger_id", "status and evaluate are paths of their own")
    others = OF_SCHEDULE if body.kind == "state" else OF_STATE
    for member in others:
        if getattr(body, member) is not None:
            raise ownership.invalid(
                NOUN, f"/{member}", f"is no member of a trigger of kind {body.kind}"
            )
    if body.kind == "state":
        for member in ("source_collection", "change_kind"):
            if getattr(body, member) is None:
                raise _invalid(f"/{member}", "is required")
        if body.input is not UNSET:
            raise _invalid("/input", "of a state trigger's work is the change")
        if body.predicate is not None:
            predicates.check(body.predicate)
        return
    if body.start is not UNSET:
        raise _invalid("/start", "is no member of a trigger of kind schedule")
    if (body.cron is None) == (body.every_ms is None):
        raise _invalid("/cron", "either cron or every_ms says when it is due")


def _grant(tx: Tx, caller: Caller, now: Now, grant_id: str | None) -> Grant | None:
    # As with a creation: the local operator and --no-auth need none.
    if caller.local and grant_id is None:
        return None
    return grants.usable(tx, caller, now, grant_id, code="TRIGGER_UNAUTHORIZED")


def _require_pool(tx: Tx, body: Define, owner: Mapping[str, str]) -> None:
    if body.placement is None or body.placement.pool_id is None:
        return
    named = (owner["tenant_id"], owner["application_id"], body.placement.pool_id)
    try:
        pools.require(tx, *named)
    except Refused:
        raise ownership.invalid(
            NOUN, "/placement/pool_id", "names no pool of the application"
        ) from None

"""How triggers stand: each as it is shown, and all of a tenant at a glance. Reads only.

A disabled trigger says since when, by whom and why; one whose changes are gone says that too.
"""

from typing import NamedTuple

from msgspec import UNSET, MsgspecError
from msgspec.json import decode

from feltd.clock import Now
from feltd.identity import principals
from feltd.identity.pages import fill
from feltd.model.base import Ask
from feltd.model.page import Page, PageAsk
from feltd.model.trigger import Disabled, Predicate, Trigger, TriggerKind, TriggerStatus, Work
from feltd.state import mapping
from feltd.store.tx import Row, Tx

#: Triggers that one status tells of: 1,000 a tenant, and few tenants at a glance.
STATUS_MAX = 20_000

BY_ID = """
SELECT t.tenant_id, t.trigger_id, t.application_id, t.kind, t.enabled, t.target_capability, t.work,
       t.requested_by, t.authorization_grant_id, t.source_collection, t.change_kind, t.predicate,
       t.starts, t.cursor_seq, t.judged_from_seq, t.cron, t.every_ms, t.timezone, t.missed,
       t.overlap, t.anchor_at_ms, t.next_at_ms, t.last_at_ms, t.last_workload_id,
       t.last_fired_at_ms, t.fired, t.passed_over, t.failures, t.failure, t.retry_at_ms,
       t.disabled_at_ms, t.disabled_by, t.disabled_reason, t.defined_by, t.created_at_ms,
       t.updated_at_ms, coalesce(l.head_seq, 0) AS head_seq, coalesce(l.floor_seq, 0) AS floor_seq
  FROM triggers t
  LEFT JOIN change_logs l ON l.tenant_id = t.tenant_id
 WHERE t.tenant_id = :tenant_id
   AND t.trigger_id = :trigger_id
"""

PAGE = """
SELECT t.tenant_id, t.trigger_id, t.application_id, t.kind, t.enabled, t.target_capability, t.work,
       t.requested_by, t.authorization_grant_id, t.source_collection, t.change_kind, t.predicate,
       t.starts, t.cursor_seq, t.judged_from_seq, t.cron, t.every_ms, t.timezone, t.missed,
       t.overlap, t.anchor_at_ms, t.next_at_ms, t.last_at_ms, t.last_workload_id,
       t.last_fired_at_ms, t.fired, t.passed_over, t.failures, t.failure, t.retry_at_ms,
       t.disabled_at_ms, t.disabled_by, t.disabled_reason, t.defined_by, t.created_at_ms,
       t.updated_at_ms, coalesce(l.head_seq, 0) AS head_seq, coalesce(l.floor_seq, 0) AS floor_seq,
       t.tenant_id || '/' || t.trigger_id AS place
  FROM triggers t
  LEFT JOIN change_logs l ON l.tenant_id = t.tenant_id
 WHERE (:tenant_id = '*' OR t.tenant_id = :tenant_id)
   AND (t.created_at_ms, t.tenant_id || '/' || t.trigger_id) < (:at_ms, :id)
 ORDER BY t.created_at_ms DESC, t.tenant_id || '/' || t.trigger_id DESC
 LIMIT :rows
"""

STATUS = """
SELECT t.tenant_id, t.trigger_id, t.kind, t.enabled, t.cursor_seq, t.failures, t.failure,
       t.disabled_reason, coalesce(l.head_seq, 0) AS head_seq,
       coalesce(l.floor_seq, 0) AS floor_seq
  FROM triggers t
  LEFT JOIN change_logs l ON l.tenant_id = t.tenant_id
 WHERE (:tenant_id = '*' OR t.tenant_id = :tenant_id)
 ORDER BY t.tenant_id, t.trigger_id
 LIMIT :rows
"""

HEADS = """
SELECT l.tenant_id, l.head_seq
  FROM change_logs l
 WHERE (:tenant_id = '*' OR l.tenant_id = :tenant_id)
 ORDER BY l.tenant_id
 LIMIT :rows
"""


class OnTrigger(NamedTuple):
    """Whose trigger, as the handler found it, and what came with the call."""

    tenant_id: str
    body: object = None


def known(tx: Tx, tenant_id: str, trigger_id: str) -> Row:
    """The row of a trigger of the tenant, with its log. Refuses TRIGGER_NOT_FOUND."""
    row = tx.row(BY_ID, {"tenant_id": tenant_id, "trigger_id": trigger_id})
    if row is None:
        raise principals.not_found("TRIGGER_NOT_FOUND")
    return row


def get(tx: Tx, ask: Ask[OnTrigger], now: Now) -> Trigger:
    """One trigger of the tenant. Refuses TRIGGER_NOT_FOUND."""
    return shown(known(tx, ask.body.tenant_id, ask.id))


def page(tx: Tx, ask: Ask[PageAsk], now: Now, kind: TriggerKind | None = None) -> Page[Trigger]:
    """Triggers of the caller's tenants, newest first; with `kind` those of one kind."""
    tenant_id = _tenant(ask.caller.tenants, ask.body.tenant_id)

    def read(place: dict[str, object]) -> list[Row]:
        return tx.rows(PAGE, {**place, "tenant_id": tenant_id})

    def keep(row: Row) -> Trigger | None:
        mine = ask.caller.may_see(row["tenant_id"]) and kind in (None, row["kind"])
        return shown(row) if mine else None

    return fill(read, keep, ask.body, "created_at_ms", "place")


def status(tx: Tx, ask: Ask[str | None], now: Now) -> TriggerStatus:
    """How the triggers of a tenant stand, or with None those of all the caller's tenants."""
    named = {"tenant_id": _tenant(ask.caller.tenants, ask.body), "rows": STATUS_MAX}
    rows = [row for row in tx.rows(STATUS, named) if ask.caller.may_see(row["tenant_id"])]
    heads = [
        row["head_seq"] for row in tx.rows(HEADS, named) if ask.caller.may_see(row["tenant_id"])
    ]
    several = len({row["tenant_id"] for row in rows}) > 1
    cursors, disabled, failing, lag = dict[str, int](), dict[str, str](), dict[str, str](), 0
    for row in rows:
        name = f"{row['tenant_id']}/{row['trigger_id']}" if several else row["trigger_id"]
        if row["cursor_seq"] is not None:
            cursors[name] = row["cursor_seq"]
        if not row["enabled"]:
            disabled[name] = _why_disabled(row)
            continue
        if row["cursor_seq"] is not None:
            lag = max(lag, row["head_seq"] - row["cursor_seq"])
        if row["failures"]:
            failing[name] = row["failure"]
    return TriggerStatus(
        triggers=len(rows),
        cursors=cursors,
        lag=lag,
        head=max(heads, default=0),
        disabled=disabled,
        failing=failing,
    )


def overtaken(row: Row) -> bool:
    """Whether changes that a state trigger has not judged are gone."""
    return row["cursor_seq"] is not None and row["cursor_seq"] < row["floor_seq"]


def shown(row: Row) -> Trigger:
    """A row of BY_ID as the noun."""
    work, predicate = _read(row)
    schedule = row["kind"] == "schedule"
    return Trigger(
        trigger_id=row["trigger_id"],
        kind=row["kind"],
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        target_capability=row["target_capability"],
        environment=work.environment,
        definition_revision=work.definition_revision,
        requested_by=mapping.subject_of(row["requested_by"]),
        authorization_grant_id=row["authorization_grant_id"],
        capability_snapshot=work.capability_snapshot,
        connection_scopes=work.connection_scopes,
        priority=work.priority,
        enabled=bool(row["enabled"]),
        fired=row["fired"],
        passed_over=row["passed_over"],
        failures=row["failures"],
        defined_by=row["defined_by"],
        created_at_ms=row["created_at_ms"],
        updated_at_ms=row["updated_at_ms"],
        source_collection=row["source_collection"],
        change_kind=row["change_kind"],
        predicate=predicate,
        cursor=row["cursor_seq"],
        lag=None if row["cursor_seq"] is None else row["head_seq"] - row["cursor_seq"],
        overtaken=overtaken(row),
        cron=row["cron"],
        every_ms=row["every_ms"],
        timezone=row["timezone"],
        missed=row["missed"],
        overlap=row["overlap"],
        input=work.input if schedule else UNSET,
        next_at_ms=row["next_at_ms"],
        last_at_ms=row["last_at_ms"],
        retry_policy=work.retry_policy,
        timeouts=work.timeouts,
        not_before_at_ms=work.not_before_at_ms,
        placement=work.placement,
        runtime_policy=work.runtime_policy,
        failure=row["failure"],
        retry_at_ms=row["retry_at_ms"],
        disabled=_disabled(row),
        last_workload_id=row["last_workload_id"],
        last_fired_at_ms=row["last_fired_at_ms"],
    )


def _read(row: Row) -> tuple[Work, Predicate | None]:
    """What a row says; of one that somebody broke by hand nothing, so that lists still show it."""
    try:
        text = row["predicate"]
        return mapping.work_of(row), None if text is None else decode(text, type=Predicate)
    except (MsgspecError, RecursionError):
        return Work(), None


def _disabled(row: Row) -> Disabled | None:
    if row["enabled"]:
        return None
    return Disabled(row["disabled_at_ms"], row["disabled_by"], row["disabled_reason"])


def _why_disabled(row: Row) -> str:
    reason = str(row["disabled_reason"])
    if not overtaken(row):
        return reason
    return (
        f"overtaken: changes up to {row['floor_seq']} are gone, it has judged up to"
        f" {row['cursor_seq']}; define it again with a start: {reason}"
    )


def _tenant(tenants: tuple[str, ...], named: str | None) -> str:
    return named or (tenants[0] if len(tenants) == 1 else "*")

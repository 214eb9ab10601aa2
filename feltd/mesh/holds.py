"""Holds: work that nobody may claim until the hold is lifted or its time is over.

A hold is of everybody's work, a tenant's, an application's, of one pool or one definition. While
it stands nothing it touches is claimed by any way; what runs goes on. It is part of what fits a
worker, found anew in the commit that places or lifts it, so no later claim passes it.
"""

from collections.abc import Mapping

from msgspec import Struct, ValidationError, convert
from msgspec.json import encode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import audit, principals
from feltd.identity.pages import fill
from feltd.mesh import events, generation, placement, pools
from feltd.model.base import Ask, Name, WorkloadKind
from feltd.model.hold import Hold, NewHold
from feltd.model.page import Page, PageAsk
from feltd.model.secret_text import covered
from feltd.store.tx import Row, Tx

SCOPE = "workloads:operate"

#: Holds of a tenant that stand at once; a screen of a person, and a look at the pools and
#: definitions of so many costs nothing beside the demands they are compared with.
HOLDS_MAX = 256
#: Ended ones that are remembered of a tenant, so that a repeat is told from a made-up id.
ENDED_MAX = 256
#: Of a reason, what the line of the start and /health show.
REASON_CHARS_TOLD = 120
#: The hold of --hold-claims.
AT_START = "hold_at_start"
AT_START_REASON = "--hold-claims"

OF_APPLICATION = """
SELECT h.hold_id, h.scope, h.value, h.reason
  FROM holds h
 WHERE h.tenant_id IN ('*', :tenant_id)
   AND (h.scope <> 'application' OR h.value = :application_id)
   AND h.ended_at_ms IS NULL
 ORDER BY h.held_at_ms, h.hold_id
"""

BY_ID = """
SELECT h.tenant_id, h.hold_id, h.scope, h.value, h.reason, h.held_by, h.held_at_ms, h.until_at_ms,
       h.ended_at_ms
  FROM holds h
 WHERE h.hold_id = :hold_id
   AND (:tenant_id = '' OR h.tenant_id = :tenant_id)
 ORDER BY h.tenant_id
 LIMIT 1
"""

COUNT = """
SELECT count(*) AS holds
  FROM holds h
 WHERE h.tenant_id = :tenant_id
   AND h.ended_at_ms IS NULL
"""

PLACE = """
INSERT INTO holds (tenant_id, hold_id, scope, value, reason, held_by, held_at_ms, until_at_ms)
VALUES (:tenant_id, :hold_id, :scope, :value, :reason, :held_by, :now_ms, :until_at_ms)
ON CONFLICT (tenant_id, hold_id) DO UPDATE
   SET held_at_ms = excluded.held_at_ms,
       held_by = excluded.held_by,
       reason = excluded.reason,
       until_at_ms = NULL,
       ended_at_ms = NULL
 WHERE holds.ended_at_ms IS NOT NULL
"""

END = """
UPDATE holds
   SET ended_at_ms = :now_ms
 WHERE tenant_id = :tenant_id
   AND hold_id = :hold_id
   AND ended_at_ms IS NULL
"""

OVER = """
SELECT h.tenant_id, h.hold_id, h.scope, h.value
  FROM holds h
 WHERE h.until_at_ms <= :wall_ms
   AND h.ended_at_ms IS NULL
 ORDER BY h.until_at_ms, h.tenant_id, h.hold_id
 LIMIT :limit
"""

FORGET = """
DELETE FROM holds
 WHERE tenant_id = :tenant_id
   AND ended_at_ms IS NOT NULL
   AND hold_id NOT IN (SELECT h.hold_id
                         FROM holds h
                        WHERE h.tenant_id = :tenant_id
                          AND h.ended_at_ms IS NOT NULL
                        ORDER BY h.ended_at_ms DESC, h.hold_id
                        LIMIT :kept)
"""

PAGE = """
SELECT h.tenant_id, h.hold_id, h.scope, h.value, h.reason, h.held_by, h.held_at_ms, h.until_at_ms
  FROM holds h
 WHERE (:tenant_id = '' OR h.tenant_id = :tenant_id)
   AND h.ended_at_ms IS NULL
   AND (h.held_at_ms, h.hold_id) < (:at_ms, :id)
 ORDER BY h.held_at_ms DESC, h.hold_id DESC
 LIMIT :rows
"""

WHOLE = """
SELECT h.hold_id, h.held_by, h.reason
  FROM holds h
 WHERE h.tenant_id = '*'
   AND h.ended_at_ms IS NULL
 ORDER BY h.held_at_ms, h.hold_id
 LIMIT 1
"""


class Placing(Struct, frozen=True):
    """A hold and whose work it touches, as the handler found it; '*': everybody's."""

    tenant_id: str
    hold: NewHold


def place(tx: Tx, ask: Ask[Placing], now: Now) -> Hold:
    """Hold work from this commit on. Repeating makes another hold.

    Refuses FORBIDDEN for scope all without tenants '*', WORKER_POOL_NOT_FOUND for a pool that is
    none of the tenant's, REQUEST_INVALID for a value that does not fit the scope, an instant that
    is past, or beyond HOLDS_MAX holds.
    """
    tenant_id, asked = ask.body.tenant_id, ask.body.hold
    principals.confirm(tx, ask.caller, now)
    principals.require_scope(ask.caller, SCOPE)
    if tenant_id == generation.EVERYBODY and generation.EVERYBODY not in ask.caller.tenants:
        raise Refused("FORBIDDEN", "a hold on everybody's work needs a key of tenants *")
    value = _value(tx, tenant_id, asked)
    if asked.until_at_ms is not None and asked.until_at_ms <= now.wall_ms:
        raise _invalid("/until_at_ms", "is past")
    used = tx.rows(COUNT, {"tenant_id": tenant_id})[0]["holds"]
    if used >= HOLDS_MAX:
        raise Refused(
            "REQUEST_INVALID",
            f"{used} holds stand already, {HOLDS_MAX} are allowed: lift one first",
            limit=HOLDS_MAX,
            used=used,
        )
    actor = str(ask.caller.subject)
    row: dict[str, object] = {
        "tenant_id": tenant_id,
        "hold_id": ask.fresh,
        "scope": asked.scope,
        "value": value,
        "reason": covered(asked.reason),
        "held_by": actor,
        "until_at_ms": asked.until_at_ms,
    }
    tx.change(PLACE, {**row, "now_ms": now.lease_ms})
    _tell(tx, now, "hold", row, actor)
    about = f"{tenant_id}/{ask.fresh}"
    audit.act(tx, now, actor, "hold", about, reason=asked.reason, body=encode(asked))
    return _shown(_present(tx, tenant_id, ask.fresh))


def lift(tx: Tx, ask: Ask[str], now: Now) -> None:
    """End the hold `ask.id` of the tenant `ask.body` ('': of any of the caller's); pulls wake.

    Repeating changes nothing. Refuses HOLD_NOT_FOUND.
    """
    principals.confirm(tx, ask.caller, now)
    principals.require_scope(ask.caller, SCOPE)
    row = tx.row(BY_ID, {"tenant_id": ask.body, "hold_id": ask.id})
    # Everybody's has the tenant '*', which only a key of all tenants may see.
    if row is None or not ask.caller.may_see(row["tenant_id"]):
        raise principals.not_found("HOLD_NOT_FOUND")
    if row["ended_at_ms"] is not None:
        return
    actor = str(ask.caller.subject)
    _end(tx, now, row, "lift", actor)
    audit.act(tx, now, actor, "lift", f"{row['tenant_id']}/{ask.id}", reason=row["reason"])


def hold_at_start(tx: Tx, now: Now) -> None:
    """Hold everybody's work, as --hold-claims asks at each start; one hold, however often."""
    row: dict[str, object] = {
        "tenant_id": generation.EVERYBODY,
        "hold_id": AT_START,
        "scope": "all",
        "value": None,
        "reason": AT_START_REASON,
        "held_by": "service:feltd",
        "until_at_ms": None,
    }
    if tx.change(PLACE, {**row, "now_ms": now.lease_ms}):
        _tell(tx, now, "hold", row, "service:feltd")
        about = f"{generation.EVERYBODY}/{AT_START}"
        audit.act(tx, now, "service:feltd", "hold", about, reason=AT_START_REASON)


def end_due(tx: Tx, limit: int, now: Now) -> int:
    """End up to `limit` holds whose instant has come; how many. Nothing is written where none."""
    over = tx.rows(OVER, {"wall_ms": now.wall_ms, "limit": limit})
    for row in over:
        _end(tx, now, row, "hold_end", None)
    return len(over)


def page(tx: Tx, ask: Ask[PageAsk], now: Now) -> Page[Hold]:
    """Holds that stand and touch the caller's tenants, newest first.

    Everybody's is among them for a key of tenants '*', where no tenant is asked for.
    """
    tenants = ask.caller.tenants
    only = ask.body.tenant_id or (tenants[0] if len(tenants) == 1 else "")
    tenant_id = "" if only == generation.EVERYBODY else only

    def read(place: dict[str, object]) -> list[Row]:
        return tx.rows(PAGE, {**place, "tenant_id": tenant_id})

    def keep(row: Row) -> Hold | None:
        return _shown(row) if ask.caller.may_see(row["tenant_id"]) else None

    return fill(read, keep, ask.body, "held_at_ms", "hold_id")


def whole(tx: Tx) -> str:
    """The oldest hold on everybody's work that stands, on one line; '' when there is none."""
    row = tx.row(WHOLE)
    if row is None:
        return ""
    reason = " ".join(row["reason"].split())[:REASON_CHARS_TOLD]
    return f"nothing is claimed: {row['hold_id']} by {row['held_by']}: {reason}"


def of_application(
    tx: Tx, tenant_id: str, application_id: str, gate_generation: int | None
) -> placement.Holds:
    """The holds that touch an application, the oldest first where several touch the same.

    `gate_generation` is its own as this transaction read it: while that stays, nothing is read
    again. None (it has no row yet) remembers nothing.
    """
    key = ("holds", tenant_id, application_id)
    known: tuple[int, placement.Holds] | None = tx.memo.get(key)
    if known is not None and known[0] == gate_generation:
        return known[1]
    owner = {"tenant_id": tenant_id, "application_id": application_id}
    whole: placement.Hold | None = None
    of_pool: dict[str, placement.Hold] = {}
    of_definition: dict[str, placement.Hold] = {}
    for row in tx.rows(OF_APPLICATION, owner):
        hold = placement.Hold(row["hold_id"], row["scope"], row["value"], row["reason"])
        if hold.scope == "pool":
            of_pool.setdefault(row["value"], hold)
        elif hold.scope == "definition":
            of_definition.setdefault(row["value"], hold)
        else:
            whole = whole or hold
    found = placement.Holds(whole, of_pool, of_definition)
    if gate_generation is not None:
        tx.memo[key] = gate_generation, found
    return found


def touching(row: Row | Mapping[str, object], holds: placement.Holds) -> placement.Hold | None:
    """The hold that keeps the work of a workloads row from being claimed, None when none does."""
    return placement.touching(placement.of_workload(row), holds)


def _value(tx: Tx, tenant_id: str, asked: NewHold) -> str | None:
    """What of the tenant is held, as its row says it."""
    value = asked.value
    if asked.scope == "all":
        if value is not None or asked.tenant_id is not None:
            raise _invalid("/scope", "all takes neither value nor tenant_id")
        return None
    if asked.scope == "tenant":
        if value not in (None, tenant_id):
            raise _invalid("/value", "names another tenant")
        return None
    if value is None:
        raise _invalid("/value", f"says which {asked.scope} is held")
    try:
        convert(value, WorkloadKind if asked.scope == "definition" else Name)
    except ValidationError:
        raise _invalid("/value", f"names no {asked.scope}") from None
    if asked.scope == "pool":
        pools.known(tx, tenant_id, value)
    return value


def _end(tx: Tx, now: Now, row: Row, verb: str, actor: str | None) -> None:
    key = {"tenant_id": row["tenant_id"], "hold_id": row["hold_id"]}
    tx.change(END, {**key, "now_ms": now.lease_ms})
    tx.change(FORGET, {"tenant_id": row["tenant_id"], "kept": ENDED_MAX})
    _tell(tx, now, verb, row, actor)


def _tell(tx: Tx, now: Now, verb: str, row: Row | Mapping[str, object], actor: str | None) -> None:
    """Have every application it touches look again, and write down what was done."""
    tenant_id, scope = str(row["tenant_id"]), row["scope"]
    application_id = str(row["value"]) if scope == "application" else None
    generation.touch(tx, tenant_id, application_id)
    if scope == "all":
        tx.tell("held", whole(tx))
    events.tell(
        tx,
        now,
        verb,
        tenant_id=None if tenant_id == generation.EVERYBODY else tenant_id,
        application_id=application_id,
        actor=actor,
    )


def _present(tx: Tx, tenant_id: str, hold_id: str) -> Row:
    row = tx.row(BY_ID, {"tenant_id": tenant_id, "hold_id": hold_id})
    assert row is not None
    return row


def _shown(row: Row) -> Hold:
    everybody = row["tenant_id"] == generation.EVERYBODY
    return Hold(
        hold_id=row["hold_id"],
        scope=row["scope"],
        reason=row["reason"],
        held_by=row["held_by"],
        held_at_ms=row["held_at_ms"],
        tenant_id=None if everybody else row["tenant_id"],
        value=row["value"],
        until_at_ms=row["until_at_ms"],
    )


def _invalid(pointer: str, detail: str) -> Refused:
    return Refused(
        "REQUEST_INVALID",
        f"{pointer}: {detail}",
        errors=[{"pointer": pointer, "detail": detail}],
    )

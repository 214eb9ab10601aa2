"""Consumers: who reads the log of changes outside, and how far each has got for good.

Compaction waits for each, up to a limit; one it no longer waits for is dropped in the open and told
so when it comes back. A cursor only moves forward: whoever wants to read again begins anew.
"""

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import audit, principals
from feltd.model.base import Ask
from feltd.model.change import CONSUMERS_MAX, Consumer
from feltd.model.record import OfTenant
from feltd.state.changes import require_kept
from feltd.state.writing import Log, head
from feltd.store.tx import Row, Tx

#: A consumer that says the same again is heard at most so often: each time is a write.
HEARD_MS = 1_000
#: Begins what a dropped one is told.
GIVEN_UP = "the consumer was given up: "

FIND = """
SELECT c.name, c.ack_seq, c.acked_at_ms, c.created_at_ms, c.dropped_at_ms
  FROM consumers c
 WHERE c.tenant_id = :tenant_id
   AND c.name = :name
"""

OF_TENANT = """
SELECT c.name, c.ack_seq, c.acked_at_ms, c.created_at_ms, c.dropped_at_ms
  FROM consumers c
 WHERE c.tenant_id = :tenant_id
 ORDER BY c.name
 LIMIT :rows
"""

COUNT = """
SELECT count(*) AS consumers
  FROM consumers c
 WHERE c.tenant_id = :tenant_id
"""

BEGIN = """
INSERT INTO consumers (tenant_id, name, ack_seq, acked_at_ms, created_at_ms, created_by)
VALUES (:tenant_id, :name, :ack, :now_ms, :now_ms, :created_by)
"""

ADVANCE = """
UPDATE consumers
   SET ack_seq = :ack,
       acked_at_ms = :now_ms,
       dropped_at_ms = NULL
 WHERE tenant_id = :tenant_id
   AND name = :name
"""

DELETE = """
DELETE FROM consumers
 WHERE tenant_id = :tenant_id
   AND name = :name
"""


class OfConsumer(OfTenant, frozen=True):
    """A consumer of a tenant by name, and what it acknowledges."""

    name: str = ""
    ack: int = 0


def acknowledge(tx: Tx, ask: Ask[OfConsumer], now: Now) -> tuple[Consumer, bool]:
    """Note that a consumer is done with every change up to `ack`; it, and whether it is new.

    The first time begins it; the same again says that it is alive. Compaction then keeps what lies
    behind `ack`. Refuses CONSUMER_BEHIND, with the `ack` stored, for less than that;
    CHANGES_COMPACTED for a new or dropped one below the log; RECORD_INVALID for more than there
    is; QUOTA_EXCEEDED beyond CONSUMERS_MAX.
    """
    principals.confirm(tx, ask.caller, now)
    cmd = ask.body
    log = head(tx, cmd.tenant_id)
    row = tx.row(FIND, {"tenant_id": cmd.tenant_id, "name": cmd.name})
    if row is not None and row["dropped_at_ms"] is None and cmd.ack < row["ack_seq"]:
        raise Refused(
            "CONSUMER_BEHIND",
            f"it has acknowledged changes up to {row['ack_seq']}",
            ack=row["ack_seq"],
        )
    if cmd.ack > log.head_seq:
        detail = f"the log ends at {log.head_seq}"
        raise Refused(
            "RECORD_INVALID", f"/ack: {detail}", errors=[{"pointer": "/ack", "detail": detail}]
        )
    given_up = row is not None and row["dropped_at_ms"] is not None
    require_kept(log, cmd.ack, GIVEN_UP if given_up else "")
    at = {
        "tenant_id": cmd.tenant_id,
        "name": cmd.name,
        "ack": cmd.ack,
        "now_ms": now.lease_ms,
    }
    if row is None:
        _require_room(tx, cmd.tenant_id)
        tx.change(BEGIN, {**at, "created_by": str(ask.caller.subject)})
    elif _moves(row, cmd.ack, now):
        tx.change(ADVANCE, at)
    else:
        return _shown(row, log), False
    return _shown(
        tx.rows(FIND, {"tenant_id": cmd.tenant_id, "name": cmd.name})[0], log
    ), row is None


def get(tx: Tx, cmd: OfConsumer, now: Now) -> Consumer:
    """One consumer. Refuses CONSUMER_NOT_FOUND, and CHANGES_COMPACTED for one that was dropped
    and whose next change is gone.
    """
    row = tx.row(FIND, {"tenant_id": cmd.tenant_id, "name": cmd.name})
    if row is None:
        raise principals.not_found("CONSUMER_NOT_FOUND")
    log = head(tx, cmd.tenant_id)
    if row["dropped_at_ms"] is not None:
        require_kept(log, row["ack_seq"], GIVEN_UP)
    return _shown(row, log)


def of_tenant(tx: Tx, cmd: OfTenant, now: Now) -> tuple[Consumer, ...]:
    """Every consumer of a tenant, by name, those dropped too."""
    log = head(tx, cmd.tenant_id)
    rows = tx.rows(OF_TENANT, {"tenant_id": cmd.tenant_id, "rows": CONSUMERS_MAX})
    return tuple(_shown(row, log) for row in rows)


def delete(tx: Tx, ask: Ask[OfConsumer], now: Now) -> None:
    """Forget a consumer: compaction waits for it no more. Repeating changes nothing."""
    principals.confirm(tx, ask.caller, now)
    cmd = ask.body
    if tx.change(DELETE, {"tenant_id": cmd.tenant_id, "name": cmd.name}):
        subject = f"{cmd.tenant_id}/{cmd.name}"
        audit.act(tx, now, str(ask.caller.subject), "delete_consumer", subject)


def _moves(row: Row, ack: int, now: Now) -> bool:
    heard = row["acked_at_ms"] + HEARD_MS > now.lease_ms
    return ack != row["ack_seq"] or row["dropped_at_ms"] is not None or not heard


def _require_room(tx: Tx, tenant_id: str) -> None:
    used = tx.rows(COUNT, {"tenant_id": tenant_id})[0]["consumers"]
    if used >= CONSUMERS_MAX:
        raise Refused(
            "QUOTA_EXCEEDED",
            f"the tenant has {used} consumers, {CONSUMERS_MAX} are allowed: delete one first",
            quota="consumers",
            limit=CONSUMERS_MAX,
            used=used,
        )


def _shown(row: Row, log: Log) -> Consumer:
    return Consumer(
        name=row["name"],
        ack=row["ack_seq"],
        head=log.head_seq,
        lag=log.head_seq - row["ack_seq"],
        acked_at_ms=row["acked_at_ms"],
        created_at_ms=row["created_at_ms"],
        dropped_at_ms=row["dropped_at_ms"],
    )

"""How a trigger makes one workload, and what becomes of a trigger that cannot.

A firing that fails is tried again after 1, 2, 4 and 8 s; the fifth failure in a row disables the
trigger, with the reason where everybody sees it. Nothing here reads the log or the calendar: who
fires, and for what, is decided by the callers, who stand in an attempt of their own.
"""

from collections.abc import Mapping
from sqlite3 import Error, IntegrityError

from msgspec import MsgspecError

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import audit
from feltd.mesh import creation, events
from feltd.model.trigger import FAILURES_MAX
from feltd.model.workload import Tombstone
from feltd.state import mapping
from feltd.store.tx import Row, Tx

#: Who disables a trigger that fails.
FELTD = "service:feltd"
RETRY_MS = 1_000
#: Of what a failure says, what status and list show.
FAILURE_CHARS_MAX = 500

FAILURES = """
SELECT t.failures
  FROM triggers t
 WHERE t.tenant_id = :tenant_id
   AND t.trigger_id = :trigger_id
"""

FAIL = """
UPDATE triggers
   SET failures = :failures,
       failure = :failure,
       retry_at_ms = :retry_at_ms
 WHERE tenant_id = :tenant_id
   AND trigger_id = :trigger_id
   AND enabled = 1
"""

GIVE_UP = """
UPDATE triggers
   SET enabled = 0,
       failures = :failures,
       failure = :failure,
       retry_at_ms = NULL,
       next_at_ms = NULL,
       disabled_at_ms = :now_ms,
       disabled_by = :disabled_by,
       disabled_reason = :failure
 WHERE tenant_id = :tenant_id
   AND trigger_id = :trigger_id
   AND enabled = 1
"""

WENT_WELL = """
UPDATE triggers
   SET fired = fired + 1,
       failures = 0,
       failure = NULL,
       retry_at_ms = NULL,
       last_workload_id = :workload_id,
       last_fired_at_ms = :now_ms,
       cursor_seq = coalesce(:cursor_seq, cursor_seq)
 WHERE tenant_id = :tenant_id
   AND trigger_id = :trigger_id
"""


def fire(
    tx: Tx, now: Now, row: Row, key: str, text: bytes, labels: Mapping[str, str] | None = None
) -> str:
    """Make the workload of one firing; its id. Call it in `tx.attempt`: it may refuse late.

    `row` is the trigger's (tenant_id, trigger_id, application_id, target_capability, work,
    requested_by, authorization_grant_id), `text` the input as canonical JSON. With a key that was
    used for the same before, the workload of then. Refuses what a creation refuses; raises
    msgspec errors for a row that cannot be read.
    """
    creation_asked = mapping.creation_of(row, key, text, labels or {})
    # Keys are a tenant's; ids are everybody's.
    fresh = f"{row['tenant_id']}/{key}"
    made = creation.make(tx, now, mapping.caller_of(row), creation_asked, fresh)
    if isinstance(made, Tombstone):
        raise Refused(
            "WORKLOAD_IDEMPOTENCY_CONFLICT",
            "the key of this firing names a workload that is gone and was not this trigger's",
        )
    return made.workload_id


def went_well(tx: Tx, now: Now, row: Row, workload_id: str, cursor_seq: int | None = None) -> None:
    """Count a firing, and forget the failures before it. `cursor_seq`: a state trigger's change."""
    tx.change(
        WENT_WELL,
        {
            **_name(row),
            "workload_id": workload_id,
            "now_ms": now.lease_ms,
            "cursor_seq": cursor_seq,
        },
    )


def failed(tx: Tx, now: Now, row: Row, why: Exception) -> None:
    """Count a failed firing: it waits for its retry, or is disabled after FAILURES_MAX in a row.

    Call it outside the attempt that failed. What it was about stays to be done: a cursor does not
    move, an instant stays the next one (disabling ends it).
    """
    known = tx.row(FAILURES, _name(row))
    if known is None:
        return
    failures, failure = known["failures"] + 1, told(why)
    if failures < FAILURES_MAX:
        retry_at_ms = now.lease_ms + RETRY_MS * 2 ** (failures - 1)
        facts = {"failures": failures, "failure": failure, "retry_at_ms": retry_at_ms}
        tx.change(FAIL, {**_name(row), **facts})
        return
    facts = {"failures": FAILURES_MAX, "failure": failure, "disabled_by": FELTD}
    if tx.change(GIVE_UP, {**_name(row), **facts, "now_ms": now.lease_ms}):
        write_down(tx, now, "disable_trigger", row, FELTD, reason=failure)
        warn(tx, row, f"disabled after {FAILURES_MAX} failures: {failure}")


def is_storage(tx: Tx, error: Exception) -> bool:
    """Whether it is the storage's trouble, which is everybody's, and not one trigger's."""
    if tx.lost is not None:
        return True
    return isinstance(error, Error | MemoryError) and not isinstance(error, IntegrityError)


def told(why: Exception) -> str:
    """A failure on one line: its code and what it says."""
    code, detail = "INTERNAL", f"{type(why).__name__}: {why}"
    if isinstance(why, Refused):
        code, detail = why.code, why.detail
    elif isinstance(why, MsgspecError | RecursionError):
        code, detail = "TRIGGER_INVALID", f"what is stored cannot be read: {why}"
    elif isinstance(why, IntegrityError):
        code, detail = "TRIGGER_STORAGE_FAILURE", str(why)
    return " ".join(f"{code}: {detail}".split())[:FAILURE_CHARS_MAX]


def write_down(
    tx: Tx,
    now: Now,
    verb: str,
    row: Row | Mapping[str, object],
    actor: str,
    *,
    reason: str | None = None,
    body: bytes = b"",
) -> None:
    """The event and the audit act of one verb on a trigger."""
    tenant_id, application_id = str(row["tenant_id"]), str(row["application_id"])
    events.tell(tx, now, verb, tenant_id=tenant_id, application_id=application_id, actor=actor)
    subject = f"{tenant_id}/{row['trigger_id']}"
    audit.act(tx, now, actor, verb, subject, reason=reason, body=body)


def warn(tx: Tx, row: Row, sentence: str) -> None:
    """Have the daemon's log say something of a trigger, once this is committed."""
    tx.tell("trigger", f"{row['tenant_id']}/{row['trigger_id']} {sentence}")


def _name(row: Row) -> dict[str, object]:
    return {"tenant_id": row["tenant_id"], "trigger_id": row["trigger_id"]}

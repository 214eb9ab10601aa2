"""Writes as they are sent: one record, or many in one transaction, all of it or nothing.

What a caller may write is tested here, in the transaction that commits; what is written, and when a
write is refused, is records.py's. A deed that changed something is an act of the audit; the changes
themselves are the log.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec import UNSET, Raw, Struct

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import audit, principals
from feltd.model.base import Ask, Caller
from feltd.model.record import FLOW_CAPABILITIES, Committed, Expect, Left
from feltd.state import records
from feltd.state.records import Stored
from feltd.state.writing import Appending, writing
from feltd.store.tx import Tx

WRITE = "state:write"
#: In place of WRITE, for the records that are programs.
WRITE_PROGRAMS = "capabilities:write"


class Step(NamedTuple):
    """One write: `value` is JSON as it is stored, a patch, or b'' for a delete."""

    op: str
    collection: str
    record_id: str
    value: bytes
    expect: Expect


class Write(Struct, frozen=True):
    """One write of a tenant's record, and the workload named as its cause."""

    tenant_id: str
    step: Step
    cause: str | None = None


class Transacting(Struct, frozen=True):
    """A transaction of a tenant; `body` is what was sent.

    The answer carries values as long as they take no more than `values_bytes_max` together.
    """

    tenant_id: str
    steps: tuple[Step, ...]
    body: bytes
    values_bytes_max: int
    cause: str | None = None


def write(tx: Tx, ask: Ask[Write], now: Now) -> Stored:
    """Write one record; see records.put, patch and delete for what is refused.

    Repeating leaves the record as it is and says the same. Refuses FORBIDDEN without the scope the
    collection needs, RECORD_INVALID for a cause that is no workload of the tenant.
    """
    principals.confirm(tx, ask.caller, now)
    step = ask.body.step
    authorize(ask.caller, (step.collection,))
    log = Appending(tx, now, writing(tx, ask.caller, ask.body.tenant_id, ask.body.cause))
    stored = _do(tx, now, log, step)
    log.end()
    if stored.kind:
        subject = f"{ask.body.tenant_id}/{step.collection}/{step.record_id}"
        audit.act(tx, now, log.why.actor, f"{step.op}_record", subject, body=step.value)
    return stored


def transact(tx: Tx, ask: Ask[Transacting], now: Now) -> Committed:
    """Do every step in order, each with a change of its own; the first that is refused undoes all.

    A record may be named twice: the second step meets what the first left. Refuses as `write`
    does, `errors` pointing at the step; RECORD_INVALID also beyond MOVED_BYTES_MAX.
    """
    principals.confirm(tx, ask.caller, now)
    body = ask.body
    authorize(ask.caller, dict.fromkeys(step.collection for step in body.steps))
    log = Appending(tx, now, writing(tx, ask.caller, body.tenant_id, body.cause))
    done = []
    for place, step in enumerate(body.steps):
        try:
            done.append(_do(tx, now, log, step))
        except Refused as refused:
            raise _placed(refused, place) from None
    sequence = log.end()
    if any(stored.kind for stored in done):
        subject = f"{body.tenant_id}: {len(done)} mutations"
        audit.act(tx, now, log.why.actor, "transact", subject, body=body.body)
    return _committed(sequence, done, body.values_bytes_max)


def authorize(caller: Caller, collections: Iterable[str]) -> None:
    """Refuse FORBIDDEN unless the caller may write to each of these collections."""
    for collection in collections:
        programs = collection == FLOW_CAPABILITIES
        principals.require_scope(caller, WRITE_PROGRAMS if programs else WRITE)


def _do(tx: Tx, now: Now, log: Appending, step: Step) -> Stored:
    if step.op == "delete":
        return records.delete_in(tx, now, log, step.collection, step.record_id, step.expect)
    valued: Callable[..., Stored] = records.put_in if step.op == "put" else records.patch_in
    return valued(tx, now, log, step.collection, step.record_id, step.value, step.expect)


def _placed(refused: Refused, place: int) -> Refused:
    """The refusal of a step, with its place in the transaction."""
    facts = {name: fact for name, fact in refused.facts.items() if name != "errors"}
    member = "if_version" if refused.code == "RECORD_CONFLICT" else ""
    pointer = f"/mutations/{place}" + (f"/{member}" if member else "")
    errors = [{"pointer": pointer, "detail": refused.detail}]
    return Refused(refused.code, f"{pointer}: {refused.detail}", errors=errors, **facts)


def _committed(sequence: int, done: list[Stored], values_bytes_max: int) -> Committed:
    size_bytes = sum(len(stored.value or "") for stored in done)
    if size_bytes > values_bytes_max:
        return Committed(
            sequence=sequence,
            records=tuple(_left(stored, valued=False) for stored in done),
            values_left_out=True,
        )
    return Committed(sequence=sequence, records=tuple(_left(stored) for stored in done))


def _left(stored: Stored, *, valued: bool = True) -> Left:
    if stored.value is None:
        return Left(
            collection=stored.collection,
            id=stored.record_id,
            version=stored.version,
            deleted=True,
        )
    return Left(
        collection=stored.collection,
        id=stored.record_id,
        version=stored.version,
        value=Raw(stored.value.encode()) if valued else UNSET,
        created_at_ms=stored.created_at_ms,
        updated_at_ms=stored.updated_at_ms,
        change_seq=stored.change_seq,
    )

"""What is known of writes and acknowledgements: each answer, and each refusal, is the law's."""

from collections.abc import Callable

from msgspec import UNSET
from msgspec.json import decode

from feltd.state.transactions import Step, Transacting
from tests.sim import wishes
from tests.sim.books import ABSENT, Books, Wanted
from tests.sim.calls import Call
from tests.sim.history import History, Violation

#: Refusals that say nothing of records.
ASIDE = frozenset({"UNAUTHENTICATED", "FORBIDDEN", "STORAGE_FULL"})


def books_of(history: History, tenant_id: str) -> Books:
    """The books of a tenant."""
    return history.books.setdefault(tenant_id, Books())


def heard(history: History, call: Call) -> None:
    """A write was committed, or refused: the law says which."""
    judge = JUDGES.get(call.verb)
    code = call.refusal.code if call.refusal is not None else ""
    if judge is None or code in ASIDE:
        return
    judge(history, call, code)


def _held(history: History, call: Call, code: str) -> None:
    """A write under a claim: that lives, or nothing was written. What it led to is its cause."""
    hold = history.holds[call.cmd.body.fencing_token]
    why = history.forbids_caller(call.caller, call.now) or history.forbids_claim(hold, call.now)
    if not code and why is not None:
        raise Violation(f"a record was written under token {hold.token}, although {why}")
    if code in ("", "RECORD_CONFLICT", "RECORD_NOT_FOUND"):
        _done(history, call, code, call.cmd.id)


def _written(history: History, call: Call, code: str) -> None:
    _done(history, call, code, call.cmd.body.cause)


def _done(history: History, call: Call, code: str, cause: str | None) -> None:
    body = call.cmd.body
    steps = body.steps if isinstance(body, Transacting) else (body.step,)
    books = books_of(history, body.tenant_id)
    depth = 0 if cause is None else books.depth_of.get(cause, 0)
    before = (dict(books.records), len(books.deeds))
    found = ""
    for step in steps:
        value = decode(step.value) if step.value else ABSENT
        name = (step.collection, step.record_id)
        found = books.write(step.op, name, value, _wanted(step), call.caller.key_id, depth)
        if found:
            break
    if found:
        books.records = before[0]
        del books.deeds[before[1] :]
    if found != code:
        raise Violation(f"{call.verb} of {steps} was answered {code or 'done'}, not {found}")


def _wanted(step: Step) -> Wanted:
    version = step.expect.if_version
    return Wanted(ABSENT if version is UNSET else version, step.expect.exists)  # type: ignore[arg-type]


def _acknowledged(history: History, call: Call, code: str) -> None:
    body = call.cmd.body
    books = books_of(history, body.tenant_id)
    known = books.acks.get(body.name)
    if code == "CONSUMER_BEHIND":
        if known is None or body.ack >= known:
            raise Violation(f"{body} was refused, {known} was acknowledged")
    elif code == "RECORD_INVALID":
        if body.ack <= books.head:
            raise Violation(f"{body} was refused, the log ends at {books.head}")
    elif code == "CHANGES_COMPACTED":
        if body.ack >= books.floor:
            raise Violation(f"{body} was refused, the log is cut up to {books.floor}")
    elif not code:
        books.acks[body.name] = body.ack


def _forgotten(history: History, call: Call, code: str) -> None:
    if not code:
        books_of(history, call.cmd.body.tenant_id).acks.pop(call.cmd.body.name, None)


JUDGES: dict[str, Callable[[History, Call, str], None]] = {
    "write": _written,
    "transact": _written,
    "held_write": _held,
    "acknowledge": _acknowledged,
    "forget_consumer": _forgotten,
    "define": wishes.defined,
    "enable": wishes.enabled,
    "delete_trigger": wishes.deleted,
}

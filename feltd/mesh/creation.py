"""How work comes in: one workload, or a batch of them, each named for ever by its own key.

The caller and its grant decide what may be asked for; what a body says of them is only compared.
A repeated creation is the first one's workload, so that a lost answer costs nothing.
"""

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import principals
from feltd.mesh import workloads
from feltd.mesh.intake import Intake, enter, intake_of
from feltd.model.base import Ask, Caller
from feltd.model.workload import Batch, BatchAnswer, Created, Creation, Made, Refusal, Tombstone
from feltd.store.tx import Tx


def create(tx: Tx, ask: Ask[Creation], now: Now) -> Created:
    """Make one workload, READY at once or at its not_before, and offer it to who waits.

    With unfinished dependencies it is PENDING until they have ended; where one has already ended
    otherwise than its policy asks, it is a dead letter `dependency_failed` at once.
    `ask.fresh` is any random text. Repeating with the same key and the same body gives the first
    workload, whatever became of it (a tombstone for 7 days after it was pruned). Refuses
    WORKLOAD_UNAUTHORIZED without a live grant of the caller that covers it,
    WORKLOAD_IDEMPOTENCY_CONFLICT for a key that names other work, WORKLOAD_INVALID for what does
    not fit, a new key as triggers name their work by, or a sealed group,
    WORKLOAD_DEPENDENCY_INVALID for a dependency that is not there,
    WORKER_POOL_NOT_FOUND for a pool that its application has not, WORKLOAD_SECRET_IN_TEXT for
    labels that look like a secret.
    """
    principals.confirm(tx, ask.caller, now)
    made = enter(intake_of(tx, ask, now, alone=True), ask.body, 0)
    if isinstance(made, Tombstone):
        return Created(made, created=False)
    row = tx.rows(workloads.READ, {"workload_id": made.workload_id})[0]
    if made.created:
        return Created(workloads.shape(row, [], None), created=True)
    return Created(workloads.shown(tx, row), created=False)


def make(tx: Tx, now: Now, caller: Caller, creation: Creation, fresh: str) -> Made | Tombstone:
    """Make one workload in the name of `caller`, who was confirmed long ago: for what feltd starts.

    As `create` but for the confirmation: the grant must be usable now. The id follows from `fresh`
    and the instant alone. It may have written before it refuses: call it in `tx.attempt`.
    """
    intake = intake_of(tx, Ask(caller, creation, fresh=fresh), now, alone=True)
    return enter(intake._replace(started=True), creation, 0)


def create_batch(tx: Tx, ask: Ask[Batch], now: Now) -> BatchAnswer:
    """Make many workloads in one operation, each for itself: a refused one stops no other.

    With `atomic` the first refusal refuses all of them (its `errors` point below its item) and
    nothing is stored. Repeating is as with `create`, item by item. The refusals are the same.
    """
    principals.confirm(tx, ask.caller, now)
    intake = intake_of(tx, ask, now, alone=ask.body.atomic)
    items: list[Made | Refusal] = []
    for place, item in enumerate(ask.body.items):
        outcome = item if isinstance(item, Refusal) else _in_batch(intake, item, place)
        if isinstance(outcome, Refusal) and ask.body.atomic:
            raise _whole(outcome, place)
        items.append(outcome)
    return BatchAnswer(items)


def _in_batch(intake: Intake, item: Creation, place: int) -> Made | Refusal:
    try:
        made = enter(intake, item, place)
    except Refused as refused:
        return Refusal(refused.code, refused.detail, refused.facts.get("errors"))
    if isinstance(made, Tombstone):
        return Made(made.workload_id, made.state, created=False)
    return made


def _whole(refusal: Refusal, place: int) -> Refused:
    errors = [
        {"pointer": f"/workloads/{place}{error['pointer']}", "detail": error["detail"]}
        for error in refusal.errors or [{"pointer": "", "detail": refusal.detail}]
    ]
    return Refused(refusal.code, f"workload {place}: {refusal.detail}", errors=errors)

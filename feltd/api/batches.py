"""Many workloads in one call, so that neither the loop nor the writer is long in one tenant's hand.

Items that stand each for itself go to the writer in slices, each an operation of its own, and the
next is read only when the last is on disk: between two, others have their turn, and while there are
others the writer rests from this tenant's batches at least half of the time. An atomic batch is one
operation, as long as it is; the rest after it is longer. Nobody's answer waits for a rest.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

import msgspec
from msgspec import Raw

from feltd.api import fresh, wire
from feltd.api.door import in_tenant
from feltd.api.request import Reply, Request, reply
from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import grants
from feltd.mesh import creation
from feltd.model.base import Ask
from feltd.model.workload import (
    INPUT_BYTES_MAX,
    Batch,
    BatchAnswer,
    Creation,
    Made,
    NewBatch,
    NewWorkload,
    Refusal,
)
from feltd.store.trouble import never_begun
from feltd.store.tx import Tx

INVALID = "WORKLOAD_INVALID"
#: Items of one operation while other tenants call: about 1 ms of the writer, the wait of whoever
#: comes next. Each slice is a commit.
SLICE_ITEMS = 8
#: Rest after an operation while other tenants call, in times of what it took the writer; a slow
#: disk must not keep the tenant's next call waiting until its deadline.
REST, ATOMIC_REST = 1, 4
REST_S_MAX = 1.0
#: The same when no other tenant has called for ALONE_S: a batch takes half the time of small ones;
#: who comes then waits for one such slice, up to 25 ms, and from then on for small ones.
ALONE_ITEMS = 250
ALONE_S = 2.0
#: Dependencies count too: four cost as much as an item.
DEPENDENCIES_AN_ITEM = 4

Items = tuple[Creation | Refusal, ...]

#: Whose turn it is among the batches of one tenant, so that the loop reads and the writer writes
#: for one of its calls at a time, however many came.
_turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()


async def create_workloads(request: Request) -> Reply:
    """POST /v1/workloads/batch.

    Items of one batch are made in their order. Repeating a batch whose answer was lost, or some of
    whose items were refused for lack of time, gives what was made already by its keys.
    """
    body = request.decode(NewBatch)
    work = _in_one if body.atomic else _in_slices
    return reply(200, await work(request, body.workloads))


def creation_of(request: Request, body: NewWorkload) -> Creation:
    """The command of one body: input as it is stored, the grant its token proves."""
    text = wire.check_free_json(body.input, INPUT_BYTES_MAX, code=INVALID, pointer="/input")
    grant_id = None
    if body.authorization_grant is not None:
        grant_id = grants.open_token(
            request.app.keyring, body.authorization_grant, "WORKLOAD_UNAUTHORIZED"
        )
    return Creation(in_tenant(request, body), text, grant_id, request.traceparent)


async def _in_slices(request: Request, raws: Sequence[Raw]) -> BatchAnswer:
    """Item by item; what is refused as a whole after a part was made is refused of the rest alone.

    The request's deadline is that of all slices together.
    """
    until_s = time.monotonic() + request.deadline_ms / 1_000
    made: list[Made | Refusal] = []
    while len(made) < len(raws):
        sliced = 0
        try:
            async with _turn(request, until_s, REST) as make:
                items = _slice(request, raws[len(made) :])
                sliced = len(items)
                answer = await _submit(request, make, items, False, until_s)
        except Refused as refused:
            if not made:
                raise
            made += _unmade(refused, sliced, len(raws) - len(made))
        else:
            made += answer.items
    return BatchAnswer(made)


async def _in_one(request: Request, raws: Sequence[Raw]) -> BatchAnswer:
    until_s = time.monotonic() + request.deadline_ms / 1_000
    items: list[Creation | Refusal] = []
    async with _turn(request, until_s, ATOMIC_REST) as make:
        for start in range(0, len(raws), SLICE_ITEMS):
            items += [_item(request, raw) for raw in raws[start : start + SLICE_ITEMS]]
            await asyncio.sleep(0)
        return await _submit(request, make, tuple(items), True, until_s)


class _Make:
    """creation.create_batch, and since when the writer is at it."""

    def __init__(self) -> None:
        self.func = creation.create_batch
        self.began_s = math.inf

    def __call__(self, tx: Tx, ask: Ask[Batch], now: Now) -> BatchAnswer:
        self.began_s = time.monotonic()
        return self.func(tx, ask, now)

    def rest_s(self, times: int) -> float:
        """The rest due at its end: none when it never began."""
        return min(REST_S_MAX, max(0.0, times * (time.monotonic() - self.began_s)))


@asynccontextmanager
async def _turn(request: Request, until_s: float, rest: int) -> AsyncIterator[_Make]:
    """The turn of one call among those of its tenant, and the rest before the tenant's next.

    Past the deadline refuses as the writer. However the turn ends, answered, refused or left by a
    client that went away, what it took the writer is rested for.
    """
    turns = _turns.get(request.tenant)
    if turns is None:
        turns = _turns[request.tenant] = asyncio.Lock()
    try:
        async with asyncio.timeout(max(0.0, until_s - time.monotonic())):
            await turns.acquire()
    except TimeoutError:
        raise never_begun() from None
    make = _Make()
    try:
        if time.monotonic() >= until_s:
            raise never_begun()
        yield make
    finally:
        rest_s = 0.0 if request.alone(ALONE_S) else make.rest_s(rest)
        if rest_s > 0:
            asyncio.get_running_loop().call_later(rest_s, turns.release)
        else:
            turns.release()


def _slice(request: Request, raws: Sequence[Raw]) -> Items:
    """The first items, as many as one operation takes."""
    items: list[Creation | Refusal] = []
    room = (ALONE_ITEMS if request.alone(ALONE_S) else SLICE_ITEMS) * DEPENDENCIES_AN_ITEM
    for raw in raws:
        item = _item(request, raw)
        items.append(item)
        room -= DEPENDENCIES_AN_ITEM
        if isinstance(item, Creation):
            room -= len(item.body.dependencies)
        if room <= 0:
            break
    return tuple(items)


def _unmade(refused: Refused, sliced: int, left: int) -> list[Refusal]:
    """The outcome of a refused slice and of all behind it, which never began."""
    told = Refusal(refused.code, refused.detail)
    rest = told
    if refused.code == "OUTCOME_UNKNOWN":
        rest = Refusal("SERVICE_OVERLOADED", "not begun: what stands before it took too long")
    return [told] * sliced + [rest] * (left - sliced)


async def _submit(
    request: Request, make: _Make, items: Items, atomic: bool, until_s: float
) -> BatchAnswer:
    ask = Ask(caller=request.caller, body=Batch(items, atomic), fresh=fresh.text())
    answer: BatchAnswer = await request.app.writer.submit(
        make,
        ask,
        tenant=request.tenant,
        bulk=True,
        deadline_ms=max(1, int((until_s - time.monotonic()) * 1_000)),
    )
    return answer


def _item(request: Request, raw: msgspec.Raw) -> Creation | Refusal:
    try:
        return creation_of(request, wire.decode(bytes(raw), NewWorkload, INVALID))
    except Refused as refused:
        return Refusal(refused.code, refused.detail, refused.facts.get("errors"))

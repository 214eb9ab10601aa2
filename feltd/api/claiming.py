"""What pulls, exchanges and claims share: one look for work, and bodies as they are stored.

A client may go away while its claim is being committed. What was claimed for it and never told is
given back behind it on the writer, so the work is free again at once.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from msgspec import Raw
from msgspec.structs import replace

from feltd.api import wire
from feltd.api.request import Request
from feltd.clock import Now
from feltd.mesh import claims, giveback
from feltd.model.base import Ask
from feltd.model.claim import (
    CHECKPOINT_BYTES_MAX,
    OUTPUT_BYTES_MAX,
    Checkpoint,
    Claim,
    Complete,
    Pull,
    Pulled,
)
from feltd.store.tx import Tx

R = TypeVar("R")

INVALID = "WORKLOAD_INVALID"

#: Give-backs at work; the loop alone would let them be collected.
_giving_back: set[asyncio.Task[None]] = set()


class Told:
    """An operation that claims, and what it claimed: known on the loop even if nobody waits.

    The writer calls it like a rule.
    """

    def __init__(
        self, rule: Callable[[Tx, Any, Now], R], claimed: Callable[[R], list[Claim]]
    ) -> None:
        self._rule: Callable[[Tx, Any, Now], Any] = rule
        self._claimed: Callable[[Any], list[Claim]] = claimed
        self.claimed: list[Claim] = []
        self.__name__ = getattr(rule, "__name__", "claim")

    def __call__(self, tx: Tx, ask: Any, now: Now) -> Any:
        answer = self._rule(tx, ask, now)
        self.claimed = self._claimed(answer)
        return answer


async def submit_claiming(
    request: Request,
    rule: Callable[[Tx, Any, Now], R],
    ask: Ask[Any],
    claimed: Callable[[R], list[Claim]],
    *,
    keep_alive: bool = False,
) -> R:
    """Submit a rule that claims; when the client goes away meanwhile, its claims are given back.

    An operation that had not started is removed by the writer and claims nothing.
    """
    told = Told(rule, claimed)
    try:
        answer: R = await request.app.writer.submit(
            told,
            ask,
            keep_alive=keep_alive,
            tenant=only_tenant(request),
            deadline_ms=request.deadline_ms,
        )
    except asyncio.CancelledError:
        # The operation may be running this moment; the next one comes after it.
        _begin(_give_back(request, told))
        raise
    return answer


def give_back(request: Request, taken: list[Claim]) -> None:
    """Give back claims that nobody will be told of; it is done behind, nobody waits for it."""
    if taken:
        told = Told(claims.pull_for, lambda answer: answer[1].claims)
        told.claimed = taken
        _begin(_give_back(request, told))


async def look(request: Request, worker_id: str, body: Pull) -> tuple[claims.Post, Pulled]:
    """Pull once: where its worker waits, and the answer."""
    ask = Ask(caller=request.caller, body=body, id=worker_id, limits=request.app.config)
    post, pulled = await submit_claiming(
        request, claims.pull_for, ask, lambda answer: answer[1].claims
    )
    return post, pulled


def kept(body: Checkpoint, pointer: str = "/data") -> Checkpoint:
    """A checkpoint's body with its data as it is stored. Refuses WORKLOAD_INVALID."""
    text = wire.check_free_json(body.data, CHECKPOINT_BYTES_MAX, code=INVALID, pointer=pointer)
    return replace(body, data=Raw(text))


def stored(body: Complete, pointer: str = "/output") -> Complete:
    """A complete's body with its output as it is stored. Refuses WORKLOAD_INVALID."""
    text = wire.check_free_json(body.output, OUTPUT_BYTES_MAX, code=INVALID, pointer=pointer)
    return replace(body, output=Raw(text))


def only_tenant(request: Request) -> str:
    """The caller's tenant, for the writer's turns; '' when it has several."""
    tenants = request.caller.tenants
    return tenants[0] if len(tenants) == 1 else ""


def _begin(giving_back: Coroutine[Any, Any, None]) -> None:
    task = asyncio.get_running_loop().create_task(giving_back)
    _giving_back.add(task)
    task.add_done_callback(_giving_back.discard)


async def _give_back(request: Request, told: Told) -> None:
    writer = request.app.writer
    await writer.submit(_after, told, keep_alive=True, tenant=only_tenant(request))


def _after(tx: Tx, told: Told, now: Now) -> int:
    """Runs on the writer's thread behind the operation of `told`, so it knows what that claimed."""
    return giveback.give_back(tx, told.claimed, now) if told.claimed else 0

"""The exchange over HTTP: one round trip that keeps leases alive and brings the next work.

What keeps leases alive is taken in at any load; only the claim part is shed. Items are committed
before any wait; work that comes later is claimed in a transaction of its own.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from feltd.api import wire
from feltd.api.claiming import INVALID, kept, stored, submit_claiming
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.errors import Refused
from feltd.mesh import exchange as rules
from feltd.mesh.claims import Post
from feltd.mesh.exchange import Exchanging
from feltd.model.base import Ask
from feltd.model.channel import Credit
from feltd.model.claim import EXCHANGE_ITEMS_MAX, Pull, Pulled, Reason
from feltd.model.exchange import Exchange, ExchangeAnswer

#: Work given to a worker ends its wait for so long: who never takes it up waits again after that.
TOLD_WITHIN_MS = 5_000
GIVEN = Reason("ASSIGNED", "work was given to this worker")


async def exchange(request: Request) -> Reply:
    """POST /v1/workers/{id}/exchange."""
    _, answer = await perform(request, request.decode(Exchange))
    return reply(200, answer)


async def perform(
    request: Request,
    body: Exchange,
    credit: Credit | None = None,
    committed: Callable[[], object] = lambda: None,
) -> tuple[Post, ExchangeAnswer]:
    """One exchange, over HTTP or a channel: where its worker stands, and the answer.

    `credit` is the claim part of one that has an order which stands in its place. `committed` is
    called once its items are on disk, before any wait.
    """
    items = sum(len(getattr(body, op)) for op in rules.VERBS)
    if items > EXCHANGE_ITEMS_MAX:
        detail = f"{items} items, at most {EXCHANGE_ITEMS_MAX} are allowed"
        raise wire.invalid(INVALID, "", detail)
    keep_alive = keeps_alive(body)
    may_claim = not (keep_alive and request.crowded)
    request.admit(keep_alive=keep_alive)
    worker_id = request.path_params["id"]
    ask = Ask(
        caller=request.caller,
        body=_checked(body, may_claim, credit),
        id=worker_id,
        limits=request.app.config,
    )
    wanted = body.claim
    if wanted is None or not wanted.wait_ms or not may_claim:
        done = await _exchange(request, ask, keep_alive=keep_alive)
        committed()
        return done
    return await _waiting(request, ask, wanted, keep_alive, committed)


def keeps_alive(body: Exchange) -> bool:
    """Whether it keeps leases or its worker alive, so that it is taken in at any load."""
    return body.heartbeat is not None or any(getattr(body, op) for op in rules.VERBS)


async def _waiting(
    request: Request,
    ask: Ask[Exchanging],
    wanted: Pull,
    keep_alive: bool,
    committed: Callable[[], object],
) -> tuple[Post, ExchangeAnswer]:
    """The items at once, then the claim part as a long poll."""
    done: list[ExchangeAnswer] = []
    first: list[Post] = []

    async def look_again() -> tuple[Post, ExchangeAnswer]:
        if not done:
            post, answer = await _exchange(request, ask, keep_alive=keep_alive)
            committed()
            done.append(answer)
            first.append(post)
            return post, answer
        again = Ask(caller=ask.caller, body=wanted, id=ask.id, limits=ask.limits)
        post, pulled, given = await submit_claiming(
            request, rules.look, again, lambda answer: answer[1].claims
        )
        return post, replace(_merged(done[0], pulled), assigned_claims=given)

    answer: ExchangeAnswer = await request.app.polls.pull(
        request, ask.id, wanted.wait_ms, look_again, _pulled, _merged
    )
    return first[0], answer


async def _exchange(
    request: Request, ask: Ask[Exchanging], *, keep_alive: bool
) -> tuple[Post, ExchangeAnswer]:
    post, answer = await submit_claiming(
        request,
        rules.exchange_for,
        ask,
        lambda done: done[1].claims,
        keep_alive=keep_alive,
    )
    for outcome in answer.outcomes:
        if outcome.code is not None and outcome.op != "heartbeat":
            request.app.metrics.fence_refused(outcome.code)
    return post, answer


def _checked(body: Exchange, may_claim: bool, credit: Credit | None) -> Exchanging:
    """The command: free JSON as it is stored; an item that does not fit is refused for itself."""
    faults: dict[tuple[str, int], Refused] = {}
    checkpoints: list[Any] = list(body.checkpoint)
    completes: list[Any] = list(body.complete)
    for place, item in enumerate(checkpoints):
        try:
            checkpoints[place] = kept(item, f"/checkpoint/{place}/data")
        except Refused as refused:
            faults["checkpoint", place] = refused
    for place, item in enumerate(completes):
        try:
            completes[place] = stored(item, f"/complete/{place}/output")
        except Refused as refused:
            faults["complete", place] = refused
    sound = replace(body, checkpoint=tuple(checkpoints), complete=tuple(completes))
    return Exchanging(sound, faults, may_claim, credit)


def _pulled(answer: ExchangeAnswer) -> Pulled:
    """The pull's part of an answer; work that was given just now is a reason not to wait."""
    newest_ms = max((claim.issued_at_ms for claim in answer.assigned_claims), default=0)
    given = newest_ms + TOLD_WITHIN_MS > answer.server_time_ms
    return Pulled(
        claims=answer.claims,
        lifecycle=answer.lifecycle,
        reasons=[*answer.reasons, GIVEN] if given else answer.reasons,
        server_time_ms=answer.server_time_ms,
    )


def _merged(answer: ExchangeAnswer, pulled: Pulled) -> ExchangeAnswer:
    return replace(
        answer,
        claims=pulled.claims,
        lifecycle=pulled.lifecycle,
        reasons=pulled.reasons,
        server_time_ms=pulled.server_time_ms,
    )


ROUTES = (
    Route(
        method="POST",
        path="/v1/workers/{id}/exchange",
        operation="exchange",
        tag="claim",
        handler=exchange,
        summary="Heartbeat, outcomes and the next work in one round trip",
        auth="worker",
        admission="handler",
        body=Exchange,
        answer=ExchangeAnswer,
        invalid_code=INVALID,
        example={"claim": {"max": 1, "lease_ms": 30_000, "wait_ms": 20_000}},
    ),
)

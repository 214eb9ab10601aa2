"""One transaction for everything a worker has to say, and for the work it asks for.

Heartbeat first, then the items in the order of the wire, each in a savepoint of its own, then the
differences, then the claim. The single calls' rules run unchanged: nothing is decided here, and a
refused item leaves no trace.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from feltd.clock import Now
from feltd.errors import Refused
from feltd.mesh import assigned, claims, credits, fence, heartbeat, lifecycle, outcomes, workers
from feltd.model.base import Ask
from feltd.model.channel import Credit
from feltd.model.claim import Claim, Outcome, Pull, Pulled, Reason
from feltd.model.exchange import Exchange, ExchangeAnswer, Item, ItemOutcome
from feltd.model.worker import HeartbeatAnswer
from feltd.store.tx import Row, Tx

#: Every list of items, in the order in which they are done.
VERBS: Mapping[str, Callable[[Tx, Ask[Any], Now], Outcome]] = {
    "start": fence.start,
    "renew": fence.renew,
    "checkpoint": fence.checkpoint,
    "complete": outcomes.complete,
    "fail": outcomes.fail,
    "release": outcomes.release,
    "log": fence.log,
}
#: The verbs after which a claim is over: a worker may still name it in the same exchange.
ENDING = frozenset({"complete", "fail", "release"})

SHED = Reason("SERVICE_OVERLOADED", "the daemon is at its limit: ask for work again in a moment")


class Exchanging(Struct, frozen=True):
    """An exchange as a rule takes it.

    `faults` holds what its handler found wrong with single items, by verb and place. `may_claim`
    is False when the claim part is shed because the daemon is at its limit. `credit` is the claim
    part where it is an order that stands.
    """

    body: Exchange
    faults: Mapping[tuple[str, int], Refused]
    may_claim: bool = True
    credit: Credit | None = None

    @property
    def claims(self) -> bool:
        """Whether work is asked for."""
        return self.body.claim is not None or self.credit is not None


def exchange(tx: Tx, ask: Ask[Exchanging], now: Now) -> ExchangeAnswer:
    """Do what the worker `ask.id` sent, answer how its claims stand, and claim for it.

    Each item is done as its single call would be, or refused for itself. A refused heartbeat
    skips the claim alone. Repeating is as safe as repeating each item: only `log` appends again.
    Refuses UNAUTHENTICATED, FORBIDDEN, WORKER_NOT_FOUND as a whole.
    """
    return exchange_for(tx, ask, now)[1]


def exchange_for(tx: Tx, ask: Ask[Exchanging], now: Now) -> tuple[claims.Post, ExchangeAnswer]:
    """As `exchange`, with where its worker stands if it has to wait."""
    row = claims.puller(tx, ask.caller, now, ask.id, None)
    answer, again_ms = _exchange(tx, ask, now)
    credit = ask.body.credit
    post = claims.post_of(tx, row, credit or ask.body.body.claim)._replace(again_ms=again_ms)
    if credit is not None and credits.missing(credit, len(workers.live_claims(tx, ask.id))):
        post = post._replace(wants=True)
    return post, answer


def look(tx: Tx, ask: Ask[Pull], now: Now) -> tuple[claims.Post, Pulled, list[Claim]]:
    """A later look of an exchange that waits: its claim part, and what its worker was given."""
    post, pulled = claims.pull_for(tx, ask, now)
    return post, pulled, assigned.of_worker(tx, ask.id, now)


def _exchange(tx: Tx, ask: Ask[Exchanging], now: Now) -> tuple[ExchangeAnswer, int | None]:
    body = ask.body.body
    done: list[ItemOutcome] = []
    beat = _beat(tx, ask, now, done)
    for op, place, item in _items(body):
        done.append(_item(tx, ask, now, op, place, item))
    row = workers.find(tx, ask.id)
    assert row is not None
    held = workers.live_claims(tx, ask.id)
    reported = _reported(body, done, held)
    found = heartbeat.differences(tx, row, reported, _named(body), now)
    told, again_ms = _claimed(tx, ask, now, row, len(held), None if beat is None else done[0])
    accepted = beat if isinstance(beat, HeartbeatAnswer) else None
    answer = ExchangeAnswer(
        outcomes=done,
        claims=told.claims,
        assigned_claims=found.assigned_claims,
        fenced_claims=found.fenced_claims,
        unknown_claims=found.unknown_claims,
        cancel_claims=found.cancel_claims,
        lifecycle=told.lifecycle,
        reasons=told.reasons,
        server_time_ms=now.lease_ms,
        worker=None if accepted is None else workers.show(row, workers.live_claims(tx, ask.id)),
        renewed=None if accepted is None else accepted.renewed,
        grant_expires_at_ms=None if accepted is None else accepted.grant_expires_at_ms,
        wall_time_ms=None if accepted is None else accepted.wall_time_ms,
        key_expires_at_ms=None if accepted is None else accepted.key_expires_at_ms,
    )
    return answer, again_ms


def _beat(
    tx: Tx, ask: Ask[Exchanging], now: Now, done: list[ItemOutcome]
) -> HeartbeatAnswer | Refused | None:
    """The heartbeat's answer or refusal, noted as the first outcome; None when there was none."""
    body = ask.body.body.heartbeat
    if body is None:
        return None
    own = Ask(caller=ask.caller, body=body, id=ask.id, limits=ask.limits)
    try:
        answer = tx.attempt(partial(heartbeat.heartbeat, tx, own, now))
    except Refused as refused:
        done.append(_refused("heartbeat", None, refused))
        return refused
    done.append(ItemOutcome(op="heartbeat", ok=True))
    return answer


def _items(body: Exchange) -> Iterator[tuple[str, int, Item]]:
    for op in VERBS:
        for place, item in enumerate(getattr(body, op)):
            yield op, place, item


def _item(tx: Tx, ask: Ask[Exchanging], now: Now, op: str, place: int, item: Item) -> ItemOutcome:
    own = Ask(caller=ask.caller, body=item, id=item.workload_id, limits=ask.limits)
    try:
        fault = ask.body.faults.get((op, place))
        if fault is not None:
            raise fault
        outcome = tx.attempt(partial(VERBS[op], tx, own, now))
    except Refused as refused:
        return _refused(op, item.claim_id, refused)
    return ItemOutcome(
        op=op,
        ok=True,
        claim_id=outcome.claim_id,
        expires_at_ms=outcome.expires_at_ms,
        state=outcome.state,
        result_id=outcome.result_id,
        eligible_at_ms=outcome.eligible_at_ms,
        cancel_requested=outcome.cancel_requested,
    )


def _refused(op: str, claim_id: str | None, refused: Refused) -> ItemOutcome:
    return ItemOutcome(
        op=op,
        ok=False,
        claim_id=claim_id,
        code=refused.code,
        detail=refused.detail,
        next=refused.next,
        recorded=refused.facts.get("recorded"),
    )


def _reported(body: Exchange, done: list[ItemOutcome], held: list[str]) -> list[str]:
    """What the worker runs: what its heartbeat names, but for what it has just ended itself.

    Without a heartbeat it has named nothing, so nothing it holds is unknown to it. An item that
    came too late names a claim it should stop.
    """
    late = [item.claim_id for item in done if item.code == "WORKLOAD_STALE_FENCE" and item.claim_id]
    if body.heartbeat is None:
        return [*held, *late]
    ended = {item.claim_id for item in done if item.ok and item.op in ENDING}
    running = [claim for claim in body.heartbeat.running_claims if claim not in ended]
    named = [item.claim_id for item in done if item.ok and item.claim_id not in ended]
    return [*running, *late, *(claim for claim in named if claim)]


def _named(body: Exchange) -> list[str]:
    """Every claim that it speaks of, in its heartbeat or in an item."""
    running = () if body.heartbeat is None else body.heartbeat.running_claims
    return [*running, *(item.claim_id for _, _, item in _items(body))]


def _claimed(
    tx: Tx, ask: Ask[Exchanging], now: Now, row: Row, active: int, beat: ItemOutcome | None
) -> tuple[Pulled, int | None]:
    """The claim part: what was taken or why nothing was, and when to look again if not before."""
    wanted, reason = ask.body.body.claim, None
    if ask.body.credit is not None:
        wanted = credits.missing(ask.body.credit, active)
        reason = credits.REACHED if wanted is None else None
    if ask.body.claims and beat is not None and not beat.ok:
        reason = Reason(str(beat.code), f"the heartbeat was refused: {beat.detail}")
    elif ask.body.claims and not ask.body.may_claim:
        reason = SHED
    elif wanted is not None:
        own = Ask(caller=ask.caller, body=wanted, id=ask.id, limits=ask.limits)
        try:
            post, pulled = tx.attempt(partial(claims.pull_for, tx, own, now))
            return pulled, post.again_ms
        except Refused as refused:
            reason = Reason(refused.code, refused.detail)
    pulled = Pulled(
        claims=[],
        lifecycle=lifecycle.shown(row, active),
        reasons=[] if reason is None else [reason],
        server_time_ms=now.lease_ms,
    )
    return pulled, None

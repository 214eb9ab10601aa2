"""Why a worker gets no work, or what it gets next; and whether its machine may be stopped.

By the same look as a pull of it, without taking: its own standing first, then what waits in its
application and what keeps each kind of it away. Only reads.
"""

from typing import NamedTuple

from feltd.clock import Now
from feltd.identity import principals
from feltd.mesh import (
    affinity,
    causes,
    claims,
    crowd,
    drain,
    heads,
    holds,
    idle,
    lifecycle,
    matching,
    misfits,
    placement,
    pools,
    workers,
)
from feltd.mesh.crowd import Member
from feltd.model.base import Ask
from feltd.model.why import Cause, WorkerWhy
from feltd.store.tx import Row, Tx

#: Kinds with due work that are compared to find the one that nearly fits, best ranked first.
KINDS_COMPARED = 200

KINDS = """
SELECT d.demand_id, d.definition_id, d.definition_revision, d.capabilities, d.resources,
       d.placement
  FROM demands d
 WHERE d.tenant_id = :tenant_id
   AND d.application_id = :application_id
   AND d.head_rank IS NOT NULL
 ORDER BY d.head_rank, d.head_seq
 LIMIT :rows
"""

#: What a reason of an empty pull asks a person to do.
REMEDIES: dict[str, str] = {
    "NO_WORK": "create work: feltd workload create; see what waits elsewhere: feltd backlog",
    "HELD": "see who holds it: feltd hold list",
    "POOL_FULL": "see which: feltd why; raise its ceiling: feltd pool update",
    "KEY_FULL": "see which: feltd why; wait for a claim of the key to end",
    "NO_MATCH": "see what each kind waits for: feltd why",
}


class _Nearest(NamedTuple):
    """The kind of work that fails the fewest rules."""

    wanted: placement.Wanted
    rules: tuple[str, ...]


def of_worker(tx: Tx, ask: Ask[None], now: Now) -> WorkerWhy:
    """Why the worker `ask.id` gets no work, and when nothing is left in its hands.

    A worker's key sees its own, others need workers:read (FORBIDDEN). Refuses WORKER_NOT_FOUND.
    """
    if ask.caller.worker_id != ask.id:
        principals.require_scope(ask.caller, "workers:read")
    row = workers.lookup(tx, ask.caller, ask.id)
    member = crowd.one(tx, now, ask.id)
    assert member is not None
    told = misfits.standing(now, member)
    keeps_away = bool(member.standing)
    waiting = _waiting(tx, now, member)
    if keeps_away:
        # What it would get is told as well: once it stands again, that is next.
        waiting = [one for one in waiting if one.code != "CLAIMABLE"]
    held = tx.rows(drain.OUTSTANDING, {"worker_id": ask.id})
    return WorkerWhy(
        worker_id=ask.id,
        lifecycle=lifecycle.shown(row, len(held)),
        health=row["health"],
        reasons=told + waiting,
        claims=len(held),
        safe_to_stop=not held,
        safe_at_ms=drain.safe_at_ms(row, [claim["expires_at_ms"] for claim in held], now),
        server_time_ms=now.lease_ms,
    )


def _waiting(tx: Tx, now: Now, member: Member) -> list[Cause]:
    """What waits in its application: what it would take next, or why none of it is for it."""
    params = {
        "worker_id": member.worker_id,
        "request_id": None,
        "key_id": "",
        "wall_ms": now.wall_ms,
    }
    puller = tx.rows(claims.PULLER, params)[0]
    fit = matching.fitting(tx, puller)
    waits = affinity.Waits(tx, now, puller)

    def may(head: Row) -> bool:
        first = heads.next_of(tx, now, head["demand_id"])
        if first is None or heads.timed_out(first, now):
            return False
        leaning = fit.leanings.get(head["demand_id"])
        return leaning is None or not waits.left(leaning, first["eligible_at_ms"])

    head = matching.head(tx, fit, may)
    if head is not None:
        return [
            Cause(
                code="CLAIMABLE",
                detail=f"its next pull takes work: {head['workload_id']} is the best that fits",
                remedy="see that its process pulls; a worker that is READY and gets nothing does "
                "not ask",
                worker_id=member.worker_id,
            )
        ]
    told = [
        Cause(code=one.code, detail=one.detail, remedy=REMEDIES[one.code])
        for one in idle.reasons(tx, fit)
    ]
    if any(one.code == "NO_MATCH" for one in told):
        told += _nearest(tx, now, member)
    if waits.again_at_ms is not None:
        told.insert(0, _left(now, waits.again_at_ms))
    return told


def _left(now: Now, again_at_ms: int) -> Cause:
    return Cause(
        code="LEFT_FOR_BETTER",
        detail="work that fits it is left for workers with more of its affinity labels; it looks "
        f"again {causes.moment(now, again_at_ms)}",
        remedy="wait, or give it those labels: feltd worker run --label",
    )


def _nearest(tx: Tx, now: Now, member: Member) -> list[Cause]:
    """Of the kinds that do not fit, the one that fails the fewest rules, and which those are."""
    tenant_id, application_id = member.row["tenant_id"], member.row["application_id"]
    owner = {"tenant_id": tenant_id, "application_id": application_id}
    known = pools.of_application(tx, tenant_id, application_id, None)
    held = holds.of_application(tx, tenant_id, application_id, None)
    nearest: _Nearest | None = None
    for demand in tx.rows(KINDS, {**owner, "rows": KINDS_COMPARED}):
        wanted = placement.of_demand(demand)
        if placement.touching(wanted, held) is not None:
            continue
        rules = tuple(placement.unfit(member.offered, wanted, known))
        if rules and (nearest is None or len(rules) < len(nearest.rules)):
            nearest = _Nearest(wanted, rules)
    if nearest is None:
        return []
    subject = misfits.Subject(tenant_id, application_id, nearest.wanted)
    misfit = crowd.Misfit(member._replace(standing=()), nearest.rules)
    told = misfits.of_one(now, subject, misfit, known)
    what = nearest.wanted.definition_id
    return [
        Cause(
            code=told.code,
            detail=f"nearest is {what}: {told.detail}",
            remedy=told.remedy,
            worker_id=member.worker_id,
        )
    ]

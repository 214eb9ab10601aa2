"""What waits, kind by kind: how much, what keeps it back, and who could take it. Never a scan.

Every count stops at its cap and runs along an index that holds nothing else, so that an autoscaler
may ask every second whatever the depth. Kinds come with the one first whose next workload has
waited longest, by rank. Only reads.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct, structs
from msgspec.json import decode

from feltd.clock import Now
from feltd.mesh import blockages, counting, crowd, holds, placement, pools
from feltd.mesh.generation import EVERYBODY
from feltd.model.base import Ask, Caller
from feltd.model.why import Asked, Backlog, BacklogAsk, Blocked, Kind, Waiting
from feltd.store.tx import Row, Tx

#: Kinds that are put in order: two applications full of them; each costs a seek or three.
ORDERED_MAX = 4_000
#: Kinds times workers that one look compares, some 100 ms: a reader that is busy for seconds keeps
#: everybody else's lists waiting. Workers that offer the same count once.
COMPARED_MAX = 20_000

# The rank of what is next in turn, also where a pool or a key keeps it back.
OF_ALL = """
SELECT d.demand_id, d.tenant_id, d.application_id, d.definition_id, d.definition_revision,
       d.capabilities, d.resources, d.placement, d.pool_id, d.pool_open,
       coalesce(d.head_rank,
                (SELECT l.head_rank
                   FROM lanes l
                  WHERE l.demand_id = d.demand_id
                    AND l.head_rank IS NOT NULL
                    AND l.concurrency_open = 1
                    AND l.rate_open = 1
                  ORDER BY l.head_rank, l.head_seq
                  LIMIT 1),
                (SELECT b.head_rank
                   FROM lanes b
                  WHERE b.demand_id = d.demand_id
                    AND b.head_rank IS NOT NULL
                    AND (b.concurrency_open = 0 OR b.rate_open = 0)
                  LIMIT 1)) AS rank
  FROM demands d
 WHERE (:application_id IS NULL OR d.application_id = :application_id)
   AND (:definition_id IS NULL OR d.definition_id = :definition_id)
   AND (:pool_id IS NULL OR d.pool_id = :pool_id)
 ORDER BY d.demand_id
 LIMIT :rows
"""

OF_TENANT = """
SELECT d.demand_id, d.tenant_id, d.application_id, d.definition_id, d.definition_revision,
       d.capabilities, d.resources, d.placement, d.pool_id, d.pool_open,
       coalesce(d.head_rank,
                (SELECT l.head_rank
                   FROM lanes l
                  WHERE l.demand_id = d.demand_id
                    AND l.head_rank IS NOT NULL
                    AND l.concurrency_open = 1
                    AND l.rate_open = 1
                  ORDER BY l.head_rank, l.head_seq
                  LIMIT 1),
                (SELECT b.head_rank
                   FROM lanes b
                  WHERE b.demand_id = d.demand_id
                    AND b.head_rank IS NOT NULL
                    AND (b.concurrency_open = 0 OR b.rate_open = 0)
                  LIMIT 1)) AS rank
  FROM demands d
 WHERE d.tenant_id = :tenant_id
   AND (:application_id IS NULL OR d.application_id = :application_id)
   AND (:definition_id IS NULL OR d.definition_id = :definition_id)
   AND (:pool_id IS NULL OR d.pool_id = :pool_id)
 ORDER BY d.application_id, d.digest
 LIMIT :rows
"""


class _Place(Struct, frozen=True):
    """What is read once for each application: its workers, pools and holds."""

    crowd: crowd.Crowd
    pools: Mapping[str, placement.Pool]
    holds: placement.Holds


def page(tx: Tx, ask: Ask[BacklogAsk], now: Now) -> Backlog:
    """The kinds of unfinished work of the caller's tenants that the body asks for, `limit` of them.

    Counts stop at counting.CAP and say so; kinds stop where their workers come to COMPARED_MAX.
    """
    asked, caller = ask.body, ask.caller
    demands = sorted(_demands(tx, caller, asked), key=_order)
    running = counting.Running(tx)
    places: dict[tuple[str, str], _Place] = {}
    items: list[Kind] = []
    left_out = compared = 0
    for place, demand in enumerate(demands):
        if len(items) == asked.limit or compared >= COMPARED_MAX:
            left_out = len(demands) - place
            break
        owner = (demand["tenant_id"], demand["application_id"])
        if owner not in places:
            places[owner] = _place(tx, now, owner)
        item = _kind(tx, now, caller, demand, places[owner], running)
        if item is not None:
            items.append(item)
            compared += places[owner].crowd.compared(demand["pool_id"], places[owner].pools)
    return Backlog(items=items, left_out=left_out, at_ms=now.lease_ms)


def _demands(tx: Tx, caller: Caller, asked: BacklogAsk) -> Iterator[Row]:
    bounds = {
        "application_id": asked.application_id,
        "definition_id": asked.definition_id,
        "pool_id": asked.pool_id,
    }
    tenants = (asked.tenant_id,) if asked.tenant_id else caller.tenants
    left = ORDERED_MAX
    for tenant_id in tenants:
        if tenant_id == EVERYBODY:
            rows = tx.rows(OF_ALL, {**bounds, "rows": left})
        else:
            rows = tx.rows(OF_TENANT, {**bounds, "tenant_id": tenant_id, "rows": left})
        left -= len(rows)
        yield from rows


def _order(demand: Row) -> tuple[bool, int, int]:
    """What has waited longest first; kinds of which nothing is due last."""
    rank = demand["rank"]
    return rank is None, rank or 0, demand["demand_id"]


def _place(tx: Tx, now: Now, owner: tuple[str, str]) -> _Place:
    return _Place(
        crowd.read(tx, now, *owner),
        pools.of_application(tx, *owner, None),
        holds.of_application(tx, *owner, None),
    )


def _kind(
    tx: Tx, now: Now, caller: Caller, demand: Row, place: _Place, running: counting.Running
) -> Kind | None:
    """One kind counted; None where nothing of it is unfinished."""
    counts = counting.count(tx, now, demand["demand_id"], demand["rank"] is not None)
    active = running.of(demand["tenant_id"], demand["demand_id"])
    if not (counts.ready or counts.delayed or counts.pending or active):
        return None
    wanted = placement.of_demand(demand)
    missing = wanted.pool_id is not None and wanted.pool_id not in place.pools
    verdict = place.crowd.judge(
        structs.replace(wanted, pool_id=None) if missing else wanted, place.pools
    )
    look = blockages.Look(now, caller, demand, wanted, place.pools, place.crowd, verdict, counts)
    hold = placement.touching(wanted, place.holds)
    blocked: list[Blocked] = blockages.blocked(tx, look, hold)
    eligible = [] if missing else verdict.eligible
    held = 0 if hold is None else counts.ready
    return Kind(
        tenant_id=demand["tenant_id"],
        application_id=demand["application_id"],
        definition_id=demand["definition_id"],
        demand=_asked(demand, wanted),
        ready=counts.ready - held,
        waiting=Waiting(
            backoff=counts.backoff,
            not_before=counts.not_before,
            dependencies=counts.pending,
            held=held,
        ),
        running=active,
        eligible_workers=len(eligible),
        free_slots=sum(one.free for one in eligible),
        blocked=blocked,
        capped=counts.capped or running.capped,
        pool_id=demand["pool_id"],
        oldest_ready_at_ms=counts.oldest_at_ms,
    )


def _asked(demand: Row, wanted: placement.Wanted) -> Asked:
    return Asked(
        demand_id=demand["demand_id"],
        definition_revision=demand["definition_revision"],
        capabilities=decode(demand["capabilities"]),
        resources=wanted.resources,
        required_labels=wanted.required_labels,
        anti_affinity=wanted.anti_affinity,
    )

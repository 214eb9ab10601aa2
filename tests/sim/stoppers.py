"""Operators of pools, holds and quarantine: who decides what may not run, or only here."""

from typing import Any

from feltd.identity.principals import LOCAL
from feltd.mesh import holds, pools
from feltd.model.base import Caller
from feltd.model.hold import NewHold
from feltd.model.policy import Placement
from feltd.model.pool import NewPool
from feltd.model.worker import Quarantining
from feltd.model.workload import Creation, NewWorkload
from tests.sim.calls import Call
from tests.sim.clients import make, send
from tests.sim.faults import NONE
from tests.sim.image import Place
from tests.sim.people import NEVER_MADE, POOLS, SOME_POOL, Act, some_worker
from tests.sim.world import World

STANDING_HOLDS = """
SELECT h.tenant_id, h.hold_id
  FROM holds h
 WHERE h.ended_at_ms IS NULL
 ORDER BY h.held_at_ms, h.hold_id
"""

CONFINED = """
SELECT k.worker_id
  FROM workers k
 WHERE k.quarantined_at_ms IS NOT NULL
   AND k.removed_at_ms IS NULL
 ORDER BY k.worker_id
"""


def pool(world: World, place: Place) -> None:
    """Make, change or delete a pool of the tenant."""
    rng = world.rng
    pool_id = rng.choice((POOLS[0], POOLS[0], *POOLS))
    caller = place.nobody if rng.random() < 0.05 else place.operator
    verb = rng.choice(("create_pool", "create_pool", "replace_pool", "delete_pool"))
    if pool_id == NEVER_MADE and verb == "create_pool":
        verb = "replace_pool"
    body = None if verb == "delete_pool" else _members(world, place, pool_id)
    about = "" if verb == "create_pool" else pool_id
    asked = pools.OfTenant(tenant_id=place.tenant_id, body=body)
    _send(world, make(world, verb, caller, asked, about))


def crowd(world: World, place: Place) -> None:
    """More work for one pool than it takes at once."""
    standing = {row["pool_id"] for row in world.rows(SOME_POOL, tenant_id=place.tenant_id)}
    pool_id = POOLS[0]
    asked = pools.OfTenant(
        place.tenant_id, NewPool(pool_id=pool_id, name="crowded", max_concurrency=1)
    )
    verb, about = ("replace_pool", pool_id) if pool_id in standing else ("create_pool", "")
    _send(world, make(world, verb, place.operator, asked, about))
    for _ in range(2):
        body = NewWorkload(
            definition_id="extract",
            idempotency_key=f"job-{len(place.asked) + 1}",
            placement=Placement(pool_id=pool_id),
        )
        call = send(world, make(world, "create", place.submitter, Creation(body=body)))
        if call.ok:
            place.asked.setdefault(body.idempotency_key, body)


def _members(world: World, place: Place, pool_id: str) -> NewPool:
    rng = world.rng
    shape = rng.random()
    members: dict[str, Any] = {}
    if shape < 0.2:
        members["worker_ids"] = tuple({some_worker(world, place), some_worker(world, place)})
    elif shape < 0.35:
        members["required_labels"] = {"zone": rng.choice("ab")}
    elif shape < 0.45:
        members["capabilities"] = (rng.choice(("extract", "index", "fly")),)
    return NewPool(
        pool_id=pool_id,
        name="the pool",
        application_id=rng.choice((None, place.application_id)),
        max_concurrency=rng.choice((None, 1, 1, 1, 2)),
        **members,
    )


def hold(world: World, place: Place) -> None:
    """Hold work, or lift what holds it."""
    rng = world.rng
    standing = world.rows(STANDING_HOLDS)
    if standing and rng.random() < 0.6:
        row = rng.choice(standing)
        caller = LOCAL if rng.random() < 0.7 else place.operator
        about = "hold_made_up" if rng.random() < 0.15 else row["hold_id"]
        _send(world, make(world, "lift_hold", caller, row["tenant_id"], about))
        return
    scope = rng.choice(("all", "tenant", "application", "pool", "definition"))
    values = {"application": place.application_id, "definition": rng.choice(("extract", "other#1"))}
    values["pool"] = rng.choice(POOLS)
    until_at_ms = world.now.wall_ms + rng.choice((0, 1_000, 60_000))
    body = NewHold(
        scope=scope,  # type: ignore[arg-type]
        value=values.get(scope),
        reason="a release",
        until_at_ms=until_at_ms if rng.random() < 0.4 else None,
    )
    whose = "*" if scope == "all" else place.tenant_id
    by: Caller = LOCAL if scope == "all" and rng.random() < 0.7 else place.operator
    _send(world, make(world, "place_hold", by, holds.Placing(whose, body)))


def confine(world: World, place: Place) -> None:
    """Quarantine a worker, or free one."""
    rng = world.rng
    worker_id = some_worker(world, place)
    if rng.random() < 0.35:
        confined = world.rows(CONFINED)
        if confined and rng.random() < 0.8:
            worker_id = rng.choice(confined)["worker_id"]
        _send(world, make(world, "unquarantine", place.operator, None, worker_id))
        return
    until_at_ms = world.now.wall_ms + rng.choice((0, 1_000, 60_000))
    body = Quarantining(
        reason="its disk fails", until_at_ms=until_at_ms if rng.random() < 0.3 else None
    )
    _send(world, make(world, "quarantine", place.operator, body, worker_id))


def let_go(world: World, places: list[Place]) -> None:
    """In the calm a person ends all of it: every pool is open and nothing is held."""
    for row in world.rows(STANDING_HOLDS):
        _must(world, make(world, "lift_hold", LOCAL, row["tenant_id"], row["hold_id"]))
    for row in world.rows(CONFINED):
        _must(world, make(world, "unquarantine", LOCAL, None, row["worker_id"]))
    for tenant_id in sorted({place.tenant_id for place in places}):
        standing = {row["pool_id"] for row in world.rows(SOME_POOL, tenant_id=tenant_id)}
        for pool_id in POOLS:
            asked = pools.OfTenant(tenant_id, NewPool(pool_id=pool_id, name="open to all"))
            verb, about = ("replace_pool", pool_id) if pool_id in standing else ("create_pool", "")
            _must(world, make(world, verb, LOCAL, asked, about))


def _must(world: World, call: Call) -> None:
    world.perform(call, fault=NONE)
    assert call.ok, call.told()


def _send(world: World, call: Call) -> None:
    send(world, call, world.rng.random() < 0.05)


#: What they do, and how often.
ACTS: tuple[tuple[Act, int], ...] = ((pool, 4), (crowd, 2), (hold, 3), (confine, 4))

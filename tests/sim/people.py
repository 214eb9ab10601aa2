"""Submitters and operators: who asks for work, and who interferes with it."""

from collections.abc import Callable
from typing import Any

from msgspec import structs

from feltd.identity.principals import LOCAL
from feltd.model.base import Caller, Subject
from feltd.model.claim import Evict
from feltd.model.grant import GrantConstraints, ReplaceGrant, ResourceScope, RevokeGrant
from feltd.model.key import CreateKey
from feltd.model.policy import Concurrency, Placement, Rate, Timeouts
from feltd.model.worker import DrainRequest, Transition
from feltd.model.workload import (
    Batch,
    Cancel,
    Creation,
    NewWorkload,
    Requeue,
    Resources,
    RetryPolicy,
)
from tests.sim import waiters
from tests.sim.calls import Call
from tests.sim.clients import bearer_of, make, send
from tests.sim.image import DO, FLEET_MS, HOUR_MS, Place, fleet, root
from tests.sim.world import World

#: Workloads a place has at most: small worlds meet themselves more often.
WORKLOADS_MAX = 12

SOME_WORKLOAD = """
SELECT w.workload_id, w.state, w.fencing_token, w.tenant_id
  FROM workloads w
 ORDER BY w.seq
"""

SOME_WORKER = """
SELECT k.worker_id, k.lifecycle
  FROM workers k
 WHERE k.tenant_id = :tenant_id
   AND k.application_id = :application_id
 ORDER BY k.worker_id
"""

SOME_GRANT = """
SELECT g.grant_id
  FROM grants g
 WHERE g.tenant_id = :tenant_id
   AND g.parent_grant_id IS NOT NULL
 ORDER BY g.grant_id
"""

SOME_POOL = """
SELECT p.pool_id
  FROM pools p
 WHERE p.tenant_id = :tenant_id
   AND p.deleted_at_ms IS NULL
 ORDER BY p.pool_id
"""

#: Few, so that work meets them; the last is never made in the storm.
POOLS = ("p1", "p2", "p9")
NEVER_MADE = "p9"

#: Shorter than a lease or a backoff, about as long, and longer.
TIMEOUTS_MS = (1, 1_000, 5_000, 30_000, 60_000, 600_000)

LIFECYCLES = ("READY", "BUSY", "DRAINING", "OFFLINE", "RECOVERING", "REGISTERED")


# -- submitters ------------------------------------------------------------------------------


def new_body(world: World, place: Place) -> NewWorkload:
    """What somebody asks for: ordinary work, or work that fits few, later, or nobody."""
    rng = world.rng
    policy = RetryPolicy(
        max_attempts=rng.choice((1, 2, 3, 3)),
        initial_backoff_ms=rng.choice((0, 500, 1_000)),
        max_backoff_ms=rng.choice((1_000, 60_000)),
        retry_on=rng.choice((("lease_expired", "transient", "worker_lost"), ("timeout", "melted"))),
    )
    shape = rng.random()
    members: dict[str, Any] = {}
    if shape < 0.1:
        members["not_before_at_ms"] = world.now.wall_ms + rng.choice((1, 1_000, 60_000, 600_000))
    elif shape < 0.2:
        members["placement"] = Placement(required_labels={"zone": rng.choice("ab")})
    elif shape < 0.25:
        members["resources"] = Resources(cpu_millis=500)
    elif shape < 0.3:
        members["labels"] = {"note": "password=hunter2hunter2"}
    elif shape < 0.35:
        members["priority"] = rng.choice((-3, 5))
    elif shape < 0.37:
        members["requested_by"] = Subject(kind="service", id="somebody-else")
    elif shape < 0.4:
        members["tenant_id"] = rng.choice(("acme", "zeta"))
    if rng.random() < 0.2:
        members["concurrency"] = Concurrency(rng.choice("cd"), rng.choice((1, 1, 2)))
    if rng.random() < 0.15:
        members["rate"] = Rate("r", rng.choice((1, 2)), rng.choice((5_000, 60_000)))
    if rng.random() < 0.3:
        members["timeouts"] = some_timeouts(world)
    if rng.random() < 0.4:
        asked = members.get("placement", Placement())
        members["placement"] = structs.replace(asked, pool_id=some_pool(world, place))
    capabilities: tuple[str, ...] = ("extract",)
    if rng.random() < 0.4:
        capabilities = rng.choice(((), ("extract", "index"), ("audit",), ("fly",)))
    members |= waiters.members(world, place)
    return NewWorkload(
        definition_id="extract",
        idempotency_key=f"job-{len(place.asked) + 1}",
        capability_snapshot=capabilities,
        retry_policy=policy,
        on_worker_lost=rng.choice((None, None, "end", "lease")),
        input={"n": rng.randrange(3)},
        **members,
    )


def some_timeouts(world: World) -> Timeouts:
    """One of the four, or several of them."""
    rng = world.rng
    members = ("queue_ms", "start_ms", "execution_ms", "total_ms")
    chosen = rng.sample(members, rng.choice((1, 1, 2, 4)))
    return Timeouts(**{member: rng.choice(TIMEOUTS_MS) for member in chosen})


def some_pool(world: World, place: Place) -> str | None:
    """A pool of the tenant, if it has any; now and then one that was never made."""
    standing = world.rows(SOME_POOL, tenant_id=place.tenant_id)
    if world.rng.random() < 0.05:
        return NEVER_MADE
    return str(world.rng.choice(standing)["pool_id"]) if standing else None


def submit(world: World, place: Place) -> None:
    """Create, alone or in a batch; or say again what was said before, the same or otherwise."""
    rng = world.rng
    if place.asked and (len(place.asked) >= WORKLOADS_MAX or rng.random() < 0.25):
        body = place.asked[rng.choice(sorted(place.asked))]
        if rng.random() < 0.3:
            body = NewWorkload(definition_id="other", idempotency_key=body.idempotency_key)
        _create(world, place, place.submitter, body)
    elif rng.random() < 0.3:
        first, second = new_body(world, place), new_body(world, place)
        second = NewWorkload(
            **{name: getattr(second, name) for name in second.__struct_fields__}
            | {"idempotency_key": f"{first.idempotency_key}+"}
        )
        _create_batch(world, place, [first, second])
    else:
        caller = place.nobody if rng.random() < 0.03 else place.submitter
        _create(world, place, caller, new_body(world, place))


def _create(world: World, place: Place, caller: Caller, body: NewWorkload) -> None:
    twice = world.rng.random() < 0.1
    call = send(world, make(world, "create", caller, Creation(body=body)), twice)
    if call.ok:
        place.asked.setdefault(body.idempotency_key, body)


def _create_batch(world: World, place: Place, bodies: list[NewWorkload]) -> None:
    batch = Batch(
        items=tuple(Creation(body=body) for body in bodies), atomic=world.rng.random() < 0.4
    )
    call = send(world, make(world, "create_batch", place.submitter, batch))
    if call.ok:
        for body, made in zip(bodies, call.answer.items, strict=True):
            if hasattr(made, "workload_id"):
                place.asked.setdefault(body.idempotency_key, body)


# -- operators of work -----------------------------------------------------------------------


def some_workload(world: World, place: Place) -> tuple[str, int]:
    """The id of a workload and its newest token; now and then of another tenant, or made up."""
    rows = world.rows(SOME_WORKLOAD)
    own = [row for row in rows if row["tenant_id"] == place.tenant_id]
    pool = rows if world.rng.random() < 0.2 else own
    if not pool or world.rng.random() < 0.03:
        return "workload_made_up", 7
    row = world.rng.choice(pool)
    return row["workload_id"], row["fencing_token"]


def cancel(world: World, place: Place) -> None:
    """Call work off, with force or without."""
    workload_id, _ = some_workload(world, place)
    caller = world.rng.choice((place.operator, place.operator, place.submitter, place.nobody))
    body = Cancel(force=world.rng.random() < 0.4)
    _send(world, make(world, "cancel", caller, body, workload_id))


def requeue(world: World, place: Place) -> None:
    """Bring a dead letter back, or try to."""
    dead = [row for row in world.rows(SOME_WORKLOAD) if row["state"] == "DEAD_LETTERED"]
    workload_id, _ = some_workload(world, place)
    if dead and world.rng.random() < 0.8:
        workload_id = world.rng.choice(dead)["workload_id"]
    body = Requeue(input={"n": 9}) if world.rng.random() < 0.3 else Requeue()
    if world.rng.random() < 0.2:
        body = Requeue(priority=world.rng.choice((-3, 0, 5)))
    _send(world, make(world, "requeue", place.operator, body, workload_id))


def evict(world: World, place: Place) -> None:
    """Take a claim from its worker."""
    _, token = some_workload(world, place)
    body = Evict(
        reason="by hand",
        to=world.rng.choice(("READY", "READY", "DEAD_LETTERED")),
        spend_attempt=world.rng.random() < 0.3,
    )
    _send(world, make(world, "evict", place.operator, body, f"claim_{token}"))


# -- operators of workers --------------------------------------------------------------------


def some_worker(world: World, place: Place) -> str:
    """The id of a worker of the place, now and then made up."""
    sought = {"tenant_id": place.tenant_id, "application_id": place.application_id}
    rows = world.rows(SOME_WORKER, **sought)
    if not rows or world.rng.random() < 0.05:
        return "worker_made_up"
    return str(world.rng.choice(rows)["worker_id"])


def drain(world: World, place: Place) -> None:
    """Let a worker finish."""
    rng = world.rng
    caller = place.nobody if rng.random() < 0.1 else place.operator
    body = DrainRequest(
        reason="upgrade",
        until=rng.choice(("resumed", "registered")),
        no_renew_after_ms=rng.choice((None, None, 0, 5_000)),
    )
    _send(world, make(world, "drain", caller, body, some_worker(world, place)))


def move(world: World, place: Place) -> None:
    """Resume, recover, transition or remove a worker."""
    verb = world.rng.choice(("resume", "resume", "resume", "recover", "transition", "remove"))
    body = Transition(to=world.rng.choice(LIFECYCLES)) if verb == "transition" else None
    _send(world, make(world, verb, place.operator, body, some_worker(world, place)))


# -- who may do what -------------------------------------------------------------------------


def shrink(world: World, place: Place) -> None:
    """Change what the fleet may do, or until when; what it loses it does not get back."""
    rng = world.rng
    more = (*DO, "worker:capability:fly")
    capabilities = rng.choice((DO, DO, DO, DO[:2], (DO[0], DO[2]), more))
    ends_ms = world.now.wall_ms + rng.choice((1, 5_000, 60_000, FLEET_MS, FLEET_MS))
    if rng.random() < 0.1:
        ends_ms = world.now.wall_ms - 1
    prefix = f"flow://{place.application_id}/workers/*"
    body = ReplaceGrant(
        capabilities=capabilities,
        resources=(ResourceScope(kind="RESOURCE_PREFIX", uri=prefix),),
        constraints=GrantConstraints(max_concurrency=rng.choice((None, None, 1))),
        expires_at_ms=ends_ms,
    )
    caller = place.nobody if rng.random() < 0.1 else place.operator
    _send(world, make(world, "replace_grant", caller, body, _some_grant(world, place)))


def revoke(world: World, place: Place) -> None:
    """Take a grant away: the fleet's, or the root with all below it."""
    grant_id = place.root_id if world.rng.random() < 0.2 else _some_grant(world, place)
    body = RevokeGrant(reason="lost trust")
    _send(world, make(world, "revoke_grant", place.operator, body, grant_id))
    if world.rng.random() < 0.3:
        # It is gone: what it allows can no longer be changed.
        shrink(world, place)


def regrant(world: World, place: Place) -> None:
    """A new grant for the fleet, and a new registrar; processes take it up when they register."""
    lives = world.oracle.history.chain_lives
    where = (place.tenant_id, place.application_id)
    if lives(place.fleet_id, world.now) and world.rng.random() < 0.5:
        return
    if not lives(place.root_id, world.now):
        place.root_id = root(world, where)
    place.fleet_id, place.registrar = fleet(world, where, place.root_id)
    for process in place.processes:
        process.registrar = place.registrar


def end_key(world: World, place: Place) -> None:
    """Take a key away: a worker's, or the registrar's with all that came of it."""
    rng = world.rng
    workers = [process.caller for process in place.processes if process.caller is not None]
    chosen = rng.choice((*workers, *place.spare, place.registrar))
    key_id = "nosuchkey000" if rng.random() < 0.15 else chosen.key_id
    caller = place.nobody if rng.random() < 0.1 else place.operator
    _send(world, make(world, "revoke_key", caller, None, key_id))


def spare_key(world: World, place: Place, of_worker: str | None = None) -> None:
    """A key for a worker by hand: it is whichever incarnation is current."""
    worker_id = of_worker or some_worker(world, place)
    ends_ms = world.now.wall_ms + world.rng.choice((1_000, 60_000, HOUR_MS))
    body = CreateKey(
        name="spare",
        worker_id=worker_id,
        expires_at_ms=ends_ms if world.rng.random() < 0.5 else None,
    )
    if world.rng.random() < 0.15:
        odd = world.rng.choice((None, worker_id))
        body = CreateKey(name="too much", tenants=("*",), worker_id=odd)
    call = make(world, "create_key", world.rng.choice((LOCAL, place.operator)), body)
    world.perform(call)
    if call.ok and call.answer.worker_id:
        place.spare.append(bearer_of(world, call.answer.secret))


def _some_grant(world: World, place: Place) -> str:
    if world.rng.random() < 0.1:
        return "grant_made_up"
    if world.rng.random() < 0.2:
        rows = world.rows(SOME_GRANT, tenant_id=place.tenant_id)
        return str(world.rng.choice(rows)["grant_id"])
    return place.fleet_id


def _send(world: World, call: Call) -> None:
    send(world, call, world.rng.random() < 0.05)


Act = Callable[[World, Place], None]

#: What people do, and how often.
ACTS: tuple[tuple[Act, int], ...] = (
    (submit, 20),
    (cancel, 3),
    (requeue, 3),
    (waiters.group, 2),
    (evict, 2),
    (drain, 2),
    (move, 3),
    (shrink, 2),
    (revoke, 1),
    (regrant, 3),
    (end_key, 2),
    (spare_key, 2),
)

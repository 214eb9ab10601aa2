"""People who change what waiting work asks for, and have it run at once."""

from typing import Any

from msgspec import UNSET

from feltd.model.editing import Edit
from tests.sim.clients import make, send
from tests.sim.image import Place
from tests.sim.people import (
    SOME_WORKLOAD,
    TIMEOUTS_MS,
    Act,
    some_pool,
    some_workload,
)
from tests.sim.world import World

MEMBERS = (
    *("priority", "not_before_at_ms", "placement", "placement"),
    *("timeouts", "timeouts", "retry_policy", "concurrency", "labels"),
)


def edit(world: World, place: Place) -> None:
    """Change some members of a workload, mostly of one that waits."""
    rng = world.rng
    members = {name: _patch(world, place, name) for name in rng.sample(MEMBERS, rng.choice((1, 2)))}
    caller = place.nobody if rng.random() < 0.05 else place.operator
    body = Edit(**members)
    send(world, make(world, "edit", caller, body, _waiting(world, place)), rng.random() < 0.1)


def run_now(world: World, place: Place) -> None:
    """Have work run at once, whatever it waits for, or not before another instant."""
    instant_ms = world.rng.choice((0, 0, 0, None, world.now.wall_ms + 1_000))
    later = [
        work.workload_id
        for work in world.oracle.history.works.values()
        if work.tenant_id == place.tenant_id
        and work.state == "READY"
        and work.eligible_at_ms > world.now.lease_ms
    ]
    workload_id = world.rng.choice(later) if later else _waiting(world, place)
    call = make(world, "edit", place.operator, Edit(not_before_at_ms=instant_ms), workload_id)
    send(world, call, world.rng.random() < 0.1)


def _waiting(world: World, place: Place) -> str:
    workload_id, _ = some_workload(world, place)
    waiting = [
        row["workload_id"]
        for row in world.rows(SOME_WORKLOAD)
        if row["state"] in ("READY", "PENDING", "DEAD_LETTERED")
        and row["tenant_id"] == place.tenant_id
    ]
    return str(world.rng.choice(waiting)) if waiting and world.rng.random() < 0.8 else workload_id


def _patch(world: World, place: Place, member: str) -> Any:
    """What a merge patch says of one member: null takes it back."""
    rng, now_ms = world.rng, world.now.wall_ms
    zone = rng.choice(("a", "b", None))
    said: dict[str, tuple[Any, ...]] = {
        "priority": (None, -3, 0, 5),
        "not_before_at_ms": (None, 0, now_ms - 1, now_ms + 1_000, now_ms + 60_000),
        "placement": (
            None,
            {"required_labels": {"zone": zone}},
            {"anti_affinity": {"zone": zone}},
            {"affinity": {"zone": zone}, "affinity_wait_ms": rng.choice((0, 5_000))},
            {"pool_id": some_pool(world, place)},
            {"pool_id": None, "affinity": None},
        ),
        "timeouts": (
            None,
            {rng.choice(("queue_ms", "total_ms")): None},
            {rng.choice(("queue_ms", "start_ms")): rng.choice(TIMEOUTS_MS)},
            {rng.choice(("execution_ms", "total_ms")): rng.choice(TIMEOUTS_MS)},
            {"queue_ms": 0},
        ),
        "retry_policy": (
            None,
            {"max_attempts": rng.choice((1, 2, 3, None))},
            {"initial_backoff_ms": rng.choice((0, 90_000))},
            {"retry_on": rng.choice((["melted", "transient"], [], None))},
        ),
        "concurrency": (
            None,
            {"key": rng.choice("cd"), "limit": rng.choice((1, 2))},
            {"limit": 1},
        ),
        "labels": (None, {"team": rng.choice(("x", None))}, {"note": "password=hunter2hunter2"}),
    }
    return rng.choice(said.get(member, (UNSET,)))


ACTS: tuple[tuple[Act, int], ...] = ((edit, 5), (run_now, 4))

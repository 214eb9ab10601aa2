"""What people ask of work that waits for other work, and of groups."""

from typing import Any

from feltd.model.base import Caller
from feltd.model.group import CancelGroup, GroupCancellation, GroupId
from tests.sim.clients import make, send
from tests.sim.image import Place
from tests.sim.world import World

GROUPS = ("g", "h", "i")


def members(world: World, place: Place) -> dict[str, Any]:
    """What somebody says of other work: mostly nothing, now and then what is not there."""
    rng = world.rng
    said: dict[str, Any] = {}
    if rng.random() < 0.15:
        said["group"] = rng.choice(GROUPS)
    if rng.random() < 0.7:
        return said
    names = [
        work.workload_id
        for work in world.oracle.history.works.values()
        if work.tenant_id == place.tenant_id or rng.random() < 0.05
    ]
    chosen = rng.sample(names, min(len(names), rng.choice((1, 1, 2, 3))))
    if rng.random() < 0.15:
        chosen.append(f"group:{rng.choice(GROUPS)}")
    if rng.random() < 0.03:
        chosen.append("workload_made_up")
    said["dependencies"] = tuple(chosen)
    said["dependency_policy"] = rng.choice(("all_completed", "all_finished"))
    return said


def group(world: World, place: Place) -> None:
    """Seal a group or call it off."""
    rng = world.rng
    name = rng.choice((*GROUPS, "none"))
    caller: Caller = rng.choice((place.operator, place.operator, place.submitter))
    if rng.random() < 0.6:
        call = make(world, "seal_group", caller, GroupId(place.tenant_id, name))
    else:
        body = CancelGroup(force=rng.random() < 0.4)
        cancellation = GroupCancellation(place.tenant_id, name, body)
        call = make(world, "cancel_group", caller, cancellation)
    send(world, call, rng.random() < 0.05)

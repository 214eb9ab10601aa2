"""People who change all that a filter lets through: searched for first, changed in chunks."""

from typing import Any
from unittest.mock import patch

from feltd.mesh import bulk, listing
from feltd.mesh.bulk import Chunk, Plan, Search
from feltd.model.base import Ask
from feltd.model.workload import Filter
from feltd.store.tx import Tx
from tests.sim import bulks
from tests.sim.clients import make, send
from tests.sim.history import Violation
from tests.sim.image import Place
from tests.sim.people import Act
from tests.sim.waiters import GROUPS
from tests.sim.world import World

#: Rows of a chunk; small worlds are changed in several all the same.
CHUNKS = (1, 2, 3, 500)
#: Rows that one slice looks at: few, so that a search has several of them.
ROWS = (1, 2, 5, 20_000)
#: Slices that are counted at most in one search of so small a world.
SLICES_MAX = 50


def change(world: World, place: Place) -> None:
    """Search, then change what was found: at once, or when other things have happened to it."""
    rng = world.rng
    if place.found and rng.random() < 0.5:
        _send(world, place, place.found.pop(rng.randrange(len(place.found))))
        return
    chunk = search(world, place, _plan(world, place), rng.choice(CHUNKS))
    if rng.random() < 0.3:
        place.found.append(chunk)
    else:
        _send(world, place, chunk)


def search(world: World, place: Place, plan: Plan, wanted: int) -> Chunk:
    """What needs the change, slice by slice as the handler does it; it must be what is known."""
    ids: list[str] = []
    counted, before = 0, None
    for _ in range(SLICES_MAX):
        room = wanted if plan.action == "requeue" else wanted - len(ids)
        body = Search(plan, wanted=room, count=world.rng.choice((1, 3, 1_000)), before=before)
        ask = Ask(caller=place.operator, body=body)
        with patch.object(listing, "READ_ROWS_MAX", world.rng.choice(ROWS)):
            found = bulk.find(Tx(world.conn), ask, world.now)
        ids = bulk.kept(plan, ids, found.workload_ids, wanted)
        counted += found.count
        before = found.before
        if before is None:
            break
    known = bulks.wanted(world.oracle.history, plan, place.operator.tenants)
    newest = known[-wanted:] if plan.action == "requeue" else known[:wanted]
    if ids != newest or counted != len(known):
        raise Violation(f"{plan} found {ids} of {counted}, known are {known}")
    world.note(f"found {len(ids)} of {counted} to {plan.action}")
    return Chunk(plan, ids, counted - len(ids))


def _plan(world: World, place: Place) -> Plan:
    rng = world.rng
    action = rng.choice(("cancel", "requeue", "requeue", "reprioritise", "reprioritise"))
    members: dict[str, Any] = {}
    if rng.random() < 0.3 or action == "cancel":
        # Nobody calls off everything, or little would be left to happen.
        members = rng.choice(
            (
                {"group": rng.choice(GROUPS)},
                {"state": rng.choice(("READY", "PENDING", "CLAIMED", "DEAD_LETTERED"))},
                {"labels": {"team": "x"}},
                {"definition_id": rng.choice(("extract", "other"))},
            )
        )
    if rng.random() < 0.5:
        members["application_id"] = place.application_id
    priority = rng.choice((-3, 0, 5)) if action != "cancel" else None
    if action == "requeue" and rng.random() < 0.6:
        priority = None
    asked = Filter(tenant_id=rng.choice((None, place.tenant_id)), **members)
    return Plan(action, asked, priority)  # type: ignore[arg-type]


def _send(world: World, place: Place, chunk: Chunk) -> None:
    caller = place.nobody if world.rng.random() < 0.05 else place.operator
    send(world, make(world, "bulk", caller, chunk), world.rng.random() < 0.1)


ACTS: tuple[tuple[Act, int], ...] = ((change, 5),)

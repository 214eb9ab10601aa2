"""Faults that schedules have found, told as stories so that they stay found."""

from collections.abc import Iterator

import pytest

from feltd.mesh import promises, vitals
from feltd.model.grant import ReplaceGrant, ResourceScope
from feltd.model.workload import Creation, NewWorkload
from feltd.store.tx import Tx
from tests.mesh.world import Mesh
from tests.sim.clients import make
from tests.sim.image import DO, Place, fresh_world
from tests.sim.world import World


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    world = Mesh()
    yield world
    world.close()


@pytest.fixture
def calm() -> Iterator[tuple[World, Place]]:
    world, places = fresh_world(0)
    world.faults = False
    yield world, places[0]
    world.close()


def broken(world: World) -> list[str]:
    return [one.id for one in promises.ask(Tx(world.conn))]


@pytest.mark.parametrize("verb", ["start", "complete", "fail", "release"])
def test_a_worker_is_heard_when_it_repeats_itself(mesh: Mesh, verb: str) -> None:
    edge = mesh.worker("edge")
    held = mesh.claims(mesh.workload(), by=edge, lease_ms=120_000, start=True)
    first = mesh.say(verb, held)
    mesh.later(29_999)

    assert mesh.say(verb, held) == first

    mesh.later(1)
    assert mesh.run(vitals.detect_failures, 10) == 0


def test_a_removed_worker_is_not_held_to_a_grant_that_shrank(calm: tuple[World, Place]) -> None:
    world, place = calm
    worker_id = place.processes[0].worker_id
    world.perform(make(world, "remove", place.operator, None, worker_id))

    body = ReplaceGrant(
        capabilities=DO[:2],
        resources=(ResourceScope(kind="RESOURCE_PREFIX", uri="flow://docs/workers/*"),),
        expires_at_ms=world.now.wall_ms + 1_000,
    )
    shrunk = make(world, "replace_grant", place.operator, body, place.fleet_id)
    world.perform(shrunk)

    assert shrunk.ok
    assert broken(world) == []


def test_a_process_that_registers_again_under_its_own_drain_keeps_its_claims(
    calm: tuple[World, Place],
) -> None:
    world, place = calm
    process = place.processes[0]
    body = NewWorkload(definition_id="extract", idempotency_key="story")
    world.perform(make(world, "create", place.submitter, Creation(body=body)))
    while not process.held:
        process.pull(world)
    process.drain_itself(world)

    answer = process.register(world).answer.answer

    assert answer.worker.lifecycle == "REGISTERED"
    assert len(answer.worker.claims) == len(process.held)
    assert broken(world) == []

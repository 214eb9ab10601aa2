"""The world every schedule begins with, made once by the real rules: grants, keys, workers.

Three places of two tenants, two of which share the name of their application. Each has a root
grant, a fleet grant and an asking grant below it, keys bound to those, and two workers.
"""

import pickle
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, NamedTuple

from feltd.identity.principals import LOCAL
from feltd.mesh import ledger
from feltd.model.base import Caller, Subject
from feltd.model.grant import GrantConstraints, IssueGrant, ResourceScope
from feltd.model.key import CreateKey
from feltd.store.migrate import apply
from feltd.store.tx import Tx
from tests.sim.clients import Process, bearer_of, make
from tests.sim.world import World

#: An ordinary day in 2026; lease and wall time agree until a schedule moves one of them.
BEGIN_MS = 1_790_000_000_000
HOUR_MS = 3_600_000
#: The fleet's grant ends within reach of a schedule's clocks.
FLEET_MS = 2 * HOUR_MS

PLACES = (("acme", "docs"), ("acme", "mail"), ("zeta", "docs"))
DO = ("worker:register", "worker:capability:extract", "worker:capability:index")
ASK = ("workload:capability:audit",)


@dataclass
class Place:
    """An application of a tenant: its grants, who may do what there, and its processes."""

    tenant_id: str
    application_id: str
    root_id: str
    fleet_id: str
    registrar: Caller
    submitter: Caller
    operator: Caller
    nobody: Caller
    processes: list[Process] = field(default_factory=list)
    #: Bodies of creations by idempotency key, to send them again.
    asked: dict[str, Any] = field(default_factory=dict)
    #: Keys a person made for a worker, good for any incarnation.
    spare: list[Caller] = field(default_factory=list)
    #: What a search has found and nobody has changed yet.
    found: list[Any] = field(default_factory=list)


class Template(NamedTuple):
    """A database and what goes with it, as bytes: each schedule takes its own copy."""

    image: bytes
    memory: bytes


def fresh_world(seed: int) -> tuple[World, list[Place]]:
    """The world of one schedule."""
    template = _template()
    history, newest_token, mark, clock, number, places = pickle.loads(template.memory)
    world = World(Random(seed), BEGIN_MS, template.image)
    world.oracle.history = history
    world.oracle.newest_token = newest_token
    world.mark, world.clock, world.fresh_number = mark, clock, number
    # The daemon that serves the schedule is a new run of it.
    world.restart()
    return world, places


def issue(
    world: World,
    subject: str,
    place: tuple[str, str],
    parent_id: str | None,
    *,
    capabilities: tuple[str, ...],
    ends_ms: int,
    **constraints: Any,
) -> str:
    """A grant by the local operator; its id."""
    tenant_id, application_id = place
    prefix = f"flow://{application_id}/workers/*"
    body = IssueGrant(
        subject=Subject(kind="service", id=subject),
        tenant_id=tenant_id,
        application_id=application_id,
        capabilities=capabilities,
        resources=(ResourceScope(kind="RESOURCE_PREFIX", uri=prefix),),
        constraints=GrantConstraints(**constraints),
        expires_at_ms=ends_ms,
        parent_grant=parent_id,
    )
    call = make(world, "issue_grant", LOCAL, body)
    world.perform(call)
    assert call.ok, call.told()
    return str(call.answer.id)


def key(world: World, subject: str, tenant_id: str, **members: Any) -> Caller:
    """A key by the local operator; the caller behind it."""
    body = CreateKey(name=subject, identity_id=subject, tenants=(tenant_id,), **members)
    call = make(world, "create_key", LOCAL, body)
    world.perform(call)
    assert call.ok, call.told()
    return bearer_of(world, call.answer.secret)


def fleet(
    world: World, place: tuple[str, str], root_id: str, lasts_ms: int = FLEET_MS
) -> tuple[str, Caller]:
    """A grant for workers below a root, and a registrar's key bound to it."""
    name = f"registrar-{'-'.join(place)}"
    ends_ms = world.now.wall_ms + lasts_ms
    fleet_id = issue(world, name, place, root_id, capabilities=DO, ends_ms=ends_ms)
    scopes = ("workers:register",)
    return fleet_id, key(world, name, place[0], scopes=scopes, grant_id=fleet_id)


def root(world: World, place: tuple[str, str]) -> str:
    """A grant over everything of a place, for 30 days."""
    ends_ms = world.now.wall_ms + 720 * HOUR_MS
    name = f"root-{'-'.join(place)}"
    return issue(world, name, place, None, capabilities=(*DO, *ASK), ends_ms=ends_ms)


@cache
def _template() -> Template:
    world = World(Random(0), BEGIN_MS)
    world.faults = False
    apply(world.conn)
    world.conn.execute("BEGIN IMMEDIATE")
    ledger.begin(Tx(world.conn), "instance-1", world.now)
    world.conn.execute("COMMIT")
    world.restart()
    places = [_place(world, place) for place in PLACES]
    oracle = world.oracle
    memory = (
        oracle.history,
        oracle.newest_token,
        world.mark,
        world.clock,
        world.fresh_number,
        places,
    )
    made = Template(world.conn.serialize(), pickle.dumps(memory))
    world.close()
    return made


def _place(world: World, place: tuple[str, str]) -> Place:
    tenant_id, application_id = place
    root_id = root(world, place)
    fleet_id, registrar = fleet(world, place, root_id)
    submitter = f"submitter-{tenant_id}-{application_id}"
    ends_ms = world.now.wall_ms + 700 * HOUR_MS
    asking = issue(world, submitter, place, root_id, capabilities=(*DO, *ASK), ends_ms=ends_ms)
    made = Place(
        tenant_id,
        application_id,
        root_id,
        fleet_id,
        registrar,
        key(world, submitter, tenant_id, scopes=("workloads:create",), grant_id=asking),
        key(world, f"operator-{application_id}", tenant_id, scopes=("*",), subject_type="human"),
        key(world, "nobody", tenant_id, scopes=()),
    )
    for number in (1, 2):
        process = Process(
            f"edge-{number}",
            registrar,
            f"p{number}",
            concurrency=number,
            timeout_ms=30_000 if number == 1 else 10_000,
            labels={"zone": "ab"[number - 1]},
        )
        process.register(world)
        process.beat(world)
        made.processes.append(process)
    return made

"""People who give work to a worker, and sinks who ask of a claim or a token."""

from feltd.errors import Refused
from feltd.mesh import fences
from feltd.model.claim import ClaimById
from feltd.model.fence import Raise, Validate
from feltd.model.policy import Placement
from feltd.store.tx import Tx
from tests.sim import laws
from tests.sim.calls import Call
from tests.sim.clients import make, send
from tests.sim.history import Violation
from tests.sim.image import Place
from tests.sim.people import POOLS, SOME_WORKLOAD, Act, some_worker, some_workload
from tests.sim.world import World

#: Few, so that tokens meet there.
RESOURCES = ("r1", "r2")


def give(world: World, place: Place) -> None:
    """Give some work to a named worker or to whoever is chosen."""
    rng = world.rng
    workload_id, _ = some_workload(world, place)
    waiting = [row for row in world.rows(SOME_WORKLOAD) if row["state"] == "READY"]
    if waiting and rng.random() < 0.8:
        workload_id = rng.choice(waiting)["workload_id"]
    narrow = rng.choice(
        (
            None,
            None,
            Placement(affinity={"zone": "b"}),
            Placement(required_labels={"zone": rng.choice("ab")}),
            Placement(pool_id=rng.choice(POOLS)),
        )
    )
    body = ClaimById(
        worker_id=some_worker(world, place) if rng.random() < 0.6 else None,
        lease_ms=rng.choice((1_000, 30_000, 120_000)),
        placement=narrow,
    )
    caller = place.nobody if rng.random() < 0.05 else place.operator
    if rng.random() < 0.3 and body.worker_id is None:
        _rehearsed(world, place, workload_id, body)
        return
    call = send(world, make(world, "give", caller, body, workload_id), rng.random() < 0.05)
    for process in place.processes:
        if call.ok and process.worker_id == call.answer[0].worker_id:
            for _ in range(rng.choice((0, 1, 2))):
                process.beat(world)


def _rehearsed(world: World, place: Place, workload_id: str, body: ClaimById) -> None:
    """A dry run, which stores nothing, and at once the claim: both decide the same."""
    changes = world.conn.total_changes
    narrow = body.placement or Placement()
    dry = make(world, "try_out", place.operator, narrow, workload_id)
    try:
        told = dry.rule(Tx(world.conn), dry.cmd, world.now)
    except Refused as refused:
        told = None
        world.note(f"a dry run: {refused.code}")
    if world.conn.total_changes != changes:
        raise Violation(f"a dry run of {workload_id} wrote something")
    call = make(world, "give", place.operator, body, workload_id)
    world.perform(call)
    if told is None or call.code not in ("", "MESH_NO_ELIGIBLE_WORKER"):
        return
    claim, is_new = (None, True) if call.code else call.answer
    given = None if claim is None else claim.worker_id
    if is_new and given != told.selected_worker:
        raise Violation(f"a dry run chose {told.selected_worker}, the claim went to {given}")
    if is_new and claim is not None:
        row = world.rows(laws.NEWEST, workload_id=workload_id)[0]
        laws.read(world.oracle.history, row, claim.fencing_token)


def look_back(world: World, place: Place) -> None:
    """Ask a decision again."""
    decision_id = f"placement_{world.rng.randrange(4)}"
    _send(world, make(world, "look_back", place.operator, None, decision_id))


def validate(world: World, place: Place) -> None:
    """A sink is shown a token, and asks about its claim."""
    token = _token(world)
    claimed = token if world.rng.random() < 0.9 else token + 1
    body = Validate(fencing_token=token)
    _send(world, make(world, "validate", place.operator, body, f"claim_{claimed}"))


def fence(world: World, place: Place) -> None:
    """A sink lets a write through if its token is the highest."""
    token = 2**53 - 1 if world.rng.random() < 0.05 else _token(world)
    asked = fences.Raising(place.tenant_id, Raise(fencing_token=token))
    _send(world, make(world, "fence", place.operator, asked, world.rng.choice(RESOURCES)))


def _token(world: World) -> int:
    known = sorted(world.oracle.history.holds)[-6:]
    return world.rng.choice(known) if known else 1


def _send(world: World, call: Call) -> None:
    send(world, call, world.rng.random() < 0.05)


ACTS: tuple[tuple[Act, int], ...] = ((give, 5), (look_back, 1), (validate, 2), (fence, 3))

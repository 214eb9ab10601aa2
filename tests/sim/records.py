"""Services that write records, alone or many at once, and consumers that read their changes."""

from typing import Any

from msgspec.json import encode

from feltd.errors import Refused
from feltd.model.change import Following
from feltd.model.record import Expect
from feltd.state import changes
from feltd.state.consumers import OfConsumer
from feltd.state.held import HeldWrite
from feltd.state.transactions import Step, Transacting, Write
from feltd.store.tx import Tx
from tests.sim import workers
from tests.sim.books import ABSENT, Books
from tests.sim.calls import Call
from tests.sim.clerks import books_of
from tests.sim.clients import make, send
from tests.sim.history import Violation
from tests.sim.image import Place
from tests.sim.people import Act
from tests.sim.world import World

#: Few, so that writers meet.
COLLECTIONS = ("orders", "orders", "stock")
IDS = ("a", "b", "c")
CONSUMERS = ("billing", "search")
LIVING = "SELECT w.workload_id FROM workloads w"
VALUES_BYTES_MAX = 1_000_000


# -- what they do ----------------------------------------------------------------------------


def write(world: World, place: Place) -> None:
    """Write one record."""
    step = some_step(world, place)
    body = Write(place.tenant_id, step, some_cause(world, place))
    told = f"{step.op} {step.collection}/{step.record_id}"
    _send(world, make(world, "write", place.operator, body, told))


def transact(world: World, place: Place) -> None:
    """Write several, all or none."""
    steps = tuple(some_step(world, place) for _ in range(world.rng.choice((1, 2, 3, 5))))
    body = Transacting(place.tenant_id, steps, b"{}", VALUES_BYTES_MAX, some_cause(world, place))
    _send(world, make(world, "transact", place.operator, body))


def write_held(world: World, place: Place) -> None:
    """A program writes under the claim it runs for, which may be over by then."""
    rng, process = world.rng, workers.some_process(world, place)
    if not process.held:
        process.pull(world)
    claims = [*process.held.values(), *(claim for claim, _ in process.past[-2:])]
    claims = [one for one in claims if world.oracle.history.holds.get(one.fencing_token)]
    if not claims:
        return
    claim = rng.choice(claims)
    step = some_step(world, place)
    body = HeldWrite(
        claim_id=claim.claim_id,
        worker_id=claim.worker_id,
        fencing_token=claim.fencing_token,
        tenant_id=place.tenant_id,
        step=step._replace(op="put") if step.op == "delete" else step,
    )
    if body.step.value:
        _send(world, make(world, "held_write", process.own, body, claim.workload_id))


def some_step(world: World, place: Place) -> Step:
    """One write: mostly under the version that stands, now and then under another."""
    rng = world.rng
    name = (rng.choice(COLLECTIONS), rng.choice(IDS))
    rec = books_of(world.oracle.history, place.tenant_id).records.get(name)
    there = rec is not None and rec.value != ABSENT
    op = rng.choice(("put", "put", "patch", "delete") if there else ("put", "put", "put", "patch"))
    expect = Expect()
    if rng.random() < 0.5:
        version = rec.version if rec is not None and there else None
        if rng.random() < 0.2:
            version = rng.choice((None, 1, 2, 3))
        expect = Expect(if_version=version)
    elif rng.random() < 0.1:
        expect = Expect(exists=True)
    value: Any = {"n": rng.randrange(4), "status": rng.choice(("open", "paid", "paid"))}
    if rng.random() < 0.2:
        value = {"n": None} if op == "patch" else rng.choice((7, "text", ["a"], {"m": {}}))
    text = b"" if op == "delete" else encode(value, order="deterministic")
    return Step(op, *name, text, expect)


def some_cause(world: World, place: Place) -> str | None:
    """A workload that a trigger began, the deeper the likelier: work that writes what fires it."""
    known = causes(world, place)
    if not known or world.rng.random() < 0.4:
        return None
    return world.rng.choice(known[-3:])[1]


def causes(world: World, place: Place) -> list[tuple[int, str]]:
    """Workloads that changes began and that are still there, the deepest last."""
    depths = books_of(world.oracle.history, place.tenant_id).depth_of
    living = {row["workload_id"] for row in world.rows(LIVING)}
    return sorted((depth, name) for name, depth in depths.items() if name in living)


def follow(world: World, place: Place) -> None:
    """A consumer reads on, and acknowledges what it has read, or something else."""
    rng, books = world.rng, books_of(world.oracle.history, place.tenant_id)
    name = rng.choice(CONSUMERS)
    known = books.acks.get(name)
    after = books.floor if known is None else known
    cmd = Following(tenant_id=place.tenant_id, after=after, limit=rng.choice((1, 3, 100)))
    ack = rng.choice((0, books.head + 1)) if rng.random() < 0.1 else _read(world, books, cmd)
    body = OfConsumer(tenant_id=place.tenant_id, name=name, ack=ack)
    _send(world, make(world, "acknowledge", place.operator, body))
    if rng.random() < 0.1:
        _send(world, make(world, "forget_consumer", place.operator, body))


def _read(world: World, books: Books, cmd: Following) -> int:
    """What a page tells is what is known; the number of its last change."""
    assert cmd.after is not None
    try:
        page = changes.page(Tx(world.conn), cmd, world.now)
    except Refused as refused:
        if refused.code != "CHANGES_COMPACTED" or books.floor <= cmd.after <= books.head:
            raise Violation(f"{cmd} was refused: {refused.detail}") from refused
        world.oracle.reached[refused.code] += 1
        return books.head
    told = [(one.seq, one.kind, one.id, one.version) for one in page.items]
    deeds = books.deeds[cmd.after : cmd.after + cmd.limit]
    if told != [(deed.seq, deed.kind, deed.record_id, deed.version) for deed in deeds]:
        raise Violation(f"{cmd} was told {told}, known is {deeds}")
    return page.items[-1].seq if page.items else cmd.after


def _send(world: World, call: Call) -> None:
    send(world, call, world.rng.random() < 0.1)


ACTS: tuple[tuple[Act, int], ...] = (
    (write, 24),
    (transact, 5),
    (write_held, 4),
    (follow, 4),
)

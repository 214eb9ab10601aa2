"""What the daemon's compaction does in a step: a round over every table, in slices, or some of it.

Everything is kept for seconds here, so that a schedule sees it go: changes under readers, work that
others name, records that come back, the beginning of the audit chain.
"""

from typing import Any

from feltd.model.compaction import Policy, Pruned, Slice, Table
from feltd.model.workload import Cancel, Creation, NewWorkload
from feltd.state import compaction
from tests.sim import people, workers
from tests.sim.calls import Call
from tests.sim.clients import make, some_fault
from tests.sim.history import Violation
from tests.sim.image import Place
from tests.sim.people import Act
from tests.sim.world import World

#: Slices of one table in one round.
SLICES_MAX = 30
KEPT_MS = (1, 1_000, 30_000, 600_000)

# The last change of each log that is past its time, or gone already.
PAST = """
SELECT l.tenant_id, max(l.floor_seq, ifnull(max(c.seq), 0)) AS seq
  FROM change_logs l
  LEFT JOIN changes c ON c.tenant_id = l.tenant_id AND c.at_ms <= :before_ms
 GROUP BY l.tenant_id
"""

FLOORS = "SELECT l.tenant_id, l.floor_seq AS seq FROM change_logs l"


def compact(world: World, place: Place) -> None:
    """A round: table by table, each slice a commit of its own, some of which meet a fault."""
    rng = world.rng
    if rng.random() < 0.6:
        # Some of what there is has ended, and is old.
        for _ in range(4):
            workers.work(world, place)
            people.cancel(world, place)
        world.later(rng.choice((1_000, 31_000, 62_000)))
    if rng.random() < 0.3:
        family(world, place)
    policy = some_policy(world)
    limit = rng.choice((1, 2, 20, 500))
    for books in world.oracle.history.books.values():
        books.forgets = True
    pruned: dict[str, int] = {}
    tables = list(compaction.WALKS)
    for table in tables if rng.random() < 0.7 else rng.sample(tables, 3):
        if not _walk(world, table, policy, limit, pruned):
            return
    told = Call("compact_told", compaction.told, pruned)
    world.perform(told, fault=some_fault(world))


def family(world: World, place: Place) -> None:
    """Work that has ended, and work that named it and may still run."""
    parent = _created(world, place, f"parent-{world.fresh_number}")
    if parent is None:
        return
    _created(
        world,
        place,
        f"child-{world.fresh_number}",
        dependencies=(parent,),
        dependency_policy="all_finished",
    )
    world.perform(make(world, "cancel", place.operator, Cancel(force=True), parent))
    world.later(1_001)


def _created(world: World, place: Place, key: str, **members: Any) -> str | None:
    body = NewWorkload(definition_id="extract", idempotency_key=key, **members)
    call = make(world, "create", place.submitter, Creation(body=body))
    world.perform(call)
    return call.answer.workload.workload_id if call.ok else None


def some_policy(world: World) -> Policy:
    """How long each kind is kept; workers and their keys stay: schedules go on with them."""
    rng = world.rng
    kept_ms = {name: rng.choice(KEPT_MS) for name in Policy._fields}
    kept_ms |= {"workers_ms": 0, "keys_ms": 0}
    if rng.random() < 0.5:
        kept_ms["dead_letters_ms"] = 0
    return Policy(**kept_ms)


def _walk(world: World, table: Table, policy: Policy, limit: int, pruned: dict[str, int]) -> bool:
    """The slices of one table; False once the daemon has died or found the disk full."""
    for _ in range(SLICES_MAX):
        past = _of_logs(world, PAST, before_ms=world.now.lease_ms - policy.changes_ms)
        call = Call("compact", compaction.compact, Slice(table, limit, policy))
        world.perform(call, fault=some_fault(world, 0.05))
        if call.lost or not call.committed:
            return False
        floors = _of_logs(world, FLOORS)
        if any(seq > past[tenant_id] for tenant_id, seq in floors.items()):
            raise Violation(f"logs were cut up to {floors}, past their time was {past}")
        answer: Pruned = call.answer
        if answer.skipped:
            raise Violation(f"the schema would not let go of {answer.skipped}")
        for name, rows in answer.counts.items():
            world.oracle.reached[f"pruned {name}"] += 1
            pruned[name] = pruned.get(name, 0) + rows
        if not answer.more:
            break
    return True


def _of_logs(world: World, sql: str, **params: int) -> dict[str, int]:
    return {row["tenant_id"]: row["seq"] for row in world.rows(sql, **params)}


ACTS: tuple[tuple[Act, int], ...] = ((compact, 5),)

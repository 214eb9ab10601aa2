"""What dies in test_crash_points.py: each story's beginning, its steps, and what must be true."""

from typing import Any

from msgspec import convert
from msgspec.json import encode

from feltd.clock import Now
from feltd.mesh import creation, vitals
from feltd.model.base import Ask, Caller
from feltd.model.compaction import Policy, Slice
from feltd.model.record import Expect
from feltd.model.trigger import Define
from feltd.model.workload import Creation, Made, NewWorkload, Tombstone
from feltd.state import compaction, consumers, definitions, evaluation, schedules, transactions
from feltd.state.consumers import OfConsumer
from feltd.state.definitions import Defining
from feltd.state.evaluation import Evaluate
from feltd.state.transactions import Step, Transacting
from feltd.store.tx import Tx
from tests.state.dying import Disk, Rule, Story
from tests.state.world import State

LOG = "SELECT head_seq, floor_seq, evaluated_seq FROM change_logs"
VALUES = "SELECT record_id, version, value FROM records ORDER BY record_id"
CHANGED = "SELECT seq, kind, record_id, version FROM changes ORDER BY seq"
FIRED = "SELECT trigger_id, seq, outcome FROM trigger_firings ORDER BY trigger_id, seq"
MADE = "SELECT trigger, idempotency_key, state FROM workloads ORDER BY trigger, seq"
STANDING = "SELECT trigger_id, cursor_seq, fired, failures, enabled FROM triggers ORDER BY 1"
RUNS = "SELECT trigger_id, scheduled_at_ms, outcome FROM schedule_firings ORDER BY 1, 2"
ENDED = "SELECT kind, actor FROM events WHERE kind = 'disable_trigger'"
KEEPER_LIMIT = 200


def told(world: State, steps: tuple[tuple[Rule, Any], ...], look: Any, refused: str = "") -> Story:
    """The story that begins where this world stands."""
    story = Story(world.conn.serialize(), world.now, steps, look, refused)
    world.close()
    return story


def asked(world: State, body: Any, id: str = "", caller: Caller = State.writer) -> Ask[Any]:
    """A call, its randomness made."""
    return Ask(caller=caller, body=body, id=id, fresh="7" * 55)


def named_before(tx: Tx, ask: Ask[Creation], now: Now) -> Made | Tombstone:
    """A creation of the time before such keys were kept for triggers."""
    return creation.make(tx, now, ask.caller, ask.body, ask.fresh)


def transaction() -> Story:
    """Five mutations: two that make, one that patches what the first made, one that deletes."""
    world = State()
    world.put("old", {"n": 1})
    steps = (
        Step("put", "orders", "new", encode({"n": 1}), Expect(if_version=None)),
        Step("patch", "orders", "new", encode({"m": 2}), Expect()),
        Step("put", "stock", "other", encode([1, 2]), Expect()),
        Step("delete", "orders", "old", b"", Expect(if_version=1)),
        Step("put", "orders", "last", encode(None), Expect()),
    )
    body = Transacting("acme", steps, b"{}", 1_000)

    def look(disk: Disk) -> None:
        assert disk.rows(LOG) == [(6, 0, 0)]
        kinds = [kind for _, kind, *_ in disk.rows(CHANGED)]
        assert kinds == ["created", "created", "updated", "created", "deleted", "created"]

    call = (transactions.transact, asked(world, body, caller=world.open))
    return told(world, (call,), look, refused="RECORD_CONFLICT")


def defined(world: State, trigger_id: str, **members: Any) -> Ask[Any]:
    """The call that defines a trigger of acme/docs, by the local operator."""
    said = {
        "trigger_id": trigger_id,
        "target_capability": "bill",
        "tenant_id": "acme",
        "application_id": "docs",
        **members,
    }
    if said.get("kind", "state") == "state":
        said = {"source_collection": "orders", "change_kind": "any"} | said
    return asked(world, Defining(convert(said, Define)), trigger_id, world.open)


def define(world: State, trigger_id: str, **members: Any) -> None:
    """Have it defined."""
    world.run(definitions.define, defined(world, trigger_id, **members))


def evaluated() -> Story:
    """Three changes that two triggers want, and one that neither does."""
    world = State()
    define(world, "first")
    define(world, "second", predicate={"op": "eq", "field": "after.status", "value": "paid"})
    for record_id in ("a", "b", "c"):
        world.put(record_id, {"status": "paid"})
    world.put("elsewhere", {"status": "paid"}, "stock")

    def look(disk: Disk) -> None:
        pairs = [(name, seq, "fired") for name in ("first", "second") for seq in (1, 2, 3)]
        assert disk.rows(FIRED) == pairs
        keys = [(name, f"trigger/{name}/instance/{seq}", "READY") for name, seq, _ in pairs]
        assert disk.rows(MADE) == keys
        assert disk.rows(STANDING) == [("first", 4, 3, 0, 1), ("second", 4, 3, 0, 1)]
        assert disk.rows(LOG) == [(4, 0, 4)]

    return told(world, ((evaluation.evaluate, KEEPER_LIMIT),), look)


def evaluated_in_slices() -> Story:
    """The same in four operations of two changes each: whichever of them dies, the rest follows."""
    whole = evaluated()
    return whole._replace(steps=((evaluation.evaluate, 2),) * 4)


def fired() -> Story:
    """Two schedules, one of which has three instants to catch up with."""
    world = State()
    define(world, "all", kind="schedule", every_ms=60_000, missed="all")
    define(world, "once", kind="schedule", every_ms=60_000, missed="once")
    began_ms = world.now.wall_ms
    world.later(180_000)

    def look(disk: Disk) -> None:
        instants = [began_ms + 60_000 * turn for turn in (1, 2, 3)]
        served = [("all", at_ms) for at_ms in instants] + [("once", instants[-1])]
        assert disk.rows(RUNS) == [(*pair, "fired") for pair in served]
        keys = [(name, f"trigger/{name}/instance/{at_ms}", "READY") for name, at_ms in served]
        assert disk.rows(MADE) == keys

    return told(world, ((schedules.fire_due, 100),), look)


def disabled() -> Story:
    """The fifth failure in a row: the key of a firing names other work."""
    world = State()
    define(world, "always")
    define(world, "good", start=0)
    world.put("a", {"n": 1})
    key = "trigger/always/instance/1"
    asked_for = NewWorkload(
        definition_id="other", idempotency_key=key, tenant_id="acme", application_id="docs"
    )
    world.ask(named_before, Creation(body=asked_for))
    for _ in range(4):
        world.run(evaluation.evaluate, KEEPER_LIMIT)
        world.later(10_000)
    world.put("b", {"n": 2})

    def look(disk: Disk) -> None:
        assert disk.rows(STANDING) == [("always", 0, 0, 5, 0), ("good", 2, 2, 0, 1)]
        assert disk.rows(ENDED) == [("disable_trigger", "service:feltd")]
        assert disk.rows(FIRED) == [("good", 1, "fired"), ("good", 2, "fired")]

    return told(world, ((evaluation.evaluate, KEEPER_LIMIT),), look)


def begun() -> Story:
    """A trigger is put back to the first change by a definition, and judges all of it again."""
    world = State()
    define(world, "again")
    for record_id in ("a", "b"):
        world.put(record_id, {"n": 1})
    world.run(evaluation.evaluate, KEEPER_LIMIT)
    world.put("a", {"n": 2})
    start = defined(world, "again", start=1, target_capability="bill")

    def look(disk: Disk) -> None:
        assert disk.rows(FIRED) == [("again", seq, "fired") for seq in (1, 2, 3)]
        assert disk.rows(STANDING) == [("again", 3, 3, 0, 1)]
        assert len(disk.rows(MADE)) == 3

    steps = ((definitions.define, start), (evaluation.evaluate, KEEPER_LIMIT))
    return told(world, steps, look)


def evaluated_by_two() -> Story:
    """The keeper and somebody who does not wait judge the same changes (BC-061)."""
    whole = evaluated()
    by_hand = Ask(caller=State.open, body=Evaluate(("acme",)), fresh="8" * 55)
    steps = ((evaluation.evaluate, 3), (evaluation.evaluate_now, by_hand), *whole.steps)
    return whole._replace(steps=steps)


#: Everything is past its time after a day.
POLICY = Policy(**dict.fromkeys(Policy._fields, 1_000))
DAY_MS = 86_400_000
CLEARED = (
    *("changes", "records", "trigger_firings", "workloads", "claims", "tombstones", "events"),
    *("audit", "consumers", "workers"),
)


def cleared() -> Story:
    """Something of everything that compaction takes, table by table, until it is gone."""
    world = State()
    define(world, "first")
    world.put("a", {"n": 1})
    world.put("b", {"n": 1})
    world.delete("a")
    world.run(evaluation.evaluate, KEEPER_LIMIT)
    edge = world.worker(capabilities=[])
    for row in world.conn.execute("SELECT workload_id FROM workloads").fetchall():
        world.say("complete", world.claims(row["workload_id"], by=edge, start=True))
    behind = OfConsumer(tenant_id="acme", name="late", ack=0)
    world.ask(consumers.acknowledge, behind)
    world.later(DAY_MS)
    world.run(vitals.detect_failures, 10)
    world.put("b", {"n": 2})
    world.run(evaluation.evaluate, KEEPER_LIMIT)
    world.later(60_000)
    kept: dict[str, int] = {}

    slices = tuple((compaction.compact, Slice(table, 500, POLICY)) for table in compaction.WALKS)

    def look(disk: Disk) -> None:
        for rule, cmd in slices:
            disk.run(rule, cmd)
        found = {table: disk.rows(f"SELECT count(*) FROM {table}")[0][0] for table in CLEARED}  # noqa: S608
        assert found == kept or not kept
        kept.update(found)
        assert (found["changes"], found["workloads"], found["claims"]) == (0, 1, 0), found
        assert disk.rows("SELECT floor_seq FROM change_logs") == [(4,)]
        assert disk.rows("SELECT count(*) FROM consumers WHERE dropped_at_ms IS NULL") == [(0,)]

    return told(world, slices, look)

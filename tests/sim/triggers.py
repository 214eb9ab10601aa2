"""People who define triggers and schedules, and change their minds; who takes a key away.

A firing is refused only where somebody took the key it needs: with every other failure something
is wrong.
"""

from typing import Any

from msgspec import convert, structs
from msgspec.json import encode

from feltd.model.base import Caller
from feltd.model.grant import RevokeGrant
from feltd.model.record import Expect
from feltd.model.schedule import Preview
from feltd.model.trigger import Define, Disable
from feltd.model.workload import Creation, NewWorkload
from feltd.state.definitions import Defining
from feltd.state.evaluation import Evaluate
from feltd.state.standing import OnTrigger
from feltd.state.transactions import Step, Write
from feltd.store.tx import Tx
from tests.sim.books import SENT
from tests.sim.clerks import books_of
from tests.sim.clients import make, send
from tests.sim.history import Violation
from tests.sim.image import Place
from tests.sim.people import Act
from tests.sim.records import COLLECTIONS, causes
from tests.sim.world import World

IDS = ("t1", "t2", "t3")
ROTA_IDS = ("s1", "s2")
EVERY_MS = (20_000, 60_000, 600_000)
ALL = frozenset({"*"})

INSTANCE = "SELECT l.instance_id FROM ledger l"


def shop(place: Place) -> Caller:
    """The submitter, with every scope: its grant decides what may be started."""
    return structs.replace(place.submitter, scopes=ALL)


def define(world: World, place: Place) -> None:
    """Define a state trigger, or define it anew: at its place, the head or an earlier change."""
    rng, books = world.rng, books_of(world.oracle.history, place.tenant_id)
    trigger_id = rng.choice(IDS)
    predicate = SENT[rng.choice(sorted(SENT))]
    members: dict[str, Any] = {
        "trigger_id": trigger_id,
        "target_capability": "extract",
        "source_collection": rng.choice(COLLECTIONS),
        "change_kind": rng.choice(("any", "any", "created", "updated", "deleted")),
        "capability_snapshot": ["fly" if rng.random() < 0.03 else "extract"],
        "enabled": rng.random() < 0.9,
    }
    if predicate is not None:
        members["predicate"] = predicate
    if rng.random() < 0.4:
        members["start"] = rng.choice(("head", books.floor, rng.randint(0, books.head + 1)))
    _define(world, place, members)


def schedule(world: World, place: Place) -> None:
    """Define a schedule, or define it anew."""
    rng = world.rng
    members = {
        "kind": "schedule",
        "trigger_id": rng.choice(ROTA_IDS),
        "target_capability": "extract",
        "capability_snapshot": ["extract"],
        "every_ms": rng.choice(EVERY_MS),
        "missed": rng.choice(("skip", "once", "all")),
        "overlap": rng.choice(("allow", "skip")),
        "enabled": rng.random() < 0.9,
    }
    _define(world, place, members)


def _define(world: World, place: Place, members: dict[str, Any]) -> None:
    body = Defining(convert(members, Define))
    call = make(world, "define", shop(place), body, members["trigger_id"])
    send(world, call, world.rng.random() < 0.1)


def switch(world: World, place: Place) -> None:
    """Enable, disable or delete one."""
    verb = world.rng.choice(("enable", "enable", "enable", "disable", "disable", "delete_trigger"))
    said = Disable(reason="enough") if verb == "disable" else None
    body = OnTrigger(place.tenant_id, said)
    send(world, make(world, verb, shop(place), body, some_id(world)), world.rng.random() < 0.1)


def evaluate(world: World, place: Place) -> None:
    """Somebody does not wait for the keeper, and tells twice."""
    body = Evaluate((place.tenant_id,))
    send(world, make(world, "evaluate_now", shop(place), body), world.rng.random() < 0.3)


def deepen(world: World, place: Place) -> None:
    """Work writes what starts work that writes: until it is too deep."""
    members = {"trigger_id": "t1", "target_capability": "extract", "capability_snapshot": []}
    members |= {"source_collection": "orders", "change_kind": "any"}
    _define(world, place, members)
    for turn in range(10):
        known = causes(world, place)
        deepest = known[-1][1] if known else None
        value = encode({"n": 2 + turn % 2, "status": "paid"}, order="deterministic")
        step = Step("put", "orders", "deep", value, Expect())
        body = Write(place.tenant_id, step, deepest)
        call = send(world, make(world, "write", place.operator, body, f"turn {turn}"))
        if not call.ok:
            return
        evaluate(world, place)


def run(world: World, place: Place) -> None:
    """Run a schedule out of turn. Repeating would make another one, so it is sent once."""
    call = make(
        world, "run_now", shop(place), OnTrigger(place.tenant_id), world.rng.choice(ROTA_IDS)
    )
    world.perform(call)


def look(world: World, place: Place) -> None:
    """What a preview says would fire is what the law says."""
    books, trigger_id = books_of(world.oracle.history, place.tenant_id), world.rng.choice(IDS)
    wish = books.wishes.get(trigger_id)
    if wish is None:
        return
    asked = OnTrigger(place.tenant_id, Preview(count=100))
    call = make(world, "preview", shop(place), asked, trigger_id)
    told = call.rule(Tx(world.conn), call.cmd, world.now)
    wants = [seq for seq, fires in reversed(books.wanted(trigger_id, books.floor)) if fires]
    if [one.seq for one in told.changes] != wants:
        raise Violation(f"a preview of {wish} told {told.changes}, wanted are {wants}")


def squat(world: World, place: Place) -> None:
    """The key of a firing to come is taken: it fails, and again, until it is disabled.

    Nobody takes it any more; a file may have such work from before.
    """
    books = books_of(world.oracle.history, place.tenant_id)
    if not books.wishes:
        return
    trigger_id = world.rng.choice(sorted(books.wishes))
    instance_id = world.rows(INSTANCE)[0]["instance_id"]
    books.troubled = True
    asked = NewWorkload(
        definition_id="extract",
        idempotency_key=f"trigger/{trigger_id}/{instance_id}/{books.head + 1}",
        capability_snapshot=("extract",),
        labels={"note": "squatter"},
    )
    tried = send(world, make(world, "create", place.submitter, Creation(body=asked)))
    if tried.ok and tried.answer.created:
        raise Violation(f"somebody took the key {asked.idempotency_key}")
    send(world, make(world, "take_key", place.submitter, Creation(body=asked)))
    if world.rng.random() < 0.5:
        return
    value = encode({"n": 3, "status": "paid"}, order="deterministic")
    wanted = books.wishes[trigger_id].collection
    step = Step("put", wanted, f"new-{world.fresh_number}", value, Expect())
    send(world, make(world, "write", place.operator, Write(place.tenant_id, step), "to fail"))
    for _ in range(6):
        evaluate(world, place)


def lose(world: World, place: Place) -> None:
    """The grant that triggers act under is taken away: they fail, and are disabled in sight."""
    books_of(world.oracle.history, place.tenant_id).troubled = True
    body = RevokeGrant(reason="lost trust")
    call = make(world, "revoke_grant", place.operator, body, place.submitter.grant_id or "")
    send(world, call)


def some_id(world: World) -> str:
    """Of a state trigger or a schedule, there or not."""
    return world.rng.choice((*IDS, *IDS, *ROTA_IDS))


ACTS: tuple[tuple[Act, int], ...] = (
    (define, 10),
    (schedule, 2),
    (switch, 4),
    (evaluate, 6),
    (run, 2),
    (look, 1),
    (squat, 2),
    (deepen, 2),
    (lose, 1),
)

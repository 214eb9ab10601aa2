"""What processes do in a step: honest ones, slow ones, liars, and those who come back."""

from collections.abc import Callable
from typing import Any

from msgspec.json import decode

from feltd.mesh.exchange import Exchanging
from feltd.model.base import Caller
from feltd.model.claim import Claim, Evict, Pull
from feltd.model.exchange import (
    CheckpointItem,
    CompleteItem,
    Exchange,
    FailItem,
    LogItem,
    ReleaseItem,
    RenewItem,
    StartItem,
)
from feltd.model.policy import Placement
from feltd.model.workload import Cancel
from tests.sim import times
from tests.sim.calls import ENDING, FENCED, Call
from tests.sim.clients import Process, fenced_body, lied, make, send, some_fault
from tests.sim.image import Place
from tests.sim.people import regrant, some_workload, spare_key
from tests.sim.world import World

ITEMS: dict[str, type[Any]] = {
    "start": StartItem,
    "renew": RenewItem,
    "checkpoint": CheckpointItem,
    "complete": CompleteItem,
    "fail": FailItem,
    "release": ReleaseItem,
    "log": LogItem,
}

#: What an honest holder does next, as often as it stands here.
STEPS_OF_WORK = (
    *("start", "start", "start", "renew", "checkpoint", "log"),
    *("complete", "complete", "fail", "fail", "fail", "release"),
)

ASKED = """
SELECT w.capability_snapshot, w.resources, w.placement
  FROM workloads w
 WHERE w.workload_id = :workload_id
"""


def some_process(world: World, place: Place) -> Process:
    """One of the place's processes; mostly made fit for work if it is not."""
    process, rng = world.rng.choice(place.processes), world.rng
    if process.caller is None and not process.register(world).ok and rng.random() < 0.7:
        regrant(world, place)
        process.register(world)
    peer = world.oracle.history.peers.get(process.worker_id)
    if peer is None or rng.random() < 0.4:
        return process
    if peer.drained and rng.random() < 0.5:
        send(world, make(world, "resume", place.operator, None, process.worker_id))
    if peer.lifecycle in ("OFFLINE", "RECOVERING"):
        process.reconcile(world)
    elif peer.lifecycle == "REGISTERED":
        process.beat(world)
    return process


def work(world: World, place: Place) -> None:
    """An honest step: take work, or go on with what is held."""
    process, rng = some_process(world, place), world.rng
    if not process.held or rng.random() < 0.25:
        process.pull(world)
        return
    held = process.held[rng.choice(sorted(process.held))]
    kind = rng.random()
    if kind < 0.08:
        process.finish(world, held)
    else:
        process.say(world, rng.choice(STEPS_OF_WORK), held)


def beat(world: World, place: Place) -> None:
    """A heartbeat; now and then with a wrong clock, version or health."""
    process, rng = some_process(world, place), world.rng
    wrong: dict[str, Any] = {}
    kind = rng.random()
    if kind < 0.08:
        wrong = {"timestamp_at_ms": world.now.wall_ms + rng.choice((-5_001, 5_001, 5_000))}
    elif kind < 0.13:
        wrong = {"capability_version": process.capability_version + 1}
    elif kind < 0.18:
        wrong = {"health": "DEGRADED"}
    process.beat(world, **wrong)


def take(world: World, place: Place) -> None:
    """Claim one workload by its id, be it anybody's."""
    process = some_process(world, place)
    workload_id, _ = some_workload(world, place)
    process.claim(world, workload_id)


def come_back(world: World, place: Place) -> None:
    """Register again: the same process, changed; another one; or one that must not."""
    process, rng = some_process(world, place), world.rng
    kind = rng.random()
    if kind < 0.4:
        process.restart(world)
    elif kind < 0.6:
        process.version = f"{int(process.version) + 1}"
        process.concurrency = rng.choice((1, 2, 3))
        process.capabilities = rng.choice((None, None, ("extract",)))
        process.register(world)
    elif kind < 0.7:
        process.timeout_ms = rng.choice((2_000, 30_000, 300_000))
        process.register(world)
    elif kind < 0.8:
        stranger = Process(process.name, place.registrar, f"{process.process_id}?")
        stranger.register(world, takeover=False)
    elif kind < 0.9:
        Process(process.name, place.nobody, "p0").register(world)
    else:
        Process(process.name, place.registrar, "p0", concurrency=0).register(world)


def usurped(world: World, place: Place) -> None:
    """A process is replaced and does not know: it writes under what the new one holds."""
    process, rng = some_process(world, place), world.rng
    if not process.restart(world).ok or not process.former:
        return
    process.beat(world)
    process.pull(world)
    if process.held:
        held = process.held[rng.choice(sorted(process.held))]
        process.say(world, rng.choice(FENCED), held, process.former[-1])


def reconcile(world: World, place: Place) -> None:
    """Compare both sides."""
    process = some_process(world, place)
    if world.rng.random() < 0.05:
        process.version, version = "0", process.version
        process.reconcile(world)
        process.version = version
        return
    process.reconcile(world)


def leave(world: World, place: Place) -> None:
    """A worker drains itself."""
    some_process(world, place).drain_itself(world)


def exchange(world: World, place: Place) -> None:
    """One frame: a beat, what was done under claims old and new, and a wish for more."""
    process, rng = some_process(world, place), world.rng
    claims = [*process.held.values(), *(claim for claim, _ in process.past if rng.random() < 0.3)]
    items: dict[str, list[Any]] = {verb: [] for verb in FENCED}
    sound = True
    for claim in claims:
        for verb in rng.sample(FENCED, rng.choice((1, 1, 2))):
            body, good = fenced_body(world, verb, claim)
            if good:
                members = {name: getattr(body, name) for name in body.__struct_fields__}
                items[verb].append(ITEMS[verb](workload_id=claim.workload_id, **members))
    beating = process.heartbeat(world) if rng.random() < 0.5 else None
    frame = Exchange(
        heartbeat=beating,
        claim=process.pull_body(world) if rng.random() < 0.6 else None,
        **{verb: tuple(bodies) for verb, bodies in items.items()},
    )
    asked = Exchanging(body=frame, faults={}, may_claim=rng.random() < 0.9)
    call = make(world, "exchange", process.own, asked, process.worker_id, sound=sound)
    call = send(world, call, process.twice)
    if call.ok:
        over = {one.claim_id for one in call.answer.outcomes if one.ok and one.op in ENDING}
        late = {one.claim_id for one in call.answer.outcomes if one.code == "WORKLOAD_STALE_FENCE"}
        process.forget([t for t in process.held if f"claim_{t}" in over | late])
        process.hold([*call.answer.claims, *call.answer.assigned_claims])
    process.follow(world, call)


def stale(world: World, place: Place) -> None:
    """Somebody writes under a claim it held once, or under that of who took its name."""
    rng = world.rng
    heirs = [one for one in place.processes if one.former and one.held]
    if heirs and rng.random() < 0.4:
        heir = rng.choice(heirs)
        claim = heir.held[rng.choice(sorted(heir.held))]
        body, sound = fenced_body(world, verb := rng.choice(FENCED), claim)
        send(world, make(world, verb, heir.former[-1], body, claim.workload_id, sound=sound))
        return
    past = [(claim, caller) for one in place.processes for claim, caller in one.past]
    if not past:
        slow(world, place)
        return
    claim, caller = rng.choice(past[-6:])
    process = some_process(world, place)
    if rng.random() < 0.4:
        caller = process.own
    body, sound = fenced_body(world, verb := rng.choice(FENCED), claim)
    send(world, make(world, verb, caller, body, claim.workload_id, sound=sound))


def slow(world: World, place: Place) -> None:
    """A holder is away until its lease or a timeout is about over, then writes all the same."""
    process, rng = some_process(world, place), world.rng
    if not process.held:
        process.pull(world)
        return
    held = process.held[rng.choice(sorted(process.held))]
    history = world.oracle.history
    hold = history.holds.get(held.fencing_token)
    if hold is not None and hold.ended is None:
        bound = times.first(history, history.works[hold.workload_id])
        over_ms = hold.high_ms if bound is None else min(hold.high_ms, bound.high_ms)
        at_ms = over_ms + rng.choice((-1, 0, 1, 500))
        world.later(max(0, at_ms - world.now.lease_ms))
        if rng.random() < 0.4:
            world.keep()
            # Whoever is free takes it meanwhile, maybe the same process.
            some_process(world, place).pull(world)
    process.say(world, rng.choice(FENCED), held)


def lie(world: World, place: Place) -> None:
    """Somebody writes under another's claim, or under none."""
    rng = world.rng
    claims = [claim for one in place.processes for claim in one.held.values()]
    if not claims or rng.random() < 0.3:
        claims += [claim for one in place.processes for claim, _ in one.past[-2:]]
    if not claims:
        return
    liar = some_process(world, place)
    others = [*place.spare, place.operator, place.registrar]
    ghosts = [caller for one in place.processes for caller in one.former[-1:]]
    caller: Caller = rng.choice((liar.own, liar.own, liar.own, *others, *ghosts, *ghosts))
    verb, body, workload_id, sound = lied(world, rng.choice(claims), liar)
    if rng.random() < 0.2:
        workload_id, _ = some_workload(world, place)
    send(world, make(world, verb, caller, body, workload_id, sound=sound))


def spare(world: World, place: Place) -> None:
    """A key that a person made for a worker is used for what that worker holds."""
    if not place.spare:
        return
    caller = world.rng.choice(place.spare)
    held = [
        claim
        for one in place.processes
        for claim in one.held.values()
        if one.worker_id == caller.worker_id
    ]
    if held:
        process = next(one for one in place.processes if one.worker_id == caller.worker_id)
        process.say(world, world.rng.choice(FENCED), world.rng.choice(held), caller)


def crowd(world: World, place: Place) -> None:
    """Calls of several people that one commit takes together: done or refused each for itself."""
    rng = world.rng
    calls: list[tuple[Process | None, Call]] = []
    for _ in range(rng.choice((2, 3, 4))):
        process = some_process(world, place)
        if process.held and rng.random() < 0.6:
            held = process.held[rng.choice(sorted(process.held))]
            body, sound = fenced_body(world, verb := rng.choice(FENCED), held)
            call = make(world, verb, process.own, body, held.workload_id, sound=sound)
        else:
            call = make(world, "pull", process.own, process.pull_body(world), process.worker_id)
        calls.append((process, call))
    workload_id, token = some_workload(world, place)
    if rng.random() < 0.5:
        body = Cancel(force=rng.random() < 0.5)
        calls.append((None, make(world, "cancel", place.operator, body, workload_id)))
    else:
        evicted = make(world, "evict", place.operator, Evict(reason="crowded"), f"claim_{token}")
        calls.append((None, evicted))
    rng.shuffle(calls)
    world.perform(*(call for _, call in calls), fault=some_fault(world))
    for process, call in calls:
        if process is not None and call.ok:
            _learn(process, call)


def _learn(process: Process, call: Call) -> None:
    if call.verb == "pull":
        process.hold(call.answer.claims)
    elif call.verb in ENDING:
        process.forget([call.answer.fencing_token])


def stripped(world: World, place: Place) -> None:
    """A holder loses its key, or its grant ends by the wall clock, and it writes on."""
    process, rng = some_process(world, place), world.rng
    if not process.held:
        process.pull(world)
    given = world.oracle.history.givens.get(place.fleet_id)
    if given is None or not process.held:
        return
    held = process.held[rng.choice(sorted(process.held))]
    if rng.random() < 0.5:
        send(world, make(world, "revoke_key", place.operator, None, process.own.key_id))
        process.say(world, rng.choice(FENCED), held, process.own)
        return
    if rng.random() < 0.6:
        # A key that is bound to no grant does not end with one.
        spare_key(world, place, process.worker_id)
    before_ms = world.now.wall_ms
    world.step_wall(given.expires_ms + rng.choice((-1, 0, 1)) - before_ms)
    callers = [one for one in place.spare if one.worker_id == process.worker_id]
    process.say(world, rng.choice(FENCED), held, rng.choice((process.own, *callers, *callers)))
    if rng.random() < 0.8:
        world.step_wall(before_ms - world.now.wall_ms)


# -- the calm --------------------------------------------------------------------------------


def finish_all(world: World, process: Process) -> None:
    """An honest worker takes what there is and completes it."""
    while True:
        call = make(world, "pull", process.own, Pull(max=8), process.worker_id)
        world.perform(call)
        assert call.ok, call.told()
        if not call.answer.claims:
            return
        for claim in call.answer.claims:
            _complete(world, process, claim)


def fits_nobody(world: World, workload_id: str) -> bool:
    """Whether a workload asks for more than any worker of this world has."""
    asked = world.rows(ASKED, workload_id=workload_id)[0]
    place = decode(asked["placement"], type=Placement)
    zone = place.required_labels.get("zone")
    shut_out = zone is not None and place.anti_affinity.get("zone") == zone
    return shut_out or asked["resources"] != "{}" or "audit" in asked["capability_snapshot"]


def _complete(world: World, process: Process, claim: Claim) -> None:
    body = fenced_body(world, "complete", claim)[0]
    body = type(body)(
        claim_id=claim.claim_id,
        worker_id=claim.worker_id,
        fencing_token=claim.fencing_token,
        output={"calm": True},
        start=True,
    )
    call = make(world, "complete", process.own, body, claim.workload_id)
    world.perform(call)
    assert call.ok, call.told()


Act = Callable[[World, Place], None]

#: What processes do, and how often.
ACTS: tuple[tuple[Act, int], ...] = (
    (work, 30),
    (beat, 8),
    (take, 4),
    (come_back, 3),
    (usurped, 1),
    (reconcile, 3),
    (leave, 1),
    (exchange, 8),
    (stale, 6),
    (slow, 6),
    (lie, 8),
    (spare, 3),
    (stripped, 4),
    (crowd, 6),
)

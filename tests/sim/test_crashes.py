"""Every statement of every verb is a place to die at: all of them are tried, one after another.

After each death the daemon is started again: nothing of the call is there, every promise holds, and
the same call, sent again, does what it would have done. So does a call whose answer was lost.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from feltd.keeper import rules
from feltd.mesh.exchange import Exchanging
from feltd.mesh.register import Registering
from feltd.model import claim as bodies
from feltd.model.claim import Claim, Evict, Pull
from feltd.model.exchange import CompleteItem, Exchange
from feltd.model.grant import GrantConstraints, ReplaceGrant, RevokeGrant
from feltd.model.worker import Capacity, DrainRequest, Reconciliation, Registration, Transition
from feltd.model.workload import Batch, Cancel, Creation, NewWorkload, Requeue
from tests.sim.calls import Call
from tests.sim.clients import again, make
from tests.sim.faults import NONE, Fault
from tests.sim.image import DO, Place, fresh_world
from tests.sim.twins import twin
from tests.sim.world import World

LEASE_MS = 60_000


class Stage:
    """A quiet world: one workload that waits, one that runs, one that only is claimed."""

    def __init__(self) -> None:
        self.world, places = fresh_world(0)
        self.world.faults = False
        self.place: Place = places[0]
        self.worker = self.place.processes[1]
        for number in range(3):
            self.does("create", self.place.submitter, self.asked(f"job-{number}"))
        pull = Pull(max=2, lease_ms=LEASE_MS)
        claims = self.does("pull", self.worker.own, pull, self.worker.worker_id).answer.claims
        self.running, self.claimed = claims[0], claims[1]
        self.does("start", self.worker.own, self.fenced(bodies.Start), self.running.workload_id)
        waiting = {row["workload_id"] for row in self.world.rows(READY)}
        self.waiting = waiting.pop()

    def asked(self, key: str) -> Creation:
        return Creation(
            body=NewWorkload(
                definition_id="extract", idempotency_key=key, capability_snapshot=("extract",)
            )
        )

    def fenced(self, shape: type[Any], held: Claim | None = None, **members: Any) -> Any:
        held = held or self.running
        return shape(
            claim_id=held.claim_id,
            worker_id=held.worker_id,
            fencing_token=held.fencing_token,
            **members,
        )

    def call(self, verb: str, caller: Any, body: Any, id: str = "") -> Call:
        return make(self.world, verb, caller, body, id)

    def does(self, verb: str, caller: Any, body: Any, id: str = "") -> Call:
        call = self.call(verb, caller, body, id)
        self.world.perform(call)
        assert call.ok, call.told()
        return call


READY = "SELECT workload_id FROM workloads WHERE state = 'READY'"


def by_worker(verb: str, shape: type[Any], **members: Any) -> Callable[[Stage], Call]:
    """A fenced verb under the running claim."""

    def made(stage: Stage) -> Call:
        body = stage.fenced(shape, **members)
        return stage.call(verb, stage.worker.own, body, stage.running.workload_id)

    return made


def by_operator(verb: str, body: Any, about: Callable[[Stage], str]) -> Callable[[Stage], Call]:
    """What an operator does to something."""
    return lambda stage: stage.call(verb, stage.place.operator, body, about(stage))


def by_keeper(name: str, after_ms: int) -> Callable[[Stage], Call]:
    """An entry of the keeper's table, after so long."""

    def made(stage: Stage) -> Call:
        stage.world.later(after_ms)
        entry = next(one for one in rules(stage.world.config) if one.name == name)
        return Call(name, entry.op, entry.limit, keep_alive=True)

    return made


def pull(stage: Stage) -> Call:
    stage.does(
        "release",
        stage.worker.own,
        stage.fenced(bodies.Release, stage.claimed),
        stage.claimed.workload_id,
    )
    wanted = Pull(max=2, start=True, request_id="r")
    return stage.call("pull", stage.worker.own, wanted, stage.worker.worker_id)


def claim(stage: Stage) -> Call:
    other = stage.place.processes[0]
    return stage.call("claim", other.own, bodies.ClaimById(), stage.waiting)


def start(stage: Stage) -> Call:
    body = stage.fenced(bodies.Start, stage.claimed)
    return stage.call("start", stage.worker.own, body, stage.claimed.workload_id)


def exchange(stage: Stage) -> Call:
    done = stage.fenced(
        CompleteItem, stage.claimed, workload_id=stage.claimed.workload_id, start=True
    )
    beat = stage.worker.heartbeat(stage.world, renew_leases=True)
    frame = Exchange(heartbeat=beat, complete=(done,), claim=Pull(request_id="x"))
    asked = Exchanging(body=frame, faults={})
    return stage.call("exchange", stage.worker.own, asked, stage.worker.worker_id)


def reconcile(stage: Stage) -> Call:
    stage.does(
        "transition",
        stage.place.operator,
        Transition(to="OFFLINE"),
        stage.worker.worker_id,
    )
    worker = stage.worker
    worker.held = {stage.running.fencing_token: stage.running}
    worker.finish(stage.world, stage.running)
    body = Reconciliation(
        worker_id=worker.worker_id,
        worker_version=worker.version,
        capability_version=worker.capability_version,
        known_claims=(stage.running.claim_id,),
        results=tuple(worker.finished),
    )
    return stage.call("reconcile", worker.own, body, worker.worker_id)


def register(stage: Stage) -> Call:
    body = Registration(
        name=stage.worker.name,
        runtime="process",
        version="2",
        capacity=Capacity(2),
        process_id="another",
        takeover=True,
        issue_key=True,
    )
    return stage.call("register", stage.place.registrar, Registering(registration=body))


def create_batch(stage: Stage) -> Call:
    batch = Batch(items=(stage.asked("a"), stage.asked("b"), stage.asked("a")))
    return stage.call("create_batch", stage.place.submitter, batch)


def requeue(stage: Stage) -> Call:
    body = stage.fenced(bodies.Fail, kind="execution_error", message="no")
    stage.does("fail", stage.worker.own, body, stage.running.workload_id)
    return stage.call("requeue", stage.place.operator, Requeue(), stage.running.workload_id)


def of_worker(stage: Stage) -> str:
    return stage.worker.worker_id


SHRUNK = ReplaceGrant(
    capabilities=(DO[0], DO[2]),
    constraints=GrantConstraints(max_concurrency=1),
    expires_at_ms=1_790_000_500_000,
)

CALLS: dict[str, Callable[[Stage], Call]] = {
    "create": lambda stage: stage.call("create", stage.place.submitter, stage.asked("new")),
    "create_batch": create_batch,
    "pull": pull,
    "claim": claim,
    "start": start,
    "renew": by_worker("renew", bodies.Renew),
    "checkpoint": by_worker("checkpoint", bodies.Checkpoint, data={"page": 1}),
    "log": by_worker("log", bodies.Log, lines=("a line",)),
    "complete": by_worker("complete", bodies.Complete, output={"answer": 42}),
    "fail": by_worker("fail", bodies.Fail, kind="transient", message="again"),
    "release": by_worker("release", bodies.Release),
    "exchange": exchange,
    "reconcile": reconcile,
    "register": register,
    "drain": by_operator("drain", DrainRequest(), of_worker),
    "transition": by_operator("transition", Transition(to="OFFLINE"), of_worker),
    "cancel": by_operator("cancel", Cancel(), lambda stage: stage.running.workload_id),
    "cancel_by_force": by_operator(
        "cancel", Cancel(force=True), lambda stage: stage.running.workload_id
    ),
    "evict": by_operator("evict", Evict(reason="mine"), lambda stage: stage.running.claim_id),
    "requeue": requeue,
    "replace_grant": by_operator("replace_grant", SHRUNK, lambda stage: stage.place.fleet_id),
    "revoke_grant": by_operator("revoke_grant", RevokeGrant(), lambda stage: stage.place.root_id),
    "revoke_key": by_operator("revoke_key", None, lambda stage: stage.place.registrar.key_id),
    "recover_leases": by_keeper("recover_leases", LEASE_MS),
    "detect_failures": by_keeper("detect_failures", 30_000),
}

#: A repeat of these is refused: what they did cannot be done twice.
ONCE = frozenset({"requeue"})


@pytest.mark.parametrize("name", CALLS)
def test_a_death_at_any_statement_leaves_nothing_and_the_repeat_does_it(name: str) -> None:
    before = _before(name)
    statements = _statements(before)
    assert statements > 4

    for at in range(1, statements + 1):
        stage, call = twin(before[0].world, before)
        stage.world.perform(call, fault=Fault("crash", at))
        assert call.lost, f"there was no statement {at}"

        _repeat(stage, call, once=False)
        stage.world.close()


@pytest.mark.parametrize("name", CALLS)
def test_a_full_disk_at_any_statement_leaves_nothing_and_the_repeat_does_it(name: str) -> None:
    before = _before(name)

    for at in range(1, _statements(before) + 1):
        stage, call = twin(before[0].world, before)
        stage.world.perform(call, fault=Fault("full", at))
        assert call.code == "STORAGE_FULL", f"there was no statement {at}"

        _repeat(stage, call, once=False)
        stage.world.close()


@pytest.mark.parametrize("name", CALLS)
def test_a_call_whose_answer_was_lost_is_answered_when_it_is_repeated(name: str) -> None:
    stage = Stage()
    call = CALLS[name](stage)
    stage.world.perform(call, fault=Fault("lost"))
    assert call.lost

    _repeat(stage, call, once=name in ONCE)
    stage.world.close()


@pytest.mark.parametrize("restored", [False, True])
def test_a_start_may_die_at_any_statement(restored: bool) -> None:
    died = 0
    ready = Stage()
    if restored:
        ready.world.back_up()
        ready.does("create", ready.place.submitter, ready.asked("after"))
    for at in range(1, 60):
        stage = twin(ready.world, ready)
        before = len(stage.world.trace)
        _start(stage.world, restored=restored, crash_at=at)
        told = "\n".join(stage.world.trace[before:])
        stage.world.close()
        if f"start: died at statement {at}" not in told:
            break
        died += 1
    assert died > 4


@cache
def _before(name: str) -> tuple[Stage, Call]:
    """A stage and the call that comes next on it; only twins of it are played."""
    stage = Stage()
    return stage, CALLS[name](stage)


def _statements(before: tuple[Stage, Call]) -> int:
    stage, call = twin(before[0].world, before)
    statements = stage.world.count(call)
    stage.world.close()
    return statements


def _start(world: World, *, restored: bool, crash_at: int) -> None:
    if restored:
        world.restore(keep_mark=True, crash_at=crash_at)
    else:
        world.restart(crash_at=crash_at)


def _repeat(stage: Stage, call: Call, *, once: bool) -> None:
    """Send it again: done, or known to have been done. The world looks at the rest."""
    repeat = call.again() if isinstance(call.cmd, int) else again(stage.world, call)
    stage.world.perform(repeat, fault=NONE)
    assert once or repeat.ok, repeat.told()

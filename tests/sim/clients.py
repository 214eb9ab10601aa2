"""Worker processes: one that keeps its leases, and what goes wrong with such a one.

A `Process` knows only what it was told. It may be slow and write under a claim it lost, be taken
over and not know it, send everything twice, or lie about whose claim it holds.
"""

from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from feltd.identity import bearer
from feltd.identity.principals import caller_of
from feltd.mesh import giveback
from feltd.mesh.register import Registering
from feltd.model import claim as bodies
from feltd.model.base import Ask, Caller
from feltd.model.claim import Claim, Fence, Pull
from feltd.model.worker import (
    AttemptResult,
    Capacity,
    DrainRequest,
    Failure,
    Heartbeat,
    Reconciliation,
    Registration,
    Result,
)
from tests.sim.calls import FENCED, RULES, Call
from tests.sim.faults import NONE, Fault
from tests.sim.world import World

LEASES_MS = (1_000, 2_000, 5_000, 30_000, 120_000)
TIMEOUTS_MS = (2_000, 10_000, 30_000, 300_000)
KINDS = ("transient", "execution_error", "timeout", "cancelled", "policy_unenforceable", "melted")
SECRET = "password: hunter2hunter2"

KEY = """
SELECT k.key_id, k.scopes, k.tenants, k.subject_type, k.identity_id, k.worker_id, k.incarnation,
       k.grant_id, k.expires_at_ms
  FROM keys k
 WHERE k.key_id = :key_id
"""


def make(
    world: World,
    verb: str,
    caller: Caller,
    body: Any,
    id: str = "",
    *,
    sound: bool = True,
    keep_alive: bool = True,
) -> Call:
    """A call, not yet sent."""
    ask = Ask(caller=caller, body=body, id=id, fresh=world.fresh(), limits=world.config)
    return Call(verb, RULES[verb](), ask, sound, keep_alive)


def again(world: World, call: Call) -> Call:
    """The call once more; its handler makes new randomness for it."""
    once_more = call.again()
    once_more.cmd = structs.replace(call.cmd, fresh=world.fresh())
    return once_more


def some_fault(world: World, share: float = 0.12) -> Fault:
    """A fault now and then, while there are any."""
    if not world.faults or world.rng.random() > share:
        return NONE
    return Fault(world.rng.choice(("crash", "crash", "lost", "lost", "full")))


def send(world: World, call: Call, twice: bool = False) -> Call:
    """Send a call until it is answered; the answered one. With `twice` once more than needed."""
    if twice and world.rng.random() < 0.3:
        # Both arrive before either is answered.
        call, first = again(world, call), call
        world.perform(first, call, fault=some_fault(world))
    else:
        world.perform(call, fault=some_fault(world))
    while call.lost or call.code == "STORAGE_FULL":
        if world.rng.random() < 0.3:
            world.later(world.rng.choice((1, 400, 1_500)))
        call = again(world, call)
        world.perform(call, fault=some_fault(world))
    if twice:
        repeat = again(world, call)
        world.perform(repeat)
        return call if repeat.lost else repeat
    return call


def bearer_of(world: World, secret: str) -> Caller:
    """The caller behind a bearer, as the door had it when it was made."""
    row = world.rows(KEY, key_id=bearer.parse(secret))[0]
    return caller_of(row)


@dataclass
class Process:
    """One process, its name, and what it believes."""

    name: str
    registrar: Caller
    process_id: str
    concurrency: int = 1
    timeout_ms: int = 30_000
    version: str = "1"
    capabilities: tuple[str, ...] | None = None
    labels: dict[str, str] = field(default_factory=dict)
    worker_id: str = ""
    caller: Caller | None = None
    capability_version: int = 1
    held: dict[int, Claim] = field(default_factory=dict)
    #: Claims it held once, each with the key it had then.
    past: list[tuple[Claim, Caller]] = field(default_factory=list)
    #: Work it finished and could not deliver.
    finished: list[AttemptResult] = field(default_factory=list)
    #: Keys of the processes that had its name before.
    former: list[Caller] = field(default_factory=list)
    twice: bool = False
    requests: int = 0

    # -- the worker itself -------------------------------------------------------------------

    def register(self, world: World, *, takeover: bool = True) -> Call:
        """Become the worker of this name."""
        body = Registration(
            name=self.name,
            runtime="process",
            version=self.version,
            capacity=Capacity(self.concurrency),
            capabilities=self.capabilities,
            labels=self.labels,
            heartbeat_interval_ms=1_000,
            heartbeat_timeout_ms=self.timeout_ms,
            process_id=self.process_id,
            takeover=takeover,
            issue_key=True,
        )
        registering = Registering(registration=body)
        call = send(world, make(world, "register", self.registrar, registering), self.twice)
        if call.ok:
            answer = call.answer.answer
            self.worker_id = answer.worker.worker_id
            self.capability_version = answer.worker.capability_version
            self.caller = bearer_of(world, answer.worker_key)
            living = {int(claim_id.removeprefix("claim_")) for claim_id in answer.worker.claims}
            self.forget([token for token in self.held if token not in living])
        return call

    def restart(self, world: World) -> Call:
        """The process dies and a new one takes its name; the old one's claims are in its past."""
        self.process_id = f"{self.process_id}'"
        self.forget(list(self.held))
        if self.caller is not None:
            self.former.append(self.caller)
        return self.register(world)

    def beat(self, world: World, **wrong: Any) -> Call:
        """A heartbeat; `wrong` members make it one that is refused."""
        body = self.heartbeat(world, **wrong)
        call = send(world, make(world, "heartbeat", self.own, body, self.worker_id))
        if call.ok:
            self.forget(_tokens(call.answer.fenced_claims))
            self.hold(call.answer.assigned_claims)
        self.follow(world, call)
        return call

    def heartbeat(self, world: World, **wrong: Any) -> Heartbeat:
        """The body of a heartbeat."""
        members: dict[str, Any] = {
            "worker_id": self.worker_id,
            "version": self.version,
            "capability_version": self.capability_version,
            "capacity": Capacity(self.concurrency, len(self.held)),
            "health": "HEALTHY",
            "timestamp_at_ms": world.now.wall_ms,
            "running_claims": tuple(f"claim_{token}" for token in self.held),
            "renew_leases": world.rng.random() < 0.4,
            "process_id": self.process_id,
        }
        return Heartbeat(**members | wrong)

    def reconcile(self, world: World) -> Call:
        """Compare after an outage; deliver what was finished meanwhile."""
        rng = world.rng
        known = [f"claim_{token}" for token in self.held]
        known += [claim.claim_id for claim, _ in self.past if rng.random() < 0.2]
        delivered = {result.claim_id for result in self.finished}
        body = Reconciliation(
            worker_id=self.worker_id,
            worker_version=self.version,
            capability_version=self.capability_version,
            known_claims=tuple(dict.fromkeys(known)),
            running_attempts=tuple(
                f"attempt_{token}" for token in self.held if f"claim_{token}" not in delivered
            ),
            timestamp_at_ms=world.now.wall_ms,
            results=tuple(self.finished),
        )
        call = send(world, make(world, "reconcile", self.own, body, self.worker_id), self.twice)
        if call.ok:
            self.finished.clear()
            self.forget(list(self.held))
            self.hold(call.answer.authoritative_claims)
        self.follow(world, call)
        return call

    def drain_itself(self, world: World) -> Call:
        """Say good-bye."""
        body = DrainRequest(reason="going home")
        return send(world, make(world, "drain", self.own, body, self.worker_id), self.twice)

    # -- work --------------------------------------------------------------------------------

    def pull_body(self, world: World) -> Pull:
        """Ask for work in one of many ways."""
        rng = world.rng
        request_id = None
        if rng.random() < 0.4:
            self.requests += rng.random() < 0.8
            request_id = f"{self.process_id}/{self.requests}"
        return Pull(
            max=rng.choice((1, 1, 2, 3)),
            lease_ms=rng.choice(LEASES_MS),
            start=rng.random() < 0.3,
            request_id=request_id,
            workload_kinds=("render",) if rng.random() < 0.1 else None,
        )

    def pull(self, world: World) -> Call:
        """Take what there is."""
        call = make(world, "pull", self.own, self.pull_body(world), self.worker_id)
        call = send(world, call, self.twice)
        if call.ok and call.answer.claims and world.rng.random() < 0.04:
            # The poll's client was gone by then: the daemon takes them back itself.
            world.perform(Call("give_back", giveback.give_back, tuple(call.answer.claims)))
        elif call.ok:
            self.hold(call.answer.claims)
        self.follow(world, call)
        return call

    def claim(self, world: World, workload_id: str) -> Call:
        """Take one workload by its id."""
        body = bodies.ClaimById(lease_ms=world.rng.choice(LEASES_MS))
        call = send(world, make(world, "claim", self.own, body, workload_id), self.twice)
        if call.ok:
            self.hold([call.answer[0]])
        self.follow(world, call)
        return call

    def say(self, world: World, verb: str, held: Claim, caller: Caller | None = None) -> Call:
        """A fenced verb under a claim it holds, or once held."""
        body, sound = fenced_body(world, verb, held)
        call = make(world, verb, caller or self.own, body, held.workload_id, sound=sound)
        call = send(world, call, self.twice)
        over = verb in ("complete", "fail", "release") and call.ok
        if over or call.code in ("WORKLOAD_STALE_FENCE", "MESH_CLAIM_SCOPE_DENIED"):
            self.forget([held.fencing_token])
        if caller is None:
            self.follow(world, call)
        return call

    def finish(self, world: World, held: Claim) -> None:
        """Be done with it, without being able to say so yet."""
        token = held.fencing_token
        if any(one.fencing_token == token for one in self.finished):
            return
        fails = world.rng.random() < 0.3
        self.finished.append(
            AttemptResult(
                attempt_id=held.attempt_id,
                claim_id=held.claim_id,
                fencing_token=token,
                outcome="failed" if fails else "completed",
                result=None if fails else Result(output={"late": token}),
                failure=Failure(kind="transient", message="off the air") if fails else None,
            )
        )

    # -- what it believes --------------------------------------------------------------------

    @property
    def own(self) -> Caller:
        """Its key; without one it acts with the registrar's, which is no worker's."""
        return self.caller or self.registrar

    def hold(self, claims: list[Claim]) -> None:
        """These claims are its own now."""
        for claim in claims:
            self.held[claim.fencing_token] = claim

    def forget(self, tokens: list[int]) -> None:
        """These claims are over, as far as it knows."""
        for token in tokens:
            claim = self.held.pop(token, None)
            if claim is not None:
                self.past.append((claim, self.own))

    def follow(self, world: World, call: Call) -> None:
        """Do what a refusal says is next, some of the time."""
        if not call.code or world.rng.random() < 0.3:
            return
        if call.code == "UNAUTHENTICATED":
            # Its next step is a registration.
            self.caller = None
        elif call.refusal is not None and call.refusal.next == "register":
            self.register(world)
        elif call.refusal is not None and call.refusal.next == "reconcile":
            self.reconcile(world)


def fenced_body(world: World, verb: str, held: Claim) -> tuple[Any, bool]:
    """A body for a fenced verb under a claim, and whether nothing in it is to be refused."""
    rng = world.rng
    fence = {
        "claim_id": held.claim_id,
        "worker_id": held.worker_id,
        "fencing_token": held.fencing_token,
    }
    lease_ms = rng.choice((*LEASES_MS, None))
    secret = rng.random() < 0.04
    if verb == "start":
        return bodies.Start(**fence), True
    if verb == "renew":
        progress = bodies.Progress(done=rng.randrange(9)) if rng.random() < 0.2 else None
        return bodies.Renew(**fence, lease_ms=lease_ms, progress=progress), True
    if verb == "checkpoint":
        return bodies.Checkpoint(**fence, data={"page": rng.randrange(9)}, lease_ms=lease_ms), True
    if verb == "complete":
        # Few outputs, so that the same one and another one are both sent again.
        output = {"answer": rng.randrange(2)}
        return bodies.Complete(**fence, output=output, start=rng.random() < 0.5), True
    if verb == "release":
        return bodies.Release(**fence), True
    if verb == "log":
        return bodies.Log(**fence, lines=(SECRET if secret else "a line",)), not secret
    reserved = rng.random() < 0.03
    body = bodies.Fail(
        **fence,
        kind="worker_lost" if reserved else rng.choice(KINDS),
        message=SECRET if secret else "it did not work",
        retry_after_ms=rng.choice((None, 0, 90_000)),
        start=rng.random() < 0.5,
    )
    return body, not (secret or reserved)


def lied(world: World, held: Claim, liar: Process) -> tuple[str, Any, str, bool]:
    """A fenced call about another's claim: its verb, body, workload, and whether it is sound."""
    rng = world.rng
    verb = rng.choice(FENCED)
    body, sound = fenced_body(world, verb, held)
    token = held.fencing_token
    lie = rng.randrange(5)
    changed: Fence = body
    if lie == 0:
        changed = structs.replace(body, worker_id=liar.worker_id or "worker_0")
    elif lie == 1:
        changed = structs.replace(body, fencing_token=token + 1, claim_id=f"claim_{token + 1}")
    elif lie == 2:
        changed = structs.replace(body, claim_id=f"claim_{token + 1}")
    elif lie == 3:
        changed = structs.replace(body, fencing_token=7, claim_id="claim_7")
    return verb, changed, held.workload_id, sound


def _tokens(claim_ids: list[str]) -> list[int]:
    numbers = (claim_id.removeprefix("claim_") for claim_id in claim_ids)
    return [int(number) for number in numbers if number.isdigit()]

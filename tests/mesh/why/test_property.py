"""Random worlds: `why` agrees with what a pull does, for every workload and every worker.

Who is said to be able to take work gets work; where a pull gets nothing, everything that is READY
has a reason, and none of them is that this worker could.
"""

from collections import Counter
from random import Random
from typing import Any

import pytest
from msgspec import convert

from feltd.config import Config
from feltd.keeper import rules
from feltd.mesh import cancel, drain, workers
from feltd.model.claim import Claim
from feltd.model.worker import DrainRequest
from feltd.model.workload import Cancel
from tests.mesh.pools import stories as pools
from tests.mesh.why import stories
from tests.mesh.world import Mesh

STEPS = 50
KEEPER = rules(Config())
ZONES = ("a", "b")
CAPABILITIES = ("scan", "sign")


class World:
    """One random life; after every few steps `why` is held against the pulls."""

    def __init__(self, mesh: Mesh, seed: int) -> None:
        self.mesh, self.rng = mesh, Random(seed)
        self.workers: list[str] = []
        self.holds: list[str] = []
        self.live: list[Claim] = []
        self.jobs: list[str] = []
        for pool in ("gpu", "cpu"):
            pools.make(mesh, pool, max_concurrency=1, required_labels={"zone": "a"})
        self.enlist()

    def step(self) -> None:
        acts = (
            (self.create, 9), (self.enlist, 2), (self.pull, 5), (self.end, 4), (self.rest, 3),
            (self.keeper, 3), (self.hold, 1), (self.lift, 4), (self.confine, 1), (self.free, 3),
            (self.drain, 1), (self.resume, 3), (self.repool, 2), (self.call_off, 1),
            (self.beat, 4),
        )  # fmt: skip
        act = self.rng.choices([act for act, _ in acts], [weight for _, weight in acts])[0]
        # What the mesh refuses does not happen.
        self.mesh.refused(act)

    # -- what happens ------------------------------------------------------------------------

    def create(self) -> None:
        rng = self.rng
        placement: dict[str, Any] = {}
        for member in ("required_labels", "anti_affinity", "affinity"):
            if rng.random() < (0.35 if member == "affinity" else 0.08):
                placement[member] = {"zone": rng.choice(ZONES)}
        if rng.random() < 0.3:
            placement["pool_id"] = rng.choice(("gpu", "cpu"))
        told: dict[str, Any] = {
            "definition_id": f"kind{rng.randrange(3)}",
            "priority": rng.randrange(3),
            "placement": placement,
            "retry_policy": {"initial_backoff_ms": rng.choice((0, 4_000)), "max_attempts": 3},
            "capability_snapshot": [rng.choice(CAPABILITIES)] if rng.random() < 0.4 else [],
        }
        if rng.random() < 0.2:
            told["concurrency"] = {"key": "printer", "limit": rng.randrange(1, 3)}
        if rng.random() < 0.2:
            told["rate"] = {"key": "mail", "limit": 2, "period_ms": 5_000}
        if rng.random() < 0.15:
            told["timeouts"] = {"queue_ms": rng.randrange(1, 9_000)}
        if rng.random() < 0.15:
            told["not_before_at_ms"] = self.mesh.now.wall_ms + rng.randrange(6_000)
        if self.jobs and rng.random() < 0.2:
            told["dependencies"] = [rng.choice(self.jobs)]
        if rng.random() < 0.1:
            told["resources"] = {"memory_bytes": 2_000}
        for _ in range(rng.randrange(1, 3)):
            self.jobs.append(self.mesh.workload(**told))

    def enlist(self) -> None:
        rng, number = self.rng, len(self.workers)
        if number >= 5:
            return
        self.workers.append(
            self.mesh.worker(
                f"w{number}",
                capacity={"concurrency": rng.randrange(1, 4)},
                capabilities=[one for one in CAPABILITIES if rng.random() < 0.6],
                labels={"zone": rng.choice(ZONES)} if rng.random() < 0.8 else {},
                workload_kinds=["kind0", "kind1"] if rng.random() < 0.3 else [],
                resource_profile={"memory_bytes": rng.choice((1_000, 4_000))},
            )
        )

    def pull(self) -> None:
        pulled = self.mesh.pull(self.rng.choice(self.workers), max=self.rng.randrange(1, 4))
        self.live += pulled.claims

    def end(self) -> None:
        if not self.live:
            return
        held = self.live.pop(self.rng.randrange(len(self.live)))
        verb = self.rng.choice(("complete", "fail", "release"))
        self.mesh.say("start", held)
        self.mesh.say(verb, held, **({"output": {}} if verb == "complete" else {}))

    def rest(self) -> None:
        self.mesh.later(self.rng.choice((1, 1, 500, 500, 1_500, 2_500, 20_000)))

    def keeper(self) -> None:
        for entry in KEEPER:
            self.mesh.run(entry.op, entry.limit)

    def hold(self) -> None:
        scope, value = self.rng.choice(
            (("definition", "kind1"), ("pool", "gpu"), ("application", "docs"), ("all", None))
        )
        self.holds.append(pools.hold(self.mesh, scope, value).hold_id)

    def lift(self) -> None:
        while self.holds:
            pools.lift(self.mesh, self.holds.pop())

    def confine(self) -> None:
        pools.confine(self.mesh, self.rng.choice(self.workers))

    def free(self) -> None:
        for worker in self.workers:
            pools.free(self.mesh, worker)

    def drain(self) -> None:
        self.mesh.ask(drain.drain, convert({}, DrainRequest), self.rng.choice(self.workers))

    def resume(self) -> None:
        for worker in self.workers:
            self.mesh.ask(drain.resume, None, worker)

    def repool(self) -> None:
        pool = self.rng.choice(("gpu", "cpu"))
        if self.rng.random() < 0.4:
            pools.drop(self.mesh, pool)
            return
        members: dict[str, Any] = {"max_concurrency": self.rng.choice((1, 3, None))}
        if self.rng.random() < 0.5:
            members["worker_ids"] = [self.rng.choice(self.workers)]
        if not self.mesh.refused(lambda: pools.make(self.mesh, pool, **members)):
            return
        pools.change(self.mesh, pool, **members)

    def call_off(self) -> None:
        if self.jobs:
            body = Cancel(force=self.rng.random() < 0.3)
            self.mesh.ask(cancel.cancel, body, self.rng.choice(self.jobs))

    def beat(self) -> None:
        for worker in self.workers:
            self.mesh.run(lambda tx, who, now: workers.heard(tx, who, now), worker)

    # -- what is held against it -------------------------------------------------------------

    def compare(self) -> None:
        could: dict[str, str] = {}
        states: Counter[str] = Counter()
        for job in self.jobs:
            told = stories.of(self.mesh, job)
            states[told.state] += 1
            assert told.reasons, job
            for one in told.reasons:
                if one.code == "CLAIMABLE" and one.worker_id is not None:
                    could[one.worker_id] = job
        for worker in self.workers:
            got = self.pulled(worker)
            idle = stories.of_worker(self.mesh, worker)
            if worker in could:
                assert got, (could[worker], stories.of(self.mesh, could[worker]).reasons)
            if got:
                assert stories.codes(idle)[0] in ("CLAIMABLE", "WORKER_STALE", "GRANT_ENDS")
            else:
                assert idle.reasons
                assert "CLAIMABLE" not in stories.codes(idle)
        self.compare_backlog(states)

    def pulled(self, worker: str) -> bool:
        got = False

        def pull() -> None:
            nonlocal got
            got = bool(stories.would_pull(self.mesh, worker).claims)

        assert self.mesh.refused(pull) in (None, "WORKER_RECOVERY_REQUIRED")
        return got

    def compare_backlog(self, states: Counter[str]) -> None:
        told = stories.waiting(self.mesh)
        counted = sum(
            one.ready + one.waiting.held + one.waiting.backoff + one.waiting.not_before
            for one in told.items
        )
        assert counted == states["READY"]
        assert sum(one.running for one in told.items) == states["CLAIMED"] + states["RUNNING"]
        assert sum(one.waiting.dependencies for one in told.items) == states["PENDING"]
        for one in told.items:
            takers = one.eligible_workers > 0
            assert one.blocked or takers or not (one.ready or one.waiting.held), one


@pytest.mark.parametrize("seed", range(15))
def test_why_agrees_with_what_a_pull_does(mesh: Mesh, seed: int) -> None:
    world = World(mesh, seed)
    for _ in range(STEPS):
        world.step()
        if world.rng.random() < 0.3:
            world.compare()
    world.compare()

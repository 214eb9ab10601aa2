"""Random lives of keys, rates and pools against a small model that counts by itself.

At no instant more than a limit allows, and once the keeper came by nothing is left lying that has
room: a worker that fits everything and finds nothing is right by the model too.
"""

from collections import defaultdict
from random import Random
from typing import Any

import pytest
from msgspec import convert

from feltd.errors import Refused
from feltd.keeper import rules
from feltd.mesh import attempts, cancel, evict, lanes, promises
from feltd.mesh.attempts import End
from feltd.model.claim import Claim, Evict
from feltd.model.workload import Cancel
from tests.mesh.pools import stories
from tests.mesh.world import Config, Mesh

PERIOD_MS = {"api": 7_000, "mail": 20_000}
STEPS = 160
KEEPER = rules(Config())


class Model:
    """What is held and was claimed, by the names that work gives to its keys."""

    def __init__(self) -> None:
        self.limits: dict[str, int] = {}
        self.rates: dict[str, int] = {}
        self.ceilings: dict[str, int | None] = {}
        self.asked: dict[str, tuple[str | None, str | None, str | None]] = {}
        self.live: dict[str, Claim] = {}
        self.uses: defaultdict[str, list[int]] = defaultdict(list)

    def full(self, job: str, now_ms: int) -> list[str]:
        """The gates that keep a workload back."""
        key, rate, pool = self.asked[job]
        found = []
        if pool is not None and pool not in self.ceilings:
            found.append("pool")
        elif pool is not None:
            ceiling = self.ceilings[pool]
            if ceiling is not None and self._holding(2, pool) >= ceiling:
                found.append("pool_full")
        if key is not None and self._holding(0, key) >= self.limits[key]:
            found.append("key_full")
        if rate is not None:
            recent = [at for at in self.uses[rate] if at > now_ms - PERIOD_MS[rate]]
            if len(recent) >= self.rates[rate]:
                found.append("rate_full")
        return found

    def claimed(self, claim: Claim, now_ms: int) -> None:
        assert self.full(claim.workload_id, now_ms) == []
        rate = self.asked[claim.workload_id][1]
        if rate is not None:
            self.uses[rate].append(now_ms)
        self.live[claim.workload_id] = claim

    def _holding(self, place: int, name: str) -> int:
        return sum(self.asked[job][place] == name for job in self.live)


class Story:
    """One random life."""

    def __init__(self, mesh: Mesh, seed: int) -> None:
        self.mesh = mesh
        self.rng = Random(seed)
        self.model = Model()
        self.workers = [
            mesh.worker(f"w{n}", capacity={"concurrency": 3}, labels={"zone": f"z{n % 2}"})
            for n in range(3)
        ]
        self.all = mesh.worker("all", capacity={"concurrency": 1_000})
        self.pool("gpu")

    def step(self) -> None:
        acts = (
            (self.create, 7),
            (self.pull, 6),
            (self.by_id, 2),
            (self.end, 6),
            (self.cancel, 1),
            (self.lapse, 1),
            (self.rest, 3),
            (self.keeper, 2),
            (self.repool, 1),
            (self.nothing_is_left, 2),
        )
        self.rng.choices([act for act, _ in acts], [weight for _, weight in acts])[0]()

    # -- work --------------------------------------------------------------------------------

    def create(self) -> None:
        rng, model = self.rng, self.model
        key, rate = rng.choice((None, "a", "b", "c")), rng.choice((None, None, "api", "mail"))
        pool = rng.choice((None, None, "gpu", "cpu"))
        members: dict[str, Any] = {
            "definition_id": f"kind{rng.randrange(5)}",
            "priority": rng.randrange(3),
            "retry_policy": {"initial_backoff_ms": rng.choice((0, 2_000)), "max_attempts": 2},
        }
        if key is not None:
            members["concurrency"] = {"key": key, "limit": rng.randrange(1, 4)}
        if rate is not None:
            limit = rng.randrange(1, 5)
            members["rate"] = {"key": rate, "limit": limit, "period_ms": PERIOD_MS[rate]}
        if pool is not None:
            members["placement"] = {"pool_id": pool}
        if pool is not None and pool not in model.ceilings:
            assert self.mesh.refused(lambda: self.mesh.workload(**members)) is not None
            return
        if rng.random() < 0.3:
            members.setdefault("placement", {})["required_labels"] = {"zone": "z0"}
        for _ in range(rng.randrange(1, 4)):
            model.asked[self.mesh.workload(**members)] = (key, rate, pool)
            if key is not None:
                model.limits[key] = members["concurrency"]["limit"]
            if rate is not None:
                model.rates[rate] = members["rate"]["limit"]

    def pull(self) -> None:
        worker = self.rng.choice(self.workers)
        self.take(worker, self.rng.randrange(1, 4))

    def take(self, worker: str, most: int) -> int:
        pulled = self.mesh.pull(worker, max=most)
        for claim in pulled.claims:
            self.model.claimed(claim, self.mesh.now.lease_ms)
        assert pulled.claims or pulled.reasons
        return len(pulled.claims)

    def by_id(self) -> None:
        ready = [
            row["workload_id"]
            for row in self.mesh.conn.execute(
                "SELECT workload_id FROM workloads WHERE state = 'READY' AND eligible_at_ms <= ?",
                [self.mesh.now.lease_ms],
            )
        ]
        if not ready:
            return
        job = self.rng.choice(ready)
        full = self.model.full(job, self.mesh.now.lease_ms)
        told: list[str] = []
        try:
            self.model.claimed(self.mesh.claims(job, by=self.all), self.mesh.now.lease_ms)
        except Refused as refused:
            told = refused.facts["rules"]
        assert [rule for rule in told if rule != "required_labels"] == full

    def end(self) -> None:
        if not self.model.live:
            return
        job = self.rng.choice(sorted(self.model.live))
        claim = self.model.live[job]
        verb = self.rng.choice(("complete", "complete", "fail", "release", "evict", "lost"))
        if verb == "evict":
            body = convert({"reason": "by hand"}, Evict)
            self.mesh.ask(evict.evict, body, claim.claim_id)
        elif verb == "lost":
            end = End("worker_lost")
            self.mesh.run(lambda tx, _, now: attempts.end_claim(tx, now, job, end))
        elif verb == "complete":
            self.mesh.say("complete", claim, start=True)
        else:
            self.mesh.say(verb, claim)
        del self.model.live[job]
        # BC-011: what has ended ends once.
        if self.rng.random() < 0.3:
            for late in ("complete", "release", "fail"):
                self.mesh.refusal(late, claim)

    def cancel(self) -> None:
        if self.model.asked:
            job = self.rng.choice(sorted(self.model.asked))
            body = Cancel(force=self.rng.random() < 0.5)
            code = self.mesh.refused(lambda: self.mesh.ask(cancel.cancel, body, job))
            assert code in (None, "WORKLOAD_TRANSITION_DENIED")
            if body.force and code is None:
                self.model.live.pop(job, None)

    # -- time --------------------------------------------------------------------------------

    def rest(self) -> None:
        self.mesh.later(self.rng.choice((1, 500, 3_000)))
        self.heard()

    def lapse(self) -> None:
        self.mesh.later(30_000)
        self.heard()
        self.mesh.sweep()
        self.model.live.clear()

    def heard(self) -> None:
        self.mesh.conn.execute("UPDATE workers SET last_seen_at_ms = ?", [self.mesh.now.lease_ms])

    def keeper(self) -> None:
        for entry in KEEPER:
            while self.changed(entry) >= entry.limit:
                pass
        self.model.live = {
            job: claim
            for job, claim in self.model.live.items()
            if self.mesh.state(job) in ("CLAIMED", "RUNNING", "CHECKPOINTED")
        }

    def changed(self, entry: Any) -> int:
        found = self.mesh.run(entry.op, entry.limit)
        return int((found[0] if isinstance(found, tuple) else found) or 0)

    # -- pools -------------------------------------------------------------------------------

    def pool(self, pool_id: str) -> None:
        ceiling = self.rng.choice((None, 1, 2, 4))
        stories.make(self.mesh, pool_id, max_concurrency=ceiling)
        self.model.ceilings[pool_id] = ceiling

    def repool(self) -> None:
        pool_id = self.rng.choice(("gpu", "cpu"))
        if pool_id not in self.model.ceilings:
            self.pool(pool_id)
        elif self.rng.random() < 0.4:
            stories.drop(self.mesh, pool_id)
            del self.model.ceilings[pool_id]
        else:
            ceiling = self.rng.choice((None, 1, 2, 4))
            stories.change(self.mesh, pool_id, max_concurrency=ceiling)
            self.model.ceilings[pool_id] = ceiling

    # -- the promise -------------------------------------------------------------------------

    def nothing_is_left(self) -> None:
        """After the keeper, who finds nothing is right: every due workload has a full gate."""
        self.keeper()
        zoned = self.mesh.worker("zoned", capacity={"concurrency": 1_000}, labels={"zone": "z0"})
        if self.take(zoned, self.rng.randrange(1, 5)):
            return
        now_ms = self.mesh.now.lease_ms
        for row in self.mesh.conn.execute(
            "SELECT workload_id FROM workloads WHERE state = 'READY' AND eligible_at_ms <= ?",
            [now_ms],
        ):
            assert self.model.full(row["workload_id"], now_ms), row["workload_id"]


def kept(mesh: Mesh) -> None:
    broken = mesh.run(lambda tx, _, now: promises.ask(tx))
    assert [(one.id, one.rows) for one in broken] == []


@pytest.mark.parametrize("at_once", [1, 3, 64])
@pytest.mark.parametrize("seed", range(12))
def test_limits_hold_and_nothing_with_room_is_left(
    mesh: Mesh, seed: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few lanes at once most of them are closed by pulls and opened by the keeper."""
    monkeypatch.setattr(lanes, "LANES_AT_ONCE", at_once)
    story = Story(mesh, seed)
    for turn in range(STEPS):
        story.step()
        if turn % 10 == 0:
            kept(mesh)
    story.nothing_is_left()
    kept(mesh)

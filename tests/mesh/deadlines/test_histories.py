"""Random histories of work with timeouts, judged after each step by a model that knows no rows."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import convert
from msgspec.json import decode

from feltd.mesh import bulk, cancel, edit, promises, requeue, vitals
from feltd.mesh.deadlines import NONE
from feltd.model.claim import Claim
from feltd.model.editing import Edit
from feltd.model.workload import Cancel, Filter, Requeue
from tests.mesh.deadlines.stories import newest_claim, round_of
from tests.mesh.world import Mesh

STEPS = 150
JOBS_MAX = 12
MEMBERS = ("queue_ms", "start_ms", "execution_ms", "total_ms")


class History:
    """One run: whatever is refused is part of it; nothing may break a promise."""

    def __init__(self, mesh: Mesh, seed: int) -> None:
        self.mesh = mesh
        self.chance = random.Random(seed)
        self.worker = mesh.worker(capacity={"concurrency": 6})
        self.jobs: list[str] = []
        self.held: list[Claim] = []

    def timeouts(self) -> dict[str, int]:
        named = [one for one in MEMBERS if self.chance.random() < 0.5]
        return {one: self.chance.choice((1, 700, 2_000, 9_000, 40_000)) for one in named}

    def create(self) -> None:
        if len(self.jobs) == JOBS_MAX:
            return
        members: dict[str, Any] = {"timeouts": self.timeouts()}
        if self.jobs and self.chance.random() < 0.3:
            members["dependencies"] = [self.chance.choice(self.jobs)]
            members["dependency_policy"] = "all_finished"
        if self.chance.random() < 0.2:
            members["not_before_at_ms"] = self.mesh.now.wall_ms + 3_000
        self.jobs.append(self.mesh.workload(**members))

    def pull(self) -> None:
        start = self.chance.random() < 0.5
        self.held += self.mesh.pull(self.worker, max=2, lease_ms=5_000, start=start).claims

    def say(self) -> None:
        if not self.held:
            return
        verb = self.chance.choice(
            ("start", "renew", "renew", "checkpoint", "complete", "fail", "release")
        )
        held = self.chance.choice(self.held)
        over = self.is_over(held)
        code = self.mesh.refusal(verb, held)
        assert not over or code == "WORKLOAD_STALE_FENCE", (verb, code)

    def is_over(self, held: Claim) -> bool:
        """Whether execution_ms or total_ms of a live claim has passed, by its own instants."""
        row = self.mesh.row(
            "SELECT * FROM workloads WHERE workload_id = :job", job=held.workload_id
        )
        if row["fencing_token"] != held.fencing_token or row["claim_worker_id"] is None:
            return False
        bounds = decode(row["timeouts"], type=dict[str, int])
        born_ms = max(row["created_at_ms"], row["requeued_at_ms"] or 0)
        ends = [born_ms + bounds["total_ms"]] if "total_ms" in bounds else []
        if row["started_at_ms"] is not None and "execution_ms" in bounds:
            ends.append(row["started_at_ms"] + bounds["execution_ms"])
        return min(ends, default=self.mesh.now.lease_ms + 1) <= self.mesh.now.lease_ms

    def cancel(self) -> None:
        force = self.chance.random() < 0.5
        self.on_one(lambda job: self.mesh.ask(cancel.cancel, Cancel(force=force), job))

    def requeue(self) -> None:
        self.on_one(lambda job: self.mesh.ask(requeue.requeue, Requeue(), job))

    def edit(self) -> None:
        body: dict[str, Any] = {"priority": self.chance.randint(-5, 5)}
        if self.chance.random() < 0.5:
            body["timeouts"] = dict.fromkeys(MEMBERS) | self.timeouts()
        if self.chance.random() < 0.3:
            body["not_before_at_ms"] = self.chance.choice((0, None, self.mesh.now.wall_ms + 2_000))
        self.on_one(lambda job: self.mesh.ask(edit.edit, convert(body, Edit), job))

    def bulk(self) -> None:
        priority = self.chance.randint(-5, 5)
        plan = bulk.Plan("reprioritise", Filter(), priority)
        self.mesh.ask(bulk.change, bulk.Chunk(plan, self.jobs, 0))

    def outage(self) -> None:
        gap_ms = self.chance.choice((4_000, 20_000))
        self.mesh.later(gap_ms)
        self.mesh.run(lambda tx, _, now: vitals.credit(tx, now, gap_ms, first=False))

    def later(self) -> None:
        self.mesh.later(self.chance.choice((1, 300, 1_000, 4_000)))

    def keeper(self) -> None:
        round_of(self.mesh, limit=self.chance.choice((1, 200)))

    def on_one(self, act: Callable[[str], object]) -> None:
        if self.jobs:
            job = self.chance.choice(self.jobs)
            self.mesh.refused(lambda: act(job))

    def step(self) -> None:
        """One thing happens, and all that is promised holds."""
        deeds = (self.create, self.pull, self.say, self.say, self.cancel, self.requeue, self.edit)
        more = (self.bulk, self.outage, self.later, self.later, self.keeper, self.keeper)
        self.chance.choice(deeds + more)()
        assert self.mesh.run(lambda tx, _, now: promises.ask(tx)) == []


@pytest.mark.parametrize("seed", range(12))
def test_no_history_breaks_a_promise(mesh: Mesh, seed: int) -> None:
    history = History(mesh, seed)
    # The keeper of a story comes by chance.
    mesh.conn.execute("UPDATE ledger SET recover_slack_ms = 1000000000")
    for _ in range(STEPS):
        history.step()
    # Left alone, all that is bounded by a total ends.
    for _ in range(400):
        mesh.later(1_000)
        round_of(mesh)
    mesh.conn.execute("UPDATE ledger SET recover_slack_ms = 1000, served_at_ms = 1")
    assert mesh.conn.execute("SELECT count(*) FROM deadlines").fetchone()[0] == 0
    rows = mesh.conn.execute(
        "SELECT workload_id, state, timeouts FROM workloads WHERE timeouts <> ?", [NONE]
    ).fetchall()
    for row in rows:
        if "total_ms" in row["timeouts"]:
            assert row["state"] in ("COMPLETED", "CANCELLED", "DEAD_LETTERED"), dict(row)
        if row["state"] == "COMPLETED":
            assert newest_claim(mesh, row["workload_id"])["end_kind"] == "completed"

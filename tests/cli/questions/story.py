"""Two hours of a small mesh by its rules, up to this moment; all goes wrong once."""

from pathlib import Path
from typing import NamedTuple

from feltd.clock import Now, wall_ms
from feltd.mesh import evict, holds, reconcile
from feltd.model.claim import Evict
from feltd.model.hold import NewHold
from tests.mesh.world import Mesh

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
DAY_MS = 24 * HOUR_MS
#: How long work of kind extract runs, ms: the slowest of eleven is the last.
RUNS_MS = (100, 110, 120, 130, 140, 150, 160, 170, 180, 190, 900)

KEY = """
INSERT INTO keys (key_id, name, secret_digest, scopes, namespaces, tenants, subject_type, worker_id,
                  incarnation, obtained_by, created_by, created_at_ms, expires_at_ms)
VALUES (:key_id, :name, 'sha256:' || printf('%064d', 7), '[]', '[]', '["acme"]', :kind, :worker_id,
        :incarnation, :obtained_by, 'service:test', :now_ms, :ends_at_ms)
"""

TRIGGER = """
INSERT INTO triggers (tenant_id, trigger_id, application_id, kind, enabled, target_capability, work,
                      requested_by, source_collection, change_kind, cursor_seq, judged_from_seq,
                      failures, failure, disabled_at_ms, disabled_by, disabled_reason, defined_by,
                      created_at_ms, updated_at_ms)
VALUES ('acme', 'on-paid', 'docs', 'state', 0, 'extract', '{}', 'service:shop', 'orders', 'any', 0,
        0, 5, 'GRANT_DENIED: it covers nothing', :now_ms, 'service:feltd', 'it failed 5 times',
        'human:ann', 1, 1)
"""


class Story(NamedTuple):
    """The file, and the ids of whom it tells."""

    data: Path
    edge: str
    slow: str
    mute: str
    dead: str
    retried: str
    stuck: str
    lapsing: str
    superseded: str
    evicted: str
    held: str
    waiting: str


class Told:
    """The mesh as it goes on, instant by instant."""

    def __init__(self) -> None:
        self.mesh = Mesh()
        self.begin_ms = wall_ms() - 2 * HOUR_MS
        self.at(0)
        self.edge = self.mesh.worker("edge", capacity={"concurrency": 8})
        self.slow = self.mesh.worker("slow", capacity={"concurrency": 8})
        self.mute = self.mesh.worker("mute", capacity={"concurrency": 2})

    def at(self, minute: float) -> None:
        """Go to a minute of the story; 120 is now."""
        instant = self.begin_ms + int(minute * MINUTE_MS)
        self.mesh.now = Now(instant, instant)

    def ordinary(self) -> None:
        """Eleven pieces of work that go well, in the last ten minutes."""
        for number, run_ms in enumerate(RUNS_MS):
            self.at(110 + number / 2)
            job = self.mesh.workload()
            held = self.mesh.claims(job, by=self.edge, start=True)
            self.mesh.later(run_ms)
            self.mesh.say("complete", held, output=None)

    def given_up(self, minute: int) -> str:
        """One whose only attempt fails."""
        self.at(minute)
        dead = self.mesh.workload(definition_id="convert", retry_policy={"max_attempts": 1})
        held = self.mesh.claims(dead, by=self.edge, start=True)
        self.mesh.later(50)
        self.mesh.say("fail", held, kind="bad_input", message="not a page")
        return dead

    def retried(self) -> str:
        """One that is tried again tomorrow."""
        retried = self.mesh.workload(definition_id="convert")
        held = self.mesh.claims(retried, by=self.edge, start=True)
        self.mesh.say("fail", held, retry_after_ms=DAY_MS)
        return retried

    def stuck(self) -> str:
        """One that runs and runs, under a long lease."""
        self.at(95)
        stuck = self.mesh.workload()
        self.mesh.claims(stuck, by=self.slow, lease_ms=HOUR_MS, start=True)
        return stuck

    def superseded(self) -> str:
        """A lease lapses, another worker does the work, and the first one comes late."""
        self.at(100)
        job = self.mesh.workload(definition_id="render")
        late = self.mesh.claims(job, by=self.slow, lease_ms=1_000, start=True)
        self.mesh.later(1_001)
        self.mesh.sweep()
        self.mesh.later(120_000)
        self.mesh.promote()
        held = self.mesh.claims(job, by=self.edge, start=True)
        self.mesh.later(5_000)
        self.mesh.say("complete", held, output=None)
        assert self.mesh.refusal("complete", late, output=None) == "WORKLOAD_STALE_FENCE"
        self.mesh.hand(
            reconcile.KEEP_LATE,
            fencing_token=late.fencing_token,
            workload_id=job,
            worker_id=self.slow,
            now_ms=self.mesh.now.lease_ms,
            outcome="completed",
            report="{}",
        )
        return job

    def evicted(self) -> str:
        """A claim that a person takes away; the work is done by another."""
        self.at(103)
        job = self.mesh.workload(definition_id="render")
        held = self.mesh.claims(job, by=self.slow, start=True)
        self.mesh.ask(evict.evict, Evict(reason="it hangs"), held.claim_id)
        again = self.mesh.claims(job, by=self.edge, start=True)
        self.mesh.later(5_000)
        self.mesh.say("complete", again, output=None)
        return job

    def held(self) -> str:
        """Work of a kind that is held."""
        self.at(106)
        job = self.mesh.workload(definition_id="index")
        hold = NewHold(scope="definition", value="index", reason="the disk is full")
        self.mesh.ask(holds.place, holds.Placing(tenant_id="acme", hold=hold))
        return job

    def keys(self) -> None:
        """A registrar's key that ends in three days, and the worker's that dies with it."""
        about = {"now_ms": self.mesh.now.wall_ms, "ends_at_ms": None}
        self.mesh.hand(
            KEY,
            **about
            | {"key_id": "registrar001", "name": "host", "kind": "service", "worker_id": None}
            | {"incarnation": None, "obtained_by": None}
            | {"ends_at_ms": self.mesh.now.wall_ms + 3 * DAY_MS},
        )
        self.mesh.hand(
            KEY,
            **about
            | {"key_id": "ofworker0001", "name": "edge", "kind": "worker", "worker_id": self.edge}
            | {"incarnation": 1, "obtained_by": "registrar001"},
        )

    def trigger(self) -> None:
        """A trigger that was disabled when it had failed too often."""
        self.mesh.hand("INSERT INTO change_logs (tenant_id) VALUES ('acme')")
        self.mesh.hand(TRIGGER, now_ms=self.mesh.now.lease_ms)


def tell(folder: Path) -> Story:
    """Play it; the file is whole and closed."""
    told = Told()
    mesh = told.mesh
    told.given_up(30)
    stuck, superseded, evicted, held = (
        told.stuck(),
        told.superseded(),
        told.evicted(),
        told.held(),
    )
    told.ordinary()
    dead, retried = told.given_up(118), told.retried()
    told.at(119.9)
    waiting = mesh.workload()
    lapsing = mesh.workload(definition_id="render")
    mesh.claims(lapsing, by=told.edge, lease_ms=10_000)
    mesh.hand(
        "UPDATE workers SET last_seen_at_ms = :now_ms WHERE name <> 'mute'",
        now_ms=mesh.now.lease_ms,
    )
    mesh.hand(
        "UPDATE workers SET last_seen_at_ms = :then_ms WHERE name = 'mute'",
        then_ms=mesh.now.lease_ms - 10 * MINUTE_MS,
    )
    told.keys()
    told.trigger()
    data = folder / "story.db"
    mesh.conn.execute("VACUUM INTO ?", [str(data)])
    mesh.close()
    ids = (told.edge, told.slow, told.mute, dead, retried, stuck, lapsing, superseded, evicted)
    return Story(data, *ids, held, waiting)

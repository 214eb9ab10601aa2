"""One seeded schedule: some dozens of steps against one daemon, then calm, and everything must end.

The seed decides every step, so a failure is replayed by its number alone. Each schedule leans
towards some actors and leaves others out: what happens often together is met in some of them.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from feltd.config import Config
from feltd.identity.principals import LOCAL
from tests.sim import editors, followers, givers, laws, people, searchers, stoppers, workers
from tests.sim.clients import Process, make, some_fault
from tests.sim.faults import NONE
from tests.sim.history import Violation
from tests.sim.image import HOUR_MS, Place, fleet, fresh_world, root
from tests.sim.world import World

STEPS = 45
#: How much more of one thing happens in a schedule; 0: none of it. Some things always happen.
LEANINGS = (0, 1, 1, 2, 4)
FEW = (1, 1, 2)
#: Rounds of calm within which everything must have ended.
CALM_ROUNDS = 60

UNFINISHED = """
SELECT w.workload_id, w.state, w.eligible_at_ms, w.cancel_requested, w.definition_id
  FROM workloads w
 WHERE w.state NOT IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELLED')
   AND w.tenant_id = :tenant_id
   AND w.application_id = :application_id
 ORDER BY w.seq
"""

INSTANTS = """
SELECT w.expires_at_ms AS at_ms
  FROM workloads w
 WHERE w.expires_at_ms > :now_ms
UNION ALL
SELECT w.eligible_at_ms
  FROM workloads w
 WHERE w.state = 'READY'
   AND w.eligible_at_ms > :now_ms
UNION ALL
SELECT d.at_ms
  FROM deadlines d
 WHERE d.at_ms > :now_ms
UNION ALL
SELECT k.last_seen_at_ms + k.heartbeat_timeout_ms
  FROM workers k
 WHERE k.lifecycle <> 'OFFLINE'
   AND k.last_seen_at_ms + k.heartbeat_timeout_ms > :now_ms
 ORDER BY 1
"""

WALL_INSTANTS = """
SELECT g.expires_at_ms AS at_ms
  FROM grants g
 WHERE g.expires_at_ms < :far_ms
UNION ALL
SELECT y.expires_at_ms
  FROM keys y
 WHERE y.expires_at_ms < :far_ms
 ORDER BY 1
"""


class Failure(AssertionError):
    """A schedule broke a promise. Says which, by which steps, and how to see it again."""

    def __init__(self, seed: int, trace: list[str], why: BaseException) -> None:
        shown = "\n".join(trace[-30:])
        super().__init__(
            f"schedule {seed}: {why!r}\n{shown}\n"
            f"replay: FELTD_SEED={seed} python -m pytest tests/sim"
        )
        self.seed = seed


class Run(NamedTuple):
    """What a schedule that held has reached."""

    trace: list[str]
    reached: Counter[str]


def run(seed: int, steps: int = STEPS) -> Run:
    """Run one schedule. Raises Failure."""
    world, places = fresh_world(seed)
    try:
        _storm(world, places, steps)
        calm(world, places)
        _look_back(world)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise Failure(seed, world.trace, error) from error
    finally:
        world.close()
    return Run(world.trace, world.oracle.reached)


# -- the storm -------------------------------------------------------------------------------

Step = Callable[[World, Place], None]


def _storm(world: World, places: list[Place], steps: int) -> None:
    rng = world.rng
    # Most happens in one place; the others are there to be crossed into.
    here = rng.choice(places)
    acts: list[tuple[Step, int]] = [
        *people.ACTS,
        *stoppers.ACTS,
        *givers.ACTS,
        *editors.ACTS,
        *searchers.ACTS,
        *followers.ACTS,
    ]
    acts += [*workers.ACTS, *MACHINE]
    weights = [weight * rng.choice(FEW if act in ALWAYS else LEANINGS) for act, weight in acts]
    lost = rng.choice(("end", "end", "lease"))
    world.config, world.oracle.on_worker_lost = Config(on_worker_lost=lost), lost
    for process in here.processes:
        process.twice = rng.random() < 0.2
    world.followers = followers.all_of(here)
    if rng.random() < 0.5:
        stoppers.pool(world, here)
    for place in (here, here, rng.choice(places)):
        people.submit(world, place)
    for act, _ in rng.choices(acts, weights, k=steps):
        place = here if rng.random() < 0.92 else rng.choice(places)
        act(world, place)
        world.check()


def pass_time(world: World, place: Place) -> None:
    """Time passes: some, up to a boundary, or only by the wall clock; or the machine stands."""
    rng = world.rng
    kind = rng.random()
    now = world.now
    if kind < 0.45:
        world.later(int(10 ** rng.uniform(0, 5.08)))
    elif kind < 0.75:
        rows = world.rows(INSTANTS, now_ms=now.lease_ms)
        if rows:
            at_ms = rng.choice(rows[:4])["at_ms"] + rng.choice((-1, 0, 1))
            world.later(max(0, at_ms - now.lease_ms))
    elif kind < 0.83:
        rows = world.rows(WALL_INSTANTS, far_ms=now.wall_ms + 24 * HOUR_MS)
        if rows:
            world.step_wall(rng.choice(rows)["at_ms"] + rng.choice((-1, 0, 1)) - now.wall_ms)
    elif kind < 0.92:
        back_ms = now.lease_ms - now.wall_ms
        world.step_wall(rng.choice((back_ms, rng.randint(-HOUR_MS, HOUR_MS), 1_001)))
    else:
        world.stopped(rng.choice((3_001, 31_000, 120_000)))


def keep(world: World, place: Place) -> None:
    """A round of the keeper, in slices or whole."""
    world.keep(fault=some_fault(world, 0.3), limit=world.rng.choice((None, None, 1, 2)))


def _restart(world: World, place: Place) -> None:
    """The daemon ends and comes back, at once or later; now and then it dies while it starts."""
    rng = world.rng
    crash_at = rng.choice((0, 0, rng.randint(1, 9)))
    world.restart(down_ms=rng.choice((0, 10, 5_000, 60_000)), crash_at=crash_at)


def _put_back(world: World, place: Place) -> None:
    """A copy of the file is kept; an earlier one is put back, with its sidecar or without."""
    if not world.backups or world.rng.random() < 0.4:
        world.back_up()
        return
    # Without its sidecar only the wall clock keeps tokens growing over an older file.
    ahead = world.now.wall_ms * 1_000 > world.oracle.newest_token
    world.restore(keep_mark=not ahead or world.rng.random() < 0.6)


ALWAYS = frozenset({people.submit, workers.work, pass_time, keep})


#: What happens to the machine and the daemon on it, and how often.
MACHINE: tuple[tuple[Step, int], ...] = ((pass_time, 14), (keep, 6), (_restart, 2), (_put_back, 3))


# -- the calm --------------------------------------------------------------------------------


def calm(world: World, places: list[Place]) -> None:
    """No more faults: the keeper and one honest worker a zone bring everything to its end."""
    world.faults = False
    world.note("calm")
    world.step_wall(world.now.lease_ms - world.now.wall_ms)
    world.restart()
    stoppers.let_go(world, places)
    for place in places:
        _finish(world, place)
    world.keep()


def _look_back(world: World) -> None:
    """Whoever followed knows everything, and every decision is what the law decides."""
    for one in world.followers:
        one.compare(world)
    for row in world.rows(laws.DECISIONS):
        laws.holds(row)


def _finish(world: World, place: Place) -> None:
    sought = {"tenant_id": place.tenant_id, "application_id": place.application_id}
    if not world.rows(UNFINISHED, **sought):
        return
    where = (place.tenant_id, place.application_id)
    _, registrar = fleet(world, where, root(world, where), 700 * HOUR_MS)
    honest = [
        Process(
            f"calm-{zone}",
            registrar,
            f"calm-{zone}",
            concurrency=8,
            timeout_ms=300_000,
            labels={"zone": zone},
        )
        for zone in "ab"
    ]
    for process in honest:
        _require(process.register(world).ok, "an honest worker may not register")
    for _ in range(CALM_ROUNDS):
        for process in honest:
            _require(process.beat(world, renew_leases=True).ok, "an honest beat is refused")
            workers.finish_all(world, process)
        left = world.rows(UNFINISHED, **sought)
        if not left:
            return
        _give_up_unfit(world, left)
        # What waits for other work is not eligible at any instant of its own.
        eligible_ms = [row["eligible_at_ms"] for row in left if row["state"] == "READY"]
        next_ms = min(eligible_ms, default=0) - world.now.lease_ms
        world.later(30_000)
        # What waits for a far instant of the wall clock is not waited for second by second.
        world.stopped(max(0, next_ms - 30_000))
        world.keep()
    raise Violation(f"never ends: {[tuple(row) for row in left]}")


def _give_up_unfit(world: World, left: list[object]) -> None:
    """Work that asks for what no worker has is called off by a person."""
    for row in left:
        workload_id = row["workload_id"]  # type: ignore[index]
        if workers.fits_nobody(world, workload_id):
            call = make(world, "cancel", LOCAL, people.Cancel(force=True), workload_id)
            world.perform(call, fault=NONE)
            _require(call.ok, f"{workload_id} cannot be cancelled")


def _require(held: bool, what: str) -> None:
    if not held:
        raise Violation(what)

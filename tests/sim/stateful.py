"""One seeded schedule over records, triggers, instants and compaction, then calm.

The daemon, its keeper, its machine and its workers are those of schedule.py; the people are others.
In the end every trigger has judged every change, and what it began has been done.
"""

from feltd.config import Config
from feltd.state import promises
from feltd.store.tx import Tx
from tests.sim import compacting, people, records, triggers, workers
from tests.sim.history import Violation
from tests.sim.image import Place, fresh_world
from tests.sim.schedule import FEW, LEANINGS, MACHINE, Failure, Run, Step, calm, keep, pass_time
from tests.sim.world import World

STEPS = 45
ALWAYS = frozenset({records.write, triggers.define, keep})
#: What happens to the machine, and how often.
FEWER = tuple((act, 7 if act is pass_time else weight) for act, weight in MACHINE)


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


def _storm(world: World, places: list[Place], steps: int) -> None:
    rng = world.rng
    here = rng.choice(places)
    acts: list[tuple[Step, int]] = [*records.ACTS, *triggers.ACTS, *compacting.ACTS, *FEWER]
    acts += [(workers.work, 6), (people.submit, 3)]
    weights = [weight * rng.choice(FEW if act in ALWAYS else LEANINGS) for act, weight in acts]
    world.config = Config()
    for act, _ in rng.choices(acts, weights, k=steps):
        act(world, here if rng.random() < 0.85 else rng.choice(places))
        world.check()


def _look_back(world: World) -> None:
    """What is left of the audit chain is whole from its beginning on."""
    wrong = promises.walk(Tx(world.conn))[1]
    if wrong:
        raise Violation(str(wrong))

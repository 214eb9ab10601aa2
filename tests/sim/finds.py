"""Which schedule finds which fault first: where a search begins, never where it ends.

A schedule that finds nothing any more, because actors or their weights have changed, costs its own
time and the search goes on from the first. `python -m tests.sim.finds` writes them anew.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.sim.image import fresh_world
from tests.sim.mutations import Patches, entered
from tests.sim.schedule import Failure, run

#: Found later than this is not found.
SCHEDULES_MAX = 800
FINDS = Path(__file__).with_name("finds.json")


def find(mutation: Callable[[], Patches], *, anew: bool = False) -> Failure | None:
    """The first failure by which a fault shows, None when no schedule finds it.

    `anew`: whatever is written down.
    """
    with entered(mutation):
        for seed in _seeds(-1 if anew else _known().get(mutation.__name__, -1)):
            try:
                run(seed)
            except Failure as failure:
                return failure
    return None


def _known() -> dict[str, int]:
    known: dict[str, int] = json.loads(FINDS.read_text())
    return known


def _seeds(first: int) -> Iterator[int]:
    if first >= 0:
        yield first
    yield from (seed for seed in range(SCHEDULES_MAX) if seed != first)


def main() -> None:
    """Look for every fault again, and write down where each was found."""
    from tests.sim.test_mutations import FAULTS

    # The world all schedules begin with is made before anything is broken.
    fresh_world(0)[0].close()
    found = {fault.__name__: find(fault, anew=True) for fault in FAULTS}
    seeds = {name: failure.seed for name, failure in sorted(found.items()) if failure is not None}
    FINDS.write_text(json.dumps(seeds, indent=1) + "\n")


if __name__ == "__main__":
    main()

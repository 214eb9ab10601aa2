"""The checker of state is checked: a fault put into its rules is found within some schedules."""

from collections.abc import Callable, Iterator

import pytest

from tests.sim.image import fresh_world
from tests.sim.mutations import Patches, entered
from tests.sim.mutations_of_state import MUTATIONS
from tests.sim.schedule import Failure
from tests.sim.stateful import run

#: Found later than this is not found.
SCHEDULES_MAX = 300
#: Where a fault was found last, if not in the first schedule: a search begins there, and goes on
#: from the first where it finds nothing.
FOUND = {
    "chain_cut_without_its_anchor": 39,
    "change_cut_without_its_floor": 1,
    "change_that_fires_again": 172,
    "cursor_that_skips_a_change": 33,
    "floor_over_a_consumer": 4,
    "floor_over_a_cursor": 5,
    "floor_over_a_disabled_cursor": 46,
    "instant_that_is_left_out": 8,
    "key_that_is_not_remembered": 1,
    "kind_that_nobody_looks_at": 1,
    "missing_that_equals_something": 10,
    "overlap_that_nobody_looks_at": 8,
    "record_forgotten_above_the_floor": 53,
}


@pytest.fixture(autouse=True, scope="module")
def _begin_sound() -> None:
    """The world all schedules begin with is made before anything is broken."""
    fresh_world(0)[0].close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.__name__)
def test_a_fault_of_state_is_found(
    mutation: Callable[[], Patches], capsys: pytest.CaptureFixture[str]
) -> None:
    found = None
    with entered(mutation):
        for seed in _seeds(FOUND.get(mutation.__name__, 0)):
            try:
                run(seed)
            except Failure as failure:
                found = failure
                break

    assert found is not None, f"{mutation.__name__} was not found in {SCHEDULES_MAX} schedules"
    why = str(found).splitlines()[0][:100]
    with capsys.disabled():
        print(f"\n  {mutation.__name__}: {why}", end="")


def _seeds(first: int) -> Iterator[int]:
    yield first
    yield from (seed for seed in range(SCHEDULES_MAX) if seed != first)

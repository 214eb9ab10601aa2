"""The checker of state is checked: a fault put into its rules is found within some schedules."""

from collections.abc import Callable

import pytest

from tests.sim.image import fresh_world
from tests.sim.mutations import Patches, entered
from tests.sim.mutations_of_state import MUTATIONS
from tests.sim.schedule import Failure
from tests.sim.stateful import run

#: Found later than this is not found.
SCHEDULES_MAX = 300
#: Found only after some dozens of schedules: looked for by hand, with `-m soak`.
LATE = {
    "change_that_fires_again",
    "chain_cut_without_its_anchor",
    "cursor_that_skips_a_change",
    "firing_cleared_above_the_floor",
    "floor_over_a_cursor",
    "floor_over_a_disabled_cursor",
    "floor_over_what_is_young",
    "instant_that_is_left_out",
    "missing_that_equals_something",
    "record_forgotten_above_the_floor",
}


@pytest.fixture(autouse=True, scope="module")
def _begin_sound() -> None:
    """The world all schedules begin with is made before anything is broken."""
    fresh_world(0)[0].close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(one, id=one.__name__, marks=[pytest.mark.soak] * (one.__name__ in LATE))
        for one in MUTATIONS
    ],
)
def test_a_fault_of_state_is_found(
    mutation: Callable[[], Patches], capsys: pytest.CaptureFixture[str]
) -> None:
    found = None
    with entered(mutation):
        for seed in range(SCHEDULES_MAX):
            try:
                run(seed)
            except Failure as failure:
                found = failure
                break

    assert found is not None, f"{mutation.__name__} was not found in {SCHEDULES_MAX} schedules"
    why = str(found).splitlines()[0][:100]
    with capsys.disabled():
        print(f"\n  {mutation.__name__}: {why}", end="")

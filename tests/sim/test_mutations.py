"""The checker is checked: a fault put into the rules is found within a few hundred schedules."""

from collections.abc import Callable

import pytest

from tests.sim.finds import SCHEDULES_MAX, find
from tests.sim.image import fresh_world
from tests.sim.mutations import MUTATIONS, Patches, entered, old_keys_live_on
from tests.sim.mutations_of_changes import MUTATIONS as OF_CHANGES
from tests.sim.mutations_of_gates import MUTATIONS as OF_GATES
from tests.sim.mutations_of_gifts import MUTATIONS as OF_GIFTS
from tests.sim.mutations_of_stops import MUTATIONS as OF_STOPS
from tests.sim.schedule import run

FAULTS = (*MUTATIONS, *OF_STOPS, *OF_GIFTS, *OF_CHANGES, *OF_GATES)
#: Found only after some dozens of schedules, 4 to 20 s each: looked for by hand, with `-m soak`.
LATE = {
    "bulk_that_looks_once",
    "claim_beyond_a_pool",
    "claim_that_is_valid_past_its_lease",
    "credit_beyond_an_execution",
    "edit_in_the_old_lane",
    "fence_for_any_number",
    "fence_that_lets_older_claims_write",
    "key_that_given_work_passes",
    "numbers_that_come_again",
    "pool_ceiling_that_ids_pass",
}
#: So many must hold where one of two walls stands.
HOLD = 40


@pytest.fixture(autouse=True, scope="module")
def _begin_sound() -> None:
    """The world all schedules begin with is made before anything is broken."""
    fresh_world(0)[0].close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(one, id=one.__name__, marks=[pytest.mark.soak] * (one.__name__ in LATE))
        for one in FAULTS
    ],
)
def test_a_fault_is_found(
    mutation: Callable[[], Patches], capsys: pytest.CaptureFixture[str]
) -> None:
    found = find(mutation)

    assert found is not None, f"{mutation.__name__} was not found in {SCHEDULES_MAX} schedules"
    why = str(found).splitlines()[0][:100]
    with capsys.disabled():
        print(f"\n  {mutation.__name__}: {why}", end="")


@pytest.mark.timeout(600)
def test_the_fence_keeps_a_former_incarnation_out_even_with_its_key() -> None:
    """Two walls stand there; `no_incarnation` shows that without both it is let in."""
    with entered(old_keys_live_on):
        for seed in range(HOLD):
            run(seed)

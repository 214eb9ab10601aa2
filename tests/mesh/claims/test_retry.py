"""The wait before the next attempt: whole numbers, clamped, the same on every replay."""

from hypothesis import given
from hypothesis import strategies as st

from feltd.mesh.retry import Backoff, delay_ms, rank

POLICIES = st.builds(
    Backoff,
    initial_backoff_ms=st.integers(0, 3_600_000),
    multiplier=st.floats(1, 10),
    max_backoff_ms=st.integers(0, 86_400_000),
    jitter=st.floats(0, 1),
)


@given(POLICIES, st.text(max_size=20), st.integers(1, 1_000))
def test_the_wait_is_a_whole_number_within_its_bounds(
    policy: Backoff, workload_id: str, spent: int
) -> None:
    wait_ms = delay_ms(policy, workload_id, spent)

    assert isinstance(wait_ms, int)
    assert 0 <= wait_ms <= 2 * policy.max_backoff_ms
    assert wait_ms == delay_ms(policy, workload_id, spent)


@given(POLICIES, st.integers(1, 999))
def test_without_jitter_the_wait_never_shrinks(policy: Backoff, spent: int) -> None:
    even = Backoff(policy.initial_backoff_ms, policy.multiplier, policy.max_backoff_ms, 0)

    assert delay_ms(even, "w", spent) <= delay_ms(even, "w", spent + 1)


def test_it_doubles_up_to_its_most() -> None:
    policy = Backoff(jitter=0)

    waits_ms = [delay_ms(policy, "w", spent) for spent in range(1, 9)]

    assert waits_ms == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]


def test_jitter_spreads_what_failed_together() -> None:
    waits_ms = {delay_ms(Backoff(), f"workload_{n}", 1) for n in range(100)}

    assert len(waits_ms) > 50
    assert all(1_000 <= wait_ms <= 1_200 for wait_ms in waits_ms)


def test_a_point_of_priority_is_worth_a_minute() -> None:
    assert rank(600_000, 10) == rank(0, 0)

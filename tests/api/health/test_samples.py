"""Samples for plots: what happened since the last one, as long as the last one is past."""

from feltd.api.metrics import SECONDS, Spread
from feltd.api.samples import Counts, Ring, percentile_ms


def counts(number: int = 0, *latencies_s: float) -> Counts:
    """Counters that all stand at `number`, and calls that took so long."""
    spread = Spread()
    for seconds in latencies_s:
        spread.observe(seconds)
    return Counts(
        creations=number,
        claims=number,
        completions=number,
        failures=number,
        sheds=number,
        fence_refusals=number,
        requests=tuple(spread.counts),
        commits=tuple(spread.counts),
    )


def test_a_sample_tells_rates_and_latencies_of_its_own_stretch() -> None:
    ring = Ring(10_000, 3)
    ring.take(counts(100, 5.0), SECONDS, 0.0, 0)
    ring.take(counts(120, 5.0, *[0.001] * 99), SECONDS, 10.0, 10_000)
    [sample] = ring.samples

    assert (sample.at_ms, sample.creations, sample.sheds) == (10_000, 2.0, 20)
    assert sample.request_p99_ms is not None
    assert 0.5 <= sample.request_p99_ms <= 1.0


def test_a_sample_that_comes_too_early_is_none() -> None:
    ring = Ring(60_000, 3)
    for second in range(0, 180, 10):
        ring.take(counts(second), SECONDS, float(second), second * 1_000)

    assert [sample.at_ms for sample in ring.samples] == [60_000, 120_000]
    assert all(sample.claims == 1.0 for sample in ring.samples)


def test_old_samples_make_room() -> None:
    ring = Ring(10_000, 3)
    for second in range(0, 100, 10):
        ring.take(counts(second), SECONDS, float(second), second * 1_000)

    assert [sample.at_ms for sample in ring.samples] == [70_000, 80_000, 90_000]


def test_where_nothing_was_counted_there_is_no_latency() -> None:
    assert percentile_ms([0] * 15, SECONDS, 0.99) is None


def test_what_lies_beyond_the_last_bound_is_told_as_the_last_bound() -> None:
    assert percentile_ms([0] * 14 + [3], SECONDS, 0.5) == 10_000.0


def test_a_percentile_lies_in_its_bucket() -> None:
    found = [0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]

    assert percentile_ms(found, SECONDS, 0.5) == 3.75

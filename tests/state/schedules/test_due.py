"""A schedule fires at its instants, each once, whatever the clock and the daemon do."""

from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.json import decode

from feltd.state import instants, schedules
from tests.state.schedules.world import DAY_MS, HOUR_MS, MINUTE_MS, Calendar, at

FEBRUARY = at("UTC", 2026, 2, 1)
TWO = 2 * HOUR_MS


def test_an_instant_makes_one_workload(calendar: Calendar) -> None:
    calendar.schedule(input={"of": "sales"}, priority=7)
    calendar.stand(FEBRUARY + TWO)

    assert calendar.fire() == (1, FEBRUARY + DAY_MS + TWO)
    assert calendar.fire() == (0, FEBRUARY + DAY_MS + TWO)

    job = calendar.row("SELECT * FROM workloads")
    assert job["definition_id"] == "report"
    assert job["trigger"] == "nightly"
    assert job["idempotency_key"] == f"trigger/nightly/instance/{FEBRUARY + TWO}"
    assert decode(job["input"]) == {"of": "sales"}
    assert decode(job["labels"]) == {"scheduled_at_ms": str(FEBRUARY + TWO)}
    assert (job["priority"], job["state"], job["requested_by"]) == (7, "READY", "service:local")
    assert calendar.firings() == [(FEBRUARY + TWO, "fired")]
    row = calendar.trigger()
    assert (row["fired"], row["last_workload_id"]) == (1, job["workload_id"])


def test_a_millisecond_early_is_too_early(calendar: Calendar) -> None:
    calendar.schedule()
    calendar.stand(FEBRUARY + TWO - 1)

    assert calendar.fire() == (0, FEBRUARY + TWO)
    assert calendar.fired() == []


def test_a_round_with_nothing_due_reads_little_and_writes_nothing(calendar: Calendar) -> None:
    for number in range(50):
        calendar.schedule(f"s{number}")
    before = calendar.conn.total_changes

    calendar.fire()

    assert calendar.statements <= 2
    # The commit itself is counted.
    assert calendar.conn.total_changes - before <= 1


@pytest.mark.parametrize("sql", [schedules.FIRST, schedules.RETRY, schedules.DUE])
def test_what_is_due_is_found_by_an_index(calendar: Calendar, sql: str) -> None:
    plan = calendar.conn.execute(
        f"EXPLAIN QUERY PLAN {sql}",
        {"now_ms": 1, "after_ms": 0, "until_ms": 1, "rows": 1},
    ).fetchall()

    told = [row["detail"] for row in plan]
    assert len(told) == 1
    assert "USING INDEX triggers_by_instant" in told[0] or "triggers_retrying" in told[0], told


def test_the_next_instant_is_told_on_the_scale_of_leases(calendar: Calendar) -> None:
    calendar.schedule()
    calendar.step(-30 * MINUTE_MS)

    done, next_at_ms = calendar.fire()

    assert done == 0
    assert next_at_ms == calendar.now.lease_ms + TWO + 30 * MINUTE_MS


# -- outages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missed", "days"), [("skip", []), ("once", [2]), ("all", [0, 1, 2])], ids=str
)
def test_three_days_away(calendar: Calendar, missed: str, days: list[int]) -> None:
    calendar.schedule(missed=missed)
    calendar.stand(FEBRUARY + 3 * DAY_MS)

    calendar.rounds()

    assert calendar.fired() == [FEBRUARY + day * DAY_MS + TWO for day in days]
    row = calendar.trigger()
    assert row["passed_over"] == 3 - len(days)
    assert row["last_at_ms"] == FEBRUARY + 2 * DAY_MS + TWO
    assert row["next_at_ms"] == FEBRUARY + 3 * DAY_MS + TWO


@pytest.mark.parametrize(
    ("late_ms", "fires"), [(0, True), (MINUTE_MS, True), (MINUTE_MS + 1, False)], ids=str
)
def test_a_minute_late_is_on_time(calendar: Calendar, late_ms: int, fires: bool) -> None:
    calendar.schedule(missed="skip")
    calendar.stand(FEBRUARY + TWO + late_ms)

    calendar.rounds()

    assert calendar.fired() == ([FEBRUARY + TWO] if fires else [])
    assert calendar.trigger()["passed_over"] == (0 if fires else 1)


@pytest.mark.parametrize("missed", ["skip", "once"])
@pytest.mark.parametrize("timing", [{"cron": "* * * * *"}, {"every_ms": MINUTE_MS}], ids=str)
def test_each_minute_of_three_days_is_counted_in_bounded_steps(
    calendar: Calendar, missed: str, timing: dict[str, object]
) -> None:
    calendar.schedule(missed=missed, **timing)
    calendar.stand(FEBRUARY + 3 * DAY_MS + 30_000)

    rounds = calendar.rounds()

    assert calendar.fired() == [FEBRUARY + 3 * DAY_MS]
    assert calendar.trigger()["passed_over"] == 3 * 24 * 60 - 1
    assert rounds <= 3 * 24 * 60 // 1_000 + 2


def test_many_schedules_after_an_outage_share_what_an_operation_passes_over(
    calendar: Calendar, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"minutely-{n}" for n in range(25)]
    for name in names:
        calendar.schedule(name, cron="* * * * *")
    calendar.stand(FEBRUARY + 30 * DAY_MS)
    looks = list[int]()
    passed = instants.passed

    def counted(*asked: Any) -> instants.Passed:
        found = passed(*asked)
        looks.append(found.number)
        return found

    monkeypatch.setattr(instants, "passed", counted)
    calendar.fire(limit=50)

    assert len(looks) == len(names)
    assert sum(looks) <= len(names) * schedules.WALKED_MAX
    assert all(calendar.trigger(name)["passed_over"] for name in names)


def test_all_of_a_long_outage_keeps_no_other_schedule_waiting(calendar: Calendar) -> None:
    calendar.schedule("catching-up", cron="*/5 * * * *", missed="all")
    calendar.stand(FEBRUARY + 3 * DAY_MS)
    calendar.schedule("fresh", every_ms=1_000)
    calendar.later(1_000)

    calendar.fire(limit=10)

    assert calendar.fired("fresh") == [FEBRUARY + 3 * DAY_MS + 1_000]
    caught_up = calendar.fired("catching-up")
    assert caught_up == [FEBRUARY + (n + 1) * 5 * MINUTE_MS for n in range(len(caught_up))]
    assert 1 <= len(caught_up) <= 10

    calendar.rounds(limit=100)
    assert len(calendar.fired("catching-up")) == 3 * 24 * 12


# -- clocks ----------------------------------------------------------------------------------------


def test_a_clock_set_back_waits_and_doubles_nothing(calendar: Calendar) -> None:
    calendar.schedule(every_ms=HOUR_MS, missed="all")
    calendar.later(3 * HOUR_MS)
    calendar.rounds()

    calendar.step(-2 * HOUR_MS)
    for _ in range(3):
        calendar.rounds()
        calendar.later(HOUR_MS)
    calendar.rounds()

    assert calendar.fired() == [FEBRUARY + n * HOUR_MS for n in (1, 2, 3, 4)]


@pytest.mark.parametrize(("missed", "hours"), [("skip", [10]), ("all", [*range(1, 11)])], ids=str)
def test_a_clock_set_forward_is_an_outage(
    calendar: Calendar, missed: str, hours: list[int]
) -> None:
    calendar.schedule(every_ms=HOUR_MS, missed=missed)

    calendar.step(10 * HOUR_MS)
    calendar.rounds()
    calendar.step(-10 * HOUR_MS)
    calendar.later(9 * HOUR_MS)
    calendar.rounds()

    assert calendar.fired() == [FEBRUARY + n * HOUR_MS for n in hours]


@pytest.mark.parametrize(
    ("zone", "night"),
    [
        ("Europe/Berlin", (2026, 3, 29)),
        ("Europe/Berlin", (2026, 10, 25)),
        ("America/New_York", (2026, 3, 8)),
        ("America/New_York", (2026, 11, 1)),
        ("Australia/Lord_Howe", (2026, 10, 4)),
        ("Australia/Lord_Howe", (2026, 4, 5)),
    ],
)
def test_one_run_a_night_through_nights_on_which_clocks_shift(
    calendar: Calendar, zone: str, night: tuple[int, int, int]
) -> None:
    """BC-027, served every quarter of an hour."""
    begin = at(zone, *night) - DAY_MS
    calendar.stand(begin)
    calendar.schedule(cron="45 1 * * *", timezone=zone)
    calendar.schedule("at-two", cron="15 2 * * *", timezone=zone)

    while calendar.now.wall_ms < begin + 3 * DAY_MS:
        calendar.later(15 * MINUTE_MS)
        calendar.rounds()

    spec = instants.Spec("* * * * *", None, zone)
    for name in ("nightly", "at-two"):
        days = [instants.local(spec, ms)[:10] for ms in calendar.fired(name)]
        assert len(days) == len(set(days)) == 3
        assert calendar.trigger(name)["passed_over"] == 0


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["later", "step", "round"]),
            st.integers(-3 * HOUR_MS, 9 * HOUR_MS),
        ),
        max_size=25,
    ),
    st.sampled_from([{"every_ms": 1_800_000}, {"cron": "*/20 1-4 * * *", "timezone": "UTC"}]),
    st.sampled_from(["skip", "once", "all"]),
)
def test_whatever_the_clock_does_no_instant_comes_twice(
    steps: list[tuple[str, int]], timing: dict[str, object], missed: str
) -> None:
    """With `all` none is left out either: every one the clock has passed at a round has fired."""
    calendar, furthest = Calendar(), FEBRUARY
    calendar.schedule(missed=missed, **timing)
    for what, ms in [*steps, ("round", 0)]:
        if what == "later":
            calendar.later(abs(ms))
        elif what == "step":
            calendar.step(ms)
        else:
            calendar.rounds()
            furthest = max(furthest, calendar.now.wall_ms)

    fired, row = calendar.fired(), calendar.trigger()
    walk = instants.walk(schedules.spec_of(row), FEBRUARY)
    every = list(takewhile(lambda ms: ms <= furthest, walk))
    assert fired == sorted(set(fired))
    assert set(fired) <= set(every)
    assert len(fired) + row["passed_over"] == len(every)
    if missed == "all":
        assert fired == every
    calendar.close()

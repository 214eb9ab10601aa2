"""Which instants a schedule has: calendars, zones whose clocks shift, intervals."""

from datetime import datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feltd.errors import Refused
from feltd.state import instants
from feltd.state.instants import Spec, following, passed, preview, walk
from tests.state.schedules import oracle

DAY_MS = 86_400_000
#: Where clocks shift: by an hour, by an hour the other way round, by half an hour, at midnight,
#: by a whole day once; never; and far from the whole hour.
ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Havana",
    "Africa/Casablanca",
    "Europe/Dublin",
    "Pacific/Chatham",
    "Asia/Kathmandu",
    "UTC",
)


def at(zone: str, *when: int, fold: int = 0) -> int:
    """The instant at which a zone's clock shows this (the second time with fold = 1)."""
    return int(datetime(*when, tzinfo=ZoneInfo(zone), fold=fold).timestamp() * 1_000)  # type: ignore[arg-type, misc]


def told(cron: str, zone: str, begin: int, count: int) -> list[str]:
    """The first instants after `begin`, as the zone's clock shows them."""
    spec = Spec(cron, None, zone)
    return [instants.local(spec, at_ms) for at_ms in islice(walk(spec, begin), count)]


def shifts(zone: str, year: int) -> list[int]:
    """The hours of UTC in which a zone's clock shifts in a year."""
    tz = ZoneInfo(zone)
    hours = range(at("UTC", year, 1, 1), at("UTC", year + 1, 1, 1), 3_600_000)
    offsets = [(ms, datetime.fromtimestamp(ms // 1_000, tz).utcoffset()) for ms in hours]
    return [later for (_, a), (later, b) in pairwise(offsets) if a != b]


# -- days on which a clock shifts ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "night", "hour", "lands"),
    [
        ("Europe/Berlin", (2026, 3, 29), 2, "2026-03-29T03:00:00+02:00"),
        ("America/New_York", (2026, 3, 8), 2, "2026-03-08T03:00:00-04:00"),
        ("Australia/Lord_Howe", (2026, 10, 4), 2, "2026-10-04T02:30:00+11:00"),
    ],
)
def test_a_time_that_the_clock_jumps_over_runs_right_after_the_gap(
    zone: str, night: tuple[int, int, int], hour: int, lands: str
) -> None:
    days = told(f"15 {hour} * * *", zone, at(zone, *night) - DAY_MS, 3)

    assert days[1] == lands
    assert [day[:10] for day in days] == sorted({day[:10] for day in days})
    assert days[0][11:16] == days[2][11:16] == f"{hour:02}:15"


@pytest.mark.parametrize(
    ("zone", "night", "time", "shown"),
    [
        ("Europe/Berlin", (2026, 10, 25), (2, 30), "2026-10-25T02:30:00+02:00"),
        ("America/New_York", (2026, 11, 1), (1, 30), "2026-11-01T01:30:00-04:00"),
        ("Australia/Lord_Howe", (2026, 4, 5), (1, 45), "2026-04-05T01:45:00+11:00"),
    ],
)
def test_a_time_that_the_clock_shows_twice_runs_the_first_time(
    zone: str, night: tuple[int, int, int], time: tuple[int, int], shown: str
) -> None:
    cron = f"{time[1]} {time[0]} * * *"

    days = told(cron, zone, at(zone, *night), 2)
    after_the_first = told(cron, zone, at(zone, *night, *time), 1)
    between = told(cron, zone, at(zone, *night, *time, fold=1) - 60_000, 1)

    assert days[0] == shown
    assert days[1][:10] > shown[:10]
    assert after_the_first == between == days[1:]


@pytest.mark.parametrize(
    ("zone", "night", "minutes"),
    [
        ("Europe/Berlin", (2026, 3, 29), 23 * 60),
        ("Europe/Berlin", (2026, 10, 25), 25 * 60),
        ("America/New_York", (2026, 3, 8), 23 * 60),
        ("America/New_York", (2026, 11, 1), 25 * 60),
        ("Australia/Lord_Howe", (2026, 10, 4), 24 * 60 - 30),
        ("Australia/Lord_Howe", (2026, 4, 5), 24 * 60 + 30),
    ],
)
def test_every_minute_of_such_a_day_is_due_once(
    zone: str, night: tuple[int, int, int], minutes: int
) -> None:
    begin, end = at(zone, *night), at(zone, *night[:2], night[2] + 1)

    due = list(islice(walk(Spec("* * * * *", None, zone), begin - 1), minutes + 5))

    assert [ms for ms in due if ms < end] == list(range(begin, end, 60_000))
    assert len([ms for ms in due if ms < end]) == minutes


def test_an_hourly_job_runs_each_hour_that_passes() -> None:
    """Also where the clock shows the hour twice, and where it jumps over it."""
    assert told("30 * * * *", "Europe/Berlin", at("Europe/Berlin", 2026, 10, 25, 1), 4) == [
        "2026-10-25T01:30:00+02:00",
        "2026-10-25T02:30:00+02:00",
        "2026-10-25T02:30:00+01:00",
        "2026-10-25T03:30:00+01:00",
    ]
    assert told("30 * * * *", "Europe/Berlin", at("Europe/Berlin", 2026, 3, 29, 1), 2) == [
        "2026-03-29T01:30:00+01:00",
        "2026-03-29T03:30:00+02:00",
    ]


def test_half_an_hour_shifts_no_hour_out_of_sight() -> None:
    """03:00 to 03:29 follow the gap of Lord Howe, and 01:35 comes twice before its winter."""
    howe = "Australia/Lord_Howe"

    assert told("* 3 * * *", howe, at(howe, 2026, 10, 4), 1) == ["2026-10-04T03:00:00+11:00"]
    assert told("35 * * * *", howe, at(howe, 2026, 4, 5, 1), 3) == [
        "2026-04-05T01:35:00+11:00",
        "2026-04-05T01:35:00+10:30",
        "2026-04-05T02:35:00+10:30",
    ]
    assert told("10,20 * * * *", howe, at(howe, 2026, 10, 4, 1, 15), 2) == [
        "2026-10-04T01:20:00+10:30",
        "2026-10-04T03:10:00+11:00",
    ]


def test_times_inside_one_gap_run_once_together() -> None:
    berlin = "Europe/Berlin"

    assert told("0,20,40 2,3 * * *", berlin, at(berlin, 2026, 3, 29), 3) == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-29T03:20:00+02:00",
        "2026-03-29T03:40:00+02:00",
    ]


def test_one_run_a_local_day_over_years() -> None:
    """BC-027: a daily job runs once each local day, whatever the clocks do."""
    for zone in ZONES:
        spec = Spec("30 2 * * *", None, zone)
        runs = list(islice(walk(spec, at("UTC", 2025, 1, 1)), 1_500))
        days = [instants.local(spec, ms)[:10] for ms in runs]
        first = datetime.fromisoformat(days[0])
        assert days == [f"{first + timedelta(days=n):%Y-%m-%d}" for n in range(1_500)]


# -- calendars -------------------------------------------------------------------------------------


def test_leap_days_and_ends_of_months() -> None:
    begin = at("UTC", 2026, 1, 15)

    assert [day[:10] for day in told("0 0 29 2 *", "UTC", begin, 2)] == ["2028-02-29", "2032-02-29"]
    assert [day[:10] for day in told("0 0 31 * *", "UTC", begin, 4)] == [
        "2026-01-31",
        "2026-03-31",
        "2026-05-31",
        "2026-07-31",
    ]
    assert [day[:10] for day in told("0 0 L * *", "UTC", begin, 3)] == [
        "2026-01-31",
        "2026-02-28",
        "2026-03-31",
    ]
    assert [day[:10] for day in told("0 9 * * MON#1", "UTC", begin, 2)] == [
        "2026-02-02",
        "2026-03-02",
    ]
    assert [day[:10] for day in told("0 9 LW * *", "UTC", begin, 2)] == ["2026-01-30", "2026-02-27"]


def test_two_day_fields_mean_either_and_a_star_means_both() -> None:
    begin = at("UTC", 2026, 2, 1)

    either = [day[:10] for day in told("0 0 13 * FRI", "UTC", begin, 3)]
    both = [day[:10] for day in told("0 0 */13 * FRI", "UTC", begin, 2)]

    assert either == ["2026-02-06", "2026-02-13", "2026-02-20"]
    assert both == ["2026-02-27", "2026-03-27"]


def test_a_span_of_one_number_is_that_number_whatever_its_step() -> None:
    assert told("0 7-7/2 * * *", "UTC", at("UTC", 2026, 2, 1), 2) == [
        "2026-02-01T07:00:00+00:00",
        "2026-02-02T07:00:00+00:00",
    ]
    assert told("0 7/8 * * *", "UTC", at("UTC", 2026, 2, 1), 3) == [
        "2026-02-01T07:00:00+00:00",
        "2026-02-01T15:00:00+00:00",
        "2026-02-01T23:00:00+00:00",
    ]


# -- against the slow way --------------------------------------------------------------------------


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    """One field of a cron."""
    number = st.integers(low, high)
    spread = st.tuples(number, number).map(lambda two: f"{min(two)}-{max(two)}")
    step = st.tuples(st.one_of(st.just("*"), spread), st.integers(1, 40))
    return st.one_of(
        st.just("*"),
        number.map(str),
        step.map(lambda two: f"{two[0]}/{two[1]}"),
        spread,
        st.lists(number, min_size=2, max_size=4).map(lambda some: ",".join(map(str, some))),
    )


CRONS = st.tuples(
    fields(0, 59), fields(0, 23), st.one_of(st.just("*"), fields(1, 31)), st.just("*"), fields(0, 7)
).map(" ".join)
#: Minutes in the small hours, where clocks shift.
NIGHTLY = st.tuples(fields(0, 59), fields(0, 4)).map(lambda two: f"{two[0]} {two[1]} * * *")
#: Each hour in which one of the zones shifts within a year; some in which none does.
NIGHTS = [(zone, ms) for zone in ZONES for ms in (*shifts(zone, 2026), at("UTC", 2026, 6, 15))]


def agree(cron: str, zone: str, begin_ms: int, end_ms: int) -> None:
    """Both ways find the same, from the beginning and from every minute's middle."""
    slow = list(oracle.instants(cron, zone, begin_ms, end_ms))
    fast = []
    for at_ms in walk(Spec(cron, None, zone), begin_ms):
        if at_ms > end_ms:
            break
        fast.append(at_ms)
    assert fast == slow, (cron, zone)


@settings(max_examples=60, deadline=None)
@given(st.one_of(CRONS, NIGHTLY), st.sampled_from(NIGHTS))
def test_no_instant_differs_from_those_of_a_clock_watched_minute_by_minute(
    cron: str, night: tuple[str, int]
) -> None:
    zone, shift_ms = night

    agree(cron, zone, shift_ms - 26 * 3_600_000, shift_ms + 24 * 3_600_000)


@settings(max_examples=50, deadline=None)
@given(NIGHTLY, st.sampled_from(NIGHTS), st.integers(-4 * 60, 4 * 60), st.integers(0, 59_999))
def test_what_follows_an_instant_does_not_depend_on_where_the_walk_began(
    cron: str, night: tuple[str, int], minutes: int, ms: int
) -> None:
    """A daemon that starts in the middle of a shift goes on where the one before stood."""
    zone, shift_ms = night
    spec, begin_ms = Spec(cron, None, zone), shift_ms - 26 * 3_600_000
    here = shift_ms + minutes * 60_000 + ms

    through = next(at_ms for at_ms in walk(spec, begin_ms) if at_ms > here)

    assert following(spec, here) == through


@pytest.mark.soak
def test_every_zone_there_is_on_each_of_its_nights() -> None:
    for zone in sorted(available_timezones()):
        if zone.startswith(instants.NO_ZONES):
            continue
        for shift_ms in (*shifts(zone, 2026), *shifts(zone, 2027)):
            for cron in ("30 * * * *", "*/20 0-3 * * *", "30 0,1,2,23 * * *", "15 2 * * 0"):
                agree(cron, zone, shift_ms - 26 * 3_600_000, shift_ms + 24 * 3_600_000)


# -- intervals -------------------------------------------------------------------------------------


def test_an_interval_is_counted_from_its_anchor_and_never_drifts() -> None:
    spec = Spec(None, 90_000, anchor_at_ms=1_000_007)

    assert following(spec, 1_000_007) == 1_090_007
    assert following(spec, 1_090_006) == 1_090_007
    assert following(spec, 1_090_007) == 1_180_007
    assert following(spec, 1_234_567_890) == 1_000_007 + 90_000 * 13_707
    assert following(spec, 0) == 1_090_007  # the clock stands before the anchor: not due twice


@given(st.integers(1_000, 10**8), st.integers(0, 10**12), st.integers(0, 10**12))
def test_what_passed_of_an_interval_is_counted_without_walking(
    every_ms: int, after_ms: int, span_ms: int
) -> None:
    spec, until_ms = Spec(None, every_ms, anchor_at_ms=10**11), after_ms + span_ms

    found = passed(spec, after_ms, until_ms, most=1)

    first = following(spec, after_ms)
    assert first is not None
    assert found.more is False
    if found.newest is None:
        assert (found.number, found.before) == (0, None)
        assert first > until_ms
    else:
        assert found.newest <= until_ms < found.newest + every_ms
        assert found.number == (found.newest - first) // every_ms + 1
        assert found.before == (found.newest - every_ms if found.number > 1 else None)


def test_what_passed_of_a_cron_is_counted_in_bounded_steps() -> None:
    spec, begin = Spec("* * * * *", None, "UTC"), at("UTC", 2026, 1, 1)

    some = passed(spec, begin, begin + DAY_MS, most=1_000)
    assert some == (1_000, begin + 1_000 * 60_000, begin + 999 * 60_000, True)
    assert some.newest is not None
    rest = passed(spec, some.newest, begin + DAY_MS, most=1_000)
    assert rest == (440, begin + DAY_MS, begin + DAY_MS - 60_000, False)
    assert passed(spec, begin, begin + 1, most=10) == (0, None, None, False)


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cron",
    [
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "5-1 * * * *",
        "*/0 * * * *",
        ",, * * * *",
        "@daily x x x x",
        "0 0 30 2 *",
        "0 0 31 4,6 *",
        "0 0 29 2 */7",
        "1/2/3 * * * *",
        f"{'9' * 200} * * * *",
    ],
)
def test_fields_that_say_nothing_are_refused(cron: str) -> None:
    with pytest.raises(Refused) as refused:
        instants.check(Spec(cron, None, "UTC"), at("UTC", 2026, 1, 1))

    assert refused.value.code == "TRIGGER_INVALID"
    assert refused.value.facts["errors"][0]["pointer"] == "/cron"


@pytest.mark.parametrize(
    "name", ["Mars/Base", "Europe", "right/UTC", "posix/UTC", "localtime", "../UTC", "/etc/passwd"]
)
def test_a_zone_nobody_knows_is_refused(name: str) -> None:
    with pytest.raises(Refused) as refused:
        instants.check(Spec("* * * * *", None, name), 0)

    assert refused.value.code == "TRIGGER_INVALID"
    assert refused.value.facts["errors"][0]["pointer"] == "/timezone"


@settings(max_examples=150, deadline=None)
@given(st.text("0123456789*/,#-LWMONSUJA ", min_size=9, max_size=40), st.sampled_from(ZONES))
def test_any_text_is_read_or_refused(cron: str, zone: str) -> None:
    spec, begin = Spec(cron, None, zone), at("UTC", 2026, 1, 1)
    code = None
    try:
        instants.check(spec, begin)
    except Refused as refused:
        code = refused.code

    assert code == "TRIGGER_INVALID" if code else preview(spec, begin, 3)


def test_the_end_of_the_calendar_is_the_end() -> None:
    spec = Spec("0 0 1 1 *", None, "Europe/Berlin")

    assert following(spec, 2**53 - 1) is None
    assert following(spec, -(2**53)) == at("Europe/Berlin", 1971, 1, 1)
    assert following(Spec(None, 1_000, anchor_at_ms=0), 2**53 - 1) is None


def test_a_look_ahead_has_as_many_as_are_asked_for() -> None:
    begin = at("UTC", 2026, 1, 1)

    assert preview(Spec(None, 60_000, anchor_at_ms=begin), begin, 3) == [
        begin + 60_000,
        begin + 120_000,
        begin + 180_000,
    ]
    assert len(preview(Spec("0 0 29 2 *", None, "UTC"), begin, 100)) == 12

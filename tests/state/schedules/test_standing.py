"""What stops a schedule, what starts it again, what changes it, and runs out of turn."""

import pytest

from feltd.errors import Refused
from feltd.model.base import Caller, Subject
from feltd.model.schedule import Preview
from feltd.model.trigger import Disable
from feltd.state import firing, schedules, triggers
from tests.state.schedules.world import DAY_MS, HOUR_MS, MINUTE_MS, Calendar, at

FEBRUARY = at("UTC", 2026, 2, 1)
TWO = 2 * HOUR_MS


# -- overlap ---------------------------------------------------------------------------------------


def test_with_overlap_skip_an_instant_that_meets_unfinished_work_makes_none(
    calendar: Calendar,
) -> None:
    calendar.schedule(every_ms=HOUR_MS, overlap="skip")
    for _ in range(3):
        calendar.later(HOUR_MS)
        calendar.rounds()

    assert calendar.fired() == [FEBRUARY + HOUR_MS]
    assert [outcome for _, outcome in calendar.firings()] == ["fired", "overlap", "overlap"]
    assert calendar.trigger()["passed_over"] == 2

    calendar.finish(calendar.trigger()["last_workload_id"])
    calendar.later(HOUR_MS)
    calendar.rounds()

    assert calendar.fired() == [FEBRUARY + HOUR_MS, FEBRUARY + 4 * HOUR_MS]


def test_work_that_has_died_overlaps_nothing(calendar: Calendar) -> None:
    calendar.schedule(every_ms=HOUR_MS, overlap="skip", retry_policy={"max_attempts": 1})
    calendar.later(HOUR_MS)
    calendar.rounds()
    job = calendar.trigger()["last_workload_id"]
    held = calendar.claims(job, by=calendar.worker(capabilities=["docs.extract"]), start=True)
    calendar.say("fail", held)
    assert calendar.state(job) == "DEAD_LETTERED"

    calendar.later(HOUR_MS)
    calendar.rounds()

    assert len(calendar.fired()) == 2


def test_with_overlap_allow_runs_stand_side_by_side(calendar: Calendar) -> None:
    calendar.schedule(every_ms=HOUR_MS)
    for _ in range(3):
        calendar.later(HOUR_MS)
        calendar.rounds()

    assert len(calendar.fired()) == 3


def test_after_an_outage_with_all_and_skip_one_fires_and_the_rest_overlap(
    calendar: Calendar,
) -> None:
    calendar.schedule(every_ms=HOUR_MS, missed="all", overlap="skip")
    calendar.later(5 * HOUR_MS)
    calendar.rounds()

    assert [outcome for _, outcome in calendar.firings()] == ["fired"] + ["overlap"] * 4
    assert calendar.trigger()["passed_over"] == 4


# -- stopped and started ---------------------------------------------------------------------------


def test_the_time_a_schedule_was_disabled_is_not_missed(calendar: Calendar) -> None:
    calendar.schedule(every_ms=HOUR_MS, missed="all")
    calendar.later(HOUR_MS)
    calendar.rounds()
    calendar.manage(triggers.disable, body=Disable("the printer is broken"))
    calendar.later(10 * HOUR_MS + 1)
    calendar.rounds()
    assert calendar.trigger()["next_at_ms"] is None

    calendar.manage(triggers.enable)
    assert ("instant", str(FEBRUARY + 12 * HOUR_MS)) in calendar.signals
    calendar.rounds()
    calendar.later(HOUR_MS)
    calendar.rounds()

    assert calendar.fired() == [FEBRUARY + HOUR_MS, FEBRUARY + 12 * HOUR_MS]
    assert calendar.trigger()["passed_over"] == 0


def test_enabled_by_a_clock_that_was_set_back_it_still_repeats_nothing(calendar: Calendar) -> None:
    calendar.schedule(every_ms=HOUR_MS)
    calendar.later(5 * HOUR_MS)
    calendar.rounds()
    calendar.manage(triggers.disable, body=Disable())
    calendar.step(-3 * HOUR_MS)

    calendar.manage(triggers.enable)

    assert calendar.trigger()["next_at_ms"] == FEBRUARY + 6 * HOUR_MS


def test_an_instant_that_cannot_fire_is_tried_again_and_at_last_disables(
    calendar: Calendar,
) -> None:
    """Its pool is gone: what the creation says is what status shows."""
    calendar.schedule(missed="once")
    calendar.schedule("good")
    calendar.hand(
        """UPDATE triggers SET work = '{"placement":{"pool_id":"gone"}}'
            WHERE trigger_id = 'nightly'"""
    )
    calendar.stand(FEBRUARY + TWO)

    calendar.rounds()
    assert calendar.fired("good") == [FEBRUARY + TWO]
    waits = []
    while calendar.trigger()["enabled"]:
        row = calendar.trigger()
        waits.append(row["retry_at_ms"] - calendar.now.lease_ms)
        assert row["next_at_ms"] == FEBRUARY + TWO
        assert calendar.fire()[1] == row["retry_at_ms"]
        calendar.later(waits[-1])
        calendar.rounds()

    assert waits == [1_000, 2_000, 4_000, 8_000]
    row = calendar.trigger()
    assert row["disabled_by"] == firing.FELTD
    assert row["disabled_reason"].startswith("WORKER_POOL_NOT_FOUND")
    assert calendar.fired() == []

    calendar.hand("UPDATE triggers SET work = '{}' WHERE trigger_id = 'nightly'")
    calendar.manage(triggers.enable)
    calendar.later(DAY_MS)
    calendar.rounds()
    assert calendar.fired() == [FEBRUARY + DAY_MS + TWO]


def test_an_instant_that_fires_at_the_second_try_fires_once(calendar: Calendar) -> None:
    calendar.schedule(every_ms=HOUR_MS)
    calendar.hand('UPDATE triggers SET work = \'{"placement":{"pool_id":"gone"}}\'')
    calendar.later(HOUR_MS)
    calendar.rounds()
    calendar.hand("UPDATE triggers SET work = '{}'")
    calendar.rounds()
    assert calendar.fired() == []  # it waits for its retry

    calendar.later(1_000)
    calendar.rounds()

    row = calendar.trigger()
    assert calendar.fired() == [FEBRUARY + HOUR_MS]
    assert (row["failures"], row["failure"], row["retry_at_ms"]) == (0, None, None)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("work", '{"priority":"high"}'),
        ("work", "{not json}"),
        ("timezone", "Mars/Base"),
        ("cron", "every day"),
    ],
)
def test_a_row_that_somebody_broke_stops_no_other(
    calendar: Calendar, column: str, text: str
) -> None:
    calendar.schedule("broken")
    calendar.schedule("good")
    calendar.hand(
        """UPDATE triggers
              SET work = CASE :column WHEN 'work' THEN :text ELSE work END,
                  timezone = CASE :column WHEN 'timezone' THEN :text ELSE timezone END,
                  cron = CASE :column WHEN 'cron' THEN :text ELSE cron END
            WHERE trigger_id = 'broken'""",
        column=column,
        text=text,
    )
    calendar.stand(FEBRUARY + TWO)

    for _ in range(20):
        calendar.rounds()
        calendar.later(1_000)

    assert calendar.fired("good") == [FEBRUARY + TWO]
    row = calendar.trigger("broken")
    assert (row["enabled"], row["fired"]) == (0, 0)
    assert row["disabled_reason"].startswith("TRIGGER_INVALID")


# -- defined again ---------------------------------------------------------------------------------


def test_another_policy_goes_on_at_the_same_instant(calendar: Calendar) -> None:
    calendar.schedule(every_ms=HOUR_MS)
    calendar.later(30 * MINUTE_MS)

    calendar.schedule(every_ms=HOUR_MS, missed="all", overlap="skip", priority=3)

    row = calendar.trigger()
    assert (row["anchor_at_ms"], row["next_at_ms"]) == (FEBRUARY, FEBRUARY + HOUR_MS)
    assert (row["missed"], row["overlap"]) == ("all", "skip")


@pytest.mark.parametrize(
    "timing",
    [
        {"every_ms": 7 * MINUTE_MS},
        {"cron": "* * * * *"},
        {"cron": "0 5 * * *", "timezone": "Asia/Tokyo"},
    ],
    ids=str,
)
def test_another_timing_begins_behind_now_and_what_was_dealt_with(
    calendar: Calendar, timing: dict[str, object]
) -> None:
    calendar.schedule(every_ms=HOUR_MS, missed="all")
    calendar.later(2 * HOUR_MS)
    calendar.rounds()
    calendar.step(-90 * MINUTE_MS)

    calendar.schedule(missed="all", **timing)

    assert calendar.trigger()["next_at_ms"] > FEBRUARY + 2 * HOUR_MS
    assert calendar.trigger()["last_at_ms"] == FEBRUARY + 2 * HOUR_MS


def test_the_same_definition_twice_changes_nothing(calendar: Calendar) -> None:
    calendar.schedule(cron="0  2 * * *")
    before = tuple(calendar.trigger())
    calendar.later(MINUTE_MS)

    calendar.schedule(cron="0 2 * * *")

    assert tuple(calendar.trigger()) == before


def test_deleted_and_defined_anew_under_a_clock_set_back_it_doubles_nothing(
    calendar: Calendar,
) -> None:
    calendar.schedule(cron="0 * * * *")
    calendar.later(HOUR_MS)
    calendar.rounds()
    calendar.manage(triggers.delete)
    calendar.step(-30 * MINUTE_MS)

    calendar.schedule(cron="0 * * * *")
    calendar.later(30 * MINUTE_MS)
    calendar.rounds()
    calendar.later(HOUR_MS)
    calendar.rounds()

    assert calendar.fired() == [FEBRUARY + HOUR_MS, FEBRUARY + 2 * HOUR_MS]


def test_tenants_have_schedules_of_one_name_each_their_own(calendar: Calendar) -> None:
    calendar.schedule()
    calendar.schedule(tenant_id="globex")
    calendar.stand(FEBRUARY + TWO)

    calendar.rounds()

    assert calendar.fired() == calendar.fired(tenant_id="globex") == [FEBRUARY + TWO]


@pytest.mark.parametrize(
    "wrong",
    [
        {"cron": "0 2 * * *", "every_ms": 1_000},
        {"cron": "0 2 * * *", "start": "head"},
        {"cron": "0 2 * * *", "source_collection": "orders"},
        {"cron": "0 2 * * *", "change_kind": "any"},
    ],
    ids=str,
)
def test_a_schedule_has_one_timing_and_no_members_of_a_state_trigger(
    calendar: Calendar, wrong: dict[str, object]
) -> None:
    with pytest.raises(Refused) as refused:
        calendar.schedule(**wrong)

    assert refused.value.code == "TRIGGER_INVALID"


# -- out of turn -----------------------------------------------------------------------------------


def test_a_run_by_hand_uses_up_no_instant(calendar: Calendar) -> None:
    calendar.schedule()
    calendar.stand(FEBRUARY + TWO)

    first, second = calendar.run_now(), calendar.run_now()
    calendar.rounds()

    assert first != second
    assert calendar.fired() == [FEBRUARY + TWO, FEBRUARY + TWO + 1, FEBRUARY + TWO]
    assert calendar.trigger()["fired"] == 3
    assert calendar.row("SELECT count(*) AS n FROM events WHERE kind = 'run_trigger'")["n"] == 2
    assert calendar.row("SELECT count(*) AS n FROM audit WHERE action = 'run_trigger'")["n"] == 2


def test_a_disabled_schedule_can_be_run_by_hand_and_stays_disabled(calendar: Calendar) -> None:
    calendar.schedule()
    calendar.manage(triggers.disable, body=Disable())

    calendar.run_now()

    row = calendar.trigger()
    assert (row["enabled"], row["next_at_ms"], row["fired"]) == (0, None, 1)


def test_a_run_by_hand_that_is_unfinished_overlaps_the_next_instant(calendar: Calendar) -> None:
    calendar.schedule(overlap="skip")
    calendar.run_now()
    calendar.stand(FEBRUARY + TWO)

    calendar.rounds()

    assert calendar.firings() == [(FEBRUARY + TWO, "overlap")]


def test_what_refuses_a_run_by_hand_counts_as_no_failure(calendar: Calendar) -> None:
    calendar.schedule()
    calendar.hand('UPDATE triggers SET work = \'{"placement":{"pool_id":"gone"}}\'')

    assert calendar.refused(calendar.run_now) == "WORKER_POOL_NOT_FOUND"
    assert calendar.trigger()["failures"] == 0


def test_only_schedules_are_run_by_hand_and_only_by_who_may(calendar: Calendar) -> None:
    calendar.schedule()
    calendar.schedule("watch", kind="state", cron=None, source_collection="o", change_kind="any")
    stranger = Caller(
        subject=Subject("service", "stranger"),
        scopes=frozenset({"*"}),
        tenants=("globex",),
        local=True,
    )
    reader = Caller(
        subject=Subject("service", "reader"),
        scopes=frozenset({"triggers:read"}),
        tenants=("acme",),
        local=True,
    )

    assert calendar.refused(lambda: calendar.run_now("watch")) == "TRIGGER_INVALID"
    assert calendar.refused(lambda: calendar.run_now("unheard-of")) == "TRIGGER_NOT_FOUND"
    assert calendar.refused(lambda: calendar.run_now(caller=stranger)) == "TRIGGER_NOT_FOUND"
    assert calendar.refused(lambda: calendar.run_now(caller=reader)) == "FORBIDDEN"
    assert calendar.fired() == []


def test_a_preview_shows_what_the_clock_of_the_zone_will_show(calendar: Calendar) -> None:
    calendar.stand(at("Europe/Berlin", 2026, 3, 27, 12))
    calendar.schedule(cron="30 2 * * *", timezone="Europe/Berlin", enabled=False)

    shown = calendar.manage(triggers.preview, body=Preview(3))

    assert [instant.local for instant in shown.instants] == [
        "2026-03-28T02:30:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]
    assert shown.instants[1].at_ms == at("Europe/Berlin", 2026, 3, 29, 3)
    assert shown.enabled is False


def test_two_rounds_at_once_make_one_workload(calendar: Calendar) -> None:
    """Keepers of two daemons cannot stand side by side; two slices in one commit can."""
    calendar.schedule()
    calendar.stand(FEBRUARY + TWO)

    def twice(tx, _, now):  # type: ignore[no-untyped-def]
        return schedules.fire_due(tx, 100, now), schedules.fire_due(tx, 100, now)

    assert [done for done, _ in calendar.run(twice)] == [1, 0]
    assert calendar.fired() == [FEBRUARY + TWO]

"""What is promised of schedules is looked for: each broken promise is told."""

import pytest

from feltd.state import promises
from tests.state.schedules.world import HOUR_MS, Calendar

FREE = "DROP TRIGGER workloads_keep_their_id"

BROKEN = {
    "an instant beyond the last one": (
        ["DROP TRIGGER schedules_never_repeat", "UPDATE triggers SET last_at_ms = NULL"],
        "SCHEDULE",
    ),
    "counted too low": (["UPDATE triggers SET fired = 0"], "SCHEDULE"),
    "a workload that is gone": (
        ["PRAGMA foreign_keys = OFF", "DELETE FROM workloads WHERE trigger = 'nightly'"],
        "SCHEDULE",
    ),
    "the key of another instant": (
        [FREE, "UPDATE workloads SET idempotency_key = idempotency_key || '0'"],
        "SCHEDULE",
    ),
    "another trigger's": (["UPDATE workloads SET trigger = 'other'"], "SCHEDULE"),
    "another tenant": ([FREE, "UPDATE workloads SET tenant_id = 'globex'"], "I11"),
    "another application": ([FREE, "UPDATE workloads SET application_id = 'mail'"], "I11"),
}


@pytest.mark.parametrize("wrong", BROKEN, ids=str)
def test_a_broken_promise_is_told(calendar: Calendar, wrong: str) -> None:
    statements, promise_id = BROKEN[wrong]
    calendar.schedule(every_ms=HOUR_MS)
    calendar.later(HOUR_MS)
    calendar.rounds()
    calendar.run_now()
    assert calendar.run(lambda tx, _, now: promises.ask(tx)) == []

    for statement in statements:
        calendar.hand(statement)

    told = calendar.run(lambda tx, _, now: promises.ask(tx))
    assert promise_id in {broken.id for broken in told}

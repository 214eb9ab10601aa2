"""A worker's log tells ahead what will end it."""

import logging

import pytest

from feltd.worker.expiry import DAY_MS, Expiry

NOW_MS = 1_900_000_000_000


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [one.getMessage() for one in caplog.records if one.name == "feltd.worker"]
    caplog.clear()
    return found


def test_what_ends_within_a_week_is_told_once_a_day(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "feltd.worker")
    expiry = Expiry()
    ends_ms = NOW_MS + 7 * DAY_MS + 1

    def hear(at_ms: int) -> list[str]:
        expiry.hear({"wall_time_ms": at_ms, "grant_expires_at_ms": ends_ms})
        return told(caplog)

    assert hear(NOW_MS) == []
    [first] = hear(NOW_MS + 1)
    assert "the grant of this worker ends in 168 h" in first
    assert "feltd grants extend" in first
    assert hear(NOW_MS + DAY_MS) == []
    assert len(hear(NOW_MS + DAY_MS + 1)) == 1


def test_a_key_that_ends_is_told_beside_the_grant(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "feltd.worker")
    Expiry().hear(
        {
            "wall_time_ms": NOW_MS,
            "grant_expires_at_ms": NOW_MS + DAY_MS,
            "key_expires_at_ms": NOW_MS + DAY_MS,
        }
    )
    assert [one.split()[1] for one in told(caplog)] == ["grant", "key"]


def test_what_never_ends_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "feltd.worker")
    Expiry().hear({"wall_time_ms": NOW_MS, "grant_expires_at_ms": None})
    assert told(caplog) == []

"""What the daemon says of itself: an observation with its reasons, never a promise."""

import json
import time
from types import SimpleNamespace

import msgspec
import pytest

from feltd.api.health import (
    CLEAN,
    RECOVERED,
    Finding,
    Health,
    overall_status,
    wal_reset_affected,
)
from feltd.api.request import reply
from feltd.clock import SKEW_MS_MAX, LeaseClock
from feltd.model.health import HealthAnswer, StorageDetail

TORN = Finding(RECOVERED, {"byte_offset": 128, "discarded_bytes": 40}, "unclean")


class Clock(LeaseClock):
    """A lease clock whose wall clock is moved by hand."""

    moved_ms = 0

    def skew_ms(self) -> int:
        return self.moved_ms


def health(finding: Finding = Finding()) -> Health:  # noqa: B008
    return Health(finding, Clock())


def reasons(one: Health) -> list[str]:
    return [reason.code for reason in one.look()["reasons"]]


def test_a_recovered_database_is_reported_degraded() -> None:
    """The twin of the seeds' test of the same name."""
    assert health().look()["status"] == "healthy"
    torn = health(TORN).look()
    assert torn["status"] == "degraded"
    assert torn["storage_detail"] == {"byte_offset": 128, "discarded_bytes": 40}
    assert "40 bytes of an incomplete write at byte 128" in torn["reasons"][0].detail


@pytest.mark.parametrize(
    "finding", [Finding(), TORN, Finding(RECOVERED, {"missing_commits": None})], ids=str
)
def test_what_is_told_is_what_is_documented(finding: Finding) -> None:
    one = health(finding)
    one.note("DISK_LOW", "9 bytes")
    told = json.loads(reply(200, one.look()).body)
    documented = msgspec.convert(told, HealthAnswer)
    assert set(told) <= {field.name for field in msgspec.structs.fields(HealthAnswer)}
    assert "DISK_LOW" in {reason.code for reason in documented.reasons}
    if finding.detail is not None:
        assert set(told["storage_detail"]) <= set(StorageDetail.__struct_fields__)


def test_membership_and_clock_still_count() -> None:
    """The twin of the seeds' test of the same name."""
    one = health()
    one.recovering_until_ms = 2**60
    assert (one.look()["status"], one.look()["membership"]) == ("degraded", "recovering")
    one.recovering_until_ms = 0
    one._clock.moved_ms = SKEW_MS_MAX + 1  # type: ignore[attr-defined]
    assert (one.look()["status"], one.look()["clock"]) == ("degraded", "unhealthy")
    one._clock.moved_ms = 0  # type: ignore[attr-defined]
    assert one.look()["status"] == "healthy"
    worst = health(TORN)
    worst.recovering_until_ms = 2**60
    worst._clock.moved_ms = -(SKEW_MS_MAX + 1)  # type: ignore[attr-defined]
    assert worst.look()["status"] == "degraded"
    assert set(reasons(worst)) == {"STORAGE_RECOVERED", "MEMBERSHIP_RECOVERING", "CLOCK_STEPPED"}
    assert (overall_status(False), overall_status(True)) == ("healthy", "degraded")


def test_what_a_person_has_time_for_is_told_and_degrades_nothing() -> None:
    one = health()
    for code in ("BACKUP_FAILED", "CERTIFICATE_UNREADABLE", "EXPIRING", "CLAIMS_HELD"):
        one.note(code, "something")
    assert one.look()["status"] == "healthy"
    assert len(reasons(one)) == 4
    for code in ("DISK_LOW", "WAL_LARGE", "STORAGE_FAILING", "KEEPER_FAILING", "FOREIGN_WRITE"):
        worse = health()
        worse.note(code, "something")
        assert worse.look()["status"] == "degraded", code


def test_the_storage_label_is_an_observation_not_a_promise() -> None:
    """The twin of the seeds' test of the same name."""
    assert (CLEAN, RECOVERED) == ("clean", "recovered-incomplete-write")
    for finding in (Finding(), TORN, Finding(RECOVERED, {"missing_commits": None}, "unclean")):
        assert "durable" not in str(health(finding).look())


def test_a_rolled_back_database_says_how_much_is_missing() -> None:
    some = health(Finding(RECOVERED, {"missing_commits": 3})).look()
    unknown = health(Finding(RECOVERED, {"missing_commits": None})).look()
    assert some["storage_detail"] == {"missing_commits": 3}
    assert unknown["storage_detail"] == {"missing_commits": None}
    assert "3 commits are missing" in some["reasons"][0].detail
    assert "unknown number of commits" in unknown["reasons"][0].detail


def test_what_is_acknowledged_degrades_nothing_and_is_still_told() -> None:
    one = health(TORN)
    assert not one.storage_sound
    one.acknowledge()
    told = one.look()
    assert (told["status"], told["storage"]) == ("healthy", RECOVERED)
    assert one.storage_sound


def test_an_unclean_stop_alone_degrades_nothing() -> None:
    told = health(Finding(last_stop="unclean")).look()
    assert (told["status"], told["last_stop"]) == ("healthy", "unclean")


def test_a_reason_keeps_the_time_it_began_and_goes_when_it_ends() -> None:
    one = health()
    one.note("DISK_LOW", "9 bytes")
    since_at_ms = one.look()["reasons"][0].since_at_ms
    time.sleep(0.003)
    one.note("DISK_LOW", "8 bytes")
    assert one.look()["reasons"][0].since_at_ms == since_at_ms
    assert one.look()["reasons"][0].detail == "8 bytes"
    one.note("DISK_LOW", None)
    assert one.look()["status"] == "healthy"


def test_a_keeper_that_fails_or_falls_silent_is_seen() -> None:
    """BC-096."""
    one = health()
    record = SimpleNamespace(failing=3, last_ok_ms=1_700_000_000_000, trouble="OSError: full")
    keeper = SimpleNamespace(records={"mark": record}, round_at_s=time.monotonic())
    one.keeper = keeper
    told = one.look()
    assert (told["status"], told["keeper"]) == ("degraded", "failing")
    assert "mark failed 3 times in a row, last success at 1700000000000: OSError: full" in (
        told["reasons"][0].detail
    )
    record.failing = 0
    assert one.look()["keeper"] == "healthy"
    keeper.round_at_s -= 60
    assert "no round has ended for" in one.look()["reasons"][0].detail


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 53, 0), False),
    ],
)
def test_which_sqlite_has_the_wal_reset_fault(version: tuple[int, ...], affected: bool) -> None:
    assert wal_reset_affected(version) is affected

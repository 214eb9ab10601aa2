"""Which timeout comes first: pure arithmetic over a row."""

from typing import Any

import pytest

from feltd.mesh import deadlines
from feltd.model.base import INTEGER_MAX

ALL = '{"queue_ms":10,"start_ms":20,"execution_ms":30,"total_ms":1000}'


def row(state: str, timeouts: str = ALL, **members: Any) -> dict[str, Any]:
    return {
        "state": state,
        "timeouts": timeouts,
        "created_at_ms": 100,
        "requeued_at_ms": None,
        "ready_at_ms": 100,
        "eligible_at_ms": 100,
        "issued_at_ms": 200,
        "started_at_ms": 300,
        **members,
    }


@pytest.mark.parametrize(
    ("state", "member", "at_ms", "kind"),
    [
        ("PENDING", "total_ms", 1_100, "total_timeout"),
        ("READY", "queue_ms", 110, "queue_timeout"),
        ("CLAIMED", "start_ms", 220, "timeout"),
        ("RUNNING", "execution_ms", 330, "timeout"),
        ("CHECKPOINTED", "execution_ms", 330, "timeout"),
    ],
)
def test_each_state_has_its_timeout(state: str, member: str, at_ms: int, kind: str) -> None:
    end = deadlines.first(row(state))
    assert end is not None
    assert (end.member, end.at_ms, end.kind) == (member, at_ms, kind)


@pytest.mark.parametrize("state", ["READY", "CLAIMED", "RUNNING", "CHECKPOINTED"])
def test_total_comes_first_where_it_is_earlier_or_as_early(state: str) -> None:
    for total_ms in (1, 10):
        timeouts = ALL.replace("1000", str(total_ms)).replace("100}", f"{total_ms}}}")
        end = deadlines.first(row(state, timeouts))
        assert end is not None
        assert (end.member, end.at_ms) == ("total_ms", 100 + total_ms)


@pytest.mark.parametrize("state", ["COMPLETED", "DEAD_LETTERED", "CANCELLED"])
def test_nothing_bounds_what_has_ended(state: str) -> None:
    assert deadlines.first(row(state)) is None


def test_the_queue_is_counted_from_what_came_later_ready_or_eligible() -> None:
    ends = [
        deadlines.first(row("READY", ready_at_ms=ready, eligible_at_ms=eligible))
        for ready, eligible in ((100, 500), (500, 100))
    ]
    assert [end.at_ms for end in ends if end is not None] == [510, 510]


def test_total_runs_from_the_last_requeue() -> None:
    end = deadlines.total(row("READY", requeued_at_ms=5_000))
    assert end is not None
    assert end.at_ms == 6_000


def test_nothing_is_bounded_by_timeouts_of_other_states() -> None:
    assert deadlines.first(row("READY", '{"start_ms":1,"execution_ms":1}')) is None
    assert deadlines.first(row("PENDING", '{"queue_ms":1}')) is None


def test_an_instant_never_leaves_the_numbers_that_are_stored() -> None:
    end = deadlines.first(row("READY", '{"queue_ms":31536000000}', eligible_at_ms=INTEGER_MAX))
    assert end is not None
    assert end.at_ms == INTEGER_MAX

"""What fired stays known for as long as it could fire again (I13), and no longer."""

from collections.abc import Iterator
from typing import Any

import pytest

from feltd.mesh import cancel
from feltd.model.workload import Cancel
from feltd.state import compaction
from tests.state.compaction.world import DAY_MS, DEFAULTS, Kept
from tests.state.triggers.world import Shop

WEEK_MS = 7 * DAY_MS


class Fired(Shop, Kept):
    """Triggers and compaction in one world."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = DEFAULTS

    def end_all(self) -> None:
        """Everything that waits is called off."""
        waiting = self.conn.execute("SELECT workload_id FROM workloads WHERE state = 'READY'")
        for row in waiting.fetchall():
            self.ask(cancel.cancel, Cancel(), row["workload_id"])


@pytest.fixture
def fired() -> Iterator[Fired]:
    world = Fired()
    yield world
    world.close()


def test_a_firing_goes_with_the_tombstone_of_its_workload(fired: Fired) -> None:
    fired.define()
    fired.put_many(3)
    fired.settle()
    fired.end_all()
    fired.later(WEEK_MS)
    cleared = fired.compact()
    assert (cleared["changes"], cleared["workloads"]) == (3, 3)
    assert len(fired.firings()) == 3
    fired.later(WEEK_MS)
    cleared = fired.compact()
    assert (cleared["tombstones"], cleared["firings"]) == (3, 3)
    assert fired.firings() == []


def test_a_kept_change_keeps_its_firing_and_the_tombstone(fired: Fired) -> None:
    """A trigger put back to the beginning must not fire for it again."""
    fired.define()
    fired.put_many(3)
    fired.settle()
    fired.end_all()
    fired.keeps(changes_ms=0, workloads_ms=DAY_MS, deleted_ms=DAY_MS)
    fired.later(2 * DAY_MS)
    assert fired.compact()["workloads"] == 3
    fired.later(2 * DAY_MS)
    assert "tombstones" not in fired.compact()
    fired.define(start=0)
    fired.settle()
    assert fired.work() == []
    assert len(fired.firings()) == 3
    fired.check()


@pytest.mark.parametrize("limit", [1, 2, 500])
def test_walks_over_what_stays_come_to_an_end(fired: Fired, limit: int) -> None:
    fired.define()
    fired.put_many(5)
    fired.settle()
    fired.end_all()
    fired.keeps(changes_ms=0)
    fired.later(3 * WEEK_MS)
    fired.compact(limit, whole=False)
    fired.later(3 * WEEK_MS)
    fired.compact(limit, whole=False)
    assert fired.count("tombstones") == 5
    fired.keeps(changes_ms=1)
    for _ in range(2):
        fired.compact(limit, whole=False)
    assert (fired.count("tombstones"), fired.count("trigger_firings")) == (0, 0)
    assert fired.count("compaction_places", "name <> 'events'") == 0


def test_what_was_too_deep_goes_with_its_change(fired: Fired) -> None:
    fired.define()
    fired.put_many(1)
    fired.settle()
    fired.conn.execute("DROP TRIGGER trigger_firings_cross_nothing")
    fired.hand(
        "INSERT INTO trigger_firings (tenant_id, trigger_id, seq, instance_id, outcome, depth,"
        " at_ms) VALUES ('acme', 'gone', 1, 'instance', 'too_deep', 9, 1)"
    )
    assert fired.slice("firings").counts == {}
    fired.later(DAY_MS)
    fired.slice("changes")
    assert fired.slice("firings").counts == {"firings": 1}


def test_an_instant_that_overlapped_goes_with_time(fired: Fired) -> None:
    fired.hand(
        "INSERT INTO triggers (tenant_id, trigger_id, application_id, kind, enabled,"
        " target_capability, work, requested_by, every_ms, timezone, missed, overlap, anchor_at_ms,"
        " next_at_ms, last_at_ms, defined_by, created_at_ms, updated_at_ms) VALUES ('acme', 'tick',"
        " 'docs', 'schedule', 1, 'x', '{}', 'service:app', 1000, 'UTC', 'skip', 'skip', 0,"
        " :next, 5, 'service:app', 0, 0)",
        next=2**50,
    )
    fired.hand(
        "INSERT INTO schedule_firings (tenant_id, trigger_id, scheduled_at_ms, instance_id,"
        " outcome, at_ms) VALUES ('acme', 'tick', 5, 'instance', 'overlap', :now_ms)",
        now_ms=fired.now.lease_ms,
    )
    fired.later(WEEK_MS - 1)
    assert fired.slice("firings").counts == {}
    fired.later(1)
    assert fired.slice("firings").counts == {"firings": 1}


def test_every_table_has_its_walk_and_idles_without_a_write(fired: Fired) -> None:
    def changed(tx: Any, table: Any, now: Any) -> int:
        before = fired.conn.total_changes
        pruned = compaction.compact(tx, compaction.Slice(table, 500, fired.policy), now)
        assert (pruned.counts, pruned.more) == ({}, False)
        return fired.conn.total_changes - before

    fired.define()
    fired.put_many(2)
    fired.settle()
    fired.done()
    for table in compaction.WALKS:
        assert fired.run(changed, table) == 0

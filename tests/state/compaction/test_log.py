"""The log of changes is cut where nobody needs it any more (BC-065)."""

from typing import Any

import pytest

from feltd.errors import Refused
from feltd.model.compaction import Held
from feltd.state import consumers, log_floors
from tests.state.compaction.world import DAY_MS, HOUR_MS, Kept


def changed(kept: Kept, times: int, tenant_id: str = "acme", start: int = 0) -> None:
    """So many changes of one record, a second apart."""
    for number in range(start, start + times):
        kept.later(1_000)
        kept.put("r", {"n": number}, tenant_id=tenant_id)


def trigger(kept: Kept, trigger_id: str, cursor: int, *, enabled: bool = True) -> None:
    """A trigger that has judged the changes up to `cursor`."""
    kept.conn.execute(
        "INSERT INTO triggers (tenant_id, trigger_id, application_id, kind, enabled,"
        " target_capability, work, requested_by, source_collection, change_kind, cursor_seq,"
        " judged_from_seq, disabled_at_ms, disabled_by, disabled_reason, defined_by,"
        " created_at_ms, updated_at_ms) VALUES ('acme', :id, 'docs', 'state', :enabled, 'x', '{}',"
        " 'service:app', 'other', 'any', :cursor, :cursor, :at, :by, :by, 'service:app', 0, 0)",
        {
            "id": trigger_id,
            "enabled": int(enabled),
            "cursor": cursor,
            "at": None if enabled else kept.now.lease_ms,
            "by": None if enabled else "human:ann",
        },
    )


def moves(kept: Kept, trigger_id: str, cursor: int) -> None:
    """It judges on."""
    kept.conn.execute(
        "UPDATE triggers SET cursor_seq = ? WHERE trigger_id = ?", [cursor, trigger_id]
    )


def acknowledged(kept: Kept, name: str, ack: int) -> Any:
    """A consumer says how far it is."""
    body = consumers.OfConsumer(tenant_id="acme", name=name, ack=ack)
    return kept.ask(consumers.acknowledge, body)


def floor(kept: Kept) -> int:
    """Where the log of acme begins."""
    return kept.log().floor_seq


def test_changes_go_when_they_are_a_day_old_and_the_log_stays_whole(kept: Kept) -> None:
    changed(kept, 30)
    kept.later(DAY_MS - 10_000)
    assert kept.compact()["changes"] == 20
    assert [change.seq for change in kept.changes(20)] == list(range(21, 31))
    assert kept.refused(lambda: kept.changes(19)) == "CHANGES_COMPACTED"
    kept.later(DAY_MS)
    assert kept.compact()["changes"] == 10
    assert kept.changes(30) == ()
    changed(kept, 1, start=99)
    assert [change.seq for change in kept.changes(30)] == [31]
    assert kept.value("r") == {"n": 99}


@pytest.mark.parametrize("limit", [1, 3, 20, 21, 500])
def test_every_slice_leaves_a_whole_log(kept: Kept, limit: int) -> None:
    for tenant_id in ("acme", "beta", "corp"):
        changed(kept, 25, tenant_id)
    kept.later(DAY_MS)
    assert kept.compact(limit)["changes"] == 75
    assert kept.count("compaction_places") == 0


def test_no_retention_keeps_everything(kept: Kept) -> None:
    changed(kept, 3)
    acknowledged(kept, "mirror", 0)
    kept.keeps(changes_ms=0)
    kept.later(400 * DAY_MS)
    assert "changes" not in kept.compact()
    assert floor(kept) == 0


def test_an_enabled_trigger_is_never_overtaken(kept: Kept) -> None:
    changed(kept, 30)
    trigger(kept, "slow", 10)
    trigger(kept, "quick", 25)
    kept.later(400 * DAY_MS)
    assert kept.compact()["changes"] == 10
    plan = kept.run(lambda tx, _, now: log_floors.plan(tx, "acme", now, kept.policy))
    assert (plan.seq, plan.past_seq) == (10, 30)
    assert plan.held[0] == Held("trigger:slow", 10)
    moves(kept, "slow", 28)
    assert kept.compact()["changes"] == 15
    assert floor(kept) == 25


def test_a_disabled_trigger_holds_the_log_seven_days(kept: Kept) -> None:
    changed(kept, 30)
    trigger(kept, "off", 10, enabled=False)
    kept.later(7 * DAY_MS - 1)
    kept.compact()
    assert floor(kept) == 10
    kept.later(1)
    kept.compact()
    assert floor(kept) == 30
    # It cannot go on as if nothing were missing.
    with pytest.raises(Exception, match="give it a new start"):
        kept.conn.execute(
            "UPDATE triggers SET enabled = 1, disabled_at_ms = NULL, disabled_by = NULL,"
            " disabled_reason = NULL"
        )


def test_one_overtaken_trigger_lets_the_log_go_on(kept: Kept) -> None:
    changed(kept, 10)
    trigger(kept, "off", 2, enabled=False)
    kept.later(8 * DAY_MS)
    kept.compact()
    assert floor(kept) == 10
    changed(kept, 10)
    kept.later(DAY_MS)
    kept.compact()
    assert floor(kept) == 20


def test_a_consumer_that_acknowledges_is_waited_for(kept: Kept) -> None:
    changed(kept, 30)
    acknowledged(kept, "mirror", 12)
    kept.keeps(changes_ms=HOUR_MS)
    kept.later(2 * HOUR_MS)
    assert kept.compact()["changes"] == 12
    plan = kept.run(lambda tx, _, now: log_floors.plan(tx, "acme", now, kept.policy))
    assert plan.held[0] == Held("consumer:mirror", 12)
    acknowledged(kept, "mirror", 30)
    assert kept.compact()["changes"] == 18


def test_a_consumer_past_its_limit_is_dropped_and_told(kept: Kept) -> None:
    changed(kept, 30)
    acknowledged(kept, "mirror", 12)
    kept.later(DAY_MS)
    acknowledged(kept, "mirror", 12)
    assert kept.compact()["changes"] == 30
    act = kept.row("SELECT actor, subject, reason FROM audit WHERE action = 'drop_consumer'")
    assert (act["actor"], act["subject"]) == ("service:feltd", "acme/mirror")
    with pytest.raises(Refused, match="kept") as told:
        acknowledged(kept, "mirror", 13)
    assert (told.value.code, told.value.facts["oldest"]) == ("CHANGES_COMPACTED", 31)
    acknowledged(kept, "mirror", 30)
    assert kept.count("consumers", "dropped_at_ms IS NULL") == 1


def test_nobody_is_dropped_for_a_row_that_a_trigger_keeps_anyway(kept: Kept) -> None:
    changed(kept, 30)
    trigger(kept, "slow", 5)
    acknowledged(kept, "mirror", 5)
    acknowledged(kept, "late", 4)
    kept.later(2 * DAY_MS)
    kept.compact()
    assert floor(kept) == 5
    dropped = kept.conn.execute("SELECT name FROM consumers WHERE dropped_at_ms IS NOT NULL")
    assert [row["name"] for row in dropped] == ["late"]


def test_a_longer_limit_holds_the_log_longer(kept: Kept) -> None:
    changed(kept, 10)
    acknowledged(kept, "mirror", 0)
    kept.keeps(consumer_limit_ms=3 * DAY_MS)
    kept.later(2 * DAY_MS)
    assert "changes" not in kept.compact()
    kept.later(DAY_MS)
    assert kept.compact()["changes"] == 10


def test_large_values_make_small_slices(kept: Kept) -> None:
    for number in range(60):
        kept.put("r", {"n": number, "text": "x" * 100_000})
    kept.later(DAY_MS)
    for more in (True, True, False):
        pruned = kept.slice("changes")
        assert (pruned.counts, pruned.more) == ({"changes": 20}, more)
        kept.check()


def test_an_idle_slice_writes_nothing(kept: Kept) -> None:
    changed(kept, 3)
    before = kept.conn.total_changes
    for table in ("changes", "workloads", "events", "audit", "workers"):
        kept.conn.execute("BEGIN IMMEDIATE")
        kept.conn.execute("ROLLBACK")
        kept.slice(table)  # type: ignore[arg-type]
    # Each commit of the world is sealed: one row of the ledger, as the writer would not have.
    assert kept.conn.total_changes - before == 5


def test_deleted_records_keep_their_version_until_the_log_and_a_week_are_past(kept: Kept) -> None:
    kept.put("gone", {"a": 1})
    kept.delete("gone")
    kept.later(7 * DAY_MS - 1)
    kept.compact()
    assert kept.count("records") == 1
    kept.later(1)
    assert kept.compact()["records"] == 1
    written = kept.put("gone", {"a": 2})
    assert written is not None
    kept.check()


def test_a_deleted_record_stays_while_its_changes_do(kept: Kept) -> None:
    kept.put("gone", {"a": 1})
    kept.delete("gone")
    trigger(kept, "slow", 1)
    kept.later(30 * DAY_MS)
    assert "records" not in kept.compact()
    moves(kept, "slow", 2)
    assert kept.compact()["records"] == 1

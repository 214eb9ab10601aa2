"""Faults in how changes start work, how instants come, and how history is cleared away."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from feltd.state import (
    definitions,
    evaluation,
    firing,
    log_floors,
    predicates,
    prune_history,
    prune_remains,
    prune_workloads,
    records,
    schedules,
    writing,
)
from tests.sim.mutations import Patches, without

# -- triggers --------------------------------------------------------------------------------


def cursor_that_skips_a_change() -> Patches:
    """A trigger that has fired goes on behind the change after it."""
    skips = firing.WENT_WELL.replace(
        "coalesce(:cursor_seq, cursor_seq)",
        "min(coalesce(:cursor_seq, cursor_seq) + 1,"
        " (SELECT l.head_seq FROM change_logs l WHERE l.tenant_id = triggers.tenant_id))",
    )
    assert skips != firing.WENT_WELL, "look where the cursor went"
    return [patch.object(firing, "WENT_WELL", skips)]


def cursor_that_goes_to_the_head() -> Patches:
    """Whoever waits for other collections is passed over, whether it does or not."""
    return [without(evaluation, "PASS_OVER", r"   AND NOT EXISTS \((?:.*\n)*?.*\)\n")]


def firing_without_a_workload() -> Patches:
    """The cursor moves, and nothing was begun."""

    def fires(tx: Any, now: Any, log: Any, row: Any, change: Any) -> list[Any]:
        tx.change(
            evaluation.MOVE,
            {
                "tenant_id": row["tenant_id"],
                "trigger_id": row["trigger_id"],
                "cursor_seq": change["seq"],
            },
        )
        return []

    return [patch.object(evaluation, "_fire", fires)]


def workload_without_a_firing() -> Patches:
    """Nothing says which change began the work."""
    nothing = "SELECT :tenant_id, :trigger_id, :seq, :instance_id, :outcome, :workload_id, :depth"
    return [patch.object(evaluation, "WRITE_FIRING", f"{nothing}, :now_ms")]


def change_that_fires_again() -> Patches:
    """What fired before a trigger was put back fires again, under another key."""
    again = evaluation.FIRED.replace("f.seq = :seq", "f.seq = -:seq")
    assert again != evaluation.FIRED
    return [patch.object(evaluation, "FIRED", again)]


def depth_that_nobody_counts() -> Patches:
    """Work that writes what started it goes on for ever."""
    return [
        patch.object(writing, "CAUSE", writing.CAUSE.replace("SELECT f.depth", "SELECT 0 AS depth"))
    ]


def depth_without_an_end() -> Patches:
    """The eighth firing leads to a ninth."""
    return [patch.object(evaluation, "DEPTH_MAX", 99)]


def kind_that_nobody_looks_at() -> Patches:
    """A trigger fires for changes of any kind."""
    anything = evaluation.CHANGES.replace(":change_kind IN ('any', c.kind)", ":change_kind <> ''")
    assert anything != evaluation.CHANGES
    return [patch.object(evaluation, "CHANGES", anything)]


def missing_that_equals_something() -> Patches:
    """What is not there is not different either."""
    matches = predicates.matches

    def wrong(predicate: Any, before: Any, after: Any) -> bool:
        met = bool(matches(predicate, before, after))
        if predicate is None or predicate.op != "ne":
            return met
        return met and isinstance(after, dict) and "status" in after

    return [patch.object(predicates, "matches", wrong)]


def definition_that_begins_anew() -> Patches:
    """A corrected word puts a trigger at the head of the log."""
    head = "(SELECT l.head_seq FROM change_logs l WHERE l.tenant_id = :tenant_id)"
    moved = f"cursor_seq = CASE WHEN kind = 'state' THEN ifnull({head}, 0) END"
    anew = definitions.REPLACE.replace("cursor_seq = :cursor_seq", moved)
    assert anew != definitions.REPLACE
    return [patch.object(definitions, "REPLACE", anew)]


# -- instants --------------------------------------------------------------------------------


def instant_that_comes_twice() -> Patches:
    """A schedule stands where it stood when it has run, and does not look whether it has."""
    return [
        without(schedules, "MOVE", r"last_at_ms = :last_at_ms,\n +next_at_ms = :next_at_ms,\n +"),
        without(schedules, "DEALT_WITH", r"f\.scheduled_at_ms = :at_ms", instead="1 = 0"),
    ]


def instant_that_the_clock_brings_back() -> Patches:
    """A clock that is set back makes an hour come twice: nothing is remembered of the first."""
    return [without(schedules, "MOVE", r"last_at_ms = :last_at_ms,\n +")]


def instant_that_is_left_out() -> Patches:
    """A schedule that runs for all of its instants goes on behind the newest."""
    step = schedules._step

    def skips(row: Any, now: Any) -> Any:
        found = step(row, now)
        if row["missed"] != "all" or found.next_at_ms is None:
            return found
        later_ms = max(found.next_at_ms, now.wall_ms // row["every_ms"] * row["every_ms"])
        return found._replace(next_at_ms=later_ms + 1)

    return [patch.object(schedules, "_step", skips)]


def overlap_that_nobody_looks_at() -> Patches:
    """A schedule runs beside its own last run."""
    return [patch.object(schedules, "_is_unfinished", lambda *_: False)]


# -- records ---------------------------------------------------------------------------------


def write_without_a_change() -> Patches:
    """A patch is stored, and the log says nothing of it."""
    kept = records._require

    def lenient(row: Any, expect: Any) -> None:
        if expect.if_version is None:
            return
        kept(row, expect)

    return [patch.object(records, "_require", lenient)]


def repeat_by_a_stranger() -> Patches:
    """Whoever asks for the value that is there has written it."""

    def repeats(why: Any, row: Any, expect: Any, text: str) -> bool:
        return row is not None and row["value"] == text

    return [patch.object(records, "_repeats", repeats)]


# -- compaction ------------------------------------------------------------------------------


def floor_over_a_cursor() -> Patches:
    """The log is cut before a trigger has judged it; the schema is the second wall."""
    return [
        without(log_floors, "SLOWEST_ENABLED", r"t\.enabled = 1", instead="t.enabled = 7"),
        without(log_floors, "SLOWEST_DISABLED", r"t\.enabled = 0", instead="t.enabled = 7"),
    ]


def floor_over_a_disabled_cursor() -> Patches:
    """A disabled trigger holds the log for no time at all."""
    return [patch.object(log_floors, "DISABLED_HOLD_MS", -1)]


def floor_over_a_consumer() -> Patches:
    """The log is cut before a consumer has acknowledged it."""
    return [without(log_floors, "CONSUMERS_BEHIND", r"c\.ack_seq < :seq", instead="c.ack_seq < 0")]


def floor_over_what_is_young() -> Patches:
    """The log is cut before it is past its time."""
    return [patch.object(log_floors, "_last_before", lambda tx, log, *_: log["head_seq"])]


def change_cut_without_its_floor() -> Patches:
    """A change goes, and the log says that it is there; the schema is the second wall."""
    return [patch.object(log_floors, "RAISE", "SELECT :tenant_id, :seq, :at_ms")]


def key_that_is_not_remembered() -> Patches:
    """Work is cleared away, and nothing says that its key was used."""
    names = (
        ":tenant_id, :application_id, :idempotency_key, :workload_id, :state, :result_id,"
        " :body_sha256, :now_ms"
    )
    return [patch.object(prune_workloads, "LAY_TOMBSTONE", f"SELECT {names}")]


def work_cleared_under_who_waits() -> Patches:
    """What unfinished work names goes; the schema is the second wall."""
    return [patch.object(prune_workloads._Walk, "_let_go", lambda *_: True)]


def firing_cleared_above_the_floor() -> Patches:
    """What a change began is forgotten while a trigger may still be put back to it."""
    below = r"f\.seq <= \(SELECT l\.floor_seq(?:.*\n)*?.*\) AS below"
    return [
        without(prune_remains, "OLD_TOMBSTONES", below, instead="1 AS below"),
        without(prune_remains, "FIRINGS", below, instead="1 AS below"),
    ]


def record_forgotten_above_the_floor() -> Patches:
    """A deleted record begins anew at version 1 while its last change is kept."""
    return [
        without(
            prune_remains,
            "OLD_RECORDS",
            r"r\.change_seq <= \((?:.*\n)*?.*\) AS below",
            instead="1 AS below",
        )
    ]


def chain_cut_without_its_anchor() -> Patches:
    """The audit chain goes on from a hash that nobody kept."""
    return [without(prune_history, "RAISE_AUDIT", r",\n +hash = :hash")]


MUTATIONS: tuple[Callable[[], Patches], ...] = (
    cursor_that_skips_a_change,
    cursor_that_goes_to_the_head,
    firing_without_a_workload,
    workload_without_a_firing,
    change_that_fires_again,
    depth_that_nobody_counts,
    depth_without_an_end,
    kind_that_nobody_looks_at,
    missing_that_equals_something,
    definition_that_begins_anew,
    instant_that_comes_twice,
    instant_that_the_clock_brings_back,
    instant_that_is_left_out,
    overlap_that_nobody_looks_at,
    write_without_a_change,
    repeat_by_a_stranger,
    floor_over_a_cursor,
    floor_over_a_disabled_cursor,
    floor_over_a_consumer,
    floor_over_what_is_young,
    change_cut_without_its_floor,
    key_that_is_not_remembered,
    work_cleared_under_who_waits,
    firing_cleared_above_the_floor,
    record_forgotten_above_the_floor,
    chain_cut_without_its_anchor,
)

"""A trigger that fails waits, is tried again, is disabled visibly, and stops nobody else."""

import sqlite3
from typing import Any

import pytest
from msgspec import convert

from feltd.clock import Now
from feltd.errors import Refused
from feltd.mesh import creation
from feltd.model.base import Ask
from feltd.model.trigger import FAILURES_MAX
from feltd.model.workload import Batch, Creation, Made, NewWorkload, Tombstone
from feltd.state import evaluation, firing, triggers
from feltd.store.tx import Tx
from tests.state.triggers.world import Shop


def squat(shop: Shop, seq: int, trigger_id: str = "ship") -> None:
    """The key of a firing names other work: of the time before such keys were kept for triggers."""
    told = {
        "tenant_id": "acme",
        "application_id": "docs",
        "definition_id": "theirs",
        "idempotency_key": f"trigger/{trigger_id}/instance/{seq}",
    }
    made = Creation(convert(told, NewWorkload))

    def before(tx: Tx, ask: Ask[Creation], now: Now) -> Made | Tombstone:
        return creation.make(tx, now, ask.caller, ask.body, ask.fresh)

    shop.run(before, Ask(shop.open, made, fresh=f"squat-{seq}"))


def test_nobody_takes_the_key_of_a_firing_to_come(shop: Shop) -> None:
    shop.define()
    told = {
        "tenant_id": "acme",
        "application_id": "docs",
        "definition_id": "theirs",
        "idempotency_key": "trigger/ship/instance/1",
    }
    theirs = Creation(convert(told, NewWorkload))
    with pytest.raises(Refused, match="WORKLOAD_INVALID"):
        shop.run(creation.create, Ask(shop.open, theirs, fresh="theirs"))
    answer = shop.run(creation.create_batch, Ask(shop.open, Batch((theirs,)), fresh="theirs"))
    assert [item.code for item in answer.items] == ["WORKLOAD_INVALID"]

    shop.put("a", {"n": 1})
    shop.evaluate()
    assert [work["idempotency_key"] for work in shop.work()] == ["trigger/ship/instance/1"]
    assert shop.trigger().failures == 0


def test_work_that_has_such_a_key_already_answers_a_repeat(shop: Shop) -> None:
    squat(shop, 1)
    told = {
        "tenant_id": "acme",
        "application_id": "docs",
        "definition_id": "theirs",
        "idempotency_key": "trigger/ship/instance/1",
    }
    again = Ask(shop.open, Creation(convert(told, NewWorkload)), fresh="again")
    assert not shop.run(creation.create, again).created


def test_failures_wait_longer_each_time_and_the_fifth_disables_with_the_reason(shop: Shop) -> None:
    shop.define()
    squat(shop, 1)
    shop.put("a", {"n": 1})
    waits = []
    for _ in range(FAILURES_MAX - 1):
        shop.evaluate()
        shown = shop.trigger()
        assert shown.retry_at_ms is not None
        waits.append(shown.retry_at_ms - shop.now.lease_ms)
        shop.later(waits[-1] - 1)
        assert shop.evaluate() == 0, "it is not tried before its time"
        assert shop.trigger().failures == shown.failures
        shop.later(1)

    assert waits == [1_000, 2_000, 4_000, 8_000]
    assert shop.trigger().enabled
    shop.evaluate()
    told = [signal for signal in shop.told if signal[0] == "trigger"]

    shown = shop.trigger()
    assert (shown.enabled, shown.failures, shown.retry_at_ms) == (False, 5, None)
    assert shown.disabled is not None
    assert shown.disabled.by == "service:feltd"
    assert shown.disabled.reason.startswith("WORKLOAD_IDEMPOTENCY_CONFLICT: ")
    assert shop.status().disabled == {"ship": shown.disabled.reason}
    assert (shown.cursor, shown.lag, shop.work()) == (0, 1, [])
    assert told == [("trigger", f"acme/ship disabled after 5 failures: {shown.failure}")]
    event = shop.row("SELECT tenant_id, actor FROM events WHERE kind = 'disable_trigger'")
    assert tuple(event) == ("acme", "service:feltd")
    act = shop.row("SELECT subject, reason FROM audit WHERE action = 'disable_trigger'")
    assert tuple(act) == ("acme/ship", shown.disabled.reason)
    shop.later(60_000)
    assert shop.evaluate() == 0


def test_a_success_forgets_the_failures_before_it(shop: Shop) -> None:
    shop.define()
    squat(shop, 1)
    shop.put("a", {"n": 1})
    for _ in range(3):
        shop.evaluate()
        shop.later(8_000)
    assert shop.trigger().failures == 3

    shop.hand("DELETE FROM workloads WHERE definition_id = 'theirs'")
    shop.put("a", {"n": 2})
    shop.evaluate()

    shown = shop.trigger()
    assert (shown.failures, shown.failure, shown.retry_at_ms) == (0, None, None)
    assert shop.fired() == [1, 2]


def test_a_failure_after_a_success_is_the_first_again(shop: Shop) -> None:
    shop.define()
    squat(shop, 1)
    shop.put("a", {"n": 1})
    shop.evaluate()
    shop.evaluate_now()
    assert shop.trigger().failures == 2

    shop.hand("DELETE FROM workloads WHERE definition_id = 'theirs'")
    squat(shop, 2)
    shop.put("a", {"n": 2})
    shop.later(2_000)
    shop.evaluate()

    shown = shop.trigger()
    assert (shop.fired(), shown.failures, shown.cursor) == ([1], 1, 1)
    assert shown.retry_at_ms == shop.now.lease_ms + 1_000


def malformed(shop: Shop) -> None:
    shop.hand(
        "UPDATE triggers SET predicate = '{\"op\": \"maybe\"}' WHERE trigger_id = 'malformed'"
    )


def test_one_malformed_one_unauthorized_and_one_always_failing_stop_no_good_one(shop: Shop) -> None:
    doomed = shop.grant()
    shop.define("unauthorized", grant_id=doomed)
    shop.define("malformed")
    shop.define("squatted")
    shop.define("good")
    malformed(shop)
    shop.revoke(doomed)
    for seq in range(1, 41):
        squat(shop, seq, "squatted")

    for _ in range(40):
        shop.put_many(1)
        shop.evaluate()
        shop.later(1_000)

    assert shop.fired("good") == list(range(1, 41))
    status = shop.status()
    assert (status.triggers, status.head, status.lag) == (4, 40, 0)
    assert status.cursors == {"good": 40, "malformed": 0, "squatted": 0, "unauthorized": 0}
    assert set(status.disabled) == {"malformed", "squatted", "unauthorized"}
    assert status.disabled["malformed"].startswith("TRIGGER_INVALID: ")
    assert status.disabled["squatted"].startswith("WORKLOAD_IDEMPOTENCY_CONFLICT: ")
    assert status.disabled["unauthorized"] == "WORKLOAD_UNAUTHORIZED: the grant was revoked"
    assert status.failing == {}


@pytest.mark.parametrize(
    ("column", "broken"),
    [
        ("predicate", "{"),
        ("predicate", '{"op": "not", "args": []}'),
        ("predicate", '{"op": "all", "args": "x"}'),
        ("work", "{"),
        ("work", '{"priority": "high"}'),
        ("work", '{"unheard_of": 1}'),
        ("requested_by", "nobody"),
        ("requested_by", "service:other"),
        ("application_id", "other"),
        ("target_capability", ""),
    ],
)
def test_a_row_somebody_broke_by_hand_is_one_triggers_trouble(
    shop: Shop, column: str, broken: str
) -> None:
    shop.define("broken")
    shop.define("good")
    shop.hand("PRAGMA ignore_check_constraints = ON")
    sql = {
        "predicate": "UPDATE triggers SET predicate = :broken WHERE trigger_id = 'broken'",
        "work": "UPDATE triggers SET work = :broken WHERE trigger_id = 'broken'",
        "requested_by": "UPDATE triggers SET requested_by = :broken WHERE trigger_id = 'broken'",
        "application_id": "UPDATE triggers SET application_id = :broken"
        " WHERE trigger_id = 'broken'",
        "target_capability": "UPDATE triggers SET target_capability = :broken"
        " WHERE trigger_id = 'broken'",
    }
    shop.hand(sql[column], broken=broken)
    shop.hand("PRAGMA ignore_check_constraints = OFF")
    shop.put("a", {"n": 1})

    shop.evaluate()

    assert shop.fired("good") == [1]
    assert shop.status().cursors["good"] == 1
    if column != "target_capability":
        assert (shop.fired("broken"), shop.trigger("broken").failures) == ([], 1)
        assert shop.status().failing["broken"]
    assert len(shop.trigger("broken").trigger_id) == 6, "and it is still shown"
    if column == "predicate":
        told = shop.refused(lambda: shop.does(triggers.preview, "broken"))
        assert told == "TRIGGER_INVALID"


def test_a_change_that_cannot_be_read_stops_only_who_looks_into_it(shop: Shop) -> None:
    shop.define("looks", predicate={"op": "exists", "field": "after.n"})
    shop.define("plain", change_kind="deleted")
    shop.put("a", {"n": 1})
    shop.hand("DROP TRIGGER changes_stay")
    shop.hand("UPDATE changes SET after = '{'")

    shop.evaluate()

    assert shop.trigger("looks").failures == 1
    assert shop.trigger("plain").cursor == 1


def test_what_fails_leaves_nothing_of_its_firing(shop: Shop) -> None:
    """A refusal comes late: the group, demand and lane of the creation go with it."""
    shop.define()
    shop.put("a", {"n": 1})
    shop.hand(
        "CREATE TRIGGER no BEFORE INSERT ON trigger_firings BEGIN SELECT RAISE(ABORT, 'no'); END"
    )

    shop.evaluate()

    assert shop.work() == []
    assert shop.trigger().failure == "TRIGGER_STORAGE_FAILURE: no"
    assert shop.row("SELECT count(*) AS n FROM events WHERE kind = 'create'")["n"] == 0
    assert not [signal for signal in shop.told if signal[0] == "ready"]


def test_the_storages_trouble_is_nobodys_failure(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.define()
    shop.put("a", {"n": 1})

    def full(*_: Any) -> str:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(firing, "fire", full)
    with pytest.raises(sqlite3.OperationalError):
        shop.evaluate()
    monkeypatch.undo()

    assert shop.trigger().failures == 0
    shop.evaluate()
    assert shop.fired() == [1]


def test_a_transaction_that_is_lost_is_not_written_on(shop: Shop) -> None:
    shop.define()
    shop.put("a", {"n": 1})

    def lose(tx: Tx, _: None, now: Now) -> None:
        tx.end(sqlite3.IntegrityError("gone"))
        evaluation.evaluate(tx, 200, now)

    with pytest.raises(sqlite3.IntegrityError):
        shop.run(lose)
    assert shop.trigger().failures == 0


def test_somebody_who_asks_does_not_wait_for_the_retry_but_each_try_counts(shop: Shop) -> None:
    shop.define()
    squat(shop, 1)
    shop.put("a", {"n": 1})
    shop.evaluate()

    assert shop.evaluate_now(eager=False).produced == []
    assert shop.trigger().failures == 1
    answer = shop.evaluate_now()
    assert (answer.produced, answer.more) == ([], False)
    assert shop.trigger().failures == 2
    for _ in range(3):
        shop.evaluate_now()
    assert not shop.trigger().enabled


def test_a_trigger_whose_retry_is_due_catches_up_with_all_that_came(shop: Shop) -> None:
    shop.define()
    squat(shop, 1)
    shop.put("a", {"n": 1})
    shop.evaluate()
    shop.put_many(100)
    shop.evaluate()
    assert shop.row("SELECT evaluated_seq AS seq FROM change_logs")["seq"] == 101

    shop.hand("DELETE FROM workloads WHERE definition_id = 'theirs'")
    shop.later(1_000)
    shop.settle()

    assert shop.fired() == list(range(1, 102))


def test_the_key_that_defined_it_may_end_the_grant_decides(shop: Shop) -> None:
    shop.define()
    shop.conn.execute(
        "UPDATE keys SET revoked_at_ms = :now, revoked_reason = 'revoked'",
        {"now": shop.now.wall_ms},
    )
    shop.put("a", {"n": 1})
    shop.evaluate()
    assert shop.fired() == [1]

    shop.later(31 * 86_400_000)
    shop.put("a", {"n": 2})
    shop.evaluate()
    failure = shop.row("SELECT failure FROM triggers")["failure"]
    assert failure == "WORKLOAD_UNAUTHORIZED: the grant has expired"

"""Changes make workloads: each once, in its trigger's name, with the change as input."""

import pytest
from msgspec.json import decode

from feltd.clock import Now
from feltd.model.record import Expect
from feltd.state import evaluation, promises, triggers
from feltd.store.tx import Tx
from tests.state.triggers.world import PAID, Shop


def test_each_change_behind_the_head_makes_one_workload(shop: Shop) -> None:
    shop.put("before", {"n": 0})
    shop.define()
    shop.put("a", {"n": 1})
    shop.put("a", {"n": 2})
    shop.delete("a")
    shop.put("b", {"n": 1}, "customers")

    shop.settle()
    shop.settle()

    assert shop.fired() == [2, 3, 4]
    assert shop.firings() == [(2, "fired"), (3, "fired"), (4, "fired")]
    shown = shop.trigger()
    assert (shown.cursor, shown.lag, shown.fired, shown.failures) == (5, 0, 3, 0)
    assert shown.last_workload_id == shop.work()[-1]["workload_id"]


def test_the_workload_is_the_triggers_and_its_input_is_the_change(shop: Shop) -> None:
    shop.define(
        capability_snapshot=("docs.extract",),
        priority=7,
        environment="staging",
        definition_revision="3",
        retry_policy={"max_attempts": 9},
        timeouts={"total_ms": 60_000},
        runtime_policy={"network_policy": "none"},
        placement={"required_labels": {"zone": "a"}},
    )
    shop.put("a", {"z": 1, "a": [None, "é"]})
    shop.put("a", {"n": 2})

    shop.settle()

    work = shop.work()[1]
    assert decode(work["input"]) == {
        "trigger_id": "ship",
        "seq": 2,
        "kind": "updated",
        "collection": "orders",
        "id": "a",
        "version": 2,
        "before": {"a": [None, "é"], "z": 1},
        "after": {"n": 2},
        "at_ms": shop.now.lease_ms,
        "actor": "service:app",
    }
    assert decode(shop.work()[0]["input"])["before"] is None
    told = {
        "tenant_id": "acme",
        "application_id": "docs",
        "definition_id": "extract",
        "definition_revision": "3",
        "trigger": "ship",
        "idempotency_key": "trigger/ship/instance/2",
        "requested_by": "service:app",
        "authorization_grant_id": shop.grant_id,
        "environment": "staging",
        "priority": 7,
        "max_attempts": 9,
        "capability_snapshot": '["docs.extract"]',
        "timeouts": '{"total_ms":60000}',
    }
    assert {name: work[name] for name in told} == told
    event = shop.row(
        "SELECT kind, actor FROM events WHERE workload_id = :id", id=work["workload_id"]
    )
    assert tuple(event) == ("create", "service:app")


def test_only_what_meets_kind_and_condition_fires_and_the_rest_is_passed(shop: Shop) -> None:
    shop.define("paid", change_kind="updated", predicate=PAID)
    shop.define("gone", change_kind="deleted")
    shop.define("stock", source_collection="stock")
    shop.put("a", {"status": "paid"})
    shop.put("a", {"status": "new"})
    shop.put("a", {"status": "paid"})
    shop.delete("a")

    shop.settle()

    assert (shop.fired("paid"), shop.fired("gone"), shop.fired("stock")) == ([3], [4], [])
    assert {shop.trigger(name).cursor for name in ("paid", "gone", "stock")} == {4}


def test_an_input_beyond_the_limit_leaves_the_values_out(shop: Shop) -> None:
    shop.define()
    shop.put("a", {"text": "x" * 200_000})
    shop.put("a", {"text": "y" * 200_000})

    shop.settle()

    first, second = (decode(row["input"]) for row in shop.work())
    assert "truncated" not in first
    assert first["after"]["text"][0] == "x"
    assert (second["before"], second["after"], second["truncated"]) == (None, None, True)
    assert (second["id"], second["version"]) == ("a", 2)


def test_a_transaction_of_many_changes_fires_for_each_in_bounded_operations(shop: Shop) -> None:
    shop.define("one")
    shop.define("two", predicate={"op": "gt", "field": "after.n", "value": 400})
    shop.put_many(450)

    rounds = 1
    while shop.evaluate(200) == 200:
        rounds += 1
        assert shop.statements < evaluation.FIRINGS_MAX * 9 + 400
    assert rounds >= 450 // evaluation.FIRINGS_MAX

    assert len(shop.fired("one")) == 450
    assert shop.fired("two") == []
    assert shop.status().lag == 0


def test_an_idle_round_reads_one_index_and_writes_nothing(shop: Shop) -> None:
    shop.define()
    shop.put("a", {"n": 1})
    shop.settle()
    before = shop.conn.total_changes

    shop.conn.execute("BEGIN")
    tx = Tx(shop.conn)
    assert evaluation.evaluate(tx, 200, shop.now) == 0
    shop.conn.execute("COMMIT")

    assert tx.statements == 1
    assert shop.conn.total_changes == before


def test_large_values_end_an_operation_and_lose_nothing(shop: Shop) -> None:
    shop.define(predicate={"op": "exists", "field": "after.x"})
    for number in range(40):
        shop.put("a", {"text": f"{number}" + "x" * 250_000})

    assert shop.evaluate() == 200, "there is more"
    assert shop.trigger().lag
    shop.settle()
    assert shop.trigger().lag == 0


def test_every_tenant_has_its_part_of_a_round(shop: Shop) -> None:
    grant = shop.grant(tenant_id="other")
    shop.define("ship")
    theirs = shop.caller(tenants=("other",), grant_id=grant)
    shop.define("ship", by=theirs)
    for _ in range(30):
        shop.put_many(1)
    why = shop.writing(tenant_id="other", caller=theirs)
    assert why.tenant_id == "other"
    shop.put("a", {"n": 1}, tenant_id="other", caller=theirs)

    shop.evaluate(limit=10)

    made = shop.conn.execute("SELECT tenant_id, count(*) FROM workloads GROUP BY 1 ORDER BY 1")
    assert [tuple(row) for row in made] == [("acme", 5), ("other", 1)]


def test_nothing_crosses_from_one_tenants_log_to_anothers_trigger(shop: Shop) -> None:
    theirs = shop.caller(tenants=("other",), grant_id=shop.grant(tenant_id="other"))
    shop.define("ship", by=theirs)
    shop.put("a", {"status": "paid"})

    shop.settle()

    assert shop.work() == []


# -- exactly once


def test_two_evaluations_of_one_change_make_one_workload(shop: Shop) -> None:
    """BC-061."""
    shop.define()
    shop.put_many(100)

    made = [shop.evaluate_now(eager=False) for _ in range(5)]
    shop.evaluate()

    assert [len(one.produced) for one in made] == [32, 32, 32, 4, 0]
    assert [one.more for one in made] == [True, True, True, False, False]
    assert len({row["workload_id"] for row in shop.work()}) == 100


def test_a_firing_that_was_written_down_is_never_made_again(shop: Shop) -> None:
    shop.define()
    shop.put_many(3)
    shop.settle()

    shop.define(start=0)
    shop.settle()

    shown = shop.trigger()
    assert (shop.fired(), shown.fired, shown.cursor) == ([1, 2, 3], 3, 3)


def test_a_deleted_trigger_that_is_made_again_fires_for_no_change_twice(shop: Shop) -> None:
    shop.define()
    shop.put_many(2)
    shop.settle()
    shop.does(triggers.delete)
    shop.later(1)

    shop.define(start=0)
    shop.put_many(1)
    shop.settle()

    assert shop.fired() == [1, 2, 3]


def test_the_same_workload_under_the_same_key_is_taken_for_its_own(shop: Shop) -> None:
    """A restored file may hold the workload and not the firing; nothing is made twice then."""
    shop.define()
    shop.put("a", {"n": 1})
    shop.settle()
    shop.by_hand = True
    shop.conn.execute("DELETE FROM trigger_firings")
    shop.define(start=0)

    shop.settle()

    assert shop.fired() == [1]
    assert shop.firings() == [(1, "fired")]


def test_a_crash_in_between_leaves_neither_workload_nor_cursor(shop: Shop) -> None:
    shop.define()
    shop.put_many(2)

    class Dead(BaseException):
        pass

    def die(tx: Tx, _: None, now: Now) -> None:
        evaluation.evaluate(tx, 200, now)
        raise Dead

    with pytest.raises(Dead):
        shop.run(die)

    assert (shop.work(), shop.firings(), shop.trigger().cursor) == ([], [], 0)
    shop.settle()
    assert shop.fired() == [1, 2]


# -- depth


def test_work_that_writes_what_fires_it_ends_after_eight_firings(shop: Shop) -> None:
    shop.define()
    shop.put("a", {"n": 0})
    for number in range(1, 12):
        shop.settle()
        cause = shop.work()[-1]["workload_id"]
        shop.put("a", {"n": number}, cause=cause)
    shop.settle()

    shown = shop.trigger()
    assert shop.fired() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (shown.cursor, shown.lag, shown.fired) == (12, 0, 8)
    assert shown.passed_over == 4
    assert {outcome for _, outcome in shop.firings()[8:]} == {"too_deep"}

    shop.put("a", {"n": "by a person"})
    shop.settle()
    assert shop.fired()[-1] == 13, "it goes on"


def test_what_is_too_deep_is_told_to_the_log_of_the_daemon(shop: Shop) -> None:
    shop.define()
    shop.put("a", {"n": 0})
    for number in range(8):
        shop.settle()
        shop.put("a", {"n": number + 1}, cause=shop.work()[-1]["workload_id"])

    shop.evaluate()

    assert ("trigger", "acme/ship passed over change 9: 8 firings had led to it") in shop.told


# -- when


def test_a_write_wakes_the_evaluation(shop: Shop) -> None:
    shop.define()
    shop.put("a", {"n": 1})
    assert ("evaluate", "0") in shop.signals
    shop.put("a", {"n": 1})
    assert ("evaluate", "0") not in shop.signals, "nothing changed"


def test_an_operation_judges_less_where_a_condition_takes_long(shop: Shop) -> None:
    looks = {"op": "contains", "field": "after.text", "value": "y"}
    shop.define(predicate={"op": "any", "args": [looks] * 15})
    for name in "abcd":
        shop.put(name, {"text": "x" * 200_000})

    shop.evaluate()

    assert 1 <= shop.trigger().cursor < 4
    shop.settle()
    assert (shop.trigger().cursor, shop.fired()) == (4, [])


def test_an_evaluation_needs_the_scope_and_the_tenant(shop: Shop) -> None:
    reader = shop.caller(scopes=("triggers:read", "state:read"))
    assert shop.refused(lambda: shop.evaluate_now(by=reader)) == "FORBIDDEN"
    assert shop.refused(lambda: shop.evaluate_now("other")) == "TRIGGER_NOT_FOUND"


def test_an_evaluation_of_every_tenant_finds_those_that_lag(shop: Shop) -> None:
    theirs = shop.caller(tenants=("other",), grant_id=shop.grant(tenant_id="other"))
    shop.define("ship", by=theirs)
    shop.define("ship")
    shop.put("a", {"n": 1}, tenant_id="other", caller=theirs)
    shop.put("a", {"n": 1})

    produced = shop.evaluate_now("*", by=shop.open).produced

    assert [(one.tenant_id, one.seq) for one in produced] == [("acme", 1), ("other", 1)]


def test_the_promises_see_a_change_that_fired_nothing(shop: Shop) -> None:
    shop.define()
    shop.put("a", {"n": 1}, expect=Expect(if_version=None))
    shop.settle()
    shop.hand("DELETE FROM trigger_firings")

    broken = shop.run(lambda tx, _, now: promises.ask(tx))

    assert [one.id for one in broken] == ["I13"]
    assert "change fired nothing" in broken[0].rows[0]

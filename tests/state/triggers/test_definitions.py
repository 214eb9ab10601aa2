"""Defining triggers: by whom, under what, where they begin, and what a new word changes."""

from typing import Any

import pytest

from feltd.errors import Refused
from feltd.identity.principals import LOCAL
from feltd.model.base import Ask
from feltd.model.page import PageAsk
from feltd.model.schedule import Preview
from feltd.model.trigger import TRIGGERS_MAX, Disable, Previewed
from feltd.state import standing, triggers
from tests.state.triggers.world import DAY_MS, PAID, Shop


def refusal(act: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        act()
    return refused.value


def pointer(act: Any) -> str:
    told = refusal(act)
    assert told.code == "TRIGGER_INVALID", told
    return str(told.facts["errors"][0]["pointer"])


# -- where it begins


def test_a_new_trigger_begins_behind_the_newest_change(shop: Shop) -> None:
    shop.put_many(3)

    shown, created = shop.defined()

    assert created
    assert (shown.cursor, shown.lag, shown.enabled, shown.fired) == (3, 0, True, 0)
    assert (shown.tenant_id, shown.application_id) == ("acme", "docs")
    assert str(shown.requested_by) == "service:app"
    assert shown.authorization_grant_id == shop.grant_id


def test_a_start_puts_it_behind_that_change(shop: Shop) -> None:
    shop.put_many(3)
    shop.define("all", start=0)
    shop.define("last", start=2)
    shop.define("none", start="head")

    shop.settle()

    assert [shop.fired(name) for name in ("all", "last", "none")] == [[1, 2, 3], [3], []]
    assert pointer(lambda: shop.define("ahead", start=4)) == "/start"


def test_a_start_at_changes_that_are_gone_is_refused_with_the_oldest_kept(shop: Shop) -> None:
    shop.put_many(5)
    shop.cut(3)

    told = refusal(lambda: shop.define(start=2))

    assert told.code == "TRIGGER_STATE_REPLAY_FAILED"
    assert (told.facts["oldest"], told.facts["head"]) == (4, 5)
    shop.define(start=3)
    shop.settle()
    assert shop.fired() == [4, 5]


# -- said again


def test_the_same_definition_changes_nothing(shop: Shop) -> None:
    first = shop.define(predicate=PAID, capability_snapshot=("docs.extract",))
    before = shop.row("SELECT count(*) AS n FROM audit")["n"]
    shop.later(5)

    again, created = shop.defined(predicate=PAID, capability_snapshot=("docs.extract",))

    assert (again, created) == (first, False)
    assert shop.row("SELECT count(*) AS n FROM audit")["n"] == before


def test_another_definition_keeps_the_cursor(shop: Shop) -> None:
    shop.define(predicate=PAID)
    shop.put("a", {"status": "new"})
    shop.settle()
    shop.put("b", {"status": "new"})

    shown = shop.define(predicate={"op": "eq", "field": "after.status", "value": "new"})
    shop.settle()

    assert shown.cursor == 1
    assert shop.fired() == [2], "what was judged stays judged"


def test_a_start_moves_it_forward_and_back(shop: Shop) -> None:
    shop.define()
    shop.put_many(2)
    shop.settle()
    shop.put_many(4)

    assert shop.define(start="head").cursor == 6
    shop.settle()
    assert shop.fired() == [1, 2]
    assert shop.define(start=4).cursor == 4
    shop.settle()
    assert shop.fired() == [1, 2, 5, 6]
    assert shop.row("SELECT starts FROM triggers")["starts"] == 3


def test_kind_and_application_are_for_good(shop: Shop) -> None:
    shop.define()
    elsewhere = shop.grant(application_id="shop")

    assert pointer(lambda: shop.define(grant_id=elsewhere)) == "/application_id"
    told = {"source_collection": None, "change_kind": None, "kind": "schedule", "every_ms": 60_000}
    assert pointer(lambda: shop.define(**told)) == "/kind"


def test_a_definition_forgets_failures(shop: Shop) -> None:
    doomed = shop.grant()
    shop.define(grant_id=doomed)
    shop.revoke(doomed)
    shop.put("a", {"n": 1})
    shop.evaluate()
    assert shop.trigger().failures == 1

    shown = shop.define()
    shop.evaluate()

    assert (shown.failures, shown.failure, shown.retry_at_ms) == (0, None, None)
    assert shop.fired() == [1]


def test_who_defines_it_again_is_whom_it_acts_for(shop: Shop) -> None:
    shop.define()
    bob = {"kind": "service", "id": "bob"}
    grant_id = shop.grant(subject=bob)
    caller = shop.caller(identity_id="bob", grant_id=grant_id)

    shown = shop.define(by=caller)
    shop.put("a", {"n": 1})
    shop.settle()

    assert (str(shown.requested_by), shown.authorization_grant_id) == ("service:bob", grant_id)
    assert shown.defined_by == "service:bob"
    assert shop.work()[0]["requested_by"] == "service:bob"


# -- under what


def test_it_needs_a_live_grant_of_the_caller_that_covers_it(shop: Shop) -> None:
    bare = shop.caller()
    revoked, narrow = shop.grant(), shop.grant(constraints={"workload_kinds": ["other"]})
    shop.revoke(revoked)
    strangers = shop.grant(subject={"kind": "service", "id": "bob"})
    modest = shop.grant(constraints={"max_priority": 5})
    for grant_id, members in (
        (None, {"by": bare}),
        (revoked, {}),
        (narrow, {}),
        (strangers, {}),
        ("grant_made_up", {}),
        (modest, {"priority": 6}),
        (None, {"capability_snapshot": ("docs.delete",)}),
        (None, {"application_id": "shop"}),
        (None, {"tenant_id": "other"}),
    ):
        told = refusal(lambda g=grant_id, m=members: shop.define(grant_id=g, **m))
        assert (told.code, told.status) == ("TRIGGER_UNAUTHORIZED", 400), (grant_id, members)
    assert shop.define(grant_id=modest, priority=5).authorization_grant_id == modest


def test_it_copies_records_out_so_it_needs_to_read_them(shop: Shop) -> None:
    blind = shop.caller(scopes=("triggers:write",), grant_id=shop.grant_id)
    reader = shop.caller(scopes=("triggers:read", "state:read"), grant_id=shop.grant_id)

    assert shop.refused(lambda: shop.define(by=blind)) == "FORBIDDEN"
    assert shop.refused(lambda: shop.define(by=reader)) == "FORBIDDEN"


def test_a_key_that_has_ended_defines_nothing(shop: Shop) -> None:
    shop.conn.execute(
        "UPDATE keys SET revoked_at_ms = :now, revoked_reason = 'revoked'",
        {"now": shop.now.wall_ms},
    )
    assert shop.refused(shop.define) == "UNAUTHENTICATED"


def test_a_body_names_nobody_but_the_caller(shop: Shop) -> None:
    assert shop.define(requested_by={"kind": "service", "id": "app"}).trigger_id == "ship"
    told = {"kind": "service", "id": "bob"}
    assert pointer(lambda: shop.define(requested_by=told)) == "/requested_by"


def test_the_local_operator_names_tenant_and_application(shop: Shop) -> None:
    owner = {"tenant_id": "acme", "application_id": "docs"}
    shown = shop.define(by=LOCAL, **owner)
    shop.put("a", {"n": 1})
    shop.settle()

    assert shown.authorization_grant_id is None
    assert shop.work()[0]["requested_by"] == "service:local"
    assert pointer(lambda: shop.define(by=LOCAL, tenant_id="acme")) == "/application_id"
    assert shop.define("open", by=shop.open).tenant_id == "default"


# -- what does not fit


@pytest.mark.parametrize(
    ("members", "at"),
    [
        ({"trigger_id": "status"}, "/trigger_id"),
        ({"trigger_id": "evaluate"}, "/trigger_id"),
        ({"source_collection": None}, "/source_collection"),
        ({"change_kind": None}, "/change_kind"),
        ({"cron": "* * * * *"}, "/cron"),
        ({"every_ms": 60_000}, "/every_ms"),
        ({"input": None}, "/input"),
        ({"predicate": {"op": "eq"}}, "/predicate/field"),
        ({"placement": {"pool_id": "made-up"}}, "/placement/pool_id"),
    ],
)
def test_members_that_do_not_fit_are_pointed_at(shop: Shop, members: Any, at: str) -> None:
    assert pointer(lambda: shop.define(**members)) == at


def fill(shop: Shop) -> None:
    """As many triggers as acme may have, all like the first."""
    shop.define("first")
    shop.conn.execute(
        "WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < :most)"
        " INSERT INTO triggers (tenant_id, trigger_id, application_id, kind, enabled,"
        " target_capability, work, requested_by, authorization_grant_id, source_collection,"
        " change_kind, cursor_seq, judged_from_seq, defined_by, created_at_ms, updated_at_ms)"
        " SELECT tenant_id, 't' || i, application_id, kind, enabled, target_capability, work,"
        " requested_by, authorization_grant_id, source_collection, change_kind, cursor_seq,"
        " judged_from_seq, defined_by, created_at_ms, updated_at_ms FROM triggers, n",
        {"most": TRIGGERS_MAX},
    )


def test_a_tenant_has_a_thousand_at_most(shop: Shop) -> None:
    fill(shop)

    told = refusal(lambda: shop.define("one-more"))

    assert (told.code, told.facts["quota"]) == ("QUOTA_EXCEEDED", "triggers")
    shop.define("first", predicate=PAID)
    shop.does(triggers.delete, "first")
    shop.define("one-more")


def test_a_thousand_that_wait_for_something_else_are_passed_in_a_few_operations(
    shop: Shop,
) -> None:
    fill(shop)
    shop.put("a", {"n": 1}, "stock")

    operations = 1
    while shop.evaluate() == 200:
        operations += 1
        assert shop.statements < 2 * 64 + 10

    assert operations <= 5
    assert set(shop.status().cursors.values()) == {1}


# -- disabled and enabled


def test_a_disabled_one_stands_still_and_judges_what_came_when_it_goes_on(shop: Shop) -> None:
    shop.define()
    shown = shop.disable(body=Disable(reason="the warehouse is closed"))
    shop.put_many(3)
    shop.settle()
    assert (shop.fired(), shop.trigger().cursor) == ([], 0)
    assert shown.disabled is not None
    assert (shown.disabled.by, shown.disabled.reason) == ("service:app", "the warehouse is closed")
    assert shop.status().disabled == {"ship": "the warehouse is closed"}
    since_ms = shown.disabled.at_ms

    shop.later(1_000)
    again = shop.disable().disabled
    assert again is not None
    assert (again.at_ms, again.reason) == (since_ms, "the warehouse is closed")

    enabled = shop.enable()
    shop.settle()
    assert (enabled.enabled, enabled.disabled) == (True, None)
    assert shop.fired() == [1, 2, 3]
    assert shop.enable() == shop.trigger()


def test_a_definition_enables_unless_it_says_otherwise(shop: Shop) -> None:
    shown = shop.define(enabled=False)
    assert shown.disabled is not None
    assert shown.disabled.reason == "defined disabled"
    shop.put("a", {"n": 1})
    shop.settle()
    assert shop.fired() == []

    since_ms = shown.disabled.at_ms
    shop.later(DAY_MS)
    kept = shop.define(enabled=False, predicate=PAID).disabled
    assert kept is not None
    assert kept.at_ms == since_ms, "the seven days go on"
    assert shop.define().enabled
    shop.settle()
    assert shop.fired() == [1]


def test_a_reason_keeps_no_secret(shop: Shop) -> None:
    shop.define()

    shown = shop.disable(body=Disable(reason="its token=abcdefgh12345678 leaked"))

    assert shown.disabled is not None
    assert shown.disabled.reason == "its token=‹redacted: assignment› leaked"


def test_one_whose_changes_are_gone_never_skips_them_by_itself(shop: Shop) -> None:
    """BC-065."""
    shop.define()
    shop.put_many(2)
    shop.settle()
    shop.disable(body=Disable(reason="holiday"))
    shop.put_many(8)
    shop.cut(6)

    assert shop.trigger().overtaken
    assert shop.status().disabled["ship"].startswith("overtaken: changes up to 6 are gone")
    for act in (shop.enable, shop.define):
        told = refusal(act)
        assert (told.code, told.status) == ("TRIGGER_STATE_REPLAY_FAILED", 503)
        assert (told.next, told.facts["oldest"]) == ("ask_operator", 7)
    shop.settle()
    assert shop.fired() == [1, 2]

    assert not shop.define(start=6).overtaken
    shop.settle()
    assert shop.fired() == [1, 2, 7, 8, 9, 10]


# -- deleted


def test_deleting_again_is_no_error_and_what_never_was_is(shop: Shop) -> None:
    shop.define()
    shop.put("a", {"n": 1})
    shop.settle()

    shop.does(triggers.delete)
    shop.does(triggers.delete)

    assert shop.refused(lambda: shop.does(triggers.delete, "made-up")) == "TRIGGER_NOT_FOUND"
    assert shop.refused(shop.trigger) == "TRIGGER_NOT_FOUND"
    assert len(shop.work()) == 1, "what it made stays"
    assert shop.status().triggers == 0
    shop.define()
    assert shop.trigger().cursor == 1
    shop.does(triggers.delete)
    assert shop.refused(shop.enable) == "TRIGGER_NOT_FOUND"


def test_another_tenants_trigger_is_like_a_made_up_one(shop: Shop) -> None:
    theirs = shop.caller(tenants=("other",), grant_id=shop.grant(tenant_id="other"))
    shop.define()
    for verb in (triggers.enable, triggers.disable, triggers.delete):
        of = {"by": theirs, "tenant_id": "acme"}
        told = refusal(lambda v=verb, o=of: shop.does(v, "ship", **o))
        assert told.code == "TRIGGER_NOT_FOUND"
        of = {"by": theirs, "tenant_id": "other"}
        assert refusal(lambda v=verb, o=of: shop.does(v, "ship", **o)).detail == told.detail


# -- what is written down


def test_every_verb_is_an_event_and_an_act(shop: Shop) -> None:
    shop.define()
    shop.disable(body=Disable(reason="why not"))
    shop.enable()
    shop.does(triggers.delete)

    verbs = ["define_trigger", "disable_trigger", "enable_trigger", "delete_trigger"]
    events = shop.conn.execute(
        "SELECT kind, tenant_id, application_id, actor FROM events WHERE kind LIKE '%trigger'"
    )
    assert [tuple(row) for row in events] == [(v, "acme", "docs", "service:app") for v in verbs]
    acts = shop.conn.execute(
        "SELECT action, subject, actor FROM audit WHERE action LIKE '%trigger' ORDER BY seq"
    )
    assert [tuple(row) for row in acts] == [(v, "acme/ship", "service:app") for v in verbs]


# -- looked at ahead


def test_a_preview_shows_which_of_the_newest_changes_would_fire(shop: Shop) -> None:
    shop.put("old", {"status": "paid"})
    shop.define(predicate=PAID, enabled=False)
    for number in range(6):
        shop.put(f"r{number}", {"status": "paid" if number % 2 else "new"})

    shown: Previewed = shop.does(triggers.preview, "ship", Preview(count=2))

    assert shown.changes is not None
    assert [(one.seq, one.id) for one in shown.changes] == [(7, "r5"), (5, "r3")]
    assert (shown.looked_at, shown.enabled) == (7, False)
    assert shop.work() == []


def test_a_preview_looks_no_further_than_an_evaluation_would(shop: Shop) -> None:
    thorough = {"op": "contains", "field": "after.x", "value": 2}
    shop.define(predicate={"op": "any", "args": [thorough] * 16}, enabled=False)
    for number in range(8):
        shop.put("large", {"n": number, "x": [1] * 50_000})

    shown: Previewed = shop.does(triggers.preview)

    assert shown.changes == []
    # Two values of 100 kB, seventeen times: 4 MiB are used up by the second change.
    assert shown.looked_at == 2


def test_a_preview_says_what_was_made_already(shop: Shop) -> None:
    shop.define()
    shop.put("a", {"n": 1})
    shop.settle()
    shop.put("a", {"n": 2})

    shown: Previewed = shop.does(triggers.preview)

    made = [one.workload_id for one in shown.changes or ()]
    assert made == [None, shop.work()[0]["workload_id"]]


def test_pages_are_newest_first_and_end(shop: Shop) -> None:
    for number in range(5):
        shop.define(f"t{number}")
        shop.later(1)
    found, after = [], None
    while True:
        ask = Ask(caller=shop.app, body=PageAsk(tenant_id="acme", limit=2, after=after))
        page = shop.run(standing.page, ask)
        found += [one.trigger_id for one in page.items]
        after = page.after
        if after is None:
            break
    assert found == ["t4", "t3", "t2", "t1", "t0"]


def test_a_status_of_several_tenants_names_them(shop: Shop) -> None:
    theirs = shop.caller(tenants=("other",), grant_id=shop.grant(tenant_id="other"))
    shop.define("ship", by=theirs)
    shop.define("ship")
    shop.put_many(2)

    found = shop.run(standing.status, Ask(caller=shop.open, body=None))
    assert found.cursors == {"acme/ship": 0, "other/ship": 0}
    assert (found.triggers, found.lag, found.head) == (2, 2, 2)
    own = shop.run(standing.status, Ask(caller=theirs, body=None))
    assert (own.cursors, own.lag, own.head) == ({"ship": 0}, 0, 0)

"""Triggers over HTTP, by real keys: what is sent, what comes back, and what it sets off."""

import threading
import time
from typing import Any

import pytest

from tests.api.triggers.conftest import SCOPES, Shop
from tests.daemon.running import PATIENCE_S

PAID = {"op": "eq", "field": "after.status", "value": "paid"}


def test_a_trigger_is_201_then_200_and_shown_as_it_was_said(shop: Shop) -> None:
    said = shop.definition(
        predicate={"op": "all", "args": [PAID, {"op": "changed", "field": "status"}]},
        capability_snapshot=["docs.extract"],
        priority=3,
        retry_policy={"max_attempts": 2},
        timeouts={"total_ms": 60_000},
        authorization_grant=shop.token,
        enabled=True,
    )

    first, again = (shop.call("POST", "/v1/triggers", said) for _ in range(2))

    assert (first.status, again.status) == (201, 200)
    assert first.body == again.body == shop.ok("GET", f"/v1/triggers/{said['trigger_id']}")
    shown = first.body
    for member in ("predicate", "capability_snapshot", "priority", "timeouts", "change_kind"):
        assert shown[member] == said[member], member
    assert (shown["tenant_id"], shown["application_id"]) == ("acme", "docs")
    assert shown["authorization_grant_id"] == shop.grant_id
    assert shown["requested_by"] == {"kind": "service", "id": "shop"}
    assert (shown["lag"], shown["fired"], shown["enabled"]) == (0, 0, True)
    assert "authorization_grant" not in shown


def test_a_change_becomes_work_that_a_person_can_trace(shop: Shop) -> None:
    made = shop.define(predicate=PAID)
    collection, trigger_id = made["source_collection"], made["trigger_id"]
    shop.put(collection, "a", {"status": "new"})
    shop.put(collection, "a", {"status": "paid"})

    [work] = shop.made(trigger_id, 1)

    assert work["definition_id"] == made["target_capability"]
    assert (work["trigger"], work["state"]) == (trigger_id, "READY")
    assert work["input"]["before"] == {"status": "new"}
    assert work["input"]["after"] == {"status": "paid"}
    assert (work["input"]["kind"], work["input"]["version"]) == ("updated", 2)
    seq = work["input"]["seq"]
    assert work["idempotency_key"].startswith(f"trigger/{trigger_id}/")
    assert work["idempotency_key"].endswith(f"/{seq}")
    shown = shop.ok("GET", f"/v1/triggers/{trigger_id}")
    assert (shown["fired"], shown["last_workload_id"]) == (1, work["workload_id"])
    events = shop.ok("GET", f"/v1/workloads/{work['workload_id']}/events")["items"]
    assert (events[0]["kind"], events[0]["actor"]) == ("create", "service:shop")


def test_an_evaluation_beside_the_keepers_doubles_nothing(shop: Shop) -> None:
    """BC-061: the keeper, and four who ask, over the same changes."""
    made = shop.define(enabled=False)
    trigger_id = made["trigger_id"]
    mutations = [
        {"op": "put", "collection": made["source_collection"], "id": f"r{n}", "value": n}
        for n in range(100)
    ]
    shop.ok("POST", "/v1/transactions", {"mutations": mutations})
    shop.ok("POST", f"/v1/triggers/{trigger_id}/enable", {})
    answers: list[Any] = []
    asking = [
        threading.Thread(
            target=lambda: answers.append(shop.ok("POST", "/v1/triggers/evaluate", {}))
        )
        for _ in range(4)
    ]
    for one in asking:
        one.start()
    for one in asking:
        one.join(PATIENCE_S)

    work = shop.made(trigger_id, 100)

    assert len(answers) == 4
    assert sorted(one["input"]["after"] for one in work) == list(range(100))
    produced = [one["workload_id"] for answer in answers for one in answer["produced"]]
    assert len(produced) == len(set(produced))
    assert shop.ok("GET", f"/v1/triggers/{trigger_id}")["lag"] == 0


def test_a_status_shows_cursors_lag_and_what_stands_still(shop: Shop) -> None:
    made, still = shop.define(), shop.define()
    shop.put(made["source_collection"], "a", 1)
    shop.made(made["trigger_id"], 1)
    shop.ok("POST", f"/v1/triggers/{still['trigger_id']}/disable", {"reason": "a release"})

    status = shop.ok("GET", "/v1/triggers/status")

    assert status["cursors"][made["trigger_id"]] == status["head"]
    assert status["disabled"][still["trigger_id"]] == "a release"
    assert (status["lag"], status["failing"]) == (0, {})
    assert status["triggers"] == len(shop.ok("GET", "/v1/triggers?limit=500")["items"])


def test_a_failing_trigger_is_disabled_in_sight_and_stops_no_other(shop: Shop) -> None:
    grant = shop.daemon.post(
        "/v1/grants",
        {
            "subject": {"kind": "service", "id": "shop"},
            "tenant_id": "acme",
            "application_id": "docs",
            "capabilities": [],
            "resources": [],
            "expires_at_ms": int(time.time() * 1_000) + 60_000,
        },
    )
    good = shop.define()
    bad = shop.define(
        source_collection=good["source_collection"], authorization_grant=grant["token"]
    )
    shop.daemon.post(f"/v1/grants/{grant['grant']['id']}/revoke", {})
    shop.put(good["source_collection"], "a", 1)
    shop.made(good["trigger_id"], 1)
    for _ in range(5):
        shop.ok("POST", "/v1/triggers/evaluate", {})
    shop.put(good["source_collection"], "a", 2)

    assert len(shop.made(good["trigger_id"], 2)) == 2
    shown = shop.ok("GET", f"/v1/triggers/{bad['trigger_id']}")
    assert (shown["enabled"], shown["failures"]) == (False, 5)
    assert shown["disabled"]["by"] == "service:feltd"
    assert shown["disabled"]["reason"] == "WORKLOAD_UNAUTHORIZED: the grant was revoked"
    metrics = shop.daemon.get("/metrics")
    assert "feltd_triggers_disabled " in metrics
    assert "feltd_trigger_lag_changes " in metrics
    assert "disabled after 5 failures" in shop.daemon.told()


def test_what_was_disabled_goes_on_where_it_stood(shop: Shop) -> None:
    made = shop.define()
    path = f"/v1/triggers/{made['trigger_id']}"
    off = shop.ok("POST", f"{path}/disable", {})
    shop.put(made["source_collection"], "a", 1)
    again = shop.ok("POST", f"{path}/disable", {"reason": "other"})
    on = shop.ok("POST", f"{path}/enable")

    assert off["disabled"]["reason"] == "disabled by hand"
    assert again["disabled"] == off["disabled"]
    assert on["enabled"]
    assert len(shop.made(made["trigger_id"], 1)) == 1
    assert shop.ok("POST", f"{path}/enable", {})["enabled"]


def test_a_preview_makes_nothing(shop: Shop) -> None:
    made = shop.define(predicate=PAID, enabled=False)
    for number in range(3):
        shop.put(made["source_collection"], f"r{number}", {"status": "paid", "n": number})
    path = f"/v1/triggers/{made['trigger_id']}/preview"

    some = shop.ok("POST", path, {"count": 2})
    usual = shop.ok("GET", path)

    assert [one["id"] for one in some["changes"]] == ["r2", "r1"]
    assert len(usual["changes"]) == 3
    assert (usual["looked_at"], usual["enabled"]) == (3, False)
    answer = shop.call("POST", path, {"count": 0})
    assert (answer.status, answer.body["code"]) == (400, "TRIGGER_INVALID")
    assert shop.ok("GET", f"/v1/workloads?trigger={made['trigger_id']}")["items"] == []


def test_deleting_is_204_twice_and_404_for_what_never_was(shop: Shop) -> None:
    made = shop.define()
    path = f"/v1/triggers/{made['trigger_id']}"

    assert [shop.call("DELETE", path).status for _ in range(2)] == [204, 204]
    for method, verb, body in (
        ("DELETE", "", None),
        ("GET", "", None),
        ("POST", "/enable", {}),
        ("POST", "/disable", {}),
        ("POST", "/preview", {}),
    ):
        answer = shop.call(method, f"/v1/triggers/never-was{verb}", body)
        assert (answer.status, answer.body["code"]) == (404, "TRIGGER_NOT_FOUND"), verb


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"trigger_id": "a:b"}, "/trigger_id"),
        ({"trigger_id": "status"}, "/trigger_id"),
        ({"trigger_id": None}, "/trigger_id"),
        ({"change_kind": "renamed"}, "/change_kind"),
        ({"change_kind": None}, "/change_kind"),
        ({"source_collection": "a b"}, "/source_collection"),
        ({"target_capability": None}, "/target_capability"),
        ({"start": "tail"}, "/start"),
        ({"start": -1}, "/start"),
        ({"start": 1_000_000}, "/start"),
        ({"priority": 1_001}, "/priority"),
        ({"cursor": 3}, "/cursor"),
        ({"every_ms": 5_000}, "/every_ms"),
        ({"kind": "webhook"}, "/kind"),
        ({"predicate": {"op": "maybe"}}, "/predicate/op"),
        ({"predicate": {"op": "eq", "field": "after..x", "value": 1}}, "/predicate/field"),
        ({"predicate": {"op": "eq", "field": "after.x"}}, "/predicate/value"),
        ({"predicate": {"op": "all", "args": [{"op": "eq"}]}}, "/predicate/args/0/field"),
        ({"predicate": {"op": "eq", "field": "after.x", "value": 2**53}}, "/predicate/value"),
        ({"predicate": {"op": "eq", "field": "after.x", "value": "a\0"}}, "/predicate/value"),
        ({"predicate": {"op": "eq", "field": "after.x", "value": "a" * 70_000}}, "/predicate"),
        ({"placement": {"pool_id": "made-up"}}, "/placement/pool_id"),
        ({"requested_by": {"kind": "service", "id": "other"}}, "/requested_by"),
        ({"tenant_id": "x:y"}, "/tenant_id"),
    ],
)
def test_what_does_not_fit_is_pointed_at(shop: Shop, members: Any, pointer: str) -> None:
    answer = shop.call("POST", "/v1/triggers", shop.definition(**members))

    assert (answer.status, answer.body["code"]) == (400, "TRIGGER_INVALID"), answer
    assert answer.body["errors"][0]["pointer"].startswith(pointer)
    assert answer.body["next"] == "fix_request"


def test_a_tree_deeper_than_anything_is_refused_not_walked(shop: Shop) -> None:
    node: dict[str, Any] = PAID
    for _ in range(400):
        node = {"op": "not", "args": [node]}

    answer = shop.call("POST", "/v1/triggers", shop.definition(predicate=node))

    assert answer.status == 400, answer
    assert answer.body["code"] in ("TRIGGER_INVALID", "REQUEST_MALFORMED")


def test_a_grant_that_does_not_cover_it_is_400(shop: Shop) -> None:
    """As the seed had it: 400, not 403."""
    for members in (
        {"capability_snapshot": ["docs.delete"]},
        {"authorization_grant": "made.up.token"},
        {"application_id": "other"},
    ):
        answer = shop.call("POST", "/v1/triggers", shop.definition(**members))
        assert (answer.status, answer.body["code"]) == (400, "TRIGGER_UNAUTHORIZED"), answer


def test_scopes_decide_who_looks_and_who_changes(shop: Shop) -> None:
    made = shop.define()
    path = f"/v1/triggers/{made['trigger_id']}"
    viewer = shop.made_key(scopes=["triggers:read"])
    blind = shop.made_key(
        scopes=[one for one in SCOPES if one != "state:read"], grant_id=shop.grant_id
    )
    for method, at, body in (
        ("GET", "/v1/triggers", None),
        ("GET", "/v1/triggers/status", None),
        ("GET", path, None),
        ("GET", f"{path}/preview", None),
        ("POST", f"{path}/preview", {}),
    ):
        assert shop.call(method, at, body, key=viewer).status == 200, at
    for method, at, body in (
        ("POST", "/v1/triggers", shop.definition()),
        ("POST", "/v1/triggers/evaluate", {}),
        ("POST", f"{path}/enable", {}),
        ("POST", f"{path}/disable", {}),
        ("DELETE", path, None),
    ):
        answer = shop.call(method, at, body, key=viewer)
        assert (answer.status, answer.body["code"]) == (403, "FORBIDDEN"), at
    answer = shop.call("POST", "/v1/triggers", shop.definition(), key=blind)
    assert (answer.status, answer.body["code"]) == (403, "FORBIDDEN")
    assert "state:read" in answer.body["detail"]


def test_a_repeat_with_its_key_moves_no_cursor_again(shop: Shop) -> None:
    said = shop.definition(start="head")
    named = {"Idempotency_Key": f"define-{said['trigger_id']}"}
    first = shop.call("POST", "/v1/triggers", said, **named)
    shop.put(said["source_collection"], "a", 1)
    shop.made(said["trigger_id"], 1)

    again = shop.call("POST", "/v1/triggers", said, **named)

    assert (first.status, again.status) == (201, 200)
    assert again.body == first.body
    assert shop.ok("GET", f"/v1/triggers/{said['trigger_id']}")["fired"] == 1


def test_a_caller_of_every_tenant_says_whose_and_lists_all(shop: Shop) -> None:
    made = shop.define()
    admin = shop.daemon
    path = f"/v1/triggers/{made['trigger_id']}"

    assert admin.call("GET", path).body["code"] == "TRIGGER_INVALID"
    assert admin.get(f"{path}?tenant_id=acme")["trigger_id"] == made["trigger_id"]
    assert admin.get(path, X_Feltd_Tenant="acme") == admin.get(f"{path}?tenant_id=acme")
    assert admin.call("GET", f"{path}?tenant_id=other").body["code"] == "TRIGGER_NOT_FOUND"
    listed = admin.get("/v1/triggers?limit=500")["items"]
    assert made["trigger_id"] in [one["trigger_id"] for one in listed]
    assert admin.get("/v1/triggers?tenant_id=other")["items"] == []
    assert admin.post("/v1/triggers/evaluate", {})["more"] is False
    assert admin.post("/v1/triggers/evaluate", {"tenant_id": "other"})["produced"] == []


def test_pages_follow_each_other(shop: Shop) -> None:
    made = [shop.define()["trigger_id"] for _ in range(5)]
    found: list[str] = []
    cursor = ""
    while len(found) < 5:
        page = shop.ok("GET", f"/v1/triggers?limit=2{cursor}")
        found += [one["trigger_id"] for one in page["items"]]
        cursor = f"&cursor={page['next_cursor']}"
    assert found[:5] == list(reversed(made))
    assert shop.call("GET", "/v1/triggers?cursor=abc").status == 400

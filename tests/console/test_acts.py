"""What is done by the forms of the pages: the same as by the API, told once, and written down."""

from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.console.test_pages import Elements
from tests.console.town import HOSTILE, Town, wait
from tests.daemon.running import Answer


def said(answer: Answer) -> str:
    """What the next page tells of an act."""
    assert answer.status == 303, answer.body[:2_000]
    kept = answer.headers["set-cookie"].partition("feltd_said=")[2].partition(";")[0]
    return unquote(kept.rpartition(".")[0])


def worker(town: Town, name: str) -> dict[str, Any]:
    return town.daemon.get(f"/v1/workers/{town.crew.worker(name)['worker_id']}")  # type: ignore[no-any-return]


@pytest.fixture
def edge(town: Town) -> str:
    """The id of the town's worker; a story leaves it ready."""
    return str(town.crew.worker("edge-1")["worker_id"])


def test_an_operator_quarantines_with_a_reason_and_ends_it(town: Town, edge: str) -> None:
    place = f"/console/workers/{edge}"

    told = said(town.form(f"{place}/quarantine", by="olga", reason="its disk fails", lasts="1h"))
    assert "no new work" in told
    stands = worker(town, "edge-1")["quarantine"]
    assert (stands["reason"], stands["by"]) == ("its disk fails", "human:olga")
    assert stands["until_at_ms"] - stands["at_ms"] <= 3_600_000 + 5_000
    assert "its disk fails" in town.page(place).body
    assert "its disk fails" in town.page("/console/audit?action=quarantine").body

    said(town.form(f"{place}/unquarantine", by="olga"))
    assert "quarantine" not in worker(town, "edge-1")


def test_a_quarantine_without_a_reason_is_refused_on_a_page(town: Town, edge: str) -> None:
    answer = town.form(f"/console/workers/{edge}/quarantine", by="olga")

    assert answer.status == 422
    assert "reason" in answer.body


def test_recovering_a_worker_that_is_not_offline_says_why_not(town: Town, edge: str) -> None:
    answer = town.form(f"/console/workers/{edge}/recover", by="olga")

    assert answer.status == 409
    assert "WORKER_TRANSITION_DENIED" in answer.body


def test_a_pool_is_made_changed_and_deleted(town: Town, edge: str) -> None:
    fields = {
        "pool_id": "fast", "tenant_id": "t", "name": "the fast ones", "max_concurrency": "2",
        "capabilities": "extract", "required_labels": "zone=a", "worker_ids": edge,
    }  # fmt: skip
    answer = town.form("/console/pools", by="olga", **fields)
    assert "was made" in said(answer)
    assert urlsplit(answer.headers["location"]).path == "/console/pools/fast"
    made = town.daemon.get("/v1/pools/fast?tenant_id=t")
    assert (made["members"], made["max_concurrency"]) == (1, 2)
    assert (made["worker_ids"], made["listed"]) == ([edge], True)
    assert made["required_labels"] == {"zone": "a"}

    # Whoever is listed may go; the pool must not open to everybody by the next small change.
    page = town.page("/console/pools/fast?tenant_id=t").body
    assert 'name="listed" value="true" checked' in page
    changed = {"tenant_id": "t", "name": "few", "listed": "true"}
    said(town.form("/console/pools/fast/replace", by="olga", **changed))
    now = town.daemon.get("/v1/pools/fast?tenant_id=t")
    assert (now["name"], now["max_concurrency"], now["listed"]) == ("few", None, True)
    assert (now["worker_ids"], now["members"]) == ([], 0)

    said(town.form("/console/pools/fast/delete", by="olga", tenant_id="t"))
    assert town.page("/console/pools/fast?tenant_id=t").status == 404


@pytest.mark.parametrize(
    "fields",
    [
        {"pool_id": "bad pool", "name": "x"},
        {"pool_id": "x", "name": "x", "required_labels": "zone"},
        {"pool_id": "x", "name": "x", "max_concurrency": "many"},
        {"pool_id": "x", "name": "x", "max_concurrency": "0"},
        {"pool_id": "x", "name": "x", "unheard": "of"},
        {"pool_id": "x", "name": "x\n"},
        {"name": "x"},
    ],
)
def test_a_pool_that_does_not_fit_is_refused_on_a_page(town: Town, fields: Any) -> None:
    answer = town.form("/console/pools", by="olga", tenant_id="t", **fields)

    assert answer.status == 422, answer.body[:1_000]
    assert "REQUEST_INVALID" in answer.body


def test_work_is_held_and_let_go(town: Town) -> None:
    answer = town.form("/console/holds", by="olga", scope="definition", value="late",
                       tenant_id="t", reason="a new release comes", lasts="10m")  # fmt: skip
    assert "late" in said(answer)
    (hold,) = [one for one in town.daemon.get("/v1/holds")["items"] if one.get("value") == "late"]
    assert (hold["held_by"], hold["reason"]) == ("human:olga", "a new release comes")
    assert hold["until_at_ms"] > hold["held_at_ms"]

    said(town.form(f"/console/holds/{hold['hold_id']}/lift", by="olga", tenant_id="t"))
    assert hold["hold_id"] not in town.page("/console/holds").body
    assert town.form("/console/holds", by="olga", scope="all").status == 422


def test_a_trigger_is_stopped_goes_on_and_is_judged_by_hand(town: Town) -> None:
    place = "/console/triggers/evil@example+1"

    said(town.form(f"{place}/disable", by="olga", tenant_id="t", reason="closed for <b>today</b>"))
    page = town.page("/console/triggers").body
    assert "closed for &lt;b&gt;today&lt;/b&gt;" in page
    assert "1 disabled" in page

    answer = town.form(f"{place}/enable", by="olga", tenant_id="t")
    said(answer)
    assert answer.headers["location"] == "/console/triggers/evil%40example%2B1?tenant_id=t" or (
        answer.headers["location"] == f"{place}?tenant_id=t"
    )
    assert "It made" in said(town.form("/console/triggers/evaluate", by="olga"))


def test_a_dry_run_shows_what_would_fire_and_makes_nothing(town: Town) -> None:
    put = town.daemon.call(
        "PUT", "/v1/collections/orders/records/o1", {"status": HOSTILE}, X_Feltd_Tenant="t"
    )
    assert put.status < 300, put
    page = town.page("/console/triggers/evil@example+1?tenant_id=t").body

    assert "Of the 1 newest changes" in page or "newest changes" in page
    assert "<code>o1</code>" in page


def test_a_schedule_is_run_now(town: Town) -> None:
    answer = town.form("/console/triggers/nightly/run", by="olga", tenant_id="t")

    told = said(answer)
    assert "workload_" in told
    assert answer.headers["location"] == "/console/schedules/nightly?tenant_id=t"
    assert (
        "a state trigger"
        in town.form("/console/triggers/evil@example+1/run", by="olga", tenant_id="t").body
    )


def test_all_dead_letters_of_a_kind_come_back(town: Town) -> None:
    first, second = town.dead(), town.dead()
    page = Elements(town.page("/console/dead-letters?tenant_id=t", by="olga").body)
    (bulk,) = [one["href"] for one in page.of("a") if "action=requeue" in one.get("href", "")]

    assert '<p id="count"><strong>' in town.page(bulk, by="olga").body
    asked = {name: texts[0] for name, texts in parse_qs(urlsplit(bulk).query).items()}
    assert asked == {
        "action": "requeue", "state": "DEAD_LETTERED", "failure_kind": "execution_error",
        "definition_id": "extract", "tenant_id": "t",
    }  # fmt: skip
    run = town.form("/console/workloads/bulk", by="olga", **asked)
    assert run.status == 303
    for workload_id in (first, second):
        wait(lambda id=workload_id: len(town.crew.ends(id)) == 2, "it was tried again")


def test_a_key_is_ended_by_an_administrator_alone(town: Town) -> None:
    made = town.daemon.post("/v1/keys", {"name": "short", "scopes": [], "tenants": ["t"]})

    assert made["secret"] not in town.page("/console/keys").body
    assert town.form(f"/console/keys/{made['key_id']}/revoke", by="olga").status == 403
    said(town.form(f"/console/keys/{made['key_id']}/revoke"))
    assert town.daemon.call("GET", "/v1/auth/me", key=made["secret"]).status == 401


def test_a_grant_names_the_workers_that_stop_with_it(own: Town) -> None:
    edge = own.worker("edge-9")
    grant_id = own.crew.grant_id
    (key,) = [k for k in own.daemon.get("/v1/keys")["items"] if k["scopes"] == ["workers:register"]]

    assert "1 worker stops when it ends" in own.page(f"/console/grants/{grant_id}").body
    listed = own.page("/console/keys").body
    assert listed.count(f"/console/workers/{edge['worker_id']}") >= 2
    assert key["key_id"] in listed

    answer = own.form(f"/console/grants/{grant_id}/revoke", reason="the contract ended")
    assert "revoked" in said(answer)
    page = own.page(f"/console/grants/{grant_id}").body
    assert "revoked" in page
    assert "/revoke" not in page
    assert "the contract ended" in own.page("/console/audit?action=revoke_grant").body


def test_roles_are_given_and_users_disabled(own: Town) -> None:
    assert "operator in every tenant" in said(
        own.form("/console/users/vic/role", tenant="*", role="operator")
    )
    assert own.page("/console/holds", by="vic").status == 200
    said(own.form("/console/users/vic/role", tenant="*", role="none"))
    assert own.page("/console/holds", by="vic").status == 403

    said(own.form("/console/users/vic/disable"))
    assert own.page("/console/workers", by="vic").status == 303
    assert "disabled" in own.page("/console/users").body

"""Workers are looked at one by one and page by page, never another tenant's."""

from typing import Any

import pytest

from feltd.mesh import roster
from feltd.model.worker import Worker
from tests.mesh.workers.stories import House


def listed(house: House, **members: Any) -> list[str]:
    """Names of all matching workers, walked page by page."""
    labels = members.pop("labels", {})
    tenant_id = members.pop("tenant_id", None)
    caller = members.pop("caller", house.operator)
    after, names = None, []
    while True:
        asked = roster.PageAsk(
            filter=roster.Filter(**members), tenant_id=tenant_id, labels=labels, after=after
        )
        page = house.mesh.ask(roster.page, asked, caller=caller)
        names += [worker.name for worker in page.items]
        after = page.after
        if after is None:
            return names


def test_the_newest_registration_comes_first(house: House) -> None:
    for name in ("one", "two", "three"):
        house.registers(name)
        house.mesh.later(ms=1)

    assert listed(house) == ["three", "two", "one"]


def test_a_worker_whose_registrar_dates_it_at_the_end_of_time_is_listed(house: House) -> None:
    house.registers("late", registered_at_ms=2**53 - 1)
    house.registers("now")

    assert listed(house, limit=1) == ["late", "now"]


def test_a_walk_skips_and_repeats_nobody_under_new_registrations(house: House) -> None:
    for n in range(7):
        house.registers(f"edge-{n}")
        house.mesh.later(ms=n % 2)
    asked = roster.PageAsk(filter=roster.Filter(limit=3))
    first = house.mesh.ask(roster.page, asked, caller=house.operator)
    house.mesh.later(ms=1)
    house.registers("newer")

    asked = roster.PageAsk(filter=roster.Filter(limit=50), after=first.after)
    rest = house.mesh.ask(roster.page, asked, caller=house.operator)

    names = [worker.name for worker in [*first.items, *rest.items]]
    assert sorted(names) == [f"edge-{n}" for n in range(7)]
    assert rest.after is None


def test_filters_narrow(house: House) -> None:
    busy = house.worker("busy", capacity={"concurrency": 1}, labels={"zone": "a"})
    busy.takes()
    house.worker("ready", labels={"zone": "b", "rack": "1"})
    house.worker("gone")
    house.registers("new")
    house.drain(house.show(house.registers("gone").worker.worker_id).worker_id)

    assert listed(house, lifecycle="BUSY") == ["busy"]
    assert listed(house, lifecycle="READY") == ["ready"]
    assert listed(house, lifecycle="OFFLINE") == ["gone"]
    assert listed(house, lifecycle="REGISTERED") == ["new"]
    assert listed(house, health="UNKNOWN") == ["new"]
    assert listed(house, labels={"zone": "b", "rack": "1"}) == ["ready"]
    assert listed(house, labels={"zone": "c"}) == []
    assert listed(house, application_id="other") == []
    assert set(listed(house, application_id="docs", limit=1)) == {"busy", "ready", "gone", "new"}


def test_removed_workers_are_not_shown(house: House) -> None:
    edge = house.worker()
    house.operates("remove", edge.id)

    assert listed(house) == []


def test_workers_of_another_tenant_do_not_exist(house: House) -> None:
    edge = house.worker()
    stranger = house.key("stranger", ["workers:read"], None, ("elsewhere",))

    def shown(worker_id: str) -> Worker:
        return house.mesh.ask(roster.get, roster.Look(), worker_id, stranger)

    assert listed(house, caller=stranger) == []
    assert listed(house, caller=stranger, tenant_id="acme") == []
    foreign, made_up = house.refusal(lambda: shown(edge.id)), house.refusal(lambda: shown("x"))
    assert (foreign.code, foreign.detail) == (made_up.code, made_up.detail)
    assert foreign.code == "WORKER_NOT_FOUND"


def test_a_worker_sees_its_own_row_and_no_other(house: House) -> None:
    edge, other = house.worker(), house.worker("other")

    assert house.mesh.ask(roster.get, roster.Look(), edge.id, edge.caller).name == "edge"
    refused = house.refusal(
        lambda: house.mesh.ask(roster.get, roster.Look(), other.id, edge.caller)
    )
    assert refused.code == "FORBIDDEN"


def test_recent_shows_what_ended_newest_first(house: House) -> None:
    edge = house.worker()
    done, broken = edge.takes(2)
    edge.says("complete", done)
    edge.says("fail", broken, kind="transient", message="no route")
    edge.takes()

    recent = house.mesh.ask(roster.get, roster.Look(recent=20), edge.id, house.operator).recent
    one = house.mesh.ask(roster.get, roster.Look(recent=1), edge.id, house.operator).recent

    assert recent is not None
    assert [(ended.claim_id, ended.end) for ended in recent] == [
        (broken.claim_id, "transient"),
        (done.claim_id, "completed"),
    ]
    assert recent[0].message == "no route"
    assert one == recent[:1]
    assert edge.shown().recent is None


@pytest.mark.parametrize("statement", [roster.PAGE, roster.PAGE_OF_TENANT, roster.RECENT])
def test_a_page_is_sought_never_scanned_and_sorted(house: House, statement: str) -> None:
    names = ("tenant_id", "at_ms", "id", "worker_id", "rows", "recent")
    plan = house.mesh.conn.execute(
        f"EXPLAIN QUERY PLAN {statement}", dict.fromkeys(names, 1)
    ).fetchall()
    steps = [row["detail"] for row in plan]

    assert all("SEARCH" in step for step in steps), steps
    assert not any("TEMP B-TREE" in step for step in steps), steps

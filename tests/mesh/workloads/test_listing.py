"""Lists show every workload once, newest first, and read a bounded number of rows for a page."""

from typing import Any

import pytest

from feltd.identity.principals import OPEN
from feltd.mesh import cancel, listing
from feltd.model.base import Caller, Subject
from feltd.model.workload import Cancel, Filter, Listing, RetryPolicy
from tests.mesh.workloads.stories import create
from tests.mesh.world import Mesh


def reader(*tenants: str) -> Caller:
    return Caller(Subject(kind="service", id="reader"), tenants=tenants, local=True)


def keys(mesh: Mesh, caller: Caller = OPEN, limit: int = 50, **wanted: Any) -> list[str]:
    """The idempotency keys of every page, in order."""
    found: list[str] = []
    before = None
    while True:
        page = mesh.ask(listing.page, Listing(Filter(**wanted), limit, before), caller=caller)
        assert len(page.items) <= limit
        found += [item.idempotency_key for item in page.items]
        if page.before is None:
            return found
        before = page.before


def test_pages_hold_every_workload_once_while_others_come_and_go(mesh: Mesh) -> None:
    """BC-097: 250 workloads of one instant; rows come and change between the pages."""
    jobs = [create(mesh, key=f"k{n:03}").workload for n in range(250)]
    found: list[str] = []
    before = None
    for round_ in range(10):
        page = mesh.ask(listing.page, Listing(Filter(), 100, before))
        found += [item.idempotency_key for item in page.items]
        create(mesh, key=f"new{round_}")
        mesh.ask(cancel.cancel, Cancel(), jobs[round_].workload_id)
        before = page.before
        if before is None:
            break
    assert found == [f"k{n:03}" for n in reversed(range(250))]


def test_a_list_spans_the_callers_tenants_and_no_other(mesh: Mesh) -> None:
    for tenant in ("a", "b", "c"):
        for application in ("x", "y"):
            create(mesh, f"{tenant}{application}", tenant_id=tenant, application_id=application)
    assert keys(mesh, reader("a", "c")) == ["cy", "cx", "ay", "ax"]
    assert keys(mesh, reader("a", "c"), limit=1) == ["cy", "cx", "ay", "ax"]
    assert keys(mesh, reader("a", "c"), tenant_id="a") == ["ay", "ax"]
    assert keys(mesh, reader("a", "c"), tenant_id="b") == []
    assert keys(mesh, reader("a", "c"), application_id="x") == ["cx", "ax"]
    assert keys(mesh, reader("*")) == ["cy", "cx", "by", "bx", "ay", "ax"]
    assert keys(mesh, reader("*"), tenant_id="b") == ["by", "bx"]


def test_a_caller_of_very_many_tenants_walks_all_rows(mesh: Mesh) -> None:
    names = [f"t{n:02}" for n in range(70)]
    for name in names:
        create(mesh, name, tenant_id=name)
    create(mesh, "hidden", tenant_id="other")
    assert keys(mesh, reader("*"), limit=7) == ["hidden", *reversed(names)]
    assert keys(mesh, reader(*names), limit=7) == list(reversed(names))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"definition_id": "other"}, ["d"]),
        ({"trigger": "nightly"}, ["t"]),
        ({"labels": {"team": "x"}}, ["l2", "l"]),
        ({"labels": {"team": "x", "size": "1"}}, ["l"]),
        ({"state": "CANCELLED"}, ["c"]),
        ({"state": "READY", "definition_id": "other"}, ["d"]),
        ({"state": "RUNNING"}, []),
        ({"definition_id": "nothing"}, []),
    ],
)
def test_filters_are_met_together(mesh: Mesh, wanted: dict[str, Any], found: list[str]) -> None:
    create(mesh, "d", definition_id="other")
    create(mesh, "t", trigger="nightly")
    create(mesh, "l", labels={"team": "x", "size": "1"})
    create(mesh, "l2", labels={"team": "x"})
    job = create(mesh, "c").workload
    mesh.ask(cancel.cancel, Cancel(), job.workload_id)
    assert keys(mesh, **wanted) == found


def test_dead_letters_are_found_by_how_they_failed(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 4})
    for kind in ("transient", "broken"):
        job = create(mesh, kind, retry_policy=RetryPolicy(max_attempts=1)).workload.workload_id
        mesh.say("fail", mesh.claims(job, by=worker, start=True), kind=kind)
    job = create(mesh, "retried").workload.workload_id
    mesh.say("fail", mesh.claims(job, by=worker, start=True), kind="transient")
    assert keys(mesh, state="DEAD_LETTERED") == ["broken", "transient"]
    assert keys(mesh, state="DEAD_LETTERED", failure_kind="transient") == ["transient"]
    assert keys(mesh, failure_kind="transient") == ["retried", "transient"]


def test_what_a_worker_holds_is_listed_by_it(mesh: Mesh) -> None:
    worker, other = mesh.worker("w1", capacity={"concurrency": 4}), mesh.worker("w2")
    held = [create(mesh, f"h{n}").workload.workload_id for n in range(3)]
    create(mesh, "free")
    for job in held:
        mesh.claims(job, by=worker)
    assert keys(mesh, worker_id=worker) == ["h2", "h1", "h0"]
    assert keys(mesh, worker_id=worker, limit=1) == ["h2", "h1", "h0"]
    assert keys(mesh, worker_id=other) == []
    assert keys(mesh, reader("other"), worker_id=worker) == []
    assert keys(mesh, mesh.key(worker)) == ["h2", "h1", "h0"]
    assert keys(mesh, mesh.key(other, "k2")) == []


def test_instants_bound_a_list_on_both_sides(mesh: Mesh) -> None:
    began_ms = mesh.now.lease_ms
    for number in range(40):
        create(mesh, f"k{number}")
        mesh.later(10)
    mesh.hand("DELETE FROM workloads WHERE idempotency_key IN ('k7', 'k20', 'k21')")
    within = {"created_after_ms": began_ms + 50, "created_before_ms": began_ms + 90}
    assert keys(mesh, **within) == ["k8", "k6"]
    assert keys(mesh, limit=1, **within) == ["k8", "k6"]
    assert keys(mesh, created_before_ms=began_ms) == []
    assert keys(mesh, created_before_ms=began_ms + 1) == ["k0"]
    assert keys(mesh, created_after_ms=began_ms + 380) == ["k39"]
    assert len(keys(mesh, created_before_ms=began_ms + 10_000)) == 37


def test_a_page_reads_a_bounded_number_of_rows(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "READ_ROWS_MAX", 20)
    create(mesh, "wanted", definition_id="wanted")
    for number in range(50):
        create(mesh, f"k{number}")
    page = mesh.ask(listing.page, Listing(Filter(definition_id="wanted")))
    assert page.items == []
    assert page.before is not None
    assert keys(mesh, definition_id="wanted") == ["wanted"]


def test_a_page_ends_before_it_grows_too_large(mesh: Mesh) -> None:
    for number in range(20):
        create(mesh, f"k{number}", input="x" * 250_000)
    page = mesh.ask(listing.page, Listing(Filter()))
    assert 10 < len(page.items) < 20
    assert len(keys(mesh)) == 20

"""Pools are made, shown, changed and deleted; nobody else's worker comes into one."""

import random

import pytest

from feltd.mesh import membership, moves, placement, pools
from feltd.model.page import PageAsk
from tests.mesh.pools.stories import (
    body,
    change,
    drop,
    generation,
    look,
    make,
    person,
    refusal,
)
from tests.mesh.world import Mesh


def test_a_pool_is_made_once_and_its_id_names_no_other(mesh: Mesh) -> None:
    pool, new = make(mesh, capabilities=["b", "a", "b"], required_labels={"zone": "a"})

    assert (new, pool.capabilities, pool.worker_ids) == (True, ("a", "b"), ())
    assert make(mesh, capabilities=["a", "b"], required_labels={"zone": "a"}) == (pool, False)
    assert refusal(lambda: make(mesh, capabilities=["a"])).code == "WORKER_POOL_EXISTS"
    assert look(mesh) == pool


def test_a_pool_is_of_its_tenant_alone(mesh: Mesh) -> None:
    make(mesh, tenant="acme", max_concurrency=1)
    make(mesh, tenant="other", max_concurrency=2)

    assert look(mesh, tenant="acme").max_concurrency == 1
    assert look(mesh, tenant="other").max_concurrency == 2


def test_another_tenants_pool_answers_like_a_made_up_one(mesh: Mesh) -> None:
    """BC-093: nothing changes, and nobody learns that it is there."""
    make(mesh, tenant="acme")
    before = mesh.row("SELECT * FROM pools")
    theirs = person("other")

    acts = (
        lambda pool_id, tenant: drop(mesh, pool_id, tenant=tenant, by=theirs),
        lambda pool_id, tenant: change(mesh, pool_id, tenant="other", name="mine"),
        lambda pool_id, tenant: look(mesh, pool_id, tenant="other"),
        lambda pool_id, tenant: mesh.run(
            lambda tx, _, now: pools.require(tx, "other", "docs", pool_id)
        ),
    )
    for act in acts:
        real, made_up = refusal(act, "gpu", "other"), refusal(act, "nope", "other")
        assert (real.code, real.detail, real.facts) == (
            "WORKER_POOL_NOT_FOUND",
            made_up.detail,
            made_up.facts,
        )
    assert refusal(lambda: drop(mesh, tenant="acme", by=theirs)).code == "WORKER_POOL_NOT_FOUND"
    assert tuple(mesh.row("SELECT * FROM pools")) == tuple(before)


def test_a_worker_of_another_tenant_or_application_is_no_worker_here(mesh: Mesh) -> None:
    stranger = mesh.worker("stranger", tenant_id="other")
    neighbour = mesh.worker("neighbour", application_id="mail")
    gone = mesh.worker("gone")
    mesh.ask(moves.remove, None, gone)

    for worker_id in (stranger, neighbour, gone, "worker_made_up"):
        for act in (
            lambda one: make(mesh, application_id="docs", worker_ids=[one]),
            lambda one: _changed(mesh, one),
        ):
            refused = refusal(act, worker_id)
            assert (refused.code, refused.next) == ("WORKER_NOT_FOUND", "fix_request")
            assert refused.detail == worker_id
            assert refused.facts["errors"] == [
                {"pointer": "/worker_ids/0", "detail": "no such worker"}
            ]
    # A pool of the whole tenant takes workers of each of its applications, and no others.
    assert make(mesh, "wide", worker_ids=[neighbour])[0].worker_ids == (neighbour,)
    assert refusal(lambda: make(mesh, "far", worker_ids=[stranger])).code == "WORKER_NOT_FOUND"


def _changed(mesh: Mesh, worker_id: str) -> None:
    make(mesh, "other", application_id="docs")
    change(mesh, "other", application_id="docs", worker_ids=[worker_id])


def test_a_pool_changes_and_work_of_its_application_may_name_it_or_no_longer(mesh: Mesh) -> None:
    make(mesh, application_id="docs")
    mesh.run(lambda tx, _, now: pools.require(tx, "acme", "docs", "gpu"))

    moved = change(mesh, application_id="mail", max_concurrency=3)
    assert (moved.application_id, moved.max_concurrency) == ("mail", 3)
    wrong = refusal(lambda: mesh.run(lambda tx, _, now: pools.require(tx, "acme", "docs", "gpu")))
    assert wrong.code == "WORKER_POOL_NOT_FOUND"
    assert refusal(lambda: change(mesh, "nope")).code == "WORKER_POOL_NOT_FOUND"
    misnamed = refusal(lambda: mesh.ask(pools.replace, pools.OfTenant("acme", body("b")), "gpu"))
    assert misnamed.facts["errors"][0]["pointer"] == "/pool_id"


def test_a_deleted_pool_is_gone_and_deleting_it_again_is_harmless(mesh: Mesh) -> None:
    first, _ = make(mesh, max_concurrency=1)
    drop(mesh)
    drop(mesh)

    assert refusal(lambda: look(mesh)).code == "WORKER_POOL_NOT_FOUND"
    assert refusal(lambda: drop(mesh, "never")).code == "WORKER_POOL_NOT_FOUND"
    mesh.later(5)
    again, new = make(mesh, max_concurrency=2)
    assert (new, again.max_concurrency) == (True, 2)
    assert again.created_at_ms > first.created_at_ms


def test_a_removed_worker_leaves_its_pools_and_no_pool_opens_by_that(mesh: Mesh) -> None:
    one, two = mesh.worker("one"), mesh.worker("two")
    make(mesh, worker_ids=[one])
    make(mesh, "both", worker_ids=[one, two])
    mesh.ask(moves.remove, None, one)

    assert look(mesh, "both").worker_ids == (two,)
    left = look(mesh)
    assert (left.worker_ids, left.listed, left.members) == ((), True, 0)
    # Coming back under its name does not bring it back into them.
    assert mesh.worker("one") == one
    assert look(mesh).members == 0


def test_a_list_that_is_empty_on_purpose_is_nobody(mesh: Mesh) -> None:
    mesh.worker("one")

    assert make(mesh, "open")[0].listed is False
    assert make(mesh, "closed", listed=True)[0].listed is True
    assert (look(mesh, "open").members, look(mesh, "closed").members) == (1, 0)
    one = mesh.worker("one")
    crooked = refusal(lambda: make(mesh, "crooked", worker_ids=[one], listed=False))
    assert crooked.facts["errors"][0]["pointer"] == "/listed"


def test_a_tenant_has_so_many_pools_and_no_more(mesh: Mesh) -> None:
    for number in range(pools.POOLS_MAX):
        make(mesh, f"pool-{number}")

    full = refusal(lambda: make(mesh, "one-more"))
    assert (full.code, full.facts["limit"]) == ("WORKER_INVALID", pools.POOLS_MAX)
    drop(mesh, "pool-0")
    assert make(mesh, "one-more")[1]
    assert make(mesh, tenant="other")[1]


def test_what_was_deleted_is_remembered_within_bounds(mesh: Mesh) -> None:
    for number in range(pools.POOLS_MAX + 20):
        make(mesh, f"pool-{number}")
        drop(mesh, f"pool-{number}")
        mesh.later(1)

    assert mesh.row("SELECT count(*) AS n FROM pools")["n"] == pools.POOLS_MAX
    drop(mesh, f"pool-{pools.POOLS_MAX + 19}")
    assert refusal(lambda: drop(mesh, "pool-0")).code == "WORKER_POOL_NOT_FOUND"


def test_members_are_counted_as_placement_would_take_them(mesh: Mesh) -> None:
    rng = random.Random(7)
    ids = [
        mesh.worker(
            f"w{number}",
            application_id=rng.choice(["docs", "mail"]),
            capabilities=rng.sample(["a", "b", "c"], rng.randrange(4)),
            labels={"zone": rng.choice("xy"), "arch": rng.choice("pq")},
        )
        for number in range(24)
    ]
    for number in range(40):
        application = rng.choice([None, "docs", "mail"])
        within = [
            one
            for one in ids
            if application is None
            or mesh.row("SELECT application_id FROM workers WHERE worker_id = :i", i=one)[0]
            == application
        ]
        make(
            mesh,
            f"p{number}",
            application_id=application,
            capabilities=rng.sample(["a", "b", "c"], rng.randrange(3)),
            required_labels=rng.choice([{}, {"zone": "x"}, {"zone": "y", "arch": "p"}]),
            worker_ids=rng.sample(within, rng.randrange(min(len(within), 5))),
        )

    workers = mesh.conn.execute("SELECT * FROM workers").fetchall()
    page = mesh.ask(pools.page, PageAsk(tenant_id="acme", limit=100))
    assert len(page.items) == 40
    for pool in page.items:
        row = mesh.row("SELECT * FROM pools WHERE pool_id = :p", p=pool.pool_id)
        expected = sum(
            placement.member(placement.of_worker(worker), membership.rule_of(row))
            and pool.application_id in (None, worker["application_id"])
            for worker in workers
        )
        assert pool.members == expected, pool


def test_a_list_is_of_the_callers_tenants_newest_first(mesh: Mesh) -> None:
    for tenant, pool_id in (("acme", "a"), ("other", "b"), ("acme", "c")):
        make(mesh, pool_id, tenant=tenant)
        mesh.later(1)

    def listed(*tenants: str, only: str | None = None) -> list[str]:
        page = mesh.ask(pools.page, PageAsk(tenant_id=only), "", person(*tenants))
        return [pool.pool_id for pool in page.items]

    assert listed("acme") == ["c", "a"]
    assert listed("*") == ["c", "b", "a"]
    assert listed("acme", "third") == ["c", "a"]
    assert listed("*", only="other") == ["b"]


@pytest.mark.parametrize("application", [None, "docs"])
def test_a_change_touches_the_applications_it_is_for(mesh: Mesh, application: str | None) -> None:
    mesh.workload()
    mesh.workload(application_id="mail")

    make(mesh, application_id=application)
    assert (generation(mesh), generation(mesh, "mail")) == (1, 0 if application else 1)
    assert ("ready", "acme/docs") in mesh.signals
    assert (("ready", "acme/mail") in mesh.signals) == (application is None)
    make(mesh, application_id=application)
    assert generation(mesh) == 1
    drop(mesh)
    assert generation(mesh) == 2


def test_what_is_done_to_a_pool_is_written_down(mesh: Mesh) -> None:
    make(mesh, by=person("acme"))
    change(mesh, max_concurrency=2)
    drop(mesh)

    events = mesh.conn.execute("SELECT kind, tenant_id, actor FROM events ORDER BY seq").fetchall()
    assert [tuple(row) for row in events] == [
        ("pool_create", "acme", "human:ann"),
        ("pool_replace", "acme", "service:local"),
        ("pool_delete", "acme", "service:local"),
    ]
    acts = mesh.conn.execute(
        "SELECT action, subject FROM audit WHERE kind = 'act' AND actor <> 'service:feltd'"
    ).fetchall()
    assert [tuple(row) for row in acts] == [
        ("pool_create", "acme/gpu"),
        ("pool_replace", "acme/gpu"),
        ("pool_delete", "acme/gpu"),
    ]

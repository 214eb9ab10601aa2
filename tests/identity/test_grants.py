"""Grants: who may issue, change and revoke them; what a change does to all below."""

from typing import Any

import pytest

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import grants, pages
from feltd.identity.principals import LOCAL
from feltd.model.base import Caller, Subject
from feltd.model.grant import DEPTH_MAX, Grant, GrantConstraints
from feltd.model.page import PageAsk
from feltd.store.tx import Tx
from tests.identity.house import (
    DAY_MS,
    HOUR_MS,
    START_MS,
    House,
    exact,
    pointers,
    prefix,
    reasons,
)


def issuer(house: House, **more: Any) -> Caller:
    return house.caller(**{"scopes": ["grants:issue"], **more})


def test_a_grant_is_as_it_was_issued(house: House) -> None:
    by = issuer(house, identity_id="boss", subject_type="human")

    grant = house.grant(
        "registrar",
        by,
        capabilities=("worker:register", "worker:capability:b", "worker:capability:b"),
        resources=(prefix("b*"), exact("a"), prefix("b*")),
        constraints=GrantConstraints(
            max_workers=3, labels={"zone": "a"}, runtimes=("wasm", "process", "wasm")
        ),
    )

    assert grant.contract_version == 1
    assert (grant.issuer, grant.subject) == (
        Subject(kind="human", id="boss"),
        Subject(kind="service", id="registrar"),
    )
    assert grant.capabilities == ("worker:capability:b", "worker:register")
    assert grant.resources == (exact("a"), prefix("b*"))
    assert grant.constraints == GrantConstraints(
        max_workers=3, labels={"zone": "a"}, runtimes=("process", "wasm")
    )
    assert (grant.issued_at_ms, grant.expires_at_ms) == (START_MS, START_MS + DAY_MS)
    assert (grant.revision, grant.status, grant.depth, grant.parent_grant) == (1, "ACTIVE", 0, None)


def test_issuing_needs_the_scope_and_the_tenant(house: House) -> None:
    nobody = house.caller(scopes=["keys:admin"])
    by = issuer(house)

    assert house.refusal(lambda: house.grant(by=nobody)).code == "FORBIDDEN"
    assert house.refusal(lambda: house.grant(by=by, tenant_id="other")).code == "FORBIDDEN"
    house.revoke_key(by.key_id)
    assert house.refusal(lambda: house.grant(by=by)).code == "UNAUTHENTICATED"


@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"resources": (prefix("flow://docs/workers/"),)}, "/resources/0/uri"),
        ({"resources": (exact("a"), prefix("a*b*"))}, "/resources/1/uri"),
        ({"expires_at_ms": START_MS}, "/expires_at_ms"),
    ],
)
def test_a_grant_that_makes_no_sense_is_refused(
    house: House, more: dict[str, Any], pointer: str
) -> None:
    refused = house.refusal(lambda: house.grant(**more))

    assert (refused.code, pointers(refused)) == ("GRANT_INVALID", [pointer])


# Use


def test_a_grant_is_used_by_its_subject_while_it_is_live(house: House) -> None:
    grant = house.grant("registrar", expires_at_ms=START_MS + HOUR_MS)
    subject = house.caller(identity_id="registrar")

    assert house.usable(subject, grant) == grant
    house.later(HOUR_MS - 1)
    assert house.usable(subject, grant) == grant
    house.later(1)
    refused = house.refusal(lambda: house.usable(subject, grant, code="WORKER_UNAUTHORIZED"))
    assert refused.code == "WORKER_UNAUTHORIZED"


def test_a_grant_is_of_no_use_to_others(house: House) -> None:
    grant = house.grant("registrar")
    others = (
        house.caller(identity_id="somebody"),
        house.caller(identity_id="registrar", subject_type="agent"),
        house.caller(identity_id="registrar", tenants=["other"]),
        house.caller(scopes=["*"], tenants=["*"]),
    )

    for caller in others:
        assert house.refusal(lambda c=caller: house.usable(c, grant)).code == "GRANT_DENIED"
    assert house.refusal(lambda: house.usable(others[0])).code == "GRANT_DENIED"


def test_a_foreign_grant_and_a_made_up_one_are_refused_alike(house: House) -> None:
    foreign = house.grant("registrar", tenant_id="other")
    caller = house.caller(identity_id="registrar")

    def refusal(grant_id: str) -> Refused:
        return house.refusal(
            lambda: house.see(lambda tx, now: grants.usable(tx, caller, now, grant_id))
        )

    assert refusal(foreign.id).detail == refusal("grant_made_up").detail


def test_to_do_a_thing_includes_to_ask_for_it(house: House) -> None:
    grant = house.grant(capabilities=("worker:capability:do", "workload:capability:ask"))

    assert grants.covers(grant, ())
    assert grants.covers(grant, ("do", "ask"))
    assert not grants.covers(grant, ("do", "other"))
    assert grants.granted(grant, ("do", "ask", "other", "do")) == ("do",)


def test_a_grant_reaches_what_its_scopes_name(house: House) -> None:
    grant = house.grant(resources=(prefix("flow://docs/workers/edge-*"), exact("flow://docs/x")))

    assert grants.reaches(grant, "flow://docs/workers/edge-1")
    assert grants.reaches(grant, "flow://docs/workers/edge-")
    assert grants.reaches(grant, "flow://docs/x")
    for uri in ("flow://docs/workers/edge", "flow://docs/xy", "flow://other/workers/edge-1", ""):
        assert not grants.reaches(grant, uri)


# Children


def test_a_subject_hands_on_what_it_has(house: House) -> None:
    parent = house.grant("registrar", constraints=GrantConstraints(max_concurrency=8))
    subject = house.caller(identity_id="registrar")

    child = house.child(
        parent,
        subject,
        capabilities=("workload:capability:extract",),
        resources=(exact("flow://docs/workers/one"),),
        expires_at_ms=parent.expires_at_ms - 1,
    )

    assert (child.parent_grant, child.depth) == (parent.id, 1)
    assert child.issuer == subject.subject
    # What the child does not name it takes over.
    assert child.constraints == GrantConstraints(max_concurrency=8)
    assert house.ask(grants.show, subject, id=child.id) == child
    assert house.refusal(lambda: house.ask(grants.show, subject, id=parent.id)).code == "FORBIDDEN"


@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"capabilities": ("worker:capability:other",)}, "/capabilities/0"),
        ({"capabilities": ("worker:register", "grants:issue")}, "/capabilities/1"),
        ({"resources": (prefix("flow://docs/*"),)}, "/resources/0"),
        ({"resources": (exact("flow://other/x"),)}, "/resources/0"),
        ({"constraints": GrantConstraints(max_concurrency=9)}, "/constraints/max_concurrency"),
        ({"constraints": GrantConstraints(labels={"zone": "b"})}, "/constraints/labels"),
        ({"constraints": GrantConstraints(labels={"trusted/x": "1"})}, "/constraints/labels"),
        ({"expires_at_ms": START_MS + DAY_MS + 1}, "/expires_at_ms"),
        ({"tenant_id": "other"}, "/tenant_id"),
        ({"application_id": "other"}, "/application_id"),
    ],
)
def test_a_child_is_a_subset_in_every_member(
    house: House, more: dict[str, Any], pointer: str
) -> None:
    constraints = GrantConstraints(max_concurrency=8, labels={"zone": "a"})
    parent = house.grant("registrar", constraints=constraints)

    for by in (LOCAL, house.caller(scopes=["grants:issue"], tenants=["acme", "other"])):
        refused = house.refusal(lambda b=by: house.child(parent, b, **more))
        assert (refused.code, pointers(refused)) == ("GRANT_INVALID", [pointer])


def test_nobody_else_hands_it_on(house: House) -> None:
    parent = house.grant(Subject(kind="worker", id="worker_1"))
    somebody = house.caller(identity_id="somebody")
    stranger = house.caller(identity_id="registrar", tenants=["other"])
    worker = house.issue_worker_key(house.caller(), house.worker("worker_1"))

    assert worker.subject == parent.subject
    assert house.refusal(lambda: house.child(parent, worker)).code == "FORBIDDEN"
    assert house.refusal(lambda: house.child(parent, somebody)).code == "FORBIDDEN"
    foreign = house.refusal(lambda: house.child(parent, stranger))
    made_up = house.refusal(lambda: house.child(parent, stranger, parent_grant="grant_made_up"))
    assert (foreign.code, foreign.detail) == (made_up.code, made_up.detail)
    assert foreign.code == "GRANT_NOT_FOUND"


def test_a_dead_parent_has_no_more_children(house: House) -> None:
    parent = house.grant()
    child = house.child(parent)
    house.revoke(parent)

    for grant in (parent, child):
        assert house.refusal(lambda g=grant: house.child(g)).code == "GRANT_DENIED"


def test_a_chain_has_at_most_eight_grants_above(house: House) -> None:
    grant = house.grant()
    for _ in range(DEPTH_MAX):
        grant = house.child(grant)
    assert grant.depth == DEPTH_MAX

    refused = house.refusal(lambda: house.child(grant))

    assert (refused.code, pointers(refused)) == ("GRANT_INVALID", ["/parent_grant"])


def test_a_root_has_a_bounded_family(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grants, "DESCENDANTS_MAX", 3)
    root = house.grant()
    other = house.child(root)
    child = house.child(root)
    house.child(child)

    refused = house.refusal(lambda: house.child(child))
    assert (refused.code, pointers(refused)) == ("GRANT_INVALID", ["/parent_grant"])
    # What is dead makes room.
    house.revoke(other)
    house.child(child)


# Revocation and change


def family(house: House) -> tuple[Grant, Grant, Grant, Grant]:
    """A root, its child, its grandchild, and a second child."""
    root = house.grant("registrar")
    child = house.child(root)
    return root, child, house.child(child), house.child(root)


def test_a_revoked_grant_takes_all_below_it_along(house: House) -> None:
    root, child, grandchild, other = family(house)
    subject = house.caller(identity_id="child")

    affected = house.revoke(child, reason="the contract ended")

    assert affected.grant_ids == (child.id, grandchild.id)
    assert house.read(child).status == "REVOKED"
    assert (house.read(grandchild).status, house.read(grandchild).chain_live) == ("ACTIVE", False)
    for dead in (child, grandchild):
        assert house.refusal(lambda d=dead: house.usable(subject, d)).code == "GRANT_DENIED"
    assert house.usable(subject, other) == other
    assert house.read(root).chain_live


def test_revoking_again_changes_nothing(house: House) -> None:
    root, *_ = family(house)
    house.revoke(root)
    before = house.dump()

    assert house.revoke(root).grant_ids == ()

    assert house.dump() == before


def test_keys_bound_to_what_was_revoked_end_and_so_do_theirs(house: House) -> None:
    root, child, *_ = family(house)
    bound = house.caller(identity_id="child", grant_id=child.id)
    worker = house.issue_worker_key(bound, house.worker("worker_1"), grant_id=child.id)
    spared = house.caller(identity_id="registrar")

    house.revoke(root)

    assert [house.ended(it.key_id) for it in (bound, worker)] == ["grant_ended", "grant_ended"]
    assert house.ended(spared.key_id) is None
    assert house.ended_now == sorted(
        [("grant", ""), *(("key", it.key_id) for it in (bound, worker))]
    )


def test_a_revoked_grant_is_never_changed_again(house: House) -> None:
    root, child, *_ = family(house)
    house.revoke(root)

    for grant in (root, child):
        refused = house.refusal(lambda g=grant: house.replace(g, expires_at_ms=START_MS + 1))
        assert refused.code == "GRANT_DENIED"
    with pytest.raises(Exception, match="stays revoked"):
        house.conn.execute("UPDATE grants SET status = 'ACTIVE'")


def test_extending_a_grant_gives_its_chain_back_its_time(house: House) -> None:
    root = house.grant("registrar", expires_at_ms=START_MS + HOUR_MS)
    child = house.child(root)
    house.replace(root, expires_at_ms=START_MS + DAY_MS)
    house.replace(child, expires_at_ms=START_MS + DAY_MS)

    affected = house.replace(root, expires_at_ms=START_MS + 2 * HOUR_MS)

    assert affected.grant_ids == (root.id, child.id)
    assert house.read(child).chain_expires_at_ms == START_MS + 2 * HOUR_MS
    assert house.read(child).expires_at_ms == START_MS + DAY_MS
    house.replace(root, expires_at_ms=START_MS + 9 * DAY_MS)
    assert house.read(child).chain_expires_at_ms == START_MS + DAY_MS


def test_the_same_content_again_changes_nothing(house: House) -> None:
    root, *_ = family(house)
    before = house.dump()

    affected = house.replace(root, capabilities=root.capabilities[::-1])

    assert affected.grant_ids == ()
    assert house.dump() == before


def test_a_narrowed_grant_narrows_all_below_for_good(house: House) -> None:
    root, child, grandchild, _ = family(house)

    house.replace(root, capabilities=("worker:register", "workload:capability:extract"))

    for narrowed in (child, grandchild):
        found = house.read(narrowed)
        # Doing shrank to asking.
        assert found.capabilities == ("worker:register", "workload:capability:extract")
        assert found.revision == 2
    house.replace(root)
    assert house.read(root).capabilities == root.capabilities
    assert house.read(child).capabilities == ("worker:register", "workload:capability:extract")


def test_what_hangs_below_a_revoked_grant_is_left_as_it_is(house: House) -> None:
    root, child, grandchild, other = family(house)
    house.revoke(child)
    before = house.read(grandchild)

    affected = house.replace(root, expires_at_ms=START_MS + HOUR_MS)

    assert affected.grant_ids == (root.id, other.id)
    assert house.read(grandchild) == before


def test_a_changed_child_stays_within_its_parent(house: House) -> None:
    _, child, *_ = family(house)

    refused = house.refusal(
        lambda: house.replace(child, capabilities=("x",), expires_at_ms=START_MS + 2 * DAY_MS)
    )

    assert refused.code == "GRANT_INVALID"
    assert pointers(refused) == ["/capabilities/0", "/expires_at_ms"]


@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"subject": Subject(kind="service", id="x")}, "/subject"),
        ({"tenant_id": "x"}, "/tenant_id"),
        ({"application_id": "x"}, "/application_id"),
        ({"parent_grant": "x"}, "/parent_grant"),
    ],
)
def test_who_and_where_a_grant_is_for_never_changes(
    house: House, more: dict[str, Any], pointer: str
) -> None:
    grant = house.grant()

    refused = house.refusal(lambda: house.replace(grant, **more))

    assert (refused.code, pointers(refused)) == ("GRANT_INVALID", [pointer])
    house.replace(grant, subject=grant.subject, tenant_id="acme", application_id="docs")


def test_a_grant_is_changed_by_its_issuers_and_a_child_by_its_parents_subject(
    house: House,
) -> None:
    """BC-093: whoever is not of the tenant changes nothing, and learns nothing."""
    root, child, *_ = family(house)
    subject = house.caller(identity_id="registrar")
    holder = house.caller(identity_id="child")
    stranger = issuer(house, tenants=["other"])

    def revoke(grant: Grant, by: Caller) -> str:
        return house.refusal(lambda: house.revoke(grant, by)).code

    def replace(grant: Grant, by: Caller) -> str:
        return house.refusal(lambda: house.replace(grant, by, capabilities=())).code

    for verb in (revoke, replace):
        assert verb(root, subject) == "FORBIDDEN"
        assert verb(child, holder) == "FORBIDDEN"
        assert verb(root, stranger) == verb(child, stranger) == "GRANT_NOT_FOUND"
    house.revoke(child, subject)
    house.revoke(root, issuer(house))


def test_a_caller_whose_key_ended_changes_no_grant(house: House) -> None:
    grant, by = house.grant(), issuer(house)
    house.revoke_key(by.key_id)

    for verb in (lambda: house.revoke(grant, by), lambda: house.replace(grant, by)):
        refused = house.refusal(verb)
        assert (refused.code, reasons(refused)) == ("UNAUTHENTICATED", ["revoked"])


def test_each_deed_is_an_audit_row_with_its_reason(house: House) -> None:
    root, *_ = family(house)
    house.replace(root, expires_at_ms=START_MS + HOUR_MS)
    house.revoke(root, reason="lost laptop")

    sql = "SELECT action, subject, reason FROM audit ORDER BY seq DESC LIMIT 2"

    assert [tuple(row) for row in house.rows(sql)] == [
        ("revoke_grant", root.id, "lost laptop"),
        ("replace_grant", root.id, None),
    ]


# Lists


def listed(house: House, by: Caller, **more: Any) -> list[str]:
    found: list[str] = []
    after = None
    while True:
        page = house.ask(grants.page, by, PageAsk(after=after, **more))
        found += [grant.id for grant in page.items]
        if page.after is None:
            return found
        after = page.after


def test_a_list_shows_newest_first_each_once_and_only_ones_own_tenants(house: House) -> None:
    mine, others = [], []
    for _ in range(5):
        house.later(1)
        mine.append(house.grant().id)
        others.append(house.grant(tenant_id="other").id)
        house.grant(tenant_id="third")
    both = [grant for pair in zip(mine, others, strict=True) for grant in pair]

    for limit in (1, 2, 5, 500):
        assert listed(house, issuer(house), limit=limit) == mine[::-1]
        two = issuer(house, tenants=["acme", "other"])
        assert listed(house, two, limit=limit) == both[::-1]
        assert listed(house, two, limit=limit, tenant_id="other") == others[::-1]
        assert len(listed(house, LOCAL, limit=limit)) == 15


def test_a_page_reads_a_bounded_number_of_rows(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "ROWS_READ_MAX", 4)
    monkeypatch.setattr(pages, "LIMIT_MAX", 2)
    wanted = house.grant().id
    for _ in range(9):
        house.later(1)
        house.grant(tenant_id="third")
    by = issuer(house, tenants=["acme", "other"])

    first = house.ask(grants.page, by, PageAsk(limit=2))

    assert first.items == ()
    assert first.after is not None
    assert listed(house, by, limit=2) == [wanted]


def test_using_a_grant_is_one_statement_and_no_scan(house: House) -> None:
    grant = house.grant("registrar")
    caller = house.caller(identity_id="registrar")

    def count(tx: Tx, now: Now) -> int:
        grants.usable(tx, caller, now, grant.id)
        return tx.statements

    assert house.see(count) == 1
    for sql, params in (
        (grants.READ, {"grant_id": "x"}),
        (grants.PAGE, {"at_ms": 1, "id": "", "rows": 5}),
        (grants.PAGE_OF_TENANT, {"tenant_id": "a", "at_ms": 1, "id": "", "rows": 5}),
    ):
        plan = house.conn.execute("EXPLAIN QUERY PLAN " + sql, params).fetchall()
        assert not any("SCAN" in row["detail"] or "TEMP" in row["detail"] for row in plan), sql

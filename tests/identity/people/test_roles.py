"""Roles: a session is of just those tenants where its role holds what the call needs."""

import pytest

from feltd.identity import roles
from feltd.model.base import Caller, Subject
from feltd.model.key import Scope


def person(**held: str) -> Caller:
    return Caller(
        subject=Subject(kind="human", id="ada"),
        key_id="s" * 12,
        session_id="s" * 12,
        roles={"*" if tenant == "every" else tenant: role for tenant, role in held.items()},
    )


def test_a_session_that_nobody_narrowed_holds_nothing() -> None:
    ada = person(every="admin")

    assert not ada.holds("workloads:read")
    assert not ada.may_see("acme")


def test_each_role_holds_what_the_one_before_holds_and_every_scope_is_some_role_s() -> None:
    viewer, operator, admin = (roles.SCOPES[name] for name in ("viewer", "operator", "admin"))

    assert viewer < operator < admin
    assert admin == set(Scope.__args__) - {"*"}
    assert viewer == {scope for scope in admin if scope.endswith(":read")}


def test_a_role_in_one_tenant_does_nothing_in_another() -> None:
    ada = person(acme="admin", globex="viewer")

    reading = roles.narrow(ada, "workloads:read")
    acting = roles.narrow(ada, "workloads:operate")

    assert reading.tenants == ("acme", "globex")
    assert not reading.holds("workloads:operate"), "in globex she may only look"
    assert acting.tenants == ("acme",)
    assert acting.holds("keys:admin")


def test_whoever_lacks_the_scope_everywhere_keeps_his_tenants_and_is_refused_for_the_scope() -> (
    None
):
    ada = roles.narrow(person(acme="viewer", globex="operator"), "keys:admin")

    assert ada.tenants == ("acme", "globex")
    assert not ada.holds("keys:admin")
    assert ada.scopes == roles.SCOPES["viewer"]


def test_a_call_that_names_its_tenant_may_do_what_its_role_there_allows() -> None:
    ada = person(acme="operator", globex="admin")

    here = roles.narrow(ada, "state:write", "globex")
    there = roles.narrow(ada, "state:write", "acme")
    nowhere = roles.narrow(ada, "state:write", "initech")

    assert (here.tenants, here.holds("capabilities:write")) == (("globex",), True)
    assert not there.holds("capabilities:write")
    assert "initech" not in nowhere.tenants


def test_a_role_of_every_tenant_is_one_in_each_and_the_greater_of_two_counts() -> None:
    ada = person(every="viewer", acme="admin")

    assert roles.narrow(ada, "workloads:read").tenants == ("*",)
    assert roles.narrow(ada, "keys:admin").tenants == ("acme",)
    assert roles.narrow(ada, "workloads:read", "acme").holds("keys:admin")
    assert not roles.narrow(ada, "workloads:read", "globex").holds("keys:admin")
    assert roles.narrow(person(every="admin", acme="viewer"), "keys:admin").tenants == ("*",)


@pytest.mark.parametrize("scope", [None, "workloads:read", "keys:admin"])
def test_somebody_without_a_role_has_no_tenant(scope: str | None) -> None:
    ada = roles.narrow(person(), scope, "acme")

    assert (ada.tenants, ada.scopes) == ((), frozenset())


def test_narrowing_never_gives_more_than_the_role_in_any_tenant_of_it() -> None:
    names = ("", "viewer", "operator", "admin")
    for here in names:
        for there in names:
            for every in names:
                held = {"acme": here, "globex": there, "*": every}
                ada = person()
                assert ada.roles is not None
                ada.roles.update({tenant: role for tenant, role in held.items() if role})
                for scope in (None, *sorted(roles.SCOPES["admin"])):
                    for named in (None, "acme", "globex", "initech"):
                        narrowed = roles.narrow(ada, scope, named)
                        assert roles.covers(ada.roles, narrowed), (held, scope, named)


def test_a_word_that_is_no_role_allows_nothing() -> None:
    assert roles.scopes_in({"acme": "owner"}, "acme") == frozenset()

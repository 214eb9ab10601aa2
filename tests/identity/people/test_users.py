"""Users: nobody hands out more than he has, and who is disabled is so for ever."""

import sqlite3
from typing import Any

import pytest

from feltd.errors import Refused
from feltd.identity import users
from feltd.identity.principals import LOCAL
from feltd.model.base import Subject
from feltd.state import promises
from feltd.store.tx import Tx
from tests.identity.house import pointers
from tests.identity.people.town import ANOTHER, KEPT, Town


def test_a_user_is_made_with_roles_and_shown_without_anything_to_log_in_with(town: Town) -> None:
    made = town.user("ada", acme="operator", globex="viewer")

    assert (made.username, made.roles) == ("ada", {"acme": "operator", "globex": "viewer"})
    assert (made.created_by, made.sessions, made.disabled_at_ms) == ("service:local", 0, None)
    assert not any("argon2" in str(getattr(made, name)) for name in made.__struct_fields__)


@pytest.mark.parametrize("name", ["ada", "Ada", "ADA"])
def test_a_name_is_one_user_in_any_case(town: Town, name: str) -> None:
    town.user("ada")

    assert town.refusal(lambda: town.user(name)).code == "USER_EXISTS"


def test_an_admin_of_one_tenant_makes_users_of_it_alone(town: Town) -> None:
    town.user("ada", acme="admin", globex="viewer")
    ada = town.logged_in("ada", users.SCOPE)

    assert town.user("bob", by=ada, acme="admin").created_by == "human:ada"
    beyond = town.refusal(lambda: town.user("eve", by=ada, acme="viewer", globex="viewer"))
    everywhere = town.refusal(lambda: town.user("eve", by=ada, every="viewer"))

    assert (beyond.code, pointers(beyond)) == ("FORBIDDEN", ["/roles/globex"])
    assert (everywhere.code, pointers(everywhere)) == ("FORBIDDEN", ["/roles/*"])


def test_a_key_that_may_make_users_hands_out_no_role_that_may_do_more(town: Town) -> None:
    key = town.caller(scopes=["users:admin", "workloads:read"], tenants=["acme"])

    refused = town.refusal(lambda: town.user("bob", by=key, acme="viewer"))

    assert (refused.code, pointers(refused)) == ("FORBIDDEN", ["/roles/acme"])
    assert "audit:read" in refused.detail
    assert town.user("bob", by=key).roles == {}


def test_whom_a_grant_was_given_to_is_made_only_by_who_may_give_grants(town: Town) -> None:
    town.grant(Subject(kind="human", id="carol"))
    operator = ("claims:validate", "daemon:operate", "pools:write", "state:write", "triggers:write")
    operator += ("workers:operate", "workloads:create", "workloads:operate", "users:admin")
    reads = ("audit:read", "events:read", "metrics:read", "state:read", "triggers:read")
    scopes = [*operator, *reads, "workers:read", "workloads:read"]
    key = town.caller(scopes=scopes, tenants=["acme"])

    refused = town.refusal(lambda: town.user("carol", by=key, acme="viewer"))

    assert (refused.code, pointers(refused)) == ("FORBIDDEN", ["/username"])
    town.user("carol", by=key)
    assert town.refusal(lambda: town.role("carol", by=key, acme="viewer")).code == "FORBIDDEN"
    assert town.refusal(lambda: town.sign_up("carol")).code == "USER_EXISTS"
    assert town.role("carol", acme="viewer").roles == {"acme": "viewer"}


def test_a_viewer_and_an_operator_make_nobody(town: Town) -> None:
    for name in ("viewer", "operator"):
        town.user(name, every=name)
        caller = town.logged_in(name, users.SCOPE)

        assert town.refusal(lambda by=caller: town.user("bob", by=by)).code == "FORBIDDEN"
        assert town.refusal(lambda by=caller, n=name: town.disable(n, by=by)).code == "FORBIDDEN"
        with pytest.raises(Refused, match="users:admin"):
            town.people(by=caller)


def test_a_user_of_other_tenants_answers_like_one_who_was_never_made(town: Town) -> None:
    town.user("ada", acme="admin")
    town.user("gus", globex="viewer")
    town.user("root", every="admin")
    ada = town.logged_in("ada", users.SCOPE)

    told = [
        town.refusal(lambda n=name: town.disable(n, by=ada)) for name in ("gus", "root", "noone")
    ]
    told += [town.refusal(lambda: town.role("gus", by=ada, acme="viewer"))]

    assert {(one.code, one.detail) for one in told} == {("USER_NOT_FOUND", "no such user")}
    assert town.names(by=ada) == ["ada"]


def test_lists_show_the_roles_of_the_callers_tenants_newest_first(town: Town) -> None:
    town.user("ada", acme="admin")
    town.later(1)
    town.user("both", acme="viewer", globex="admin")
    town.later(1)
    town.user("newcomer")
    ada = town.logged_in("ada", users.SCOPE)

    assert town.names(by=ada) == ["newcomer", "both", "ada"]
    assert [one.roles for one in town.people(by=ada).items] == [
        {}, {"acme": "viewer"}, {"acme": "admin"}
    ]  # fmt: skip
    assert town.names(tenant_id="globex") == ["both"]
    first = town.people(limit=2)
    assert [one.username for one in first.items] == ["newcomer", "both"]
    assert town.names(after=first.after) == ["ada"]


def test_roles_are_given_and_taken_tenant_by_tenant(town: Town) -> None:
    town.user("ada", acme="admin")
    town.user("both", acme="viewer", globex="admin")
    ada = town.logged_in("ada", users.SCOPE)

    assert town.role("both", by=ada, acme="operator").roles == {"acme": "operator"}
    assert town.role("both", acme="operator").roles == {"acme": "operator", "globex": "admin"}
    foreign = town.refusal(lambda: town.role("both", by=ada, globex=None))
    assert (foreign.code, pointers(foreign)) == ("FORBIDDEN", ["/roles/globex"])

    assert town.role("both", by=ada, acme=None).roles == {}
    assert town.refusal(lambda: town.role("both", by=ada, acme="viewer")).code == "USER_NOT_FOUND"


def test_an_admin_may_give_up_his_own_role(town: Town) -> None:
    town.user("ada", acme="admin")
    ada = town.logged_in("ada", users.SCOPE)

    assert town.role("ada", by=ada, acme="viewer").roles == {"acme": "viewer"}

    assert town.refusal(lambda: town.role("ada", by=ada, acme="admin")).code == "FORBIDDEN"


def test_changing_nothing_writes_nothing(town: Town) -> None:
    town.user("ada", acme="viewer")
    before = town.dump()

    town.role("ada", acme="viewer", globex=None)

    assert town.dump() == before


def test_who_is_disabled_stays_so_and_his_name_is_never_given_again(town: Town) -> None:
    town.user("ada", acme="viewer")
    done = town.disable("ada")
    town.later(1_000)

    again = town.disable("ada")

    assert again.disabled_at_ms == done.disabled_at_ms
    assert town.refusal(lambda: town.user("ada")).code == "USER_EXISTS"
    assert town.refusal(lambda: town.role("ada", acme="admin")).code == "REQUEST_INVALID"
    assert town.refusal(lambda: town.change_password(LOCAL, proven=None)).code == "REQUEST_INVALID"
    for sql in (
        "UPDATE users SET disabled_at_ms = NULL, disabled_by = NULL",
        "DELETE FROM users",
        "UPDATE users SET name = 'eve'",
    ):
        with pytest.raises(sqlite3.IntegrityError):
            town.rows(sql)


def test_somebody_with_roles_elsewhere_is_disabled_by_who_has_all_those_tenants(town: Town) -> None:
    town.user("ada", acme="admin")
    town.user("both", acme="viewer", globex="viewer")
    ada = town.logged_in("ada", users.SCOPE)

    assert town.refusal(lambda: town.disable("both", by=ada)).code == "FORBIDDEN"
    town.user("root", every="admin")
    root = town.logged_in("root", users.SCOPE)
    assert town.disable("both", by=root).disabled_by == "human:root"


def test_sign_up_is_shut_unless_it_was_opened_and_gives_no_role(town: Town) -> None:
    assert town.refusal(lambda: town.sign_up("ada", opened=False)).code == "FORBIDDEN"

    made = town.sign_up("ada")

    assert (made.roles, made.created_by) == ({}, "human:ada")
    assert town.caller_of(town.session("ada")).tenants == ()


def test_no_more_people_wait_for_a_role_than_somebody_looks_through(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users, "WAITING_MAX", 2)
    town.sign_up("one")
    town.sign_up("two")

    assert town.refusal(lambda: town.sign_up("three")).code == "QUOTA_EXCEEDED"

    town.role("one", acme="viewer")
    town.sign_up("three")
    town.disable("two")
    town.sign_up("four")


def test_what_people_do_is_audited_and_no_digest_is_of_a_password(town: Town) -> None:
    town.user("ada", acme="viewer")
    first = town.rows("SELECT digest FROM audit WHERE action = 'create_user'")[0]["digest"]
    town.role("ada", acme="operator")
    session = town.session("ada")
    town.change_password(town.caller_of(session))
    town.sign_up("bob")
    town.disable("ada")

    session_id = town.standing(session).caller.session_id
    assert town.acts()[1:] == [
        ("service:local", "create_user", "ada"),
        ("service:local", "change_role", "ada"),
        ("human:ada", "login", session_id),
        ("human:ada", "change_password", "ada"),
        ("human:bob", "signup", "bob"),
        ("service:local", "disable_user", "ada"),
    ]
    # Another password, the same digest: nobody can try passwords against it.
    other = Town()
    other.user("ada", acme="viewer")
    assert other.rows("SELECT digest FROM audit WHERE action = 'create_user'")[0][0] == first
    other.conn.close()


def test_a_row_that_a_hand_has_spoilt_gives_no_role_and_breaks_a_promise(town: Town) -> None:
    def broken() -> list[str]:
        return [one.id for one in promises.ask(Tx(town.conn))]

    town.user("ada", acme="admin")
    session = town.session("ada")
    assert broken() == []

    for spoilt in ('{"acme": "owner"}', '{"acme": 1}'):
        town.rows("UPDATE users SET roles = ?", spoilt)
        assert "PEOPLE" in broken()
        ask: Any = town.people
        assert [one.roles for one in ask().items] == [{}]
        with pytest.raises(KeyError):
            town.standing(session)
    town.rows("UPDATE users SET roles = '{}'")


def test_a_session_that_a_hand_left_to_somebody_disabled_breaks_a_promise_and_lets_nobody_in() -> (
    None
):
    town = Town()
    town.user("ada", acme="admin")
    session = town.session("ada")
    caller = town.caller_of(session)

    town.rows("UPDATE users SET disabled_at_ms = 1, disabled_by = 'a hand'")

    assert [one.id for one in promises.ask(Tx(town.conn))] == ["PEOPLE"]
    assert town.standing(session).until_ms == 0
    assert town.refusal(lambda: town.confirm(caller)).code == "UNAUTHENTICATED"
    town.conn.close()


def test_the_local_operator_replaces_a_forgotten_password(town: Town) -> None:
    town.user("ada")
    session = town.session("ada")

    town.change_password(LOCAL, proven=None)

    assert town.told() == [town.standing(session).caller.session_id]
    assert town.refusal(lambda: town.session("ada", KEPT)).code == "UNAUTHENTICATED"
    town.session("ada", ANOTHER)
    missing = town.refusal(lambda: town.change_password(LOCAL, "noone", None))
    assert missing.code == "USER_NOT_FOUND"

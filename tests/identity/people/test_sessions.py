"""Sessions: twelve hours, an hour without use, and gone with whatever ends them."""

import sqlite3

import pytest

from feltd.identity import bearer, keys, sessions
from feltd.identity.principals import IDLE_MS
from feltd.model.user import SessionMade
from tests.identity.house import HOUR_MS, reasons
from tests.identity.people.town import ANOTHER, Town


def ending(town: Town, session: SessionMade) -> str | None:
    """What a session's bearer would be told at the door."""
    why = town.standing(session).ending(town.wall_ms)
    return None if why is None else why.detail


def refused(town: Town, session: SessionMade) -> list[str]:
    """What a rule tells a caller whose session has ended."""
    return reasons(town.refusal(lambda: town.confirm(town.caller_of(session))))


def test_a_session_is_a_bearer_of_its_own_kind_and_is_kept_as_a_digest(town: Town) -> None:
    town.user("ada")

    made = town.session("ada")

    assert made.session.startswith("felt_h_")
    assert bearer.parse(made.session) is not None
    assert made.expires_at_ms == town.wall_ms + 12 * HOUR_MS
    secret = made.session[20:]
    assert not any(secret in line for line in town.dump())
    assert str(town.caller_of(made).subject) == "human:ada"


def test_each_login_is_another_session(town: Town) -> None:
    town.user("ada")

    one, two = town.session("ada"), town.session("ada")

    assert one.session != two.session
    town.confirm(town.caller_of(one))
    town.confirm(town.caller_of(two))


def test_a_session_ends_after_twelve_hours_whatever_is_done_with_it(town: Town) -> None:
    town.user("ada")
    session = town.session("ada")
    session_id = str(town.standing(session).caller.session_id)
    for _ in range(11):
        town.later(HOUR_MS)
        used = [(session_id, town.wall_ms)]
        town.do(lambda tx, now, used=used: keys.note_used(tx, used, now))  # type: ignore[misc]
        assert ending(town, session) is None
    town.confirm(town.caller_of(session))

    town.later(HOUR_MS)

    assert ending(town, session) == "the session has expired"
    assert refused(town, session) == ["expired"]


def test_an_hour_without_use_ends_a_session(town: Town) -> None:
    town.user("ada")
    session = town.session("ada")

    town.later(HOUR_MS - 1)
    assert ending(town, session) is None
    town.later(IDLE_MS - HOUR_MS + 1)

    assert ending(town, session) == "nobody used the session for an hour"
    # The row may have learnt of the last use later: a rule waits a little longer than the door.
    town.confirm(town.caller_of(session))
    town.later(HOUR_MS)
    assert refused(town, session) == ["expired"]


def test_use_puts_the_end_off_and_is_known_to_the_minute(town: Town) -> None:
    town.user("ada")
    known = town.standing(town.session("ada"))

    town.later(HOUR_MS - 1)
    known.used(town.wall_ms // 60_000)
    town.later(HOUR_MS)

    assert known.ending(town.wall_ms) is None
    assert known.until_ms <= town.wall_ms + 60_000


def test_logging_out_ends_this_session_and_no_other(town: Town) -> None:
    town.user("ada")
    one, two = town.session("ada"), town.session("ada")
    caller = town.caller_of(one)

    town.ask(sessions.logout, caller)

    assert town.told() == [caller.session_id]
    assert refused(town, one) == ["revoked"]
    assert ending(town, one) == "the session was logged out"
    town.confirm(town.caller_of(two))


def test_a_key_cannot_log_out(town: Town) -> None:
    key = town.caller(scopes=["*"])

    assert town.refusal(lambda: town.ask(sessions.logout, key)).code == "FORBIDDEN"


def test_a_new_password_ends_every_other_session_of_the_user(town: Town) -> None:
    town.user("ada")
    town.user("bob")
    own, other, bobs = town.session("ada"), town.session("ada"), town.session("bob")

    town.change_password(town.caller_of(own))

    assert town.told() == [town.standing(other).caller.session_id]
    town.confirm(town.caller_of(own))
    town.confirm(town.caller_of(bobs))
    assert ending(town, other) == "the password of the session's user was changed"
    assert town.refusal(lambda: town.session("ada")).code == "UNAUTHENTICATED"
    town.session("ada", ANOTHER)


def test_a_password_is_changed_by_a_session_of_its_user_who_knows_the_old_one(town: Town) -> None:
    town.user("ada")
    town.user("bob", every="admin")
    ada, bob = town.logged_in("ada"), town.logged_in("bob", "users:admin")
    key = town.caller(scopes=["*"])

    for by, proven in ((bob, "kept"), (key, "kept"), (ada, None)):
        told = town.refusal(lambda by=by, p=proven: town.change_password(by, "ada", p))  # type: ignore[misc]
        assert told.code == "FORBIDDEN"
    late = town.refusal(lambda: town.change_password(ada, "ada", ANOTHER))
    assert late.code == "UNAUTHENTICATED", "another changed it since it was looked at"


def test_whoever_is_disabled_has_no_session_from_then_on(town: Town) -> None:
    town.user("ada", acme="admin")
    session = town.session("ada")
    caller = town.caller_of(session, "keys:admin")

    town.disable("ada")

    assert refused(town, session) == ["revoked"]
    told = town.refusal(lambda: town.ask(keys.revoke, caller, id="x" * 12))
    assert told.code == "UNAUTHENTICATED"
    assert town.refusal(lambda: town.session("ada")).code == "UNAUTHENTICATED"
    with pytest.raises(sqlite3.IntegrityError, match="disabled user"):
        town.rows(
            "INSERT INTO sessions (session_id, user_name, secret_digest, created_at_ms,"
            " expires_at_ms, last_used_at_ms) VALUES ('aaaaaaaaaaaa', 'ada', ?, 1, 43200001, 1)",
            "sha256:" + "0" * 64,
        )


def test_a_role_that_shrank_since_the_door_refuses_where_it_commits(town: Town) -> None:
    town.user("ada", acme="admin")
    session = town.session("ada")
    before = town.caller_of(session, "keys:admin")

    town.role("ada", acme="viewer")

    assert town.told() == [before.session_id]
    told = town.refusal(lambda: town.key(by=before, tenants=("acme",)))
    assert told.code == "FORBIDDEN"
    after = town.caller_of(session, "keys:admin")
    town.confirm(after)
    assert town.refusal(lambda: town.key(by=after, tenants=("acme",))).code == "FORBIDDEN"


def test_an_admin_makes_keys_that_outlive_his_session_but_never_beyond_his_tenants(
    town: Town,
) -> None:
    town.user("ada", acme="admin", globex="viewer")
    ada = town.logged_in("ada", "keys:admin")

    made = town.key(by=ada, scopes=("workers:register",))

    assert (made.tenants, made.created_by) == (("acme",), "human:ada")
    assert town.refusal(lambda: town.key(by=ada, tenants=("globex",))).code == "FORBIDDEN"
    assert town.refusal(lambda: town.key(by=ada, scopes=("*",))).code == "FORBIDDEN"
    town.ask(sessions.logout, ada)
    town.confirm(town.bearer_of(made))


def test_no_worker_gets_its_key_by_a_session(town: Town) -> None:
    town.user("ada", acme="admin")
    ada = town.logged_in("ada", "workers:register")
    worker_id = town.worker("worker_1")

    told = town.refusal(lambda: town.issue_worker_key(ada, worker_id))

    assert told.code == "FORBIDDEN"


def test_of_many_sessions_of_one_user_the_oldest_give_way(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "LIVE_MAX", 3)
    town.user("ada")
    made = []
    for _ in range(5):
        made.append(town.session("ada"))
        town.later(1)

    assert [ending(town, one) is None for one in made] == [False, False, True, True, True]
    assert ending(town, made[0]) == "newer sessions of the user took the session's place"


def test_what_has_ended_stays_ended_and_is_nobody_elses(town: Town) -> None:
    town.user("ada")
    town.user("bob")
    town.ask(sessions.logout, town.logged_in("ada"))

    for sql in (
        "UPDATE sessions SET ended_at_ms = NULL, ended_reason = NULL",
        "UPDATE sessions SET user_name = 'bob'",
        "UPDATE sessions SET expires_at_ms = expires_at_ms + 1",
    ):
        with pytest.raises(sqlite3.IntegrityError):
            town.rows(sql)


def test_wrong_passwords_are_written_down_once_and_only_for_a_name_somebody_has(
    town: Town,
) -> None:
    town.user("ada")
    before = len(town.acts())

    for name in ("ada", "noone"):
        town.ask(sessions.deny, town.caller(), "wrong passwords, the last from 192.0.2.7", id=name)

    denied = [act for act in town.acts()[before:] if act[1] == "throttle_login"]
    assert denied == [("service:feltd", "throttle_login", "ada")]


def test_a_key_with_the_id_of_a_session_comes_first(town: Town) -> None:
    town.user("ada")
    town.made = 100
    made = town.key()
    town.made = 100
    session = town.session("ada")

    assert bearer.parse(session.session) == made.key_id
    assert town.standing(session).caller.session_id is None
